"""`paratune plan`: predicts memory and time of a run, and recommends a strategy, without a device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from paratune.api.plan_options import PlanOptions, check_options, read_numbers
from paratune.base.text import plain
from paratune.commands import EXAMPLES
from paratune.commands.options import Json, Overrides, RunCode
from paratune.console import print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_FAILED, EXIT_OK, ConfigError


@dataclass(frozen=True, kw_only=True)
class PlanArguments:
    """The options that decide what is planned.

    Args:
        devices: numbers of devices, comma-separated; default: 1,2,4,8
        device: a100-40gb, h100-80gb, ... or FILE.yaml with a description; default: this machine
        nodes: numbers of nodes, comma-separated; default: as few as the devices need (8 devices per node)
        strategies: comma-separated, such as ddp,zero3,pipeline:4 (a value sets the first option); or all
        precision: comma-separated; default: that of CONFIG
        max_length: plan without the data, with this number of tokens in every row
        rows: with --max-length: number of rows of the training set
        micro_batch_size: comma-separated; default: that of CONFIG, or the largest that fits
        price: price of a device-hour, in any currency: adds the cost of runs
        calibrate: measure this machine, in about a minute; with --score also use the runs
        score: runs or matrices: compare predictions with measurements
        goal: such as "f1>=0.88 within 2h under 24GB": show which options reach it
        measured: figures to fit, "310 s an epoch on 1 x a100-40gb, fp16" or a YAML file of them; with --goal also runs
        write_probes: with --goal: YAML file for a matrix of short runs that answer open questions
    """

    devices: str | None = None
    device: str | None = None
    nodes: str | None = None
    strategies: str | None = None
    precision: str | None = None
    max_length: int | None = None
    rows: int | None = None
    micro_batch_size: str | None = None
    price: float | None = None
    calibrate: bool = False
    score: Annotated[tuple[Path, ...], Parameter(consume_multiple=True)] = ()
    goal: str | None = None
    measured: Annotated[tuple[str, ...], Parameter(consume_multiple=True)] = ()
    write_probes: Path | None = None

    def options(self) -> PlanOptions:
        """Return the options of the plan.

        Raises:
            ConfigError: A list of numbers is invalid, or an option is out of range.
        """
        from paratune.config.candidates import strategy_names

        options = PlanOptions(
            devices=read_numbers("--devices", self.devices),
            device=self.device,
            nodes=read_numbers("--nodes", self.nodes),
            strategies=None if self.strategies is None else tuple(strategy_names(self.strategies)),
            precision=None if self.precision is None else _words(self.precision),
            max_length=self.max_length,
            rows=self.rows,
            micro_batch_size=read_numbers("--micro-batch-size", self.micro_batch_size),
            price=self.price,
        )
        check_options(options)
        return options


def plan(
    config: Path | None = None,
    *,
    wanted: Annotated[PlanArguments, Parameter(name="*")] = PlanArguments(),
    set_: Overrides = (),
    write: Path | None = None,
    run_code: RunCode = False,
    json: Json = False,
) -> int:
    """Estimate memory and time of CONFIG, and recommend a strategy, devices, precision and micro-batch.

    Needs no GPU, no network and no weights: the model is traced on the meta device, for the longest rows of the data.

    Args:
        write: YAML file for the recommended configuration, or with --calibrate and without CONFIG for the device
        run_code: import the Python code that CONFIG names: its data sets, head, class, strategy, and that of its model
    """
    from rich.text import Text

    from paratune.api.plan import make_plan
    from paratune.api.plan_options import planned_machine
    from paratune.commands.plan_goal import aim, check_goal, write_probes
    from paratune.commands.plan_score import calibrate_command
    from paratune.config.baseline_sections import refuse_baseline
    from paratune.config.load import allow_code, load_config
    from paratune.planning.measured import divide_measured
    from paratune.planning.written import check_writable, write_config

    if config is None:
        return _without_config(wanted, write, as_json=json)
    if wanted.score:
        message = f"--score compares finished runs with their predictions and plans nothing; leave out {config}"
        raise ConfigError(message, code="cli.no_effect", option="--score", path=config)
    options = wanted.options()
    figures, runs = divide_measured(wanted.measured, has_goal=wanted.goal is not None)
    if is_matrix(config):
        from paratune.commands.plan_matrix import plan_matrix

        return plan_matrix(config, set_, wanted, options, write=write, run_code=run_code, as_json=json)
    loaded = load_config(config, set_)
    if run_code:
        allow_code(loaded, strategies=options.strategies or ())
    refuse_baseline(loaded.config.baseline, "paratune plan predicts")
    goal = check_goal(
        wanted, runs, loaded.config.task.kind, lambda: planned_machine(options, loaded, figures).price_per_hour
    )
    for option, file in (("--write", write), ("--write-probes", wanted.write_probes)):
        if file is not None:
            check_writable(file, option)
    set_up_logging(speaks=True)
    if wanted.calibrate:
        if wanted.device is not None:
            raise ConfigError(
                f"--calibrate measures this machine, and --device names {wanted.device}; leave one out",
                code="cli.conflict",
                option="--calibrate",
                device=wanted.device,
                options=("--calibrate", "--device"),
            )
        calibrate_command(as_json=json, speaks=False)
    with stdout_for_results():
        result = make_plan(loaded, options, figures, lambda texts: load_config(config, [*set_, *texts]))
        aimed = None if goal is None else aim(goal, result, runs)
    if not json:  # before writing, which may fail because there is nothing to write
        print_result(result)
        for sentence in aimed.lines if aimed is not None else ():
            print_result(Text(plain(sentence)))
    chosen = result.recommended if aimed is None else aimed.chosen
    written = None if write is None else write_config(write, loaded, set_, chosen)
    probes = None
    if aimed is not None and wanted.write_probes is not None:
        probes = write_probes(wanted.write_probes, loaded, set_, aimed)
    if json:
        files = {"written": None if written is None else str(write)}
        print_json(result.as_dict() | files | ({} if aimed is None else {"goal": aimed.as_dict()}))
    else:
        for line in (written, probes):
            if line is not None:
                print_result(Text(plain(line)))
    return EXIT_FAILED if chosen is None else EXIT_OK


def _without_config(wanted: PlanArguments, write: Path | None, *, as_json: bool) -> int:
    """Calibrate, score runs, or refine the calibration by runs, without a plan; return the exit code.

    Raises:
        ConfigError: Neither --calibrate nor --score is given, or --write has nothing to write.
    """
    from paratune.commands.plan_score import calibrate_command, refine_command, score_command

    if wanted.score and write is not None:
        message = (
            f"--write {write} writes a measured machine (--calibrate) or a planned CONFIG, and --score has neither; "
            "leave one out"
        )
        raise ConfigError(message, code="cli.no_effect", option="--write", path=write)
    if wanted.score:
        return (refine_command if wanted.calibrate else score_command)(wanted.score, as_json=as_json)
    if wanted.calibrate:
        calibration = calibrate_command(as_json=as_json, speaks=True, write=write)
        if as_json and calibration is not None:
            print_json({"calibration": calibration})
        return EXIT_OK
    message = f"CONFIG is missing; for example: {EXAMPLES['plan']} (paratune plan --help shows all options)"
    raise ConfigError(message, code="cli.argument_missing", argument="CONFIG")


def is_matrix(path: Path) -> bool:
    """Return whether a file is a matrix of runs: it has axes."""
    from paratune.config.layers import read_text
    from paratune.config.yaml_tree import read_tree

    values = read_tree(read_text(path), path.name).value
    return isinstance(values, dict) and "axes" in values


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
