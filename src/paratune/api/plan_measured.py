"""`paratune plan --measured`: fits the planned machine to runs on it, and to figures that somebody measured on it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.base.text import plain
from paratune.base.units import format_bytes, format_duration
from paratune.config.load import LoadedConfig, load_values
from paratune.config.traits import TRAITS
from paratune.errors import ConfigError
from paratune.planning.measured import MeasuredFigure
from paratune.records import SUMMARY_FILE
from paratune.records.finished import RunRecord, read_record
from paratune.records.published import NOT_ALLOCATED
from paratune.records.sweep import RUNS_FOLDER, holds_sweep

if TYPE_CHECKING:
    from paratune.planning.enumerate import JobOption
    from paratune.planning.job import PlannedJob
    from paratune.planning.machine import Machine
    from paratune.planning.predict import JobPredictor, Prediction
    from paratune.planning.profile import Profile
    from paratune.planning.refit import MeasuredStep


@dataclass(frozen=True)
class FittedMachine:
    """The planned machine, with its constants fitted to measured times and a factor for measured memory."""

    machine: "Machine"
    memory_factor: float = 1.0
    """Of the memory besides weights, gradients, optimizer states and buffers."""
    lines: tuple[str, ...] = ()
    about: tuple[dict[str, Any], ...] = ()
    """What was measured, as plain data."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Timed:
    """A measured time: the steps that it stands for, and how it is shown."""

    text: str
    """With the option that was measured."""
    steps: Sequence["MeasuredStep"]
    """The first one is the whole step."""
    scale: float = 1.0
    """Steps in the measured time; of a rate, the samples of a step."""
    is_rate: bool = False

    def shown(self, step_s: float) -> str:
        """Return the predicted time or rate as text, from the predicted step."""
        if self.is_rate:
            return f"{self.scale / step_s:.4g} samples/s"
        seconds = step_s / self.scale
        return format_duration(seconds) if seconds >= 60 else f"{seconds:.3g} s"


def read_runs(folders: Sequence[Path]) -> list[RunRecord]:
    """Return the records of finished runs; a matrix stands for its finished runs with measured steps.

    Raises:
        CheckpointError: A folder is not a run, or the run is not finished.
        ConfigError: A matrix has no finished run with measured steps.
    """
    runs = []
    for folder in folders:
        if not holds_sweep(folder):
            runs.append(read_record(folder, plain(folder)))
            continue
        summaries = sorted((folder / RUNS_FOLDER).glob(f"*/{SUMMARY_FILE}"))
        finished = [read_record(path.parent, plain(path.parent)) for path in summaries]
        if not (timed := [run for run in finished if _mean_step(run) is not None]):  # without baselines
            reason = "no finished run in it has measured steps; train one (paratune sweep MATRIX --probe: 20 steps)"
            raise _impossible(plain(folder), reason)
        runs += timed
    return runs


def _mean_step(run: RunRecord) -> tuple[float, float] | None:
    """Return the seconds of a mean step, and the computed tokens of a mean sample; None without measured steps."""
    from paratune.reports.measures import step_ms

    whole_ms, throughput = step_ms(run), run.summary.throughput
    if not whole_ms or not throughput.padded_tokens_per_s or not throughput.samples_per_s:
        return None
    return whole_ms / 1000, throughput.padded_tokens_per_s / throughput.samples_per_s


def machine_of_run(run: RunRecord) -> "Machine":
    """Return the machine on which a run was trained.

    Raises:
        ConfigError: The record does not have it, or only a part of it.
    """
    from paratune.planning.machine import machine_of_node

    if not run.run.hardware:
        raise _impossible(run.name, "its record has no machine; train it again")
    node = run.run.hardware[0]
    try:
        return machine_of_node({**node, "gpus": []} if run.run.device == "cpu" else node)
    except (KeyError, TypeError, AttributeError) as error:
        raise _impossible(run.name, f"hardware in its run.json is incomplete: {error}; train it again") from error


