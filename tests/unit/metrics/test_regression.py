"""Expected values are computed by hand in the comments, or by another formula than the one in use."""

import math

import hypothesis
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, cohen_kappa_score

from paratune.config.metric_names import METRICS
from paratune.metrics.regression import (
    grade_scale,
    grade_step,
    grades,
    length_bias,
    ordinal_scores,
    quadratic_kappa,
    rater_scores,
    regression_scores,
    training_grades,
)
from paratune.records.predictions import NumberScale

NAMES = METRICS["regression"][:-1]


def test_errors_by_hand():
    # Errors 1, -1, 2: squares 1 + 1 + 4 = 6; targets 1 2 6 have the mean 3 and squares around it 4 + 1 + 9 = 14.
    scores = regression_scores([2.0, 1.0, 8.0], [1.0, 2.0, 6.0])
    assert scores["mse"] == pytest.approx(2.0)
    assert scores["rmse"] == pytest.approx(2.0**0.5)
    assert scores["mae"] == pytest.approx(4 / 3)
    assert scores["r2"] == pytest.approx(1 - 6 / 14)


def test_correlations_by_hand():
    # Both around their means: (-1, -2, 3) of (2, 1, 6) and (-2, -1, 3) of (1, 2, 6): 13 / sqrt(14 14).
    scores = regression_scores([2.0, 1.0, 6.0], [1.0, 2.0, 6.0])
    assert scores["pearson"] == pytest.approx(13 / 14)
    # Ranks 2 1 3 and 1 2 3: 1 - 6 (1 + 1) / (3 (9 - 1)).
    assert scores["spearman"] == pytest.approx(0.5)


def test_spearman_shares_ranks_between_ties():
    # Ranks 1.5 1.5 3 and 1 2 3: covariance 1.5, variances 1.5 and 2 (sums around the mean 2).
    assert regression_scores([5.0, 5.0, 9.0], [1.0, 2.0, 3.0])["spearman"] == pytest.approx(1.5 / (1.5 * 2) ** 0.5)


def test_a_column_of_predictions_is_flattened():
    column = np.array([[2.0], [1.0], [6.0]], dtype=np.float32)
    assert regression_scores(column, [1, 2, 6]) == regression_scores([2, 1, 6], [1, 2, 6])


def kappa_by_moments(given, true):
    """1 - E[(a - b)^2] / (var a + var b + (mean a - mean b)^2): the same number without any matrix."""
    given, true = np.asarray(given, float), np.asarray(true, float)
    chance = given.var() + true.var() + (given.mean() - true.mean()) ** 2
    return 1 - np.mean((given - true) ** 2) / chance


def kappa_on_scale(predictions, targets, scale):
    steps = grades(predictions, targets, scale)
    return None if steps is None else quadratic_kappa(*steps)


HALVES, WHOLES = NumberScale(0.5), NumberScale(1.0)


@settings(max_examples=100, deadline=None, derandomize=True)
@hypothesis.given(st.lists(st.tuples(st.integers(0, 18), st.integers(0, 18)), min_size=1, max_size=40))
def test_kappa_equals_the_formula_by_moments(pairs):
    halves = np.array(pairs, dtype=np.float64) / 2
    true, given_bands = halves[:, 0], halves[:, 1]
    value = kappa_on_scale(given_bands, true, HALVES)
    if len(set(halves.ravel())) == 1:
        assert value is None
    else:
        assert value == pytest.approx(kappa_by_moments(given_bands, true))


def test_kappa_counts_grades_that_do_not_occur():
    # Targets 1, 2, 9 and one miss from 9 to 2: 7 steps apart, not 1.
    assert kappa_on_scale([1, 2, 2, 9], [1, 2, 9, 9], WHOLES) == pytest.approx(
        kappa_by_moments([1, 2, 2, 9], [1, 2, 9, 9])
    )


