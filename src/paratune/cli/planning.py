"""Commands that look at a run before it is made: its data, its cost, what would not work, all it needs in one file."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paratune.cli.options import Json, Overrides
from paratune.cli.usage import EXAMPLES
from paratune.errors import ConfigError


def data(
    config: Path,
    *,
    set_: Overrides = None,
    figures: Annotated[
        Path | None, Parameter(help="folder for figures: .svg, .png and one page with all of them")
    ] = None,
    json: Json = False,
) -> int:
    """Show the data of CONFIG: rows, labels, lengths, truncation, missing values, duplicates."""
    from paratune.commands.data import data_command

    return data_command(config, set_ or [], as_json=json, figures=figures)


def plan(
    config: Path | None = None,
    *,
    set_: Overrides = None,
    devices: Annotated[str | None, Parameter(help="numbers of devices, comma-separated; default: 1,2,4,8")] = None,
    device: Annotated[
        str | None, Parameter(help="a100-40gb, h100-80gb, ... or FILE.yaml with a description; default: this machine")
    ] = None,
    nodes: Annotated[int, Parameter(help="number of nodes; the devices are distributed evenly over them")] = 1,
    strategies: Annotated[
        str | None,
        Parameter(help="comma-separated, such as ddp,zero3,pipeline:4 (a value sets the first option); or all"),
    ] = None,
    precision: Annotated[str | None, Parameter(help="comma-separated; default: that of CONFIG")] = None,
    max_length: Annotated[
        int | None, Parameter(help="plan without the data, with this number of tokens in every row")
    ] = None,
    rows: Annotated[int | None, Parameter(help="with --max-length: number of rows of the training set")] = None,
    micro_batch_size: Annotated[
        str | None,
        Parameter(help="comma-separated; default: that of CONFIG, or the largest that fits"),
    ] = None,
    price: Annotated[
        float | None, Parameter(help="price of a device-hour, in any currency: adds the cost of runs")
    ] = None,
    write: Annotated[Path | None, Parameter(help="YAML file for the recommended configuration")] = None,
    goal: Annotated[
        str | None, Parameter(help='such as "f1>=0.88 within 2h under 24GB": show which ways reach it')
    ] = None,
    measured: Annotated[
        list[Path] | None,
        Parameter(
            negative=(), consume_multiple=True, help="with --goal: runs that show after how many steps it is reached"
        ),
    ] = None,
    write_probes: Annotated[
        Path | None, Parameter(help="with --goal: YAML file for a matrix of short runs that answer open questions")
    ] = None,
    calibrate: Annotated[
        bool,
        Parameter(negative=(), help="measure this machine, in about a minute; with --score also use the runs"),
    ] = False,
    score: Annotated[
        list[Path] | None,
        Parameter(negative=(), consume_multiple=True, help="runs or matrices: compare predictions with measurements"),
    ] = None,
    json: Json = False,
) -> int:
    """Estimate what fits, how long it takes and what limits it, and recommend a way to run CONFIG.

    Needs no GPU, no network and no weights: the model is traced on the meta device, for the longest rows of the data.
    """
    from paratune.commands.plan import PlanArguments, plan_command, without_config

    if config is None:
        return without_config(calibrate=calibrate, score=score, example=EXAMPLES["plan"], as_json=json)
    wanted = PlanArguments(
        devices=devices,
        device=device,
        nodes=nodes,
        strategies=strategies,
        precision=precision,
        max_length=max_length,
        rows=rows,
        micro_batch_size=micro_batch_size,
        price=price,
        calibrate=calibrate,
        score=tuple(score or ()),
        goal=goal,
        measured=tuple(measured or ()),
        write_probes=write_probes,
    )
    return plan_command(config, set_ or [], wanted, write=write, as_json=json)


def doctor(
    config: Path | None = None,
    *,
    set_: Overrides = None,
    site: Annotated[Path | None, Parameter(help="file that describes the cluster of the run")] = None,
    nodes: Annotated[int | None, Parameter(help="with --site: number of nodes, instead of the site's")] = None,
    gpus_per_node: Annotated[int | None, Parameter(help="with --site: number of GPUs on each node")] = None,
    nproc: Annotated[int | None, Parameter(help="number of processes of the run on this machine")] = None,
    folder: Annotated[Path, Parameter(help="folder for runs, without CONFIG")] = Path("runs"),
    json: Json = False,
) -> int:
    """Find problems of this machine and of the run in CONFIG, with the reason and the line that repairs each one.

    Checks of CONFIG: options, files, labels, model, precision, processes and GPUs, ports, disk space for checkpoints,
    versions. Nothing is trained, downloaded or changed.
    """
    if config is None:
        if set_ or site or nodes is not None or gpus_per_node is not None or nproc is not None:
            raise ConfigError(
                "--set, --site, --nodes, --gpus-per-node and --nproc are about a run: name its CONFIG",
                code="cli.no_effect",
                option="--set",
            )
        from paratune.doctor import run

        return run(json, folder)
    from paratune.commands.doctor import doctor_command

    return doctor_command(
        config,
        set_ or [],
        num_processes=nproc,
        as_json=json,
        site_path=site,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
    )


def bundle(
    config: Path,
    *,
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="file to write, such as bundle.tar")],
    set_: Overrides = None,
    tokens: Annotated[bool, Parameter(negative=(), help="tokenize the data here, and add the tokens")] = False,
    json: Json = False,
) -> int:
    """Write one file with everything that CONFIG needs, for machines without a network.

    It holds model, tokenizer, data and configuration, with the SHA-256 of every file. Names of the hub are downloaded.
    The file is complete or not written.
    """
    from paratune.commands.bundle import bundle_command

    return bundle_command(config, set_ or [], out=out, with_tokens=tokens, as_json=json)


def unbundle(
    file: Path,
    *,
    folder: Annotated[Path, Parameter(name=["--folder", "-d"], help="folder to create")],
    allow_code: Annotated[
        bool,
        Parameter(negative="", help="allow Python code that is not part of paratune"),
    ] = False,
    json: Json = False,
) -> int:
    """Check and unpack FILE, written by paratune bundle; DIR/config.yaml can be trained without changes."""
    from paratune.commands.bundle import unbundle_command

    return unbundle_command(file, folder=folder, allows_code=allow_code, as_json=json)
