"""Methods that give each word an effect on an output: gradients, removal (occlusion), and Shapley values.

Positive effects raise the output. Effects are faithful if their order of the words matters: words are hidden or shown
in this order, and in other orders.

Dimensions: `W` words, `T` tokens, `D` width, `P` parts, `R` other orders.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from paratune.errors import require
from paratune.explain.outputs import Floats, RowOutput

MIN_ORDERS = 10
"""Fewest orders of the words from which Shapley values are computed for words."""
ENOUGH = 0.01
"""Relative gap of integrated gradients below which the number of steps is not doubled."""
NUM_PARTS = 5
"""Parts in which words are hidden and shown. Odd, so that the curves of an order give those of its reverse."""
NUM_RANDOM = 99
MAX_EXACT = 6
"""Words up to which all orders are compared: 720 orders, of at most 64 sets of visible words."""
MAX_P = 0.05
AS_CHANCE = "cannot be distinguished from chance"
"""In words: effects do not hold, because other orders or random choices do as well."""
TOO_SMALL = "too small to count"


def integrated_gradients(output: RowOutput, num_steps: int, max_steps: int) -> Floats:
    """Return integrated gradients from the embeddings of hidden words to those of the words, (W,), by captum.

    The steps of the quadrature are doubled while the gap of completeness is above 1%, up to `max_steps`.

    Raises:
        MissingDependency: captum is not installed.

    Source: Sundararajan, Taly and Yan, Axiomatic Attribution for Deep Networks, ICML 2017.
    """
    captum: Any = require("captum.attr", extra="serve")
    method = captum.LayerIntegratedGradients(output.read, output.model.hf.get_input_embeddings())
    width, owners = len(output.row.words), output.row.token_words
    ends = np.asarray([[True] * width, [False] * width])
    end, start = output.values(ends).tolist()
    given, hidden = output.ids(ends[:1]), output.ids(ends[1:])
    while True:
        # Gauss-Legendre: the output is smooth along the path, so that it needs far fewer steps than equal distances.
        by_token_TD = method.attribute(
            given, hidden, n_steps=num_steps, method="gausslegendre", internal_batch_size=output.batch_size
        )[0]
        by_token = by_token_TD.detach().sum(dim=1).double().cpu().numpy()
        gap = abs(by_token.sum() - (end - start))
        if gap <= ENOUGH * abs(end - start) or 2 * num_steps > max_steps:
            return np.bincount(owners[owners >= 0], by_token[owners >= 0], width).astype(np.float64)
        num_steps *= 2


def occlusion(output: RowOutput, parts: npt.NDArray[np.int64]) -> Floats:
    """Return for each part how much the output falls when its words are hidden, (P,).

    Args:
        parts: (W,), the part of each word, as indices from 0.

    Source: Zeiler and Fergus, Visualizing and Understanding Convolutional Networks, ECCV 2014.
    """
    names = np.unique(parts)
    visible = np.concatenate([np.ones((1, len(parts)), dtype=np.bool_), parts[None, :] != names[:, None]])
    values = output.values(visible)
    falls: Floats = values[0] - values[1:]
    return falls


def shapley(output: RowOutput, max_evals: int, seed: int) -> Floats:
    """Return Shapley values of the words, (W,), by captum: their mean effect while words are shown in random orders.

    Their sum is the output minus that with all words hidden. Where `max_evals` outputs are too few for `MIN_ORDERS`
    orders of the words, sentences are shown, and the words of a sentence share its value equally.

    Args:
        max_evals: Most outputs to compute, but those of at least one order.
        seed: Determines the orders.

    Raises:
        MissingDependency: captum is not installed.

    Source: Castro, Gómez and Tejada, Polynomial calculation of the Shapley value based on sampling, 2009; Lundberg and
    Lee, A Unified Approach to Interpreting Model Predictions, NeurIPS 2017.
    """
    captum: Any = require("captum.attr", extra="serve")
    width = len(output.row.words)
    parts = np.arange(width) if width * MIN_ORDERS <= max_evals else output.row.sentences
    _, parts, sizes = np.unique(parts, return_inverse=True, return_counts=True)
    method = captum.ShapleyValueSampling(lambda visible: torch.from_numpy(output.values(visible.bool().numpy())))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        by_word = method.attribute(
            torch.ones(1, width),
            feature_mask=torch.from_numpy(parts)[None],
            n_samples=max(1, (max_evals - 1) // len(sizes)),
            perturbations_per_eval=output.batch_size,
        )[0]
    values: Floats = by_word.double().numpy() / sizes[parts]
    return values


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
