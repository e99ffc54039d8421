"""The time of an optimizer step: its terms and its interval; and the fit of the constants to measured steps.

The time of operations comes from `planning.work`; the modules of `planning.kinds` add that of the strategy.

The fit: each constant has a prior in logarithms: normal, with nine of ten values between its bounds. Each measured time
is one observation. The maximum of the posterior moves a constant only as far as the measured times need it: a constant
on which no measured time depends keeps its value, and of two that explain the same time the less certain one moves
more.

Source: Gelman et al., Bayesian Data Analysis, third edition, 2013, sections 4.1 (normal approximation) and 14.8
(informative priors for regression coefficients).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paratune.planning.constants import Bounded, Constants, UnknownConstant
from paratune.planning.kinds import KINDS
from paratune.planning.work import StepCase, Work

TERMS = (
    "get_batch",
    "forward",
    "backward",
    "optimizer",
    "communication_exposed",
    "bubble",
    "offload",
    "other",
)
"""Terms of a step; their sum is the step."""
REMEDY = "give a run on it, 20 steps are enough (paratune plan CONFIG --measured RUN)"
NINETY = 1.645
"""Standard deviations of a normal distribution that contain nine of ten values."""
NOISE = 0.03
"""Standard deviation of a measured time, in logarithms: the difference between repeats of a run."""
OTHER_WAY = {"cuda": 0.1, "cpu": 0.2}
"""Half width of the interval, in logarithms, that the fit leaves for the errors of other options: with one
figure of a table of benchmarks/published.yaml it contains nine tenths of the table's other times (fitting half), and
with one run of benchmarks/plan_time_cpu_202611.md nine tenths of the other runs on the same CPU."""
_LIMITS = {"overlap": (None, 1.0), "together": (1.0, None), "threads": (None, 1.0)}
"""Values that a constant cannot pass: shares, and slowdowns."""
_STEP = 1e-3
"""Of the derivatives, in logarithms."""


@dataclass(frozen=True)
class StepTime:
    """The time of one optimizer step, in seconds."""

    terms: Mapping[str, float]
    """Seconds by the names of `TERMS`."""
    total: Bounded
    """Their sum, with bounds from those of all constants of the machine."""


def step_time(case: StepCase) -> tuple[StepTime | None, str | None]:
    """Predict the time of an optimizer step.

    Returns:
        The time and None; or None and the reason: a constant of the machine is unknown.
    """
    machine, constants = case.machine, case.machine.constants
    if constants is None:
        return None, f"the speed of {machine.name} is unknown; {REMEDY}"
    try:
        terms = step_terms(case, constants)
        total = math.fsum(terms.values())
        ends = [
            [math.log(math.fsum(step_terms(case, end).values()) / total) for end in variation]
            for variation in constants.variations(used_constants(case, constants))
        ]
    except UnknownConstant as error:
        return None, f"{error.args[0]} of {machine.name} is unknown; {REMEDY}"
    # Constants are independent of each other, and so are joint directions: the squares of their shifts add up.
    faster = math.sqrt(math.fsum(max(0.0, -min(pair)) ** 2 for pair in ends))
    slower = math.sqrt(math.fsum(max(0.0, *pair) ** 2 for pair in ends))
    return StepTime(terms, Bounded(total, total * math.exp(-faster), total * math.exp(slower))), None


def used_constants(case: StepCase, constants: Constants) -> set[str]:
    """Return the names of the constants on which the time of a step depends.

    Raises:
        UnknownConstant: A constant that the step needs is missing.
    """
    names: set[str] = set()

    class Recorded(dict[str, Bounded]):
        def __getitem__(self, name: str) -> Bounded:
            names.add(name)
            return super().__getitem__(name)

    step_terms(case, Constants(Recorded(constants.by_name)))
    return names


def step_terms(case: StepCase, constants: Constants) -> dict[str, float]:
    """Return the seconds of a step by its `TERMS`, with these constants instead of those of the machine.

    Raises:
        UnknownConstant: A constant that the step needs is missing.
    """
    work = Work(case, constants)
    step = KINDS[case.setup.strategy.kind].seconds(work)
    terms = {
        "get_batch": 0.0,
        "forward": step.forward_s,
        "backward": step.backward_s,
        "optimizer": step.optimizer_s,
        "communication_exposed": step.communication_s,
        "bubble": step.bubble_s,
        "offload": step.offload_s,
    }
    other = constants.value("step", 0.0)
    step_s = math.fsum(terms.values()) + other
    hiding = case.num_tokens * constants.value("loader.hiding", 0.0) if case.hides_words else 0.0
    making = case.setup.micro_batch_size * constants.value("loader", 0.0) + hiding
    making *= case.setup.grad_accum_steps
    # Workers make the next batch during the whole step; without them the host makes it while it is ahead of the device.
    hidden = work.idle_s * case.setup.grad_accum_steps - step.hidden_s if work.is_cuda else 0.0
    if case.num_workers:
        making, hidden = making / case.num_workers, step_s
    terms |= {"get_batch": max(0.0, making - hidden), "other": other}
    run = constants.value("factor.run", 1.0)
    return {term: run * seconds for term, seconds in terms.items()}


@dataclass(frozen=True)
class MeasuredStep:
    """A measured time of one optimizer step, or of its phases."""

    case: StepCase
    seconds: float
    terms: tuple[str, ...] = TERMS
    """The measured phases, of `planning.time.TERMS`; all of them are the whole step."""


def refit(constants: Constants, steps: Sequence[MeasuredStep]) -> tuple[Constants, list[float], list[float]]:
    """Return the constants that explain measured steps of their machine best (at least one step).

    The bounds of the constants are the prior.

    Returns:
        The constants; and the seconds of each measured step, predicted before and after the fit.
    """
    from scipy.optimize import least_squares

    cases = list({id(step.case): step.case for step in steps}.values())
    used = sorted(set().union(*(used_constants(case, constants) for case in cases)))
    names = [name for name in used if constants[name].value > 0 and constants[name].low < constants[name].high]
    prior = np.array([max(1e-6, math.log(constants[name].high / constants[name].low) / (2 * NINETY)) for name in names])
    measured = np.log([step.seconds for step in steps])

    def logs(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        moved = constants.shifted(dict(zip(names, x, strict=True)))
        terms = {id(case): step_terms(case, moved) for case in cases}
        return np.log([math.fsum(terms[id(step.case)][name] for name in step.terms) for step in steps])

    def slopes(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        columns = []
        for number in range(len(names)):
            ends = [x.copy(), x.copy()]
            ends[0][number] -= _STEP
            ends[1][number] += _STEP
            columns.append((logs(ends[1]) - logs(ends[0])) / (2 * _STEP))
        return np.stack(columns, axis=1)

    low, high = np.full(len(names), -np.inf), np.full(len(names), np.inf)
    for number, name in enumerate(names):
        least, most = _LIMITS.get(name, (None, None))
        if least is not None:
            low[number] = min(0.0, math.log(least / constants[name].value))
        if most is not None:
            high[number] = max(0.0, math.log(most / constants[name].value))
    solution = least_squares(
        lambda x: np.concatenate([(logs(x) - measured) / NOISE, x / prior]),
        np.clip(np.zeros(len(names)), low, high),
        jac=lambda x: np.concatenate([slopes(x) / NOISE, np.diag(1 / prior)]),
        bounds=(low - 1e-9, high + 1e-9),  # the start must be strictly inside
    )
    x = solution.x
    slope = slopes(x)
    covariance = np.linalg.inv(np.diag(1 / prior**2) + slope.T @ slope / NOISE**2)
    sizes, vectors = np.linalg.eigh(covariance)
    spreads = NINETY * vectors * np.sqrt(np.clip(sizes, 0, None))
    joint = tuple(dict(zip(names, column, strict=True)) for column in spreads.T)
    other_way = OTHER_WAY["cuda" if steps[0].case.machine.is_cuda else "cpu"]
    joint += ({"factor.run": other_way},) if "factor.run" in constants else ()
    moved = constants.shifted(dict(zip(names, x, strict=True)))
    bounded = {}
    for name, deviation in zip(names, np.sqrt(np.diag(covariance)), strict=True):
        value, factor = moved[name].value, math.exp(NINETY * deviation)
        bounded[name] = Bounded(value, value / factor, value * factor)
    # With the bounds of their posterior, and the directions in which they vary together.
    fitted = replace(moved.replaced(bounded), joint=joint)
    return fitted, np.exp(logs(np.zeros(len(names)))).tolist(), np.exp(logs(x)).tolist()