def test_kappa_rounds_to_the_step_of_the_scale():
    # Half bands: 6.2 is 6.0, 6.25 is 6.5 (a tie goes up), 7.9 is not beyond 7.0; whole grades: 6.4 is 6.
    assert kappa_on_scale([6.2, 6.25, 7.9], [6.0, 6.5, 7.0], NumberScale(0.5, (6.0, 7.0))) == 1.0
    assert kappa_on_scale([6.4, 6.5, 8.1], [6, 7, 8], WHOLES) == 1.0
    assert kappa_on_scale([6.4, 6.4, 8.1], [6, 7, 8], WHOLES) < 1.0


@pytest.mark.parametrize(
    ("targets", "step"),
    [([1, 2, 3], 1.0), ([6.0, 6.5], 0.5), ([-0.5, 0.0], 0.5), ([0.25, 1.0], None), ([0.1], None), ([], None)],
)
def test_step_of_the_targets(targets, step):
    assert grade_step(np.array(targets, dtype=np.float64)) == step


@pytest.mark.parametrize("targets", [[0.1, 0.7], [0.0, 5000.0], [0.0, 1e300]])
def test_kappa_is_unknown_for_targets_off_the_scale_or_too_many_steps(targets):
    assert kappa_on_scale([1.0, 2.0], targets, WHOLES) is None


def test_without_a_scale_there_is_no_agreement():
    scores = regression_scores([1.0, 2.0, 3.4], [1.0, 2.0, 3.0])
    assert [name for name in NAMES if scores[name] is None] == ["qwk", "exact_agreement", "adjacent_agreement"]
    limits_only = regression_scores([1.0, 2.0], [1.0, 2.0], NumberScale(None, (0.0, 9.0)))
    assert limits_only["qwk"] is None


@pytest.mark.parametrize(
    ("targets", "wanted"),
    [
        ([3, 9, 4], [3.0, 9.0, 1.0]),
        ([3, 8.5], [3.0, 8.5, 0.5]),
        ([0.3, 1], None),
        ([2, 2], None),
        ([], None),
    ],
)
def test_grades_of_training_targets(targets, wanted):
    assert training_grades(np.float32(targets)) == wanted


@pytest.mark.parametrize(
    ("round_to", "limits", "of_grades", "wanted"),
    [
        (0.5, [0, 9], None, NumberScale(0.5, (0, 9))),
        (0.5, None, None, NumberScale(0.5)),
        (0.5, None, [3.0, 8.0, 1.0], NumberScale(0.5)),
        (None, [0, 9], [3.0, 8.0, 1.0], NumberScale(1.0, (0, 9))),
        (None, None, [3.0, 8.0, 1.0], NumberScale(1.0, (3.0, 8.0))),
        (None, [0, 9], None, None),
        (None, None, None, None),
    ],
)
def test_the_scale_of_grades_is_that_of_the_task_and_else_of_the_training_data(round_to, limits, of_grades, wanted):
    assert grade_scale(round_to, limits, of_grades) == wanted


def test_the_grade_of_a_row_does_not_depend_on_the_other_rows():
    """Predictions around 0.3 of labels 0 and 0.5: with a label of 1.0 in the file, the scale must not change."""
    generator = np.random.default_rng(0)
    targets, predictions = generator.integers(0, 2, 200) / 2, generator.normal(0.6, 0.4, 200)
    scale = NumberScale(0.5, (0.0, 2.0))
    few = grades(predictions, targets, scale)
    more = grades(np.append(predictions, 1.1), np.append(targets, 1.0), scale)
    assert (few[0] == more[0][:-1]).all()
    assert (few[1] == more[1][:-1]).all()
    # A file with whole numbers alone has the steps of the scale, too: 1.6 is 1.5, and not 2.
    whole = regression_scores([1.6, 1.0], [2.0, 1.0], scale)
    assert whole["exact_agreement"] == 0.5
    assert whole["exact_agreement"] == np.mean(
        [regression_scores([p], [t], scale)["exact_agreement"] for p, t in ((1.6, 2.0), (1.0, 1.0))]
    )


@pytest.mark.parametrize("predictions", [[3.0, 3.0, 3.0], [1e15, 1e15 + 0.125, 1e15]])
def test_constant_predictions_have_no_correlation(predictions):
    scores = regression_scores(predictions, [1.0, 2.0, 6.0])
    assert scores["pearson"] is None
    assert scores["rmse"] is not None
    assert scores["r2"] is not None


