"""Figures of a machine made better by runs on it: what phases took, over what was predicted for them.

No torch. A factor is known beforehand as well as its bounds say, and each run tells it once more: the mean of both,
each weighing as much as it is sure, in logarithms (a normal mean under a normal prior).

Source: Gelman et al., Bayesian Data Analysis, third edition, 2013, section 2.5.
"""

import math
import socket
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune import records
from paratune.config.traits import Traits
from paratune.plan.constants import BoundedConstant, Constants
from paratune.plan.machine import Machine
from paratune.plan.time import TERMS, StepTime

_SURE = 1.645
"""Standard deviations of a normal distribution within which nine of ten values lie: what bounds are taken to be."""
_LEAST_SPREAD = 0.05
"""Standard deviation, in logarithms, that runs have at least: two alike do not prove that all are."""
_LEAST_SHARE = 0.05
"""Part of a step below which a term is lost in the noise of the others."""
_LOCAL = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Observation:
    """A run: its phases in seconds of one step, and what was predicted for them with the figures to be refined."""

    predicted: Mapping[str, float]
    """By `plan.time.TERMS`."""
    measured: Mapping[str, float]
    """By `records.ALL_PHASES`: medians over its measured steps."""
    total_s: float
    """The median of its steps."""
    own_phases: tuple[str, ...]
    """Those in which a rank waits for no other (`Traits.own_phases`)."""


def recorded(run: Mapping[str, Any], summary: Mapping[str, Any], machine: Machine) -> tuple[int, Observation]:
    """Read a run by what it wrote down of its prediction.

    Args:
        run: Content of run.json.
        summary: Content of summary.json.
        machine: This one, with the figures that are to be refined.

    Returns:
        The threads of its processes (1 on a GPU), whose figures it tells of, and the observation, its prediction
        brought to the factors of today.

    Raises:
        ValueError: It says nothing of this machine's figures; the text says why.
    """
    found = summary.get("prediction") or {}
    terms, factors = found.get("terms_s"), found.get("factors")
    if not terms or not factors or set(terms) != set(TERMS):
        raise ValueError(found.get("reason") or "no prediction of its time was written down")
    hosts = [node.get("hostname") for node in run.get("hardware", [])]
    if found.get("machine") != machine.name or hosts != [socket.gethostname()]:
        raise ValueError(f"it ran on {found.get('machine')} ({', '.join(map(str, hosts))}), not on this machine")
    if not found.get("is_calibrated"):
        raise ValueError("the machine had not been calibrated when it ran")
    if len(run.get("sessions", [])) > 1:
        raise ValueError("it was interrupted, and its sessions may differ")
    threads = 1 if machine.is_cuda else int(run.get("num_threads") or 0)
    constants = machine.constants if machine.is_cuda else machine.by_threads.get(threads)
    if constants is None:
        raise ValueError(f"its processes had {threads} threads, with which this machine was not measured")
    own = tuple(run["strategy"]["traits"].get("own_phases", ()))
    return threads, _observation(summary, _brought(terms, factors, constants), own)


_FACTOR_OF = {
    **{phase: f"factor.{phase}" for phase in _LOCAL},
    "communication_exposed": "factor.communication",
    "bubble": "factor.pipeline",
}


def _brought(terms: Mapping[str, float], then: Mapping[str, float], now: Constants) -> dict[str, float]:
    """Return terms that were predicted with other factors as they would be with those of today."""
    run = now.value("factor.run", 1.0) / then.get("factor.run", 1.0)
    changes = {term: now.value(name, 1.0) / then.get(name, 1.0) for term, name in _FACTOR_OF.items()}
    return {term: seconds * run * changes.get(term, 1.0) for term, seconds in terms.items()}


def observation(folder: Path, predicted: StepTime, traits: Traits) -> Observation:
    """Read a run that was made on the machine.

    Args:
        folder: Of the run, which is finished.
        predicted: For its configuration.
        traits: Of its strategy.

    Raises:
        CheckpointError: It has no summary, or a damaged one.
        ValueError: No step of it was measured.
    """
    summary = records.read_json(folder / records.SUMMARY_FILE)
    return _observation(summary, predicted.terms, traits.own_phases)


def _observation(summary: Mapping[str, Any], terms: Mapping[str, float], own_phases: tuple[str, ...]) -> Observation:
    phases: Mapping[str, Any] = summary.get("phases") or {}
    measured = {name: (phases.get(name) or {}).get("median_ms") for name in records.ALL_PHASES}
    total = (summary.get("step_ms") or {}).get("median")
    if total is None or any(each is None for each in measured.values()):
        raise ValueError("no step of it was measured behind the warm-up")
    seconds = {name: each / 1000 for name, each in measured.items() if each is not None}
    return Observation(terms, seconds, total / 1000, own_phases)


