"""Whether effects are faithful: words are hidden or shown in their order, and compared with other orders.

Dimensions: `W` words, `R` other orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from paratune.explain.outputs import Floats, RowOutput

NUM_PARTS = 5
"""Parts in which words are hidden and shown. Odd, so that the curves of an order give those of its reverse."""
NUM_RANDOM = 99
MAX_EXACT = 6
"""Words up to which all orders are compared: 720 orders, of at most 64 sets of visible words."""
MAX_P = 0.05
AS_CHANCE = "cannot be distinguished from chance"
"""In words: effects do not hold, because other orders or random choices do as well."""
TOO_SMALL = "too small to count"


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """How much the output falls while words are hidden (deletion) and rises while they are shown (insertion).

    The gain of an order of the words is the mean output of insertion minus that of deletion, the first words first; the
    larger, the more faithful is the order.
    """

    gains: Mapping[str, float]
    """By method."""
    others: Floats
    """(R,): gains of random orders, or of all orders."""
    is_exact: bool
    """Whether the others are all orders."""
    smallest: float
    """Smallest gain that counts, in the unit of the output."""

    @property
    def num_orders(self) -> int:
        """Orders that p is a share of: all, or the order of the method, the random ones, and the reverse of each."""
        return len(self.others) if self.is_exact else 2 * len(self.others) + 2

    def p_value(self, method: str) -> float:
        """Return the share of orders whose gain is at least that of a method, this one included.

        The reverse of an order hides the words that the order shows last, so that its gain is minus that of the order:
        pairs double the number of random orders. The test is exact, because each pair is as likely as that of the
        method, and each order of a pair as the other (a test of randomization with the group of the reversal).
        """
        gain, gains = self.gains[method], self.others
        if not self.is_exact:
            gains = np.concatenate([gains, -gains, [gain, -gain]])
        return float((gains >= gain).mean())

    def verdict(self, method: str) -> str | None:
        """Return why the effects of a method do not hold; None where they do.

        They hold when their order changes the output more than other orders do, and by an amount that counts.
        """
        if self.p_value(method) > MAX_P:
            return AS_CHANCE
        return TOO_SMALL if self.gains[method] < self.smallest else None


def measure(output: RowOutput, effects: Mapping[str, Floats], seed: int) -> Faithfulness:
    """Return the gains of the words in descending order of their effects.

    Args:
        effects: (W,) by method.
        seed: Determines the random orders.

    Source: Samek et al., Evaluating the Visualization of What a Deep Neural Network Has Learned, 2017; Petsiuk et al.,
    RISE, BMVC 2018.
    """
    width = len(output.row.words)
    is_exact, rng = width <= MAX_EXACT, np.random.default_rng(seed)
    random = permutations(range(width)) if is_exact else (rng.permutation(width) for _ in range(NUM_RANDOM))
    orders = np.stack([*(np.argsort(-values, kind="stable") for values in effects.values()), *map(np.asarray, random)])
    half = [round(part * width / NUM_PARTS) for part in range((NUM_PARTS + 1) // 2)]
    counts = np.asarray([*half, *(width - count for count in reversed(half))])
    ranks = np.argsort(orders, axis=1)
    is_first = ranks[:, None, :] < counts[:, None]
    visible = np.stack([~is_first, is_first], axis=1).reshape(-1, width)  # of both curves of each order
    # Orders share sets of words: all and none always, and most others in short texts.
    different, places = np.unique(visible, axis=0, return_inverse=True)
    curves = output.values(different)[places.reshape(-1)].reshape(len(orders), 2, len(counts))
    gains = curves[:, 1].mean(axis=1) - curves[:, 0].mean(axis=1)
    by_method = dict(zip(effects, gains.tolist(), strict=False))
    return Faithfulness(by_method, gains[len(effects) :], is_exact, output.target.smallest)
