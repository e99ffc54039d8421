"""Tests that are repeated while runs are added: group-sequential tests that spend the error over the looks.

A look is a verdict on the runs that were finished at that time. Each look spends a part of the 5% error, so a false
"different" at any of them has a probability of 5%. `sequential_p` turns the p-value of the last look into one that is
compared with the error of the whole sequence, also by Holm's rule over several configurations.

Source: Lan and DeMets, Biometrika 70(3), 1983; Armitage, McPherson and Rowe, Journal of the Royal Statistical Society A
132(2), 1969, for the recursion; Maurer and Bretz, Statistics in Biopharmaceutical Research 5(4), 2013, for Holm.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from paratune.records.finished import RunRecord
from paratune.records.sweep import Look, SweepRecord
from paratune.verdicts import special

FIRST_SHARE = 0.7  # of the error: spent at the first look without planned rounds; the rest is for runs that are added
PLANNED_SHARE = 0.9  # of the error: spent up to the planned number of runs, by `paratune sweep --until`
_NODES = 201  # of the integration over the statistic of the look before; odd, for Simpson's rule
_ALPHAS = np.geomspace(1e-12, 0.5, 60).tolist()
_HIGHEST_Z = 12.0

Looks = tuple[tuple[float, float], ...]
"""Of each look: its information, and the share of the error that is spent up to it. Both increase."""
FIRST_LOOK: Looks = ((1.0, FIRST_SHARE),)


@dataclass(frozen=True)
class LookHistory:
    """The earlier looks at runs, from the record of their matrix."""

    looks: tuple[Look, ...] = ()  # in time order
    num_planned: int | None = None  # runs of a configuration after which `paratune sweep --until` ends; None without it

    def at(self, *sides: Sequence[RunRecord]) -> Looks:
        """Return the looks at the runs of two configurations, the present one included; one look where none counts.

        The information is 1 / (1/n + 1/m) of n and m runs. Looks without two runs on each side do not count, nor do
        looks without a new run.
        """
        first, second = ({run.name for run in side} for side in sides)
        looks: list[tuple[float, float]] = []
        finished: set[str] = set()
        for look in (*self.looks, Look("", (*first, *second), self.num_planned)):
            finished |= {*look.finished}
            n, m = len(first & finished), len(second & finished)
            before, spent = looks[-1] if looks else (0.0, 0.0)
            if min(n, m) > 1 and (now := n * m / (n + m)) > before:
                share = spent_share(now, looks[0][0] if looks else now, look.num_planned)
                looks.append((now, max(spent, share)))
        return tuple(looks) or FIRST_LOOK


def look_history(record: SweepRecord) -> LookHistory:
    """Return the looks that the record of a matrix contains."""
    return LookHistory(record.looks, None if record.rounds is None else record.rounds.num_planned)


def spent_share(information: float, first: float, num_planned: int | None = None) -> float:
    """Return the share of the error that is spent at an amount of information.

    Up to the planned runs it is that of Lan and DeMets for a boundary like Pocock's, times `PLANNED_SHARE`; the rest is
    spent beyond them, as 1 / information decreases. Without planned runs the plan ends at the first look. `first` is
    the information of the first look.
    """
    share, end = (FIRST_SHARE, first) if num_planned is None else (PLANNED_SHARE, num_planned / 2)
    fraction = information / end
    return 1 - (1 - share) / fraction if fraction > 1 else share * math.log1p((math.e - 1) * fraction)


def sequential_p(p_value: float, looks: Looks = FIRST_LOOK) -> float:
    """Return the smallest error of the whole sequence at which the last look, which has this p-value alone, rejects."""
    levels = [last_level(alpha, looks) for alpha in _ALPHAS]  # of the last look, for errors of the sequence
    if p_value == 0 or not levels[-1]:
        return 0.0 if levels[-1] else 1.0
    if p_value <= levels[0]:
        return float(p_value * _ALPHAS[0] / levels[0])
    if p_value >= levels[-1]:
        return 1.0
    return float(np.exp(np.interp(math.log(p_value), np.log(levels), np.log(_ALPHAS))))


@functools.lru_cache(maxsize=16_384)
def last_level(alpha: float, looks: Looks = FIRST_LOOK) -> float:
    """Return the level of the last look alone at which all looks together have the error `alpha`, two-sided."""
    spent, before = 0.0, 0.0
    # The statistic at the look before, and its density among the sequences that no look has rejected so far.
    nodes = density = np.zeros(0)
    level = alpha
    for number, (now, share) in enumerate(looks):
        part, gained = alpha * (share - spent), now - before
        if part <= 0:  # nothing was left to spend
            bound = _HIGHEST_Z
        elif number == 0:
            bound = -float(special.ndtri(part / 2))
        if number == 0:
            nodes = np.linspace(-bound, bound, _NODES) * math.sqrt(now)
            density = np.exp(-(nodes**2) / (2 * now)) / math.sqrt(2 * math.pi * now)
        else:
            simpson = np.where(np.arange(_NODES) % 2, 4.0, 2.0)
            simpson[[0, -1]] = 1
            weights = density * (simpson * (nodes[1] - nodes[0]) / 3)
            if part > 0:
                # The bound that is crossed at this look, and at none before, with a probability of `part`.
                low, bound = 0.0, _HIGHEST_Z
                for _ in range(50):
                    middle, spread = (low + bound) / 2, math.sqrt(gained)
                    edge = middle * math.sqrt(now)
                    tails = special.ndtr((nodes - edge) / spread) + special.ndtr((-nodes - edge) / spread)
                    low, bound = (middle, bound) if weights @ tails > part else (low, middle)
            # What came since the look before is independent and normal, with the variance `gained`.
            steps = np.linspace(-bound, bound, _NODES) * math.sqrt(now)
            kernel = np.exp(-((steps[:, None] - nodes[None]) ** 2) / (2 * gained)) / math.sqrt(2 * math.pi * gained)
            nodes, density = steps, kernel @ weights
        level = 2 * float(special.ndtr(-bound)) if part > 0 else 0.0
        spent, before = share, now
    return level
