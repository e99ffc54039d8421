"""Whether effects are faithful: words are hidden or shown in their order, and compared with random orders.

Dimensions: `W` words, `K` points of a curve, `R` random orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from paratune.explain.outputs import Bools, Floats, RowOutput
from paratune.verdicts.agreement import rank_correlation

NUM_POINTS = 10
NUM_RANDOM = 19
"""With 19 random orders, an order that exceeds all of them has p = 1 / 20."""
MAX_P = 0.05
AS_CHANCE = "cannot be distinguished from chance"
"""In words: effects do not hold, because random orders or random choices do as well."""


@dataclass(frozen=True, eq=False)
class Curves:
    """Outputs while the words of an order are hidden (deletion) and shown (insertion), the first words first."""

    deletion: Floats
    """(K,): outputs with the first words hidden."""
    insertion: Floats
    """(K,): outputs with only the first words visible."""
    gain: float
    """Mean of insertion minus mean of deletion; the larger, the more faithful is the order."""


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """Curves of each method, and of random orders."""

    shares: Floats
    """(K,): shares of the words, 0 to 1."""
    methods: Mapping[str, Curves]
    random: tuple[Curves, ...]
    """(R,)."""

    def p_value(self, method: str) -> float:
        """Return the share of orders, this one and the random ones, whose gain is at least as large."""
        gain = self.methods[method].gain
        return (1 + sum(curves.gain >= gain for curves in self.random)) / (1 + len(self.random))

    def holds(self, method: str) -> bool:
        """Return whether the order of a method changes the output more than random orders do."""
        return self.p_value(method) <= MAX_P


def measure(output: RowOutput, effects: Mapping[str, Floats], seed: int) -> Faithfulness:
    """Return the curves of the words in descending order of their effects.

    Args:
        effects: (W,) by method.
        seed: Determines the random orders.

    Source: Samek et al., Evaluating the Visualization of What a Deep Neural Network Has Learned, 2017; Petsiuk et al.,
    RISE, BMVC 2018.
    """
    width = len(output.row.words)
    rng = np.random.default_rng(seed)
    shares = np.linspace(0, 1, NUM_POINTS + 1)
    orders = [np.argsort(-values, kind="stable") for values in effects.values()]
    orders += [rng.permutation(width) for _ in range(NUM_RANDOM)]
    visible = np.concatenate([_visible(order, shares) for order in orders])
    values = output.values(visible).reshape(len(orders), 2, len(shares))
    curves = [Curves(hidden, shown, float(shown.mean() - hidden.mean())) for hidden, shown in values]
    # The curves after those of the methods are those of the random orders.
    return Faithfulness(shares, dict(zip(effects, curves, strict=False)), tuple(curves[len(effects) :]))


def _visible(order: npt.NDArray[np.int64], shares: Floats) -> Bools:
    """Return the visible words of both curves, (2 K, W)."""
    ranks = np.empty(len(order), dtype=np.int64)
    ranks[order] = np.arange(len(order))
    is_first = ranks[None, :] < np.round(shares * len(order))[:, None]
    return np.concatenate([~is_first, is_first])


def agreement(effects: Mapping[str, Floats]) -> dict[tuple[str, str], float | None]:
    """Return Spearman's correlation of each pair of methods, or of runs."""
    return {(a, b): rank_correlation(effects[a], effects[b]) for a, b in combinations(effects, 2)}
