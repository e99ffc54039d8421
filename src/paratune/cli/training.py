"""Commands that train: one run, many, or the proof that strategies train the same."""

import time
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paratune.cli.options import Json, Overrides

BEGAN = time.perf_counter()


def train(
    config: Path,
    *,
    set_: Overrides = None,
    nproc: Annotated[int, Parameter(help="number of processes to start on this machine")] = 1,
    resume: Annotated[
        bool, Parameter(negative=(), help="resume an unfinished run, or start it when there is none")
    ] = False,
    overwrite: Annotated[bool, Parameter(negative=(), help="delete an existing run folder")] = False,
    json: Json = False,
) -> int:
    """Train the run in CONFIG, evaluate and save its model, and print the result.

    Under torchrun the command is one process of the run; --nproc starts the processes itself.
    """
    from paratune.commands.train import train_command

    return train_command(
        config, set_ or [], num_processes=nproc, resume=resume, overwrite=overwrite, as_json=json, began=BEGAN
    )


def sweep(
    matrix: Path,
    *,
    set_: Overrides = None,
    dry_run: Annotated[bool, Parameter(negative=(), help="show the runs and their problems; start none")] = False,
    only: Annotated[
        list[str] | None,
        Parameter(
            negative=(),
            help="only these runs: AXIS=VALUE[,VALUE] or a pattern of names; repeat it to combine conditions",
        ),
    ] = None,
    retry_failed: Annotated[bool, Parameter(negative=(), help="train failed runs again")] = False,
    overwrite: Annotated[
        bool, Parameter(negative=(), help="delete and train again the runs whose settings changed in MATRIX")
    ] = False,
    probe: Annotated[
        bool, Parameter(negative=(), help="train only 20 steps of each run, to measure speed, in a separate folder")
    ] = False,
    list_: Annotated[
        bool, Parameter(name="--list", negative=(), help="print the command of each run, for a cluster; start none")
    ] = False,
    data_figures: Annotated[
        bool, Parameter(negative=(), help="add figures of the data to the report; reads the data again after the runs")
    ] = False,
    json: Json = False,
) -> int:
    """Train every combination of MATRIX, select the best by validation, and write a report.

    Runs that are impossible here are skipped with the reason. After a crash, repeat the command: finished runs are
    kept, and unfinished runs are resumed.
    """
    from paratune.commands.sweep import sweep_command

    return sweep_command(
        matrix,
        set_ or [],
        dry_run=dry_run,
        only_words=only or [],
        retry_failed=retry_failed,
        overwrite=overwrite,
        as_json=json,
        probe=probe,
        as_list=list_,
        data_figures=data_figures,
    )


def certify(
    config: Path,
    *,
    strategies: Annotated[
        str, Parameter(help="strategies, comma-separated, such as ddp,zero3,hsdp:2 (a value sets the first option)")
    ],
    set_: Overrides = None,
    nproc: Annotated[int, Parameter(help="number of processes of each strategy")] = 2,
    steps: Annotated[int, Parameter(help="number of steps to compare")] = 4,
    json: Json = False,
) -> int:
    """Check that strategies train the same thing: compare a few steps of CONFIG under each with one process.

    Dropout is off. The run itself is not changed; the certificate is written to RUN.certificate.
    """
    from paratune.commands.certify import certify_command

    return certify_command(
        config, set_ or [], strategies=strategies, num_processes=nproc, num_steps=steps, as_json=json
    )
