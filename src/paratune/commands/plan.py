"""`paratune plan`: predicts memory and time of a run, and recommends a strategy, without a device."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from paratune.base.text import plain
from paratune.commands.examples import EXAMPLES
from paratune.commands.options import Json, Overrides
from paratune.console import Display, print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_FAILED, EXIT_OK, ConfigError, coded, did_you_mean

if TYPE_CHECKING:
    from paratune.config.load import LoadedConfig
    from paratune.config.traits import Traits
    from paratune.planning.job import PlannedJob
    from paratune.planning.lengths import Lengths
    from paratune.planning.machine import Machine
    from paratune.planning.measured import MeasuredFigure
    from paratune.planning.table import Plan

log = logging.getLogger(__name__)
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64")
_MAX_RANKS = 65536
_MAX_NOTES = 4
"""Maximum number of notes about single options."""
_USUAL_RANKS = (1, 2, 4, 8)


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


def plan(
    config: Path | None = None,
    *,
    wanted: Annotated[PlanArguments, Parameter(name="*")] = PlanArguments(),
    set_: Overrides = (),
    write: Path | None = None,
    json: Json = False,
) -> int:
    """Estimate what fits, how long it takes and what limits it, and recommend a way to run CONFIG.

    Needs no GPU, no network and no weights: the model is traced on the meta device, for the longest rows of the data.

    Args:
        write: YAML file for the recommended configuration; with --calibrate and without CONFIG for the machine
    """
    from rich.text import Text

    from paratune.commands.plan_goal import aim, check_goal, write_probes
    from paratune.commands.plan_score import calibrate_command
    from paratune.config.baseline_sections import refuse_baseline
    from paratune.config.load import load_config
    from paratune.planning.measured import divide_measured
    from paratune.planning.written import check_writable, write_config

    if config is None:
        return _without_config(wanted, write, as_json=json)
    if wanted.score:
        raise ConfigError(
            f"--score compares finished runs with their predictions and plans nothing; leave out {config}",
            code="cli.no_effect",
            option="--score",
            path=config,
        )
    _check_numbers(wanted)
    figures, runs = divide_measured(wanted.measured, has_goal=wanted.goal is not None)
    if is_matrix(config):
        from paratune.commands.plan_matrix import plan_matrix

        return plan_matrix(config, set_, wanted, write=write, as_json=json)
    loaded = load_config(config, set_)
    refuse_baseline(loaded.config.baseline, "paratune plan predicts")
    goal = check_goal(wanted, runs, loaded.config.task.kind, lambda: _machine(wanted, loaded, figures).price_per_hour)
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
        result = make_plan(loaded, wanted, figures, set_)
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
        raise ConfigError(
            f"--write {write} writes a measured machine (--calibrate) or a planned CONFIG, and --score has neither; "
            "leave one out",
            code="cli.no_effect",
            option="--write",
            path=write,
        )
    if wanted.score:
        return (refine_command if wanted.calibrate else score_command)(wanted.score, as_json=as_json)
    if wanted.calibrate:
        calibration = calibrate_command(as_json=as_json, speaks=True, write=write)
        if as_json and calibration is not None:
            print_json({"calibration": calibration})
        return EXIT_OK
    raise ConfigError(
        f"CONFIG is missing; for example: {EXAMPLES['plan']} (paratune plan --help shows all options)",
        code="cli.argument_missing",
        argument="CONFIG",
    )


def is_matrix(path: Path) -> bool:
    """Return whether a file is a matrix of runs: it has axes."""
    from paratune.config.layers import read_text
    from paratune.config.yaml_tree import read_tree

    values = read_tree(read_text(path), path.name).value
    return isinstance(values, dict) and "axes" in values


def make_plan(
    loaded: "LoadedConfig",
    wanted: PlanArguments,
    figures: Sequence["MeasuredFigure"] = (),
    overrides: Sequence[str] = (),
) -> "Plan":
    """Return the plan.

    Args:
        loaded: The configuration, with its overrides.
        wanted: The options of the command.
        figures: Measured figures, to which the machine is fitted.
        overrides: Overrides of `loaded`, for figures with settings of their own.
    """
    from paratune.commands.plan_measured import assumed_line, fit_machine
    from paratune.planning.advice import plan_advice, recommended
    from paratune.planning.alternatives import Alternatives
    from paratune.planning.enumerate import list_options
    from paratune.planning.predict import JobPredictor
    from paratune.planning.profiles import Profiles
    from paratune.planning.table import Plan

    machine = _machine(wanted, loaded, figures)
    job = make_job(loaded, wanted)
    profile_of = Profiles(job, is_cuda=machine.is_cuda).of
    predictor = JobPredictor(job, machine, profile_of)
    fitted = fit_machine(figures, wanted, loaded, overrides, predictor)
    machine = fitted.machine
    selection = _selection(wanted, loaded, machine)
    options, impossible = list_options(job, loaded, machine, selection, outside_traits)
    predictor = JobPredictor(job, machine, profile_of, memory_factor=fitted.memory_factor)
    with Display(speaks=True).bar("plan", len(options)) as bar:
        predictions = []
        for number, option in enumerate(options):
            bar.update(number, option.name)
            predictions.append(predictor.predict(option))
    heading, about = _heading(loaded, job, machine)
    best = recommended(predictions)
    other_ways = Alternatives(predictor, loaded, selection, outside_traits)
    more_advice = [
        *([] if best is None or wanted.precision is not None else other_ways.precisions(best)),
        *other_ways.fitting_change(predictions),
    ]
    assumed = fitted.still_assumed(predictor, predictions)
    return Plan(
        heading=(*heading, *fitted.lines, *([assumed_line(assumed)] if assumed else [])),
        predictions=tuple(predictions),
        impossible=tuple(impossible),
        advice=(*plan_advice(predictions, all_tried=wanted.strategies == "all"), *more_advice),
        notes=tuple(_notes(job, machine, predictions)),
        recommended=best,
        about=about if fitted.about is None else {**about, "measured": {**fitted.about, "still_assumed": assumed}},
    )


def outside_traits(kind: str) -> "Traits":
    """Return the traits of a strategy from outside this package."""
    from paratune.strategies import strategy_class

    traits: Traits = strategy_class(kind).traits
    return traits


def _machine(wanted: PlanArguments, loaded: "LoadedConfig", figures: Sequence["MeasuredFigure"]) -> "Machine":
    from dataclasses import replace

    from paratune.commands.plan_measured import measured_device
    from paratune.planning.machine import find_machine, this_machine

    name = measured_device(figures) if wanted.device is None else wanted.device
    machine = this_machine() if name is None else find_machine(name)
    if name is None and machine.is_cuda and loaded.config.device == "cpu":
        raise ConfigError(
            "device: cpu in the configuration, and this machine has a GPU; name a machine: --device KEY or "
            "FILE.yaml, or set --set device=auto",
            code="device.conflict",
            key="device",
        )
    return machine if wanted.price is None else replace(machine, price_per_hour=wanted.price)


def _selection(wanted: PlanArguments, loaded: "LoadedConfig", machine: "Machine") -> Any:
    from paratune.config.candidates import strategy_names
    from paratune.planning.enumerate import ALL_STRATEGIES, DEFAULT_STRATEGIES, PlanRequest, config_strategy

    if wanted.strategies in (None, "all"):
        names = DEFAULT_STRATEGIES if wanted.strategies is None else ALL_STRATEGIES
        own = config_strategy(loaded)
        strategies = tuple(dict.fromkeys([*names, own]))
    else:
        assert wanted.strategies is not None
        strategies = tuple(strategy_names(wanted.strategies))
    sizes: tuple[int | None, ...] = (None,)
    if wanted.micro_batch_size is not None:
        sizes = tuple(_whole_numbers("--micro-batch-size", wanted.micro_batch_size))
    usual_num_ranks = [number for number in _USUAL_RANKS if machine.is_cuda or number <= max(1, machine.num_cores or 1)]
    return PlanRequest(
        num_ranks=tuple(usual_num_ranks if wanted.devices is None else _whole_numbers("--devices", wanted.devices)),
        strategies=strategies,
        precisions=_precisions(wanted.precision, loaded),
        micro_batch_sizes=sizes,
        nodes=() if wanted.nodes is None else tuple(_whole_numbers("--nodes", wanted.nodes)),
        are_named=wanted.strategies not in (None, "all"),
    )


def _precisions(text: str | None, loaded: "LoadedConfig") -> tuple[str, ...]:
    if text is None:
        return (loaded.config.precision,)
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    unknown = [name for name in names if name not in PRECISIONS]
    if unknown or not names:
        name = unknown[0] if unknown else text
        raise ConfigError(
            f"--precision {name!r} is not a precision{did_you_mean(name, PRECISIONS)}; allowed: "
            f"{', '.join(PRECISIONS)}, several with commas",
            code="cli.unknown_name",
            option="--precision",
        )
    return names


def _whole_numbers(option: str, text: str) -> list[int]:
    """Return the numbers of a comma-separated list.

    Raises:
        ConfigError: A word is not a whole number of at least 1, or a number is repeated.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and 1 <= int(word) <= _MAX_RANKS):
            raise ConfigError(
                f"{option} {text!r}: {word!r} is not a whole number of at least 1; for example {option} 1,2,4,8",
                code="cli.invalid_value",
                option=option,
                word=word,
            )
    numbers = [int(word) for word in words]
    repeated = [number for number in dict.fromkeys(numbers) if numbers.count(number) > 1]
    if repeated:
        raise ConfigError(
            f"{option} {text!r} names {repeated[0]} twice; name each once", code="cli.named_twice", option=option
        )
    return numbers


