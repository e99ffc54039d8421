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
    nproc: Annotated[int, Parameter(help="processes to start on this machine")] = 1,
    resume: Annotated[bool, Parameter(negative=(), help="go on with an unfinished run, or begin it")] = False,
    overwrite: Annotated[bool, Parameter(negative=(), help="delete the run folder if it exists")] = False,
    json: Json = False,
) -> int:
    """Train what CONFIG says, and evaluate, save and report it.

    Under torchrun it is one of the run's processes; --nproc starts them itself.
    """
    from paratune.commands.train import train_command

    return train_command(
        config, set_ or [], num_processes=nproc, resume=resume, overwrite=overwrite, as_json=json, began=BEGAN
    )


def sweep(
    matrix: Path,
    *,
    set_: Overrides = None,
    dry_run: Annotated[
        bool, Parameter(negative=(), help="show the runs and what is wrong with them; start none")
    ] = False,
    only: Annotated[
        list[str] | None, Parameter(negative=(), help="AXIS=VALUE[,VALUE] or a pattern of names; all of them must hold")
    ] = None,
    retry_failed: Annotated[bool, Parameter(negative=(), help="train again what failed before")] = False,
    overwrite: Annotated[
        bool, Parameter(negative=(), help="delete, and train again, runs that the file has changed since")
    ] = False,
    probe: Annotated[
        bool, Parameter(negative=(), help="take 20 steps of each run, to time them, in a folder of their own")
    ] = False,
    list_: Annotated[
        bool, Parameter(name="--list", negative=(), help="print the command of each run, for a cluster; start none")
    ] = False,
    json: Json = False,
) -> int:
    """Train every combination that MATRIX says, choose the best by validation, and report all over seeds.

    What cannot run here is left out with the reason. Finished runs are not made again and interrupted ones gone on
    with: start it again after a crash.
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
    )


def certify(
    config: Path,
    *,
    strategies: Annotated[str, Parameter(help="comma-separated: ddp,zero3,hsdp:2 (a value sets the first option)")],
    set_: Overrides = None,
    nproc: Annotated[int, Parameter(help="processes of each strategy")] = 2,
    steps: Annotated[int, Parameter(help="optimizer steps to compare")] = 4,
    json: Json = False,
) -> int:
    """Prove that strategies train the same thing: a few steps of CONFIG under each, beside one process.

    Dropout is off. Nothing of the run is touched; the certificate is kept in RUN.certificate.
    """
    from paratune.commands.certify import certify_command

    return certify_command(
        config, set_ or [], strategies=strategies, num_processes=nproc, num_steps=steps, as_json=json
    )
