"""Tests that are repeated while runs are added: group-sequential tests that spend the error over the looks.

A look is a verdict on the runs that were finished at that time. Each look spends a part of the 5% error, so a false
"different" at any of them has a probability of 5%. `sequential_p` turns the p-value of the last look into one that is
compared with the error of the whole sequence, also by Holm's rule over several configurations.

Source: Lan and DeMets, Biometrika 70(3), 1983; Armitage, McPherson and Rowe, Journal of the Royal Statistical Society A
132(2), 1969, for the recursion; Maurer and Bretz, Statistics in Biopharmaceutical Research 5(4), 2013, for Holm.
"""

import functools
import math
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paratune.records.sweep import SweepRecord

FIRST_SHARE = 0.7
"""Of the error: spent at the first look, when the matrix plans no rounds. The rest is for runs that are added."""
PLANNED_SHARE = 0.9
"""Of the error: spent up to the planned number of runs, by `paratune sweep --until`."""
_NODES = 201
"""Of the integration over the statistic of the look before; odd, for Simpson's rule."""
_ALPHAS = np.geomspace(1e-12, 0.5, 60)
_HIGHEST_Z = 12.0
Floats = npt.NDArray[np.float64]


Looks = tuple[tuple[float, float], ...]
"""Of each look: its information, and the share of the error that is spent up to it. Both increase."""


@dataclass(frozen=True)
class RecordedLook:
    """An earlier look at the runs of a matrix."""

    finished: Collection[str]
    """Names of the runs that were finished."""
    num_planned: int | None = None
    """Runs of a configuration after which `paratune sweep --until` ends; None where no rounds are planned."""


@dataclass(frozen=True)
class LookHistory:
    """The earlier looks at runs, from the record of their matrix."""

    looks: tuple[RecordedLook, ...] = ()
    """In time order."""
    num_planned: int | None = None
    """Of the present look; see `RecordedLook`."""
    num_earlier: int = 0
    """Earlier looks of which the runs are unknown; they count as looks at equal numbers of new runs."""

    def at(self, first: Collection[str], second: Collection[str]) -> Looks:
        """Return the looks at two configurations, the present one included.

        The information is 1 / (1/n + 1/m) of n and m runs. Looks without two runs on each side do not count, nor do
        looks without a new run. Both sides are given by the names of their runs.
        """
        if self.num_earlier:
            return tuple((float(look), spent_share(look, 1)) for look in range(1, self.num_earlier + 2))
        looks: list[tuple[float, float]] = []
        for look in (*self.looks, RecordedLook({*first, *second}, self.num_planned)):
            n, m = (len(set(side) & set(look.finished)) for side in (first, second))
            if min(n, m) < 2:
                continue
            now = n * m / (n + m)
            before, spent = looks[-1] if looks else (0.0, 0.0)
            if now > before:
                share = spent_share(now, looks[0][0] if looks else now, look.num_planned)
                looks.append((now, max(spent, share)))
        return tuple(looks)


def look_history(record: SweepRecord) -> LookHistory:
    """Return the looks that the record of a matrix contains."""
    finished = record.finished_at_looks()
    looks = tuple(RecordedLook(names, look.num_planned) for names, look in zip(finished, record.looks, strict=True))
    return LookHistory(looks, None if record.rounds is None else record.rounds.num_planned)


def spent_share(information: float, first: float, num_planned: int | None = None) -> float:
    """Return the share of the error that is spent at an amount of information.

    Up to the planned runs it is that of Lan and DeMets for a boundary like Pocock's, times `PLANNED_SHARE`; the rest is
    spent beyond them, as 1 / information decreases. Without planned runs the plan ends at the first look. `first` is
    the information of the first look.
    """
    share, end = (FIRST_SHARE, first) if num_planned is None else (PLANNED_SHARE, num_planned / 2)
    fraction = information / end
    if fraction > 1:
        return 1 - (1 - share) / fraction
    return share * math.log1p((math.e - 1) * fraction)


FIRST_LOOK: Looks = ((1.0, FIRST_SHARE),)


def sequential_p(p_value: float, looks: Looks = FIRST_LOOK) -> float:
    """Return the smallest error of the whole sequence at which the last look, which has this p-value alone, rejects."""
    alphas, levels = _levels_by_alpha(looks)
    if p_value == 0 or not levels[-1]:
        return 0.0 if levels[-1] else 1.0
    if p_value <= levels[0]:
        return float(p_value * alphas[0] / levels[0])
    if p_value >= levels[-1]:
        return 1.0
    return float(np.exp(np.interp(math.log(p_value), np.log(levels), np.log(alphas))))


@functools.lru_cache(maxsize=1024)
def last_level(alpha: float, looks: Looks = FIRST_LOOK) -> float:
    """Return the level of the last look alone at which all looks together have the error `alpha`, two-sided."""
    from scipy import special

    spent, before = 0.0, 0.0
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
            weights = density * _simpson(nodes)
            if part > 0:
                bound = _bound(part, now, gained, nodes, weights)
            steps = np.linspace(-bound, bound, _NODES) * math.sqrt(now)
            kernel = np.exp(-((steps[:, None] - nodes[None]) ** 2) / (2 * gained)) / math.sqrt(2 * math.pi * gained)
            nodes, density = steps, kernel @ weights
        level = 2 * float(special.ndtr(-bound)) if part > 0 else 0.0
        spent, before = share, now
    return level


def _bound(part: float, now: float, gained: float, nodes: Floats, weights: Floats) -> float:
    """Return the bound that the statistic crosses at this look, and at none before, with a probability of `part`."""
    from scipy import special

    low, high = 0.0, _HIGHEST_Z
    for _ in range(50):
        middle = (low + high) / 2
        edge, spread = middle * math.sqrt(now), math.sqrt(gained)
        crossed = weights @ (special.ndtr((nodes - edge) / spread) + special.ndtr((-nodes - edge) / spread))
        low, high = (middle, high) if crossed > part else (low, middle)
    return high


def _simpson(nodes: Floats) -> Floats:
    weights = np.ones(len(nodes))
    weights[1:-1:2], weights[2:-1:2] = 4, 2
    return np.asarray(weights * (nodes[1] - nodes[0]) / 3)


@functools.lru_cache(maxsize=256)
def _levels_by_alpha(looks: Looks) -> tuple[Floats, Floats]:
    """Return errors of the sequence, and for each the level of the last look."""
    return _ALPHAS, np.asarray([last_level(float(alpha), looks) for alpha in _ALPHAS])
