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
    figures: Annotated[Path | None, Parameter(help="folder for pictures: .svg, .png and a page of all of them")] = None,
    json: Json = False,
) -> int:
    """Say what is in the data of CONFIG: rows, labels, lengths, truncation, missing values, duplicates."""
    from paratune.commands.data import data_command

    return data_command(config, set_ or [], as_json=json, figures=figures)


def plan(
    config: Path | None = None,
    *,
    set_: Overrides = None,
    devices: Annotated[str | None, Parameter(help="numbers of devices, with commas; 1,2,4,8 if none")] = None,
    device: Annotated[
        str | None, Parameter(help="a100-40gb, h100-80gb, ... or FILE.yaml that describes one; this machine if none")
    ] = None,
    nodes: Annotated[int, Parameter(help="machines over which the devices are spread evenly")] = 1,
    strategies: Annotated[
        str | None, Parameter(help="comma-separated, as ddp,zero3,pipeline:4 (a value sets the first option); or all")
    ] = None,
    precision: Annotated[str | None, Parameter(help="comma-separated; that of CONFIG if none")] = None,
    max_length: Annotated[
        int | None, Parameter(help="plan without the data, as if every row had so many tokens")
    ] = None,
    rows: Annotated[int | None, Parameter(help="with --max-length: rows of the training set")] = None,
    micro_batch_size: Annotated[
        str | None,
        Parameter(help="comma-separated; as CONFIG says if none, the largest that fits where that is open"),
    ] = None,
    price: Annotated[float | None, Parameter(help="of a device-hour, in any currency: adds what runs cost")] = None,
    write: Annotated[Path | None, Parameter(help="YAML file for the configuration that is advised")] = None,
    goal: Annotated[str | None, Parameter(help='such as "f1>=0.88 within 2h under 24GB": which ways meet it')] = None,
    measured: Annotated[
        list[Path] | None,
        Parameter(negative=(), consume_multiple=True, help="with --goal: runs that say after how many steps it is met"),
    ] = None,
    write_probes: Annotated[
        Path | None, Parameter(help="with --goal: YAML file for a matrix of short runs that settle what is open")
    ] = None,
    calibrate: Annotated[
        bool,
        Parameter(negative=(), help="measure this machine, in about a minute; with --score refine that by runs"),
    ] = False,
    score: Annotated[
        list[Path] | None,
        Parameter(negative=(), consume_multiple=True, help="runs or matrices: what was predicted against measured"),
    ] = None,
    json: Json = False,
) -> int:
    """Say what fits, how long it takes, what binds it and which way to run CONFIG, before any device is taken.

    Needs neither a GPU nor a network nor the weights: the model is traced on the meta device, for the longest rows that
    the data really has.
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
    site: Annotated[Path | None, Parameter(help="profile of the cluster that the run will be queued on")] = None,
    nodes: Annotated[int | None, Parameter(help="with --site: nodes of the run, instead of the site's")] = None,
    gpus_per_node: Annotated[int | None, Parameter(help="with --site: GPUs on each node")] = None,
    nproc: Annotated[int | None, Parameter(help="processes that the run will have on this machine")] = None,
    folder: Annotated[Path, Parameter(help="where runs would go, without CONFIG")] = Path("runs"),
    json: Json = False,
) -> int:
    """Say what would not work, why, and the line that repairs it: on this machine, and of the run in CONFIG.

    Of CONFIG: options, files, labels, model, precision, processes against GPUs, ports, room for checkpoints, versions.
    Nothing is trained, fetched or changed.
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
    out: Annotated[Path, Parameter(name=["--out", "-o"], help="the file to write, such as bundle.tar")],
    set_: Overrides = None,
    tokens: Annotated[bool, Parameter(negative=(), help="tokenize here, and take the tokens along")] = False,
    json: Json = False,
) -> int:
    """Put all that CONFIG needs into one file, for machines without a network: model, tokenizer, data, configuration.

    What is on the hub is fetched here. It is written whole or not at all, with the SHA-256 of every file.
    """
    from paratune.commands.bundle import bundle_command

    return bundle_command(config, set_ or [], out=out, with_tokens=tokens, as_json=json)


def unbundle(
    file: Path,
    *,
    folder: Annotated[Path, Parameter(name=["--folder", "-d"], help="the folder to make")],
    allow_code: Annotated[
        bool,
        Parameter(negative="", help="allow Python code that does not come with paratune"),
    ] = False,
    json: Json = False,
) -> int:
    """Check FILE, which paratune bundle wrote, and lay it out: DIR/config.yaml can be trained as it stands."""
    from paratune.commands.bundle import unbundle_command

    return unbundle_command(file, folder=folder, allows_code=allow_code, as_json=json)
