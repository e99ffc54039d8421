"""`paratune plan`: what fits, what it takes and which way to run, before any device is taken."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.base.text import plain
from paratune.config.baseline_sections import refuse_baseline
from paratune.config.layers import read_text
from paratune.config.load import LoadedConfig, load_config
from paratune.config.yaml_tree import read_tree
from paratune.console import Display, print_json, print_result, set_up_logging, stdout_for_results
from paratune.errors import EXIT_FAILED, EXIT_OK, ConfigError, coded, did_you_mean

log = logging.getLogger(__name__)

if TYPE_CHECKING:
    from paratune.plan.job import PlannedJob
    from paratune.plan.lengths import Lengths
    from paratune.plan.machine import Machine
    from paratune.plan.table import Plan

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64")
_MOST_RANKS = 65536
_MOST_NOTES = 4
"""About single ways that are printed."""
_USUAL_RANKS = (1, 2, 4, 8)


@dataclass(frozen=True)
class PlanArguments:
    """The options of the command, as they were typed."""

    devices: str | None = None
    device: str | None = None
    nodes: int = 1
    strategies: str | None = None
    precision: str | None = None
    max_length: int | None = None
    rows: int | None = None
    micro_batch_size: str | None = None
    price: float | None = None
    calibrate: bool = False
    score: tuple[Path, ...] = ()
    goal: str | None = None
    measured: tuple[Path, ...] = ()
    write_probes: Path | None = None


def without_config(*, calibrate: bool, score: Sequence[Path] | None, example: str, as_json: bool) -> int:
    """Calibrate, score runs, or refine by them, without planning anything; return the exit code.

    Raises:
        ParatuneError: Nothing is asked for, or it cannot be done.
    """
    from paratune.commands.plan_score import calibrate_command, refine_command, score_command

    if score is not None and not calibrate:
        return score_command(score, as_json=as_json)
    if calibrate and score is not None:
        return refine_command(score, as_json=as_json)
    if calibrate:
        found = calibrate_command(as_json=as_json, speaks=True)
        if as_json:
            print_json({"calibration": found})
        return EXIT_OK
    raise ConfigError(
        f"CONFIG is missing; for example: {example} (paratune plan --help shows all options)",
        code="cli.argument_missing",
        argument="CONFIG",
    )


def plan_command(
    path: Path, overrides: Sequence[str], wanted: PlanArguments, *, write: Path | None, as_json: bool
) -> int:
    """Print the plan of a configuration; return the exit code, 1 where there is nothing to advise.

    Raises:
        ParatuneError: The configuration, an option, the model or the data is wrong.
    """
    from rich.text import Text

    from paratune.commands.plan_goal import aim, check_goal, write_probes
    from paratune.commands.plan_score import calibrate_command
    from paratune.plan.written import check_writable, write_config

    if wanted.score:
        raise ConfigError(
            f"--score is about runs that are finished, and plans nothing; leave out {path}",
            code="cli.no_effect",
            option="--score",
            path=path,
        )
    _check_numbers(wanted)
    if is_matrix(path):
        from paratune.commands.plan_matrix import plan_matrix

        return plan_matrix(path, overrides, wanted, write=write, as_json=as_json)
    loaded = load_config(path, overrides)
    refuse_baseline(loaded.config.baseline, "paratune plan predicts")
    goal = check_goal(wanted, loaded.config.task.kind, lambda: _machine(wanted, loaded).price_per_hour)
    for option, file in (("--write", write), ("--write-probes", wanted.write_probes)):
        if file is not None:
            check_writable(file, option)
    set_up_logging(speaks=True)
    if wanted.calibrate:
        if wanted.device is not None:
            raise ConfigError(
                f"--calibrate is for this machine, and --device for {wanted.device}; leave one out",
                code="cli.conflict",
                option="--calibrate",
                device=wanted.device,
                options=("--calibrate", "--device"),
            )
        calibrate_command(as_json=as_json, speaks=False)
    with stdout_for_results():
        plan = make_plan(loaded, wanted)
        aimed = None if goal is None else aim(goal, plan, wanted.measured)
    if not as_json:  # before writing, which may say that there is nothing to write
        print_result(plan)
        for sentence in aimed.lines if aimed is not None else ():
            print_result(Text(plain(sentence)))
    chosen = plan.recommended if aimed is None else aimed.chosen
    written = None if write is None else write_config(write, loaded, overrides, chosen)
    probes = None
    if aimed is not None and wanted.write_probes is not None:
        probes = write_probes(wanted.write_probes, loaded, overrides, aimed)
    if as_json:
        files = {"written": None if written is None else str(write)}
        print_json(plan.as_dict() | files | ({} if aimed is None else {"goal": aimed.as_dict()}))
    else:
        for line in (written, probes):
            if line is not None:
                print_result(Text(plain(line)))
    return EXIT_FAILED if chosen is None else EXIT_OK


def is_matrix(path: Path) -> bool:
    """Return whether a file is a matrix of runs: it has axes."""
    found = read_tree(read_text(path), path.name).value
    return isinstance(found, dict) and "axes" in found


def make_plan(loaded: LoadedConfig, wanted: PlanArguments) -> "Plan":
    """Return the plan."""
    from paratune.plan.advice import plan_advice, recommended
    from paratune.plan.enumerate import enumerate_options
    from paratune.plan.predict import JobPredictor
    from paratune.plan.profiles import Profiles
    from paratune.plan.table import Plan
    from paratune.strategies import strategy_class

    machine = _machine(wanted, loaded)
    asked = _asked(wanted, loaded, machine)
    job = _job(loaded, wanted)
    options, impossible = enumerate_options(job, loaded, machine, asked, lambda kind: strategy_class(kind).traits)
    predictor = JobPredictor(job, machine, Profiles(job, is_cuda=machine.is_cuda).of)
    with Display(speaks=True).bar("plan", len(options)) as bar:
        found = []
        for number, option in enumerate(options):
            bar.update(number, option.name)
            found.append(predictor.predict(option))
    heading, about = _heading(loaded, job, machine)
    return Plan(
        heading=tuple(heading),
        predictions=tuple(found),
        impossible=tuple(impossible),
        advice=tuple(plan_advice(found, all_tried=wanted.strategies == "all")),
        notes=tuple(_notes(job, machine, found)),
        recommended=recommended(found),
        about=about,
    )


def _machine(wanted: PlanArguments, loaded: LoadedConfig) -> "Machine":
    from dataclasses import replace

    from paratune.plan.machine import machine_of, this_machine

    machine = this_machine() if wanted.device is None else machine_of(wanted.device)
    if wanted.device is None and machine.is_cuda and loaded.config.device == "cpu":
        raise ConfigError(
            "device: cpu in the configuration, and this machine has a GPU; name the machine that is meant: --device "
            "KEY or FILE.yaml, or --set device=auto",
            code="device.conflict",
            key="device",
        )
    return machine if wanted.price is None else replace(machine, price_per_hour=wanted.price)


def _asked(wanted: PlanArguments, loaded: LoadedConfig, machine: "Machine") -> Any:
    from paratune.config.candidates import names_of
    from paratune.plan.enumerate import ALL, USUAL, Asked, own_name

    if wanted.strategies in (None, "all"):
        names = USUAL if wanted.strategies is None else ALL
        own = own_name(loaded)
        strategies = tuple(dict.fromkeys([*names, own]))
    else:
        assert wanted.strategies is not None
        strategies = tuple(names_of(wanted.strategies))
    sizes: tuple[int | None, ...] = (None,)
    if wanted.micro_batch_size is not None:
        sizes = tuple(_whole_numbers("--micro-batch-size", wanted.micro_batch_size))
    usual = [number for number in _USUAL_RANKS if machine.is_cuda or number <= max(1, machine.num_cores or 1)]
    return Asked(
        num_ranks=tuple(usual if wanted.devices is None else _whole_numbers("--devices", wanted.devices)),
        strategies=strategies,
        precisions=_precisions(wanted.precision, loaded),
        micro_batch_sizes=sizes,
        num_nodes=wanted.nodes,
        are_named=wanted.strategies not in (None, "all"),
    )


def _precisions(text: str | None, loaded: LoadedConfig) -> tuple[str, ...]:
    if text is None:
        return (loaded.config.precision,)
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    strange = [name for name in names if name not in PRECISIONS]
    if strange or not names:
        found = strange[0] if strange else text
        raise ConfigError(
            f"--precision {found!r} is not a precision{did_you_mean(found, PRECISIONS)}; allowed: "
            f"{', '.join(PRECISIONS)}, several with commas",
            code="cli.unknown_name",
            option="--precision",
        )
    return names


def _whole_numbers(option: str, text: str) -> list[int]:
    """Return the numbers of a list with commas.

    Raises:
        ConfigError: A word is no whole number from 1 on, or a number stands there twice.
    """
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if not (word.isascii() and word.isdigit() and 1 <= int(word) <= _MOST_RANKS):
            raise ConfigError(
                f"{option} {text!r}: {word!r} is not a whole number from 1 on; such as {option} 1,2,4,8",
                code="cli.invalid_value",
                option=option,
                word=word,
            )
    numbers = [int(word) for word in words]
    twice = [number for number in dict.fromkeys(numbers) if numbers.count(number) > 1]
    if twice:
        raise ConfigError(
            f"{option} {text!r} names {twice[0]} twice; name each once", code="cli.named_twice", option=option
        )
    return numbers


def _check_numbers(wanted: PlanArguments) -> None:
    """Refuse what means nothing, all of it at once."""
    problems = [
        f"{name} {value}: at least 1 is needed"
        for name, value in (
            ("--nodes", wanted.nodes),
            ("--max-length", wanted.max_length),
            ("--rows", wanted.rows),
        )
        if value is not None and value < 1
    ]
    if wanted.price is not None and not 0 <= wanted.price < float("inf"):
        problems.append(f"--price {wanted.price}: a price of a device-hour is a number from 0 on")
    if wanted.rows is not None and wanted.max_length is None:
        problems.append("--rows is the number of rows when no data is read; use it with --max-length")
    if problems:
        raise ConfigError("; ".join(problems), code="cli.out_of_range")


def _model_config(model: Any) -> Any:
    """Return the model's own configuration; where it is not at hand, that of a published model as it is known."""
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