def test_constant_predictions_have_no_rank_correlation():
    assert regression_scores([3.0, 3.0, 3.0], [1.0, 2.0, 6.0])["spearman"] is None


def test_correlation_of_ranks():
    # Spearman: 1 - 6 * (0 + 1 + 1) / (3 * 8) = 0.5.
    assert regression_scores([1.0, 2.0, 3.0], [1.0, 3.0, 2.0])["spearman"] == pytest.approx(0.5)
    assert regression_scores([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])["spearman"] == pytest.approx(-1.0)


def test_constant_targets_have_no_r2():
    scores = regression_scores([1.0, 2.0, 3.0], [2.0, 2.0, 2.0])
    assert [name for name in NAMES if scores[name] is None] == [
        "r2",
        "pearson",
        "spearman",
        "qwk",
        "exact_agreement",
        "adjacent_agreement",
    ]


def test_one_sample_has_only_errors():
    scores = regression_scores([1.0], [3.0])
    assert {name: value for name, value in scores.items() if value is not None} == {"rmse": 2.0, "mse": 4.0, "mae": 2.0}


def test_two_samples_correlate_without_a_warning():
    scores = regression_scores([1.0, 2.0], [10.0, 20.0])
    assert scores["pearson"] == pytest.approx(1.0)
    assert scores["spearman"] == pytest.approx(1.0)


def test_scores_are_none_without_samples_or_with_infinite_predictions():
    nothing = dict.fromkeys(NAMES)
    assert regression_scores([], []) == nothing
    assert regression_scores([1.0, float("nan")], [1.0, 2.0]) == nothing
    assert regression_scores([1.0, float("inf")], [1.0, 2.0]) == nothing


def test_scores_that_overflow_are_none():
    scores = regression_scores([1e200, -1e250, 1.0], [1.0, 2.0, 3.0])
    assert scores["mse"] is None
    assert scores["mae"] == pytest.approx(1e250 / 3)
    assert tuple(scores) == NAMES


BANDS = NumberScale(0.5, (0.0, 9.0))


def test_agreement_compares_reported_bands():
    # Reported 6.5 (6.25 is a tie), 5.0, 9.0 (from 9.8), 7.0: 0, 1, 0 and 3 half bands from the targets.
    scores = regression_scores([6.25, 5.2, 9.8, 7.1], [6.5, 5.5, 9.0, 5.5], BANDS)
    assert scores["exact_agreement"] == pytest.approx(2 / 4)
    assert scores["adjacent_agreement"] == pytest.approx(3 / 4)
    # Errors are of the numbers themselves: 0.25, 0.3, 0.8, 1.6.
    assert scores["mae"] == pytest.approx((0.25 + 0.3 + 0.8 + 1.6) / 4)


def test_agreement_is_the_accuracy_of_the_classes_that_bands_are():
    generator = np.random.default_rng(3)
    targets = generator.integers(6, 19, 200) / 2
    predictions = targets + generator.normal(0, 0.6, 200)
    scores = regression_scores(predictions, targets, BANDS)
    given = np.clip(np.floor(np.clip(predictions, 0, 9) * 2 + 0.5), 0, 18).astype(int)
    true = (targets * 2).astype(int)
    assert scores["exact_agreement"] == pytest.approx(accuracy_score(true, given))
    assert scores["adjacent_agreement"] == pytest.approx(np.mean(abs(given - true) <= 1))
    assert scores["qwk"] == pytest.approx(cohen_kappa_score(true, given, labels=range(19), weights="quadratic"))


def test_agreement_has_the_step_of_the_scale():
    # Targets are integers, but half bands are reported: 5.5 is one step from 5, and not 5.
    assert regression_scores([5.4, 7.0], [5, 7], WHOLES)["exact_agreement"] == 1.0
    assert regression_scores([5.4, 7.0], [5, 7], BANDS)["exact_agreement"] == 0.5
    # Off the scale, the scores are unknown.
    assert regression_scores([5.4, 7.0], [5.25, 7], BANDS)["exact_agreement"] is None
    assert regression_scores([8.3, 1.0], np.float32([8.3, 1.1]), NumberScale(0.1))["exact_agreement"] == 0.5


