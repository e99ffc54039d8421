"""Deletion and insertion curves, random orders, and agreement; attention of words."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from paratune.explain.attention import word_attention
from paratune.explain.faithfulness import agreement, measure
from paratune.verdicts.agreement import rank_correlation


@dataclass
class Sum:
    """An output that is the sum of the visible words' weights."""

    weights: Any

    @property
    def row(self) -> Any:
        return type("Row", (), {"words": tuple(self.weights)})

    def values(self, visible: Any) -> Any:
        return visible @ np.asarray(self.weights, dtype=float)


WEIGHTS = [5.0, 0.0, -3.0, 1.0, 0.5, -0.5, 2.0, 0.0, 0.0, -1.0]


def test_curves_follow_the_order_of_the_effects():
    found = measure(Sum(WEIGHTS), {"exact": np.asarray(WEIGHTS)}, 0)
    ranked = sorted(WEIGHTS, reverse=True)
    shown = [sum(ranked[:count]) for count in range(11)]
    curves = found.methods["exact"]
    assert curves.insertion == pytest.approx(shown)
    assert curves.deletion == pytest.approx([sum(WEIGHTS) - value for value in shown])
    assert curves.gain == pytest.approx(np.mean(shown) - np.mean(sum(WEIGHTS) - np.asarray(shown)))


def test_true_effects_hold_and_reversed_ones_do_not():
    values = np.asarray(WEIGHTS)
    found = measure(Sum(WEIGHTS), {"exact": values, "reversed": -values}, 0)
    assert (found.p_value("exact"), found.p_value("reversed")) == (0.05, 1.0)
    assert found.holds("exact")
    assert not found.holds("reversed")


def test_the_seed_determines_the_random_orders():
    gains = [[order.gain for order in measure(Sum(WEIGHTS), {}, seed).random] for seed in (0, 0, 1)]
    assert gains[0] == gains[1] != gains[2]


def test_agreement_is_spearmans_correlation():
    effects = {"a": np.asarray([1.0, 2, 3, 4]), "b": np.asarray([1.0, 4, 9, 16]), "c": np.asarray([1.0, 3, 2, 4])}
    # Ranks of c differ by 1 twice: 1 - 6 * 2 / (4 * 15) = 0.8.
    assert agreement(effects) == {("a", "b"): pytest.approx(1), ("a", "c"): pytest.approx(0.8),
                                  ("b", "c"): pytest.approx(0.8)}  # fmt: skip
    assert rank_correlation(np.ones(3), np.arange(3.0)) is None


def test_rollout_is_the_product_of_attention_and_identity():
    # Two heads of equal attention, two tokens, a word each: A = ((.6, .4), (.2, .8)), B = ((.5, .5), (1, 0)).
    first, second = torch.tensor([[0.6, 0.4], [0.2, 0.8]]), torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    row: Any = type("Row", (), {"ids": np.zeros(2), "words": (1, 2), "token_words": np.asarray([0, 1])})
    found = word_attention([torch.stack([first] * 2), torch.stack([second] * 2)], row, [0])
    # Rows of (B + I) / 2 = ((.75, .25), (.5, .5)) times (A + I) / 2 = ((.8, .2), (.1, .9)): .75 * .8 + .25 * .1 = .625.
    assert found.rollout == pytest.approx([0.625, 0.375])
    assert found.last == pytest.approx([0.5, 0.5])
    assert found.matrix == pytest.approx(second.numpy())


def test_attention_of_special_tokens_is_left_out():
    layer = torch.tensor([[[0.5, 0.3, 0.2], [0.1, 0.6, 0.3], [0.2, 0.2, 0.6]]])
    row: Any = type("Row", (), {"ids": np.zeros(3), "words": (1,), "token_words": np.asarray([-1, 0, 0])})
    found = word_attention([layer], row, [0])
    assert found.last == pytest.approx([0.5])  # 0.3 + 0.2
    assert found.matrix.tolist() == [[pytest.approx(0.85)]]  # mean over both tokens of (.6 + .3) and (.2 + .6)
