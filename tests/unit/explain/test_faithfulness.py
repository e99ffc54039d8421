"""Gains of deletion and insertion, other orders, and verdicts."""

from dataclasses import dataclass
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from paratune.explain.effects import AS_CHANCE, TOO_SMALL, measure
from paratune.explain.outputs import ExplainedOutput


@dataclass
class Sum:
    """An output that is the sum of the visible words' weights."""

    weights: Any
    smallest: float = 0.0
    num_sets: int = 0

    @property
    def row(self) -> Any:
        return type("Row", (), {"words": tuple(self.weights)})

    @property
    def target(self) -> ExplainedOutput:
        return ExplainedOutput("regression", smallest=self.smallest)

    def values(self, visible: Any) -> Any:
        self.num_sets += len(visible)
        return visible @ np.asarray(self.weights, dtype=float)


WEIGHTS = [5.0, 0.0, -3.0, 1.0, 0.5, -0.5, 2.0, 0.0, 0.0, -1.0]


def test_the_gain_follows_the_order_of_the_effects():
    found = measure(Sum(WEIGHTS), {"exact": np.asarray(WEIGHTS)}, 0)
    ranked = sorted(WEIGHTS, reverse=True)
    shown = [sum(ranked[:count]) for count in (0, 2, 4, 6, 8, 10)]  # fifths of ten words
    assert found.gains["exact"] == pytest.approx(np.mean(shown) - np.mean(sum(WEIGHTS) - np.asarray(shown)))


def test_true_effects_hold_and_reversed_ones_do_not():
    values = np.asarray(WEIGHTS)
    found = measure(Sum(WEIGHTS), {"exact": values, "reversed": -values}, 0)
    # The order, 99 random ones, and the reverse of each; no order of the words is better than the true one.
    assert (found.num_orders, found.p_value("exact"), found.p_value("reversed")) == (200, 1 / 200, 1.0)
    assert (found.verdict("exact"), found.verdict("reversed")) == (None, AS_CHANCE)


@pytest.mark.parametrize("width", [7, 10, 23])
def test_the_reverse_of_an_order_has_its_gain_with_the_other_sign(width: int):
    rng = np.random.default_rng(1)
    pairs = rng.normal(size=(width, width))

    class Pairs(Sum):
        """An output with interactions of words."""

        def values(self, visible: Any) -> Any:
            return np.einsum("bi,ij,bj->b", visible, pairs, visible)

    effects = rng.permutation(width).astype(float)
    found = measure(Pairs([0.0] * width), {"order": effects, "reverse": -effects}, 0)
    assert found.gains["reverse"] == pytest.approx(-found.gains["order"])


def test_all_orders_are_compared_where_there_are_few():
    weights = [3.0, -1.0, 0.5, 0.0]
    output = Sum(weights)
    found = measure(output, {"true": np.asarray(weights), "other": np.asarray([0.0, 2.0, 1.0, 3.0])}, 0)
    assert found.num_orders == 24

    # Fifths of four words: none, 1, 2, 2, 3, all.
    def gain(order: Any) -> float:
        shown = np.mean([sum(weights[word] for word in order[:count]) for count in (0, 1, 2, 2, 3, 4)])
        hidden = np.mean([sum(weights[word] for word in order[count:]) for count in (0, 1, 2, 2, 3, 4)])
        return float(shown - hidden)

    gains = np.asarray([gain(order) for order in permutations(range(4))])
    for method, order in (("true", (0, 2, 3, 1)), ("other", (3, 1, 2, 0))):
        assert found.gains[method] == pytest.approx(gain(order))
        assert found.p_value(method) == pytest.approx(np.mean(gains >= gain(order) - 1e-9))
    assert found.p_value("true") == 1 / 24
    assert output.num_sets == 16  # each set of visible words once


def test_random_effects_hold_as_often_as_promised():
    rng = np.random.default_rng(5)
    output = Sum(rng.normal(size=12))
    holds = 0
    for seed in range(40):
        effects = {str(number): rng.normal(size=12) for number in range(100)}
        found = measure(output, effects, seed)
        holds += sum(found.verdict(method) is None for method in effects)
    # 5% of 4,000. Effects of a seed share its 99 random orders: the deviation is 14 by the orders (0.05 * 0.95 / 100 in
    # a share, 40 of them), and 14 by the effects.
    assert 140 <= holds <= 260


@pytest.mark.parametrize(("scale", "verdict"), [(1.0, None), (1e-3, TOO_SMALL)])
def test_an_order_holds_only_by_a_gain_that_counts(scale: float, verdict: str | None):
    values = scale * np.asarray(WEIGHTS)
    assert measure(Sum(values, smallest=0.05), {"exact": values}, 0).verdict("exact") == verdict


def test_the_seed_determines_the_random_orders():
    found = [measure(Sum(WEIGHTS), {}, seed).others.tolist() for seed in (0, 0, 1)]
    assert found[0] == found[1] != found[2]