RNG = np.random.default_rng(5)


@pytest.mark.parametrize("num_grades", [2, 5, 300])
@pytest.mark.parametrize("are_weighted", [False, True])
def test_kappa_is_that_of_scikit_learn(num_grades, are_weighted):
    true = RNG.integers(0, num_grades, 200)
    weights = RNG.integers(0, 3, 200).astype(float) if are_weighted else None
    for given in (true, RNG.integers(0, num_grades, 200), np.full(200, 1), (true + 1) % num_grades):
        expected = cohen_kappa_score(
            true, given, labels=np.arange(num_grades), weights="quadratic", sample_weight=weights
        )
        assert quadratic_kappa(true, given, weights) == pytest.approx(expected, abs=1e-12)


def test_kappa_of_one_grade_is_undefined():
    assert quadratic_kappa(np.full(9, 3), np.full(9, 3)) is None
    assert quadratic_kappa(np.asarray([3, 3, 4]), np.asarray([3, 3, 5]), np.asarray([1.0, 2.0, 0.0])) is None


def test_a_million_grades_need_no_matrix():
    true = np.arange(0, 1_000_000, 10_000)
    # x - y is 1 everywhere: 1 - 1 / (variance of x + variance of y + 1), 2 * (100^2 - 1) / 12 * 1e8 + 1
    assert quadratic_kappa(true, true + 1) == pytest.approx(1 - 1 / (2 * 9999 / 12 * 1e8 + 1), rel=1e-12)


RANKS = [0, 1, 2, 3, 1]
LABELS = np.array([0, 2, 2, 1, 1])
LOGITS = np.array([[1.0 if rank > above else -1.0 for above in range(3)] for rank in RANKS])
"""Four classes."""


def test_scores_equal_the_definitions():
    actual = ordinal_scores(LOGITS, LABELS)
    # Distances 0, 1, 0, 2, 0.
    assert actual["accuracy"] == pytest.approx(3 / 5)
    assert actual["mae"] == pytest.approx(3 / 5)
    assert actual["within_one"] == pytest.approx(4 / 5)
    # Squared distances observed: 1 + 4 = 5. By chance: the sum over all 25 pairs of a label (0, 1, 1, 2, 2) and a
    # prediction (0, 1, 1, 2, 3) of their squared distance, over 5: labels 0: 15, 1 twice: 6 each, 2 twice: 7 each.
    assert actual["qwk"] == pytest.approx(1 - 5 / ((15 + 2 * 6 + 2 * 7) / 5))


def test_kappa_counts_distances_on_the_whole_scale():
    # The same predictions when a fifth class could have been given: the weights' scale cancels.
    wider = np.concatenate([LOGITS, np.full((5, 1), -1.0)], axis=1)
    assert ordinal_scores(wider, LABELS)["qwk"] == pytest.approx(ordinal_scores(LOGITS, LABELS)["qwk"])


def test_undefined_scores_are_none():
    one_class = ordinal_scores(np.full((3, 2), -1.0), np.zeros(3, dtype=np.int64))
    assert one_class["accuracy"] == 1.0
    assert one_class["qwk"] is None
    assert one_class["spearman"] is None
    assert set(ordinal_scores(np.zeros((0, 2)), np.zeros(0)).values()) == {None}
    assert set(ordinal_scores(np.full((1, 2), np.nan), np.zeros(1)).values()) == {None}