def _check_numbers(wanted: PlanArguments) -> None:
    """Raise one error for all numbers out of range."""
    problems = [
        f"{name} {value}: at least 1 is needed"
        for name, value in (("--max-length", wanted.max_length), ("--rows", wanted.rows))
        if value is not None and value < 1
    ]
    if wanted.price is not None and not 0 <= wanted.price < float("inf"):
        problems.append(f"--price {wanted.price}: the price of a device-hour is at least 0")
    if wanted.rows is not None and wanted.max_length is None:
        problems.append("--rows replaces the data and needs --max-length")
    if problems:
        raise ConfigError("; ".join(problems), code="cli.out_of_range")


def _model_config(model: Any) -> Any:
    """Return the configuration of the model; if it is not available, the known one of a published model."""
    from paratune.models.known import known_config
    from paratune.models.load import load_config as load_model_config
    from paratune.models.load import override

    try:
        return load_model_config(model)
    except ConfigError as error:
        known = None if Path(model.name).exists() else known_config(model.name)
        if known is None:
            raise
        override(known, model)
        log.warning(
            "planned with the published shape of %s: %s",
            model.name,
            error,
            extra=coded("plan.published_shape", name=model.name),
        )
        return known


def make_job(loaded: "LoadedConfig", wanted: PlanArguments) -> "PlannedJob":
    """Return the job from the model's configuration and the lengths of the training split."""
    from paratune.planning.job import PlannedJob, find_packing
    from paratune.planning.lengths import assumed_lengths

    config = loaded.config
    hf_config = _model_config(config.model)
    if wanted.max_length is not None:
        _check_positions(config, hf_config, wanted.max_length)
        lengths, num_samples = assumed_lengths(wanted.max_length), wanted.rows
    else:
        lengths = _read_lengths(loaded)
        num_samples = lengths.num_rows
    entry, why_padded = find_packing(hf_config, config.task)
    return PlannedJob(config, hf_config, lengths, num_samples, entry, why_padded)


