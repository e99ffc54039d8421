"""`paratune plan --measured`: fit the planned machine to figures that somebody measured on it."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paratune.base.units import format_bytes, format_duration
from paratune.config.load import LoadedConfig, load_config
from paratune.config.traits import TRAITS
from paratune.errors import ConfigError
from paratune.planning.measured import MeasuredFigure
from paratune.records.published import NOT_ALLOCATED

if TYPE_CHECKING:
    from paratune.api.plan_options import PlanOptions, Reload
    from paratune.planning.enumerate import JobOption
    from paratune.planning.machine import Machine
    from paratune.planning.predict import JobPredictor, Prediction

_MOST_NAMES = 8


@dataclass(frozen=True)
class FittedMachine:
    """The planned machine, with its constants fitted to measured times and a factor for measured memory."""

    machine: "Machine"
    memory_factor: float = 1.0
    """Of the memory besides weights, gradients, optimizer states and buffers."""
    lines: tuple[str, ...] = ()
    learned: frozenset[str] = frozenset()
    """Constants that the figures determine."""
    about: dict[str, Any] | None = None

    def still_assumed(self, predictor: "JobPredictor", predictions: Sequence["Prediction"]) -> list[str]:
        """Return the names of the constants of the predictions that no measured figure determines."""
        from paratune.planning.time import used_constants

        constants = self.machine.constants
        if constants is None or not self.learned:
            return []
        timed = [prediction.option for prediction in predictions if prediction.time is not None]
        used = set().union(*(used_constants(predictor.step_case(option), constants) for option in timed))
        return sorted(name for name in used - self.learned if constants[name].low < constants[name].high)


def assumed_line(names: Sequence[str]) -> str:
    """Return a sentence about the constants that stay as assumed."""
    more = f" and {len(names) - _MOST_NAMES} more (--json has all)" if len(names) > _MOST_NAMES else ""
    return f"The measured figures do not determine {', '.join(names[:_MOST_NAMES])}{more}: these stay as assumed."


def measured_device(figures: Sequence[MeasuredFigure]) -> str | None:
    """Return the one device on which all figures were measured; None without figures.

    Raises:
        ConfigError: They name several devices.
    """
    names = sorted({figure.device for figure in figures})
    if len(names) > 1:
        message = (
            f"--measured names several devices ({', '.join(names)}); a plan is for one device: give its figures only"
        )
        raise ConfigError(message, code="plan.measured_device", devices=names)
    return names[0] if names else None


def fit_machine(
    figures: Sequence[MeasuredFigure],
    wanted: "PlanOptions",
    loaded: LoadedConfig,
    reload: "Reload | None",
    planned: "JobPredictor",
) -> FittedMachine:
    """Return the machine whose constants explain the figures.

    Raises:
        ConfigError: A figure is of another device, its way of running is not possible, or it cannot be right.
    """
    from paratune.planning.refit import MeasuredStep, refit

    machine = planned.machine
    if not figures:
        return FittedMachine(machine)
    _check_device(figures, machine)
    steps, timed, factors, memory_lines, entries = [], [], [], [], []
    jobs = {"None []": (loaded, planned)}
    for figure in figures:
        predictor, prediction = _predict(figure, reload, wanted, machine, jobs)
        option = prediction.option
        entry = {"figure": figure.text, "way": _way_text(option), "quantity": figure.quantity, "measured": figure.value}
        entries.append(entry)
        if figure.quantity in ("memory", "allocated"):
            factor, line = _memory_factor(figure, prediction, entry)
            factors.append(factor)
            memory_lines.append(line)
            continue
        if prediction.time is None:
            message = f"--measured {figure.text!r}: {prediction.why_no_time}"
            raise ConfigError(message, code="plan.not_calibrated", option="--measured", value=figure.text)
        unit = _step_unit(figure, predictor, option)
        steps.append(MeasuredStep(predictor.step_case(option), unit.step_seconds(figure.value)))
        timed.append((figure, unit, entry))
    lines: list[str] = []
    learned: frozenset[str] = frozenset()
    about: dict[str, Any] = {"figures": entries, "moved": {}}
    if steps:
        assert machine.constants is not None
        fitted = refit(machine.constants, steps)
        learned = fitted.learned
        for (figure, unit, entry), before_s, after_s in zip(timed, fitted.before_s, fitted.after_s, strict=True):
            entry |= {"planned_before": unit.value(before_s), "planned_after": unit.value(after_s)}
            lines.append(
                f"Measured: {figure.text} ({entry['way']}). Planned: {unit.text(before_s)} before, "
                f"{unit.text(after_s)} after the fit."
            )
        about["moved"] = {name: list(ends) for name, ends in fitted.moved.items()}
        lines += _moved_lines(fitted.moved)
        machine = replace(machine, constants=fitted.constants)
    factor = math.exp(math.fsum(map(math.log, factors)) / len(factors)) if factors else 1.0
    about["memory_factor"] = factor
    return FittedMachine(machine, factor, (*lines, *memory_lines), learned, about)


def _check_device(figures: Sequence[MeasuredFigure], machine: "Machine") -> None:
    known = {machine.name.lower()} | ({machine.device.key.lower()} if machine.device is not None else set())
    if not machine.is_cuda or any(figure.device not in known for figure in figures):
        strange = next((figure for figure in figures if figure.device not in known), figures[0])
        raise ConfigError(
            f"--measured {strange.text!r}: the plan is for {machine.name}, and the figure of {strange.device}; plan "
            f"that device (--device {strange.device})"
            + ("" if machine.is_cuda else "; figures of a CPU come from paratune plan --calibrate"),
            code="plan.measured_device",
            option="--measured",
            value=strange.device,
            devices=sorted(known),
        )


def _predict(
    figure: MeasuredFigure,
    reload: "Reload | None",
    wanted: "PlanOptions",
    machine: "Machine",
    jobs: dict[str, tuple[LoadedConfig, "JobPredictor"]],
) -> tuple["JobPredictor", "Prediction"]:
    """Return the plan of the option with which the figure was measured, and the predictor of its job."""
    from paratune.api.plan import outside_traits
    from paratune.api.plan_job import make_job
    from paratune.planning.enumerate import PlanRequest, list_options
    from paratune.planning.predict import JobPredictor
    from paratune.planning.profiles import Profiles

    own = [f"{key}={json.dumps(value)}" for key, value in figure.overrides.items()]
    key = f"{figure.config} {own}"
    if key not in jobs:
        assert reload is not None
        loaded = reload(own) if figure.config is None else _load(figure.config, own)
        job = make_job(loaded, max_length=wanted.max_length, rows=wanted.rows)
        jobs[key] = loaded, JobPredictor(job, machine, Profiles(job, is_cuda=machine.is_cuda).of)
    loaded, predictor = jobs[key]
    request = PlanRequest(
        num_ranks=(figure.num_ranks,),
        strategies=(figure.strategy or _own_strategy(loaded, figure.num_ranks),),
        precisions=(figure.precision or loaded.config.precision,),
        micro_batch_sizes=(figure.micro_batch_size,),
        nodes=(figure.num_nodes,),
    )
    options, impossible = list_options(predictor.job, loaded, machine, request, outside_traits)
    if not options:
        message = f"--measured {figure.text!r}: {'; '.join(rejected.reason for rejected in impossible)}"
        raise ConfigError(message, code="plan.measured_impossible", option="--measured", value=figure.text)
    return predictor, predictor.predict(options[0])


def _load(path: Path, overrides: Sequence[str]) -> LoadedConfig:
    """Load a configuration that a file of figures names; the file may name any, so that no content is shown."""
    try:
        return load_config(path, overrides)
    except ConfigError as error:
        message = f"--measured: {path} cannot be used; paratune config show {path} shows the reason"
        raise ConfigError(message, code=error.code, path=path) from error


def _own_strategy(loaded: LoadedConfig, num_ranks: int) -> str:
    """Return the strategy of the configuration, or the first usual one for several devices if it is for one device."""
    from paratune.planning.enumerate import DEFAULT_STRATEGIES

    name = loaded.config.strategy.kind
    if num_ranks == 1 or name not in TRAITS or TRAITS[name].max_world_size != 1:
        return name
    return next(kind for kind in DEFAULT_STRATEGIES if TRAITS[kind].max_world_size is None)


def _way_text(option: "JobOption") -> str:
    setup = option.setup
    accumulated = f" x {setup.grad_accum_steps}" if setup.grad_accum_steps > 1 else ""
    return f"{option.name}, {setup.precision.name}, micro-batch {setup.micro_batch_size}{accumulated}"


def _step_unit(figure: MeasuredFigure, predictor: "JobPredictor", option: "JobOption") -> "_FigureUnit":
    """Return how the figure becomes the seconds of a step."""
    size = option.setup.global_batch_size
    if figure.quantity == "step":
        return _FigureUnit(1.0)
    if figure.quantity == "samples_per_s":
        return _FigureUnit(size, is_rate=True)
    job = predictor.job
    number = job.num_samples if figure.quantity == "epoch" else job.num_steps(size)
    if number is None:
        message = (
            f"--measured {figure.text!r}: without data the length of an epoch and a run is unknown; give --rows, or "
            "the time of a step"
        )
        raise ConfigError(message, code="plan.measured_impossible", option="--measured", value=figure.text)
    return _FigureUnit(size / number if figure.quantity == "epoch" else 1 / number)


@dataclass(frozen=True)
class _FigureUnit:
    """The unit of a measured time or rate."""

    scale: float
    """Steps in the measured time; of a rate, the samples of a step."""
    is_rate: bool = False

    def step_seconds(self, value: float) -> float:
        return self.scale / value if self.is_rate else value * self.scale

    def value(self, step_seconds: float) -> float:
        return self.scale / step_seconds if self.is_rate else step_seconds / self.scale

    def text(self, step_seconds: float) -> str:
        value = self.value(step_seconds)
        if self.is_rate:
            return f"{value:.4g} samples/s"
        return format_duration(value) if value >= 60 else f"{value:.3g} s"


def _moved_lines(moved: Mapping[str, tuple[float, float]]) -> list[str]:
    if not moved:
        return ["No constant of the machine had to move by 2% or more."]
    texts = [f"{name} x {after / before:.3g}" for name, (before, after) in list(moved.items())[:_MOST_NAMES]]
    more = f" and {len(moved) - _MOST_NAMES} more (--json has all)" if len(moved) > _MOST_NAMES else ""
    return [f"Constants that the fit moved: {', '.join(texts)}{more}."]


def _memory_factor(figure: MeasuredFigure, prediction: "Prediction", entry: dict[str, Any]) -> tuple[float, str]:
    """Return measured over planned memory, both without the states, and a line about it."""
    from paratune.planning.memory import STATES

    terms, option = prediction.memory.terms, prediction.option
    left_out = NOT_ALLOCATED if figure.quantity == "allocated" else ()
    planned = sum(size for name, size in terms.items() if name not in left_out)
    states = sum(terms.get(name, 0) for name in STATES)
    if figure.value <= states:
        raise ConfigError(
            f"--measured {figure.text!r}: weights, gradients and optimizer states alone need {format_bytes(states)} "
            f"({_way_text(option)}); name the strategy, the precision and the micro-batch that were measured",
            code="plan.measured_memory",
            option="--measured",
            value=figure.text,
            states_bytes=states,
        )
    entry["planned_before"] = planned
    error = planned / figure.value - 1
    line = f"Measured: {figure.text} ({_way_text(option)}). Planned: {format_bytes(planned)}, {error:+.0%}."
    return (figure.value - states) / (planned - states), line
