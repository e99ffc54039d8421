"""Refines the factors of a machine by runs on it: measured over predicted time of each phase.

No torch. The bounds of a factor are its prior, and each run is an observation. The new factor is the mean of both,
weighted by their precision, in logarithms (a normal mean under a normal prior).

Source: Gelman et al., Bayesian Data Analysis, third edition, 2013, section 2.5.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune import records
from paratune.config.traits import Traits
from paratune.planning.calibration import node_kind, this_node
from paratune.planning.constants import BoundedConstant, Constants, communication_factor
from paratune.planning.machine import Machine
from paratune.planning.time import TERMS, StepTime

_NINETY = 1.645
"""Standard deviations of a normal distribution that contain nine of ten values, like the bounds of a constant."""
_MIN_SPREAD = 0.05
"""Smallest standard deviation of runs, in logarithms: two equal runs do not prove that all are equal."""
_MIN_SHARE = 0.05
"""Share of a step below which a term is too small to be determined."""
_BETWEEN_RANKS = (
    ("communication_exposed", "factor.communication"),
    ("communication_exposed", "factor.sharding"),
    ("bubble", "factor.pipeline"),
)
"""Terms that wait for other ranks, and their factors."""
_LOCAL = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Observation:
    """A run: measured and predicted seconds of the phases of a step; predicted with the constants to be refined."""

    predicted: Mapping[str, float]
    """Seconds by `planning.time.TERMS`."""
    measured: Mapping[str, float]
    """Median seconds over the measured steps, by `records.ALL_PHASES`."""
    total_s: float
    """Median seconds of a step."""
    own_phases: tuple[str, ...]
    """Phases in which a rank does not wait for others (`Traits.own_phases`)."""
    communication_factor: str = "factor.communication"
    """The factor of its collectives (`constants.communication_factor`)."""


def read_recorded_run(run: Mapping[str, Any], summary: Mapping[str, Any], machine: Machine) -> tuple[int, Observation]:
    """Return the observation of a run from the prediction in its records.

    `run` and `summary` are the contents of run.json and summary.json; `machine` is this machine, with the constants to
    refine.

    Returns:
        The threads of its processes (1 on a GPU), and the observation with its prediction converted to the current
        factors.

    Raises:
        ValueError: The run cannot be used for this machine; the text has the reason.
    """
    prediction = summary.get("prediction") or {}
    terms, factors = prediction.get("terms_s"), prediction.get("factors")
    if not terms or not factors or set(terms) != set(TERMS):
        raise ValueError(prediction.get("reason") or "no prediction of its time was written down")
    name, nodes = prediction.get("machine"), run.get("hardware", [])
    kinds = [node_kind(str(name), node) for node in nodes]
    if kinds != [node_kind(machine.name, this_node())]:
        raise ValueError(f"it ran on {' and '.join(kinds) or name}, not on one node like this machine")
    if not prediction.get("is_calibrated"):
        raise ValueError("the machine had not been calibrated when it ran")
    if len(run.get("sessions", [])) > 1:
        raise ValueError("it was interrupted, and its sessions may differ")
    threads = 1 if machine.is_cuda else int(run.get("num_threads") or 0)
    constants = machine.constants if machine.is_cuda else machine.by_threads.get(threads)
    if constants is None:
        raise ValueError(f"its processes had {threads} threads, with which this machine was not measured")
    traits = run["strategy"]["traits"]
    own, factor = tuple(traits.get("own_phases", ())), communication_factor(traits.get("shards", ()))
    return threads, _observation(summary, _with_current_factors(terms, factors, constants, factor), own, factor)


_FACTOR_OF = {
    **{phase: f"factor.{phase}" for phase in _LOCAL},
    "bubble": "factor.pipeline",
}


def _with_current_factors(
    terms: Mapping[str, float], then: Mapping[str, float], now: Constants, communication: str
) -> dict[str, float]:
    """Return predicted terms with the current factors instead of those at the time of the run."""
    factors = {**_FACTOR_OF, "communication_exposed": communication}
    run = now.value("factor.run", 1.0) / then.get("factor.run", 1.0)
    changes = {term: now.value(name, 1.0) / then.get(name, 1.0) for term, name in factors.items()}
    return {term: seconds * run * changes.get(term, 1.0) for term, seconds in terms.items()}


def observation(folder: Path, predicted: StepTime, traits: Traits) -> Observation:
    """Return the observation of a finished run on this machine, with the prediction for its configuration.

    Raises:
        CheckpointError: The summary is missing or damaged.
        ValueError: The run has no measured step.
    """
    summary = records.read_json(folder / records.SUMMARY_FILE)
    return _observation(summary, predicted.terms, traits.own_phases, communication_factor(traits.shards))


def _observation(
    summary: Mapping[str, Any], terms: Mapping[str, float], own_phases: tuple[str, ...], communication: str
) -> Observation:
    phases: Mapping[str, Any] = summary.get("phases") or {}
    measured = {name: (phases.get(name) or {}).get("median_ms") for name in records.ALL_PHASES}
    total = (summary.get("step_ms") or {}).get("median")
    if total is None or any(median_ms is None for median_ms in measured.values()):
        raise ValueError("it has no measured step after the warm-up")
    seconds = {name: median_ms / 1000 for name, median_ms in measured.items() if median_ms is not None}
    return Observation(terms, seconds, total / 1000, own_phases, communication)


def refine(constants: Constants, runs: Sequence[Observation]) -> Constants:
    """Return the constants with factors that are refined by runs on this machine, which were predicted with them.

    Phases in which a rank does not wait for others determine `factor.forward`, `factor.backward` and
    `factor.optimizer`. The rest of a step determines `factor.communication`, `factor.sharding` or, for a pipeline,
    `factor.pipeline`: one factor for all would be a mean that no strategy has. The remaining errors of whole steps
    determine the bounds of `factor.run`. Without runs the constants are unchanged.
    """
    refined: dict[str, BoundedConstant] = {}
    for phase in _LOCAL:
        ratios = [
            run.measured[phase] / run.predicted[phase]
            for run in runs
            if phase in run.own_phases and run.predicted[phase] > 0 and run.measured[phase] > 0
        ]
        _add_factor(refined, constants, f"factor.{phase}", ratios)
    for term, name in _BETWEEN_RANKS:
        ratios = [
            _communication_s(run, refined, constants) / run.predicted[term]
            for run in runs
            if _determines_factor(run, term) and name in (run.communication_factor, "factor.pipeline")
        ]
        _add_factor(refined, constants, name, ratios)
    ratios = [run.total_s / _total(run, refined, constants) for run in runs]
    if ratios and "factor.run" in constants:
        refined["factor.run"] = _run_factor(constants["factor.run"], ratios)
    return constants.replaced(refined)


def _add_factor(refined: dict[str, BoundedConstant], constants: Constants, name: str, ratios: Sequence[float]) -> None:
    if name in constants and ratios:
        refined[name] = posterior(constants[name], ratios)


def posterior(prior: BoundedConstant, ratios: Sequence[float]) -> BoundedConstant:
    """Return the posterior of a factor from measured over predicted time of runs; predictions include the factor."""
    before, spread_before = math.log(prior.value), math.log(prior.high / prior.low) / (2 * _NINETY)
    values = [before + math.log(ratio) for ratio in ratios]
    precision, of_runs = 1 / max(spread_before, 1e-6) ** 2, len(values) / _spread(values) ** 2
    mean = (before * precision + math.fsum(values) / len(values) * of_runs) / (precision + of_runs)
    reach = _NINETY / math.sqrt(precision + of_runs)
    source = f"{len(ratios)} run{'s' * (len(ratios) > 1)} on it, {min(ratios):.2f} to {max(ratios):.2f} of the"
    return BoundedConstant(
        math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), f"refined: {source} prediction; {prior.source}"
    )


def _spread(values: Sequence[float]) -> float:
    return max(_MIN_SPREAD, statistics.stdev(values) if len(values) > 1 else 2 * _MIN_SPREAD)


def _run_factor(prior: BoundedConstant, ratios: Sequence[float]) -> BoundedConstant:
    """Return `factor.run` with the same value and bounds from the runs; the prior bounds count as three runs."""
    values = [math.log(ratio) for ratio in ratios]
    before = math.log(prior.high / prior.low) / (2 * _NINETY)
    # Around 0 and not around their mean: a remaining bias of whole steps is part of the spread.
    squares = math.fsum(value**2 for value in values) + 3 * before**2
    reach = _NINETY * max(_MIN_SPREAD, math.sqrt(squares / (len(values) + 3)))
    source = f"refined: whole steps of {len(ratios)} runs, {min(ratios):.2f} to {max(ratios):.2f} of their prediction"
    return BoundedConstant(prior.value, prior.value * math.exp(-reach), prior.value * math.exp(reach), source)


def _factor_change(name: str, refined: Mapping[str, BoundedConstant], constants: Constants) -> float:
    """Return the new value of a factor over the old one."""
    return refined[name].value / constants[name].value if name in refined else 1.0


def _local_s(run: Observation, refined: Mapping[str, BoundedConstant], constants: Constants) -> float:
    """Return the predicted seconds of a step without communication and bubble, with the new factors."""
    phases = math.fsum(run.predicted[phase] * _factor_change(f"factor.{phase}", refined, constants) for phase in _LOCAL)
    return phases + math.fsum(run.predicted[term] for term in ("get_batch", "offload", "other"))


def _communication_s(run: Observation, refined: Mapping[str, BoundedConstant], constants: Constants) -> float:
    """Return the measured seconds of communication and bubble (rest of a step), at least a tenth of the predicted."""
    between = run.predicted["communication_exposed"] + run.predicted["bubble"]
    return max(0.1 * between, run.total_s - _local_s(run, refined, constants))


def _determines_factor(run: Observation, term: str) -> bool:
    """Return whether a term is at least nine tenths of communication and bubble, and large enough to be determined."""
    between = run.predicted["communication_exposed"] + run.predicted["bubble"]
    return run.predicted[term] > 0.9 * between and between > _MIN_SHARE * math.fsum(run.predicted.values())


def _total(run: Observation, refined: Mapping[str, BoundedConstant], constants: Constants) -> float:
    exposed = run.predicted["communication_exposed"] * _factor_change(run.communication_factor, refined, constants)
    bubble = run.predicted["bubble"] * _factor_change("factor.pipeline", refined, constants)
    return _local_s(run, refined, constants) + exposed + bubble