def test_errors_by_length_have_their_correlation_and_quintiles():
    # Ten lengths, two of them in each fifth; the quantiles 0.2, 0.4, ... of 1 to 10 are 2.8, 4.6, 6.4, 8.2.
    lengths = np.arange(1, 11)
    errors = np.array([-1.0, 1.0, 0.0, 0.0, 0.5, 0.5, 3.0, 4.0, 1.0, -0.5])
    found = length_bias(errors, lengths)
    assert found["pearson"] == pytest.approx(np.corrcoef(errors, lengths)[0, 1])
    assert [(one["shortest"], one["longest"], one["num_rows"]) for one in found["quintiles"]] == [
        *((1, 2, 2), (3, 4, 2), (5, 6, 2), (7, 8, 2), (9, 10, 2))
    ]
    assert [one["bias"] for one in found["quintiles"]] == [0.0, 0.0, 0.5, 3.5, 0.25]
    # The root of (9 + 16) / 2.
    assert [one["rmse"] for one in found["quintiles"]] == pytest.approx([1.0, 0.0, 0.5, 12.5**0.5, 0.625**0.5])


def test_errors_by_length_without_a_spread_or_a_value():
    assert length_bias([1.0, 1.0], [5, 5]) == {
        "pearson": None,
        "quintiles": [{"shortest": 5, "longest": 5, "num_rows": 2, "rmse": 1.0, "bias": 1.0}],
    }
    for errors in ([], [math.nan], [math.inf]):
        assert length_bias(errors, [3] * len(errors)) == {"pearson": None, "quintiles": []}


RATINGS = [[1, 2, np.nan], [3, 3, 2], [3, 5, 4], [4, np.nan, np.nan]]


def test_raters_are_compared_with_each_other_and_the_model_with_them():
    # The last row has one rating. Differences of a and b: -1, 0, -2; of a and c: 1, -1; of b and c: 1, 1.
    lines = rater_scores([1.4, 3.2, 3.9, 9.0], RATINGS, ["a", "b", "c"], NumberScale(1.0, (1.0, 5.0)))
    found = {line["who"]: line for line in lines}
    two, model, of_a, _, of_c, of_mean = found.values()
    assert (two["who"], two["num_rows"], two["bias"]) == ("two raters", 7, None)
    assert two["rmse"] == pytest.approx((math.sqrt(5 / 3) + 1 + 1) / 3)
    kappas = [
        cohen_kappa_score(*pair, labels=range(1, 6), weights="quadratic")
        for pair in (([1, 3, 3], [2, 3, 5]), ([3, 3], [2, 4]), ([3, 5], [2, 4]))
    ]
    assert two["qwk"] == pytest.approx(sum(kappas) / 3)
    # The model minus a: 0.4, 0.2, 0.9; minus b: -0.6, 0.2, -1.1; minus c: 1.2, -0.1.
    assert (model["who"], model["num_rows"]) == ("model and a rater", 8)
    rmse = math.sqrt(1.01 / 3) + math.sqrt(1.61 / 3) + math.sqrt(1.45 / 2)
    assert model["rmse"] == pytest.approx(rmse / 3)
    assert model["bias"] == pytest.approx((1.5 / 3 - 1.5 / 3 + 1.1 / 2) / 3)
    # Minus the means 1.5, 8/3 and 4: -0.1, 8/15, -0.1.
    assert (of_mean["num_rows"], of_mean["bias"]) == (3, pytest.approx(1 / 9))
    # The means of b and c, 2, 2.5 and 4.5, are the grades 2, 3 and 5.
    assert (of_a["who"], of_a["num_rows"]) == ("a and the others", 3)
    assert of_a["rmse"] == pytest.approx(math.sqrt((1 + 0.25 + 2.25) / 3))
    assert of_a["bias"] == pytest.approx((-1 + 0.5 - 1.5) / 3)
    expected = cohen_kappa_score([1, 3, 3], [2, 3, 5], labels=range(1, 6), weights="quadratic")
    assert of_a["qwk"] == pytest.approx(expected)
    assert of_a["pearson"] == pytest.approx(np.corrcoef([1, 3, 3], [2, 2.5, 4.5])[0, 1])
    assert of_c["num_rows"] == 2


def test_rows_with_one_rating_have_no_agreement():
    for line in rater_scores([[4.0]], RATINGS[3:], ["a", "b", "c"]):
        assert line == {"who": line["who"], "num_rows": 0, **dict.fromkeys(("qwk", "pearson", "rmse", "bias"))}