def fit_machine(
    machine: "Machine",
    figures: Sequence[MeasuredFigure],
    runs: Sequence[RunRecord],
    loaded: LoadedConfig,
    job: "PlannedJob",
    profile_of: "Callable[..., Profile]",
) -> FittedMachine:
    """Return the machine whose constants explain the measured times.

    Args:
        machine: The planned machine, with which `figures` and `runs` were measured.
        loaded: The planned configuration, that of the figures; with its `job` and `profile_of`, the profiles of it.

    Raises:
        ConfigError: What was measured cannot be predicted, or cannot be right.
    """
    from paratune.planning.predict import JobPredictor
    from paratune.planning.refit import refit
    from paratune.planning.uncalibrated import assumed_cpu_constants, assumed_gpu_constants

    if not figures and not runs:
        return FittedMachine(machine)
    if figures and not machine.is_cuda:
        message = (
            f"--measured {figures[0].text!r}: {machine.name} is a CPU, which is measured by a run; name its folder"
        )
        raise ConfigError(message, code="plan.measured_device", option="--measured", value=figures[0].text)
    if machine.constants is None:
        assumed = assumed_gpu_constants() if machine.is_cuda else assumed_cpu_constants()
        machine = replace(machine, constants=assumed)
    planned = JobPredictor(job, machine, profile_of)
    timed = [_timed_run(run, machine) for run in runs]
    factors, lines = [], []
    for figure in figures:
        prediction = _predicted(planned, loaded, figure)
        if figure.quantity in ("memory", "allocated"):
            factor, line = _memory_factor(figure, prediction)
            factors.append(factor)
            lines.append(line)
        else:
            timed.append(_timed_figure(figure, planned, prediction))
    about: list[dict[str, Any]] = [{"measured": line} for line in lines]
    if steps := [step for each in timed for step in each.steps]:
        assert machine.constants is not None
        fitted = refit(machine.constants, steps)
        after = dict(zip(map(id, steps), fitted.after_s, strict=True))
        before = dict(zip(map(id, steps), fitted.before_s, strict=True))
        for each in timed:
            whole = each.steps[0]
            lines.append(f"Measured: {each.text}. Planned: {each.shown(after[id(whole)])} after the fit.")
            figures_s = {"before": before[id(whole)], "after": after[id(whole)], "measured": whole.seconds}
            about.append({"measured": each.text, "step_s": figures_s})
        machine = replace(machine, constants=fitted.constants)
    factor = math.exp(math.fsum(map(math.log, factors)) / len(factors)) if factors else 1.0
    notes = []
    if runs and not machine.is_cuda and not (ran_on := machine_of_run(runs[0])).is_same_kind(machine):
        notes = [f"times are measured on {ran_on.description} ({runs[0].name}); a core of {machine.name} may differ"]
    return FittedMachine(machine, factor, tuple(lines), tuple(about), tuple(notes))


def _timed_run(run: RunRecord, machine: "Machine") -> _Timed:
    """Return the mean step of a run, and the phases in which its ranks do not wait for each other.

    Raises:
        ConfigError: The run has no measured steps, or its step cannot be predicted.
    """
    from paratune.api.plan_job import make_job
    from paratune.planning.predict import JobPredictor
    from paratune.planning.profiles import Profiles
    from paratune.planning.refit import MeasuredStep
    from paratune.planning.time import TERMS
    from paratune.reports.measures import step_part_ms

    record, mean_step = run.run, _mean_step(run)
    num_ranks, num_nodes = int(record.world_size or 1), len(record.hardware)
    if mean_step is None:
        raise _impossible(run.name, "it has no measured steps; train at least 20, or use a longer run")
    whole_s, tokens_per_sample = mean_step
    try:
        loaded = load_values(record.config)
        # The data may be elsewhere: the record has the mean number of computed tokens.
        job = make_job(loaded, tokens_per_sample=tokens_per_sample)
    except ConfigError as error:
        raise _impossible(run.name, f"its configuration cannot be planned: {error}") from error
    predictor = JobPredictor(job, machine, Profiles(job, is_cuda=machine.is_cuda).of)
    micro_batch_size = (record.batch.changes or [record.batch.model_dump()])[-1].get("micro_batch_size")
    if not micro_batch_size:
        raise _impossible(run.name, "batch in its run.json has no micro_batch_size")
    option = _option(
        predictor,
        loaded,
        run.name,
        strategy=str(loaded.config.strategy.kind),
        precision=loaded.config.precision,
        num_ranks=num_ranks,
        num_nodes=num_nodes,
        micro_batch_size=micro_batch_size,
    )
    prediction = predictor.predict(option)
    if prediction.time is None:
        raise _impossible(run.name, str(prediction.why_no_time))
    case = replace(predictor.step_case(option), num_threads=1 if machine.is_cuda else int(record.num_threads or 1))
    own = [phase for phase in ("forward", "backward", "optimizer") if phase in option.setup.traits.own_phases]
    phases = [(name, (step_part_ms(run, name) or 0.0) / 1000) for name in own]
    parts = [MeasuredStep(case, seconds, (name,)) for name, seconds in phases if seconds > 0]
    text = f"{whole_s:.3g} s a step by {run.name} ({_way_text(option, num_ranks)})"
    return _Timed(text, [MeasuredStep(case, whole_s, TERMS), *parts])