def _check_positions(config: Any, hf_config: Any, max_length: int) -> None:
    from paratune.models.limits import num_positions

    limit = num_positions(hf_config)
    if limit is not None and limit < max_length:
        raise ConfigError(
            f"--max-length {max_length} is more than the positions of {config.model.name}: {limit}",
            code="model.max_length",
            option="--max-length",
            value=max_length,
            name=config.model.name,
            limit=limit,
        )


def _read_lengths(loaded: "LoadedConfig") -> "Lengths":
    """Return the lengths of the training split, from the cache of tokens or after tokenizing.

    Raises:
        ParatuneError: The split cannot be read.
    """
    from paratune.commands.tokenizing import tokenizing_of
    from paratune.errors import DataError
    from paratune.planning.lengths import lengths_of_rows
    from paratune.tasks import make_recipe

    config = loaded.config
    try:
        with tokenizing_of(config) as tokenizing:
            data = config.data.model_copy(update={"validation": None, "test": None})
            train = make_recipe(config.task).load_splits(data, tokenizing)["train"]
    except (ConfigError, DataError) as error:
        raise type(error)(f"{error}; or plan without data: --max-length TOKENS", code=error.code) from error
    return lengths_of_rows(train.store.lengths)


def _heading(loaded: "LoadedConfig", job: "PlannedJob", machine: "Machine") -> tuple[list[str], dict[str, Any]]:
    from paratune.base.units import format_bytes

    lengths, config = job.lengths, job.config
    rows = "rows" if job.num_samples is None else f"{job.num_samples:,} rows"
    data = (
        f"{rows}, each with {lengths.longest} tokens (--max-length)"
        if lengths.is_assumed
        else f"{rows} of {lengths.mean:.0f} tokens on average, the longest {lengths.longest}"
    )
    layout = "packed" if job.entry is not None and config.batch.layout in ("auto", "packed") else "padded"
    speed = "calibrated" if machine.is_calibrated else "not calibrated: wide intervals"
    speed = "its speed is unknown" if machine.constants is None else speed
    lines = [
        f"{loaded.source}: {config.model.name}, {config.task.kind}; {data}; {layout} batches",
        f"{machine.name}: {format_bytes(machine.memory_bytes)} a device; {speed}"
        if machine.is_cuda
        else f"{machine.name}: {format_bytes(machine.memory_bytes)} for all processes; {speed}",
    ]
    about = {
        "config": str(loaded.source),
        "model": config.model.name,
        "task": config.task.kind,
        "data": {
            "num_samples": job.num_samples,
            "mean_length": lengths.mean,
            "longest": lengths.longest,
            "is_assumed": lengths.is_assumed,
        },
        "machine": {
            "name": machine.name,
            "memory_bytes": machine.memory_bytes,
            "is_calibrated": machine.is_calibrated,
            "price_per_hour": machine.price_per_hour,
        },
    }
    return lines, about


def _notes(job: "PlannedJob", machine: "Machine", predictions: Sequence[Any]) -> list[str]:
    labels_by_note: dict[str, list[str]] = {}
    for prediction in predictions:
        for note in prediction.notes:
            labels_by_note.setdefault(note, []).append(prediction.label)
    notes = [f"{_some(labels)}: {note}" for note, labels in labels_by_note.items()]
    notes = [*notes[:_MAX_NOTES], *_more(len(notes) - _MAX_NOTES)]
    notes += dict.fromkeys(f"no time: {prediction.why_no_time}" for prediction in predictions if prediction.why_no_time)
    if job.why_padded is not None and job.config.batch.layout in ("auto", "packed"):
        notes.append(f"batches are padded: {job.why_padded}")
    if any(prediction.epoch is not None for prediction in predictions):
        notes.append("Times are of training steps, without start-up, evaluations and checkpoints.")
    if any(prediction.energy_j is not None for prediction in predictions):
        notes.append("Energy is an upper limit: all devices at maximum power, all the time.")
    return notes


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:2]) + (f" and {len(labels) - 2} more" if len(labels) > 2 else "")


def _more(number: int) -> list[str]:
    return [f"... and {number} more like these (--json has all)"] if number > 0 else []