def _job(loaded: LoadedConfig, wanted: PlanArguments) -> "PlannedJob":
    """Return the job: what the model's configuration and the lengths of the training split say."""
    from paratune.plan.job import PlannedJob, find_packing
    from paratune.plan.lengths import assumed_lengths

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

    most = num_positions(hf_config)
    if most is not None and most < max_length:
        raise ConfigError(
            f"--max-length {max_length} is more than {config.model.name} has positions for: {most}",
            code="model.max_length",
            option="--max-length",
            value=max_length,
            name=config.model.name,
            most=most,
        )


def _read_lengths(loaded: LoadedConfig) -> "Lengths":
    """Return the lengths of the training split, from the cache of tokens or tokenized now, as the training would.

    Raises:
        ParatuneError: It cannot be read; the text says what to do instead.
    """
    from paratune.data.tokens import Tokenizing
    from paratune.errors import DataError
    from paratune.models.limits import token_limit
    from paratune.models.load import load_tokenizer
    from paratune.models.task_model import takes_token_types
    from paratune.plan.lengths import lengths_of_rows
    from paratune.tasks import recipe_of

    config = loaded.config
    try:
        tokenizer = load_tokenizer(config.model, config.data.truncation_side)
        with Display(speaks=True).bar("tokenize", 1) as bar:
            how = Tokenizing(
                tokenizer,
                token_limit(config, tokenizer),
                truncation=config.data.truncation,
                need_token_type_ids=takes_token_types(tokenizer),
                cache_dir=config.data.cache_dir,
                progress=lambda done, total: bar.update(done, total=total),
            )
            data = config.data.model_copy(update={"validation": None, "test": None})
            train = recipe_of(config.task).load_splits(data, how)["train"]
    except (ConfigError, DataError) as error:
        raise type(error)(f"{error}; or plan without data: --max-length TOKENS", code=error.code) from error
    return lengths_of_rows(train.store.lengths)