def _impossible(name: str, reason: str) -> ConfigError:
    return ConfigError(f"--measured {name}: {reason}", code="plan.measured_impossible", option="--measured", value=name)


def _option(
    predictor: "JobPredictor",
    loaded: LoadedConfig,
    name: str,
    *,
    strategy: str,
    precision: str,
    num_ranks: int,
    num_nodes: int,
    micro_batch_size: int | None,
) -> "JobOption":
    """Return the option that was measured."""
    from paratune.api.plan import outside_traits
    from paratune.planning.enumerate import PlanRequest, list_options

    request = PlanRequest(
        num_ranks=(num_ranks,),
        strategies=(strategy,),
        precisions=(precision,),
        micro_batch_sizes=(micro_batch_size,),
        nodes=(num_nodes,),
    )
    options, impossible = list_options(predictor.job, loaded, predictor.machine, request, outside_traits)
    if not options:
        raise _impossible(name, "; ".join(rejected.reason for rejected in impossible))
    return options[0]


def _predicted(planned: "JobPredictor", loaded: LoadedConfig, figure: MeasuredFigure) -> "Prediction":
    """Return the prediction of the option with which a figure was measured."""
    option = _option(
        planned,
        loaded,
        repr(figure.text),
        strategy=figure.strategy or _own_strategy(loaded, figure.num_ranks),
        precision=figure.precision or loaded.config.precision,
        num_ranks=figure.num_ranks,
        num_nodes=figure.num_nodes,
        micro_batch_size=figure.micro_batch_size,
    )
    return planned.predict(option)


def _own_strategy(loaded: LoadedConfig, num_ranks: int) -> str:
    """Return the strategy of the configuration, or the first usual one for several devices if it is for one device."""
    from paratune.planning.enumerate import DEFAULT_STRATEGIES

    name = loaded.config.strategy.kind
    if num_ranks == 1 or name not in TRAITS or TRAITS[name].max_world_size != 1:
        return name
    return next(kind for kind in DEFAULT_STRATEGIES if TRAITS[kind].max_world_size is None)


def _way_text(option: "JobOption", num_ranks: int) -> str:
    setup = option.setup
    accumulated = f" x {setup.grad_accum_steps}" if setup.grad_accum_steps > 1 else ""
    return f"{option.name} x {num_ranks}, {setup.precision.name}, micro-batch {setup.micro_batch_size}{accumulated}"


def _timed_figure(figure: MeasuredFigure, planned: "JobPredictor", prediction: "Prediction") -> _Timed:
    """Return a measured time or rate as the time of a step."""
    from paratune.planning.refit import MeasuredStep

    if prediction.time is None:
        raise _impossible(repr(figure.text), str(prediction.why_no_time))
    size, job = prediction.setup.global_batch_size, planned.job
    is_rate = figure.quantity == "samples_per_s"
    number = job.num_samples if figure.quantity == "epoch" else job.num_steps(size)
    if figure.quantity in ("epoch", "run") and number is None:
        reason = "without data the length of an epoch and a run is unknown; give --rows, or the time of a step"
        raise _impossible(repr(figure.text), reason)
    scale = {
        "samples_per_s": float(size),
        "step": 1.0,
        "epoch": size / number if number else 0.0,
        "run": 1 / number if number else 0.0,
    }[figure.quantity]
    seconds = scale / figure.value if is_rate else figure.value * scale
    option = prediction.option
    text = f"{figure.text} ({_way_text(option, figure.num_ranks)})"
    return _Timed(text, [MeasuredStep(planned.step_case(option), seconds)], scale, is_rate)


def _memory_factor(figure: MeasuredFigure, prediction: "Prediction") -> tuple[float, str]:
    """Return measured over planned memory, both without the states, and a line about it."""
    from paratune.planning.memory import STATES

    terms, way = prediction.memory.terms, _way_text(prediction.option, figure.num_ranks)
    left_out = NOT_ALLOCATED if figure.quantity == "allocated" else ()
    planned = sum(size for name, size in terms.items() if name not in left_out)
    states = sum(terms.get(name, 0) for name in STATES)
    if figure.value <= states:
        raise ConfigError(
            f"--measured {figure.text!r}: weights, gradients and optimizer states alone need {format_bytes(states)} "
            f"({way}); name the strategy, the precision and the micro-batch that were measured",
            code="plan.measured_memory",
            option="--measured",
            value=figure.text,
            states_bytes=states,
        )
    error = planned / figure.value - 1
    line = f"Measured: {figure.text} ({way}). Planned: {format_bytes(planned)}, {error:+.0%}."
    return (figure.value - states) / (planned - states), line
