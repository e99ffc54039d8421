"""Refit the constants of a machine to step times that were measured on it.

Each constant has a prior in logarithms: normal, with nine of ten values between its bounds. Each measured step time is
one observation. The maximum of the posterior moves a constant only as far as the measured times need it: a constant on
which no measured time depends keeps its value, and of two that explain the same time the less certain one moves more.

Source: Gelman et al., Bayesian Data Analysis, third edition, 2013, sections 4.1 (normal approximation) and 14.8
(informative priors for regression coefficients).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from paratune.planning.constants import BoundedConstant, Constants
from paratune.planning.time import TERMS, step_terms, used_constants
from paratune.planning.work import StepCase

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
class MeasuredStep:
    """A measured time of one optimizer step, or of its phases."""

    case: StepCase
    seconds: float
    terms: tuple[str, ...] = TERMS
    """The measured phases, of `planning.time.TERMS`; all of them are the whole step."""


@dataclass(frozen=True)
class Refit:
    """The constants after the fit, and the measured steps before and after it."""

    constants: Constants
    before_s: tuple[float, ...]
    """Of each measured step, predicted with the constants as they were."""
    after_s: tuple[float, ...]


def refit(constants: Constants, steps: Sequence[MeasuredStep]) -> Refit:
    """Return the constants that explain measured steps of their machine best (at least one step).

    The bounds of the constants are the prior.
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

    low, high = np.array([_limits(constants, name) for name in names]).T
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
        bounded[name] = BoundedConstant(value, value / factor, value * factor)
    return Refit(
        # With the bounds of their posterior, and the directions in which they vary together.
        constants=replace(moved.replaced(bounded), joint=joint),
        before_s=tuple(float(value) for value in np.exp(logs(np.zeros(len(names))))),
        after_s=tuple(float(value) for value in np.exp(logs(x))),
    )


def _limits(constants: Constants, name: str) -> tuple[float, float]:
    low, high = _LIMITS.get(name, (None, None))
    value = constants[name].value
    return (
        -math.inf if low is None else min(0.0, math.log(low / value)),
        math.inf if high is None else max(0.0, math.log(high / value)),
    )