def _heading(loaded: LoadedConfig, job: "PlannedJob", machine: "Machine") -> tuple[list[str], dict[str, Any]]:
    from paratune.base.units import format_bytes

    lengths, config = job.lengths, job.config
    rows = "rows" if job.num_samples is None else f"{job.num_samples:,} rows"
    data = (
        f"{rows}, each taken for {lengths.longest} tokens long (--max-length)"
        if lengths.is_assumed
        else f"{rows} of {lengths.mean:.0f} tokens on average, the longest {lengths.longest}"
    )
    layout = "packed" if job.entry is not None and config.batch.layout in ("auto", "packed") else "padded"
    speed = "calibrated" if machine.is_calibrated else "not calibrated: regime and ranking only, see the intervals"
    speed = "its speed is not known" if machine.constants is None else speed
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


def _notes(job: "PlannedJob", machine: "Machine", found: Sequence[Any]) -> list[str]:
    labels_of: dict[str, list[str]] = {}
    for each in found:
        for note in each.notes:
            labels_of.setdefault(note, []).append(each.label)
    notes = [f"{_some(labels)}: {note}" for note, labels in labels_of.items()]
    notes = [*notes[:_MOST_NOTES], *_more(len(notes) - _MOST_NOTES)]
    notes += dict.fromkeys(f"no time: {each.why_no_time}" for each in found if each.why_no_time)
    if job.why_padded is not None and job.config.batch.layout in ("auto", "packed"):
        notes.append(f"batches are padded: {job.why_padded}")
    if any(each.epoch is not None for each in found):
        notes.append("Times are of training steps; start-up, evaluations and checkpoints come on top.")
    if any(each.energy_j is not None for each in found):
        notes.append("Energy is at most that: all devices at the limit of their power, all the time.")
    return notes


def _some(labels: Sequence[str]) -> str:
    return ", ".join(labels[:2]) + (f" and {len(labels) - 2} more" if len(labels) > 2 else "")


def _more(number: int) -> list[str]:
    return [f"... and {number} more like these (--json has all)"] if number > 0 else []
