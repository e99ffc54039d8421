"""Words and lengths over a data set."""

from pathlib import Path

import numpy as np
import pytest
from explained import save_tiny

from paratune.explain.dataset import length_bias, make_overview, word_effects
from paratune.explain.explain import ExplainOptions


def test_partial_correlation_is_the_correlation_of_residuals_of_ranks():
    rng = np.random.default_rng(0)
    labels = rng.permutation(40).astype(float)
    lengths = labels + rng.normal(0, 10, 40)
    outputs = labels + 0.5 * lengths + rng.normal(0, 5, 40)
    found = length_bias(outputs, lengths, labels)
    ranks = [values.argsort().argsort().astype(float) for values in (outputs, lengths, labels)]
    design = np.stack([np.ones(40), ranks[2]], axis=1)
    rests = [rank - design @ np.linalg.lstsq(design, rank, rcond=None)[0] for rank in ranks[:2]]
    assert found["partial"] is not None
    assert found["partial"].rho == pytest.approx(np.corrcoef(*rests)[0, 1])
    assert found["output"].rho == pytest.approx(np.corrcoef(*ranks[:2])[0, 1])
    # Fisher's z with Fieller's factor and one constant variable: 40 - 3 - 1 = 36.
    half = 1.959964 * (1.06 / 36) ** 0.5
    assert found["partial"].low == pytest.approx(np.tanh(np.arctanh(found["partial"].rho) - half))


def test_no_labels_or_constant_outputs_give_no_correlation():
    assert length_bias(np.arange(9.0), np.arange(9.0), None)["partial"] is None
    assert length_bias(np.ones(9), np.arange(9.0), None)["output"].rho is None
    assert length_bias(np.arange(3.0), np.asarray([0.0, 2, 1]), None)["output"].low is None


def test_word_effects_have_bonferroni_intervals():
    found = word_effects({"up": np.asarray([1.0, 2, 3, 2, 1]), "none": np.asarray([-1.0, 1, -1, 1, 0.5])}, 0.1)
    assert [effect.word for effect in found] == ["up", "none"]
    # Deviation 0.83666; t of 4 degrees at 1 - 0.025 / 2 is 3.4954 (tables): 3.4954 * 0.83666 / 5**0.5 = 1.3079.
    assert (found[0].mean, found[0].low) == (pytest.approx(1.8), pytest.approx(1.8 - 1.3079, abs=1e-3))
    assert [effect.counts for effect in found] == [True, False]
    # An interval without 0, and too small an effect.
    assert [effect.counts for effect in word_effects({"up": np.asarray([1.0, 2, 3, 2, 1])}, 1.9)] == [False]


def test_a_small_correlation_does_not_count():
    rng = np.random.default_rng(3)
    lengths = rng.normal(size=20_000)
    weak, strong = (length_bias(share * lengths + rng.normal(size=20_000), lengths, None)["output"]
                    for share in (0.06, 0.3))  # fmt: skip
    assert weak.low > 0  # far from chance
    assert (weak.counts, strong.counts) == (False, True)


def test_overview_of_rows_with_labels(tmp_path: Path):
    texts = [f"{'good ' * (1 + number)}film" for number in range(7)]
    trained, split = save_tiny(tmp_path, "regression").read(*texts, label=[float(number) for number in range(7)])
    done = []
    found = make_overview(trained, split, ExplainOptions(), lambda number, total: done.append((number, total)))
    assert {effect.word: effect.num_rows for effect in found.words} == {"good": 7, "film": 7}
    assert found.length["label"] is not None
    assert found.length["label"].rho == pytest.approx(1.0)
    assert done[-1] == (7, 7)


def test_one_class_is_explained_in_all_rows(tmp_path: Path):
    trained, split = save_tiny(tmp_path, "classification").read("good film", "bad film", label=["0", "2"])
    assert make_overview(trained, split, ExplainOptions(), lambda *_: None).target == "log-odds of high"
    options = ExplainOptions(target="low")
    assert make_overview(trained, split, options, lambda *_: None).target == "log-odds of low"