def refine(constants: Constants, runs: Sequence[Observation]) -> Constants:
    """Return the figures with the factors that runs on the machine show.

    Phases in which a rank waits for nobody give `factor.forward`, `factor.backward` and `factor.optimizer`; what is
    left of a step behind those, `factor.communication` or, of a pipeline, `factor.pipeline`; and how far whole steps
    are from what the new factors foretell, the bounds of `factor.run`.

    Args:
        constants: With which the runs were predicted.
        runs: Of this machine; without any, the figures stay as they are.
    """
    found: dict[str, BoundedConstant] = {}
    for phase in _LOCAL:
        ratios = [
            run.measured[phase] / run.predicted[phase]
            for run in runs
            if phase in run.own_phases and run.predicted[phase] > 0 and run.measured[phase] > 0
        ]
        _add(found, constants, f"factor.{phase}", ratios)
    for term, name in (("communication_exposed", "factor.communication"), ("bubble", "factor.pipeline")):
        ratios = [_left(run, found, constants) / run.predicted[term] for run in runs if _tells(run, term)]
        _add(found, constants, name, ratios)
    ratios = [run.total_s / _total(run, found, constants) for run in runs]
    if ratios and "factor.run" in constants:
        found["factor.run"] = _spread_of(constants["factor.run"], ratios)
    return constants.replaced(found)


def _add(found: dict[str, BoundedConstant], constants: Constants, name: str, ratios: Sequence[float]) -> None:
    if name in constants and ratios:
        found[name] = posterior(constants[name], ratios)


def posterior(prior: BoundedConstant, ratios: Sequence[float]) -> BoundedConstant:
    """Return a factor after runs.

    Args:
        prior: The factor before.
        ratios: Of each run, measured over predicted with that factor in it.
    """
    before, spread_before = math.log(prior.value), math.log(prior.high / prior.low) / (2 * _SURE)
    values = [before + math.log(ratio) for ratio in ratios]
    precision, of_runs = 1 / max(spread_before, 1e-6) ** 2, len(values) / _spread(values) ** 2
    mean = (before * precision + math.fsum(values) / len(values) * of_runs) / (precision + of_runs)
    reach = _SURE / math.sqrt(precision + of_runs)
    source = f"{len(ratios)} run{'s' * (len(ratios) > 1)} on it, {min(ratios):.2f} to {max(ratios):.2f} of what was"
    return BoundedConstant(
        math.exp(mean), math.exp(mean - reach), math.exp(mean + reach), f"refined: {source} predicted; {prior.source}"
    )


def _spread(values: Sequence[float]) -> float:
    return max(_LEAST_SPREAD, statistics.stdev(values) if len(values) > 1 else 2 * _LEAST_SPREAD)


def _spread_of(prior: BoundedConstant, ratios: Sequence[float]) -> BoundedConstant:
    """Return `factor.run`: its value stays, its bounds are those of runs; the bounds before count as three runs."""
    values = [math.log(ratio) for ratio in ratios]
    before = math.log(prior.high / prior.low) / (2 * _SURE)
    # Around 0, and not around their mean: where whole steps are still missed, that is spread too.
    squares = math.fsum(value**2 for value in values) + 3 * before**2
    reach = _SURE * max(_LEAST_SPREAD, math.sqrt(squares / (len(values) + 3)))
    source = f"refined: whole steps of {len(ratios)} runs, {min(ratios):.2f} to {max(ratios):.2f} of their prediction"
    return BoundedConstant(prior.value, prior.value * math.exp(-reach), prior.value * math.exp(reach), source)


def _changed(name: str, found: Mapping[str, BoundedConstant], constants: Constants) -> float:
    """Return by how much a factor has changed."""
    return found[name].value / constants[name].value if name in found else 1.0


def _local_s(run: Observation, found: Mapping[str, BoundedConstant], constants: Constants) -> float:
    """Return the predicted seconds of a step without what lies between ranks, with the new factors."""
    phases = math.fsum(run.predicted[phase] * _changed(f"factor.{phase}", found, constants) for phase in _LOCAL)
    return phases + math.fsum(run.predicted[term] for term in ("get_batch", "offload", "other"))


def _left(run: Observation, found: Mapping[str, BoundedConstant], constants: Constants) -> float:
    """Return the measured seconds of a step that only what lies between ranks explains; a tenth of it at least."""
    between = run.predicted["communication_exposed"] + run.predicted["bubble"]
    return max(0.1 * between, run.total_s - _local_s(run, found, constants))


def _tells(run: Observation, term: str) -> bool:
    """Return whether nearly all that lies between ranks is one term, and it is large enough to be seen."""
    between = run.predicted["communication_exposed"] + run.predicted["bubble"]
    return run.predicted[term] > 0.9 * between and between > _LEAST_SHARE * math.fsum(run.predicted.values())


def _total(run: Observation, found: Mapping[str, BoundedConstant], constants: Constants) -> float:
    exposed = run.predicted["communication_exposed"] * _changed("factor.communication", found, constants)
    bubble = run.predicted["bubble"] * _changed("factor.pipeline", found, constants)
    return _local_s(run, found, constants) + exposed + bubble
