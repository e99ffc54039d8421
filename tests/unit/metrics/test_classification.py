"""Expected values are counted by hand in the comments, or come from scikit-learn, called as in its manual."""

import decimal
import itertools
import json
import tracemalloc
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from paratune.config.metric_names import METRICS
from paratune.metrics.classification import (
    OF_CLASSES,
    class_score,
    classification_scores,
    confusion_record,
    log_odds,
    multi_label_scores,
    odds,
)
from paratune.records.predictions import softmax
from paratune.records.scores import read_confusion

NAMES = METRICS["classification"][:-1]


def logits_of(predictions, num_classes):
    return np.eye(num_classes, dtype=np.float32)[predictions]


def test_two_classes_are_scored_for_class_one():
    # True 1 1 1 0 0 0, predicted 1 1 0 1 0 0: tp 2, fp 1, fn 1, tn 2.
    scores = classification_scores(logits_of([1, 1, 0, 1, 0, 0], 2), [1, 1, 1, 0, 0, 0])
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert scores["precision"] == pytest.approx(2 / 3)
    assert scores["recall"] == pytest.approx(2 / 3)
    assert scores["f1"] == pytest.approx(4 / 6)  # 2 tp / (2 tp + fp + fn)
    # (tp tn - fp fn) / sqrt((tp + fp) (tp + fn) (tn + fp) (tn + fn)) = (4 - 1) / 9
    assert scores["matthews"] == pytest.approx(3 / 9)


def test_binary_f1_is_not_the_macro_average():
    # True 1 0 0 0, predicted 1 1 0 0: F1 of class 1 is 2/3, of class 0 is 4/5.
    scores = classification_scores(logits_of([1, 1, 0, 0], 2), [1, 0, 0, 0])
    assert scores["f1"] == pytest.approx(2 / 3)
    assert scores["f1_macro"] == pytest.approx((2 / 3 + 4 / 5) / 2)
    assert scores["f1_weighted"] == pytest.approx((2 / 3 * 1 + 4 / 5 * 3) / 4)
    assert scores["f1_micro"] == pytest.approx(3 / 4)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data(), st.integers(2, 5), st.integers(1, 40))
def test_scores_equal_scikit_learn(data, num_classes, num_samples):
    ids = st.lists(st.integers(0, num_classes - 1), min_size=num_samples, max_size=num_samples)
    labels, predictions = data.draw(ids), data.draw(ids)
    scores = classification_scores(logits_of(predictions, num_classes), np.array(labels))
    average = "binary" if num_classes == 2 else "macro"
    expected = {
        "accuracy": np.mean(np.array(labels) == np.array(predictions)),
        "f1": metrics.f1_score(labels, predictions, average=average, zero_division=0),
        "f1_macro": metrics.f1_score(labels, predictions, average="macro", zero_division=0),
        "f1_micro": metrics.f1_score(labels, predictions, average="micro", zero_division=0),
        "f1_weighted": metrics.f1_score(labels, predictions, average="weighted", zero_division=0),
        "precision": metrics.precision_score(labels, predictions, average=average, zero_division=0),
        "recall": metrics.recall_score(labels, predictions, average=average, zero_division=0),
    }
    for name, value in expected.items():
        assert scores[name] == pytest.approx(value), name
    assert tuple(scores) == NAMES
    assert all(type(scores[name]) is float for name in OF_CLASSES)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(2, 5), st.integers(1, 60), st.booleans(), st.integers(0, 2**31))
def test_ranking_scores_equal_scikit_learn(num_classes, num_samples, has_ties, seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, num_classes, num_samples)
    logits = generator.normal(size=(num_samples, num_classes)) + np.eye(num_classes)[labels]
    logits = np.round(logits) if has_ties else logits
    scores = classification_scores(logits, labels)
    if len(set(labels)) < num_classes:
        assert (scores["roc_auc"], scores["average_precision"]) == (None, None)
        return
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    shares = np.round(shares, 12)  # ties stay ties
    asked = shares[:, 1] if num_classes == 2 else shares
    assert scores["roc_auc"] == pytest.approx(metrics.roc_auc_score(labels, asked, multi_class="ovr"))
    assert scores["average_precision"] == pytest.approx(metrics.average_precision_score(labels, asked))


def exact_ranks(logits: np.ndarray, number: int) -> np.ndarray:
    """The order of samples by the odds of a class, in decimals of 60 digits: equal ones have one rank."""
    with decimal.localcontext(prec=60):
        odds = [
            Decimal(1) / sum(sorted(Decimal(float(x) - float(row[number])).exp() for x in np.delete(row, number)))
            for row in logits
        ]
        rounded = [value.normalize(decimal.Context(prec=50)) for value in odds]
    return np.asarray([sorted(set(rounded)).index(value) for value in rounded])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("step", [1.0, 0.25])
@pytest.mark.parametrize("num_classes", [2, 3, 5])
def test_ranking_scores_keep_exact_ties_of_logits_on_a_grid(num_classes, step, dtype):
    """Expected: scikit-learn's scores of ranks in exact arithmetic. Also with the probabilities of a file."""
    generator = np.random.default_rng(num_classes)
    labels = generator.integers(0, num_classes, 150)
    logits = generator.integers(-6, 7, (150, num_classes)) * step + 2 * step * np.eye(num_classes)[labels]
    logits = logits.astype(dtype)
    scores, from_file = classification_scores(logits, labels), odds(softmax(logits))
    assert from_file.dtype == np.float64
    for name, score in (("roc_auc", metrics.roc_auc_score), ("average_precision", metrics.average_precision_score)):
        ranked = range(num_classes) if num_classes > 2 else [1]
        wanted = [score(labels == number, exact_ranks(logits, number)) for number in ranked]
        assert scores[name] == pytest.approx(np.mean(wanted), abs=1e-12)
        of_file = [score(labels == number, from_file[:, number]) for number in ranked]
        assert np.mean(of_file) == pytest.approx(np.mean(wanted), abs=1e-12)


def test_the_other_logits_in_another_order_are_a_tie():
    rows = np.array([list(order) for order in itertools.permutations([0.1, 0.7, -1.3, 5.2])], dtype=np.float32)
    for values in (log_odds(rows), odds(softmax(rows))):
        for logit in rows[0]:
            assert len({value for row, value in zip(rows.ravel(), values.ravel(), strict=True) if row == logit}) == 1


def test_excluded_classes_are_ranked_last():
    """As scikit-learn ranks their probabilities of 0."""
    rows = np.random.default_rng(4).normal(size=(60, 3))
    labels = np.arange(60) % 3
    rows[labels == 0, 1] = -np.inf
    rows[::4, 2] = -np.inf  # rows with one class left, too
    with np.errstate(all="raise"):
        scores = classification_scores(rows, labels)
    shares = softmax(rows)
    expected = [metrics.roc_auc_score(labels == number, shares[:, number]) for number in range(3)]
    assert scores["roc_auc"] == pytest.approx(np.mean(expected), abs=1e-12)
    rows[0] = -np.inf
    assert classification_scores(rows, labels)["roc_auc"] is None


def test_log_odds_need_little_more_memory_than_their_result():
    logits = np.random.default_rng(0).normal(size=(4000, 1000)).astype(np.float32)
    tracemalloc.start()
    result = log_odds(logits)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 3.5 * result.nbytes
    assert np.array_equal(result[1500:1510], log_odds(logits[1500:1510]))


def test_log_odds_of_confident_and_of_hopeless_logits_are_finite():
    # Two classes: the difference itself. Three: z - log(exp(a) + exp(b)) of the others a and b.
    assert log_odds(np.array([[0.0, 900.0]])).tolist() == [[-900.0, 900.0]]
    assert log_odds(np.array([[0.0, -900.0, 0.0]]))[0] == pytest.approx([0.0, -900 - np.log(2), 0.0])


def test_confident_predictions_keep_their_order():
    # In float32, the probabilities of class 1 are 1.0 in all three rows.
    logits = np.array([[0, 30], [0, 40], [0, 35]], dtype=np.float32)
    assert classification_scores(logits, [0, 1, 1])["roc_auc"] == 1.0


def test_matthews_of_three_classes_follows_gorodkin():
    # Gorodkin 2004 (R_K): c = 3 right of s = 5; true counts 2 2 1, predicted 1 3 1.
    # (c s - sum p t) / sqrt((s^2 - sum p^2) (s^2 - sum t^2)) = (15 - 9) / sqrt((25 - 11) (25 - 9))
    scores = classification_scores(logits_of([0, 1, 1, 1, 2], 3), [0, 0, 1, 2, 1])
    assert scores["matthews"] == pytest.approx((2 * 5 - 9) / (14 * 16) ** 0.5)


@pytest.mark.parametrize("label", [0, 1])
def test_one_class_only_is_no_warning_and_no_crash(label):
    scores = classification_scores(logits_of([label] * 3, 2), [label] * 3)
    assert scores["accuracy"] == 1.0
    assert scores["matthews"] == 0.0
    assert scores["f1"] == float(label)


def test_equal_logits_go_to_the_lower_class():
    assert classification_scores([[0.5, 0.5]], [0])["accuracy"] == 1.0


def test_no_samples_and_nan_logits_are_unknown():
    nothing = dict.fromkeys(NAMES)
    assert classification_scores(np.zeros((0, 3)), np.zeros(0)) == nothing
    assert classification_scores([[0.0, float("nan")], [1.0, 0.0]], [0, 0]) == nothing


def test_confusion_has_true_classes_as_rows():
    assert confusion_record([0, 0, 0, 1, 1], [0, 1, 1, 1, 2], 3) == [[1, 2, 0], [0, 1, 1], [0, 0, 0]]


def test_confusion_of_one_class_and_of_nothing():
    assert confusion_record([1, 1], [1, 1], 2) == [[0, 0], [0, 2]]
    assert confusion_record([], [], 2) == [[0, 0], [0, 0]]


def test_confusion_of_many_classes_has_only_counts_above_zero():
    made = confusion_record([0, 0, 19_999, 19_999], [1, 1, 19_999, 3], 20_000)
    assert made == {"num_classes": 20_000, "counts": [[0, 1, 2], [19_999, 3, 1], [19_999, 19_999, 1]]}


@pytest.mark.parametrize("num_classes", [2, 3, 300, 3000])
def test_scores_of_many_classes_are_those_of_scikit_learn(num_classes):
    # Each class has a sample, and half of the predictions are right.
    rng = np.random.default_rng(num_classes)
    labels = rng.permutation(np.r_[np.arange(num_classes), rng.integers(0, num_classes, 600)])
    logits = rng.normal(size=(len(labels), num_classes))
    logits[np.arange(len(labels)), labels] += np.where(rng.random(len(labels)) < 0.5, 9.0, 0.0)
    predicted = logits.argmax(axis=1)
    average = {"average": "binary" if num_classes == 2 else "macro", "zero_division": 0}
    expected = {
        "accuracy": metrics.accuracy_score(labels, predicted),
        "f1": metrics.f1_score(labels, predicted, **average),
        "f1_macro": metrics.f1_score(labels, predicted, average="macro"),
        "f1_micro": metrics.f1_score(labels, predicted, average="micro"),
        "f1_weighted": metrics.f1_score(labels, predicted, average="weighted"),
        "precision": metrics.precision_score(labels, predicted, **average),
        "recall": metrics.recall_score(labels, predicted, **average),
        "matthews": metrics.matthews_corrcoef(labels, predicted),
    }
    for name, value in expected.items():
        score = class_score(name, labels, predicted, num_classes=num_classes)
        assert score == pytest.approx(value, rel=1e-12), name
    dense = metrics.confusion_matrix(labels, predicted, labels=np.arange(num_classes))
    made = read_confusion(json.loads(json.dumps(confusion_record(labels, predicted, num_classes))))
    assert made is not None
    assert made.counts == {(true, given): dense[true, given] for true, given in np.argwhere(dense).tolist()}


def test_matthews_with_weights_is_that_of_scikit_learn():
    rng = np.random.default_rng(3)
    labels, predicted, weights = rng.integers(0, 9, 200), rng.integers(0, 9, 200), rng.random(200)
    for guess in (predicted, np.where(rng.random(200) < 0.7, labels, predicted), np.full(200, 4)):
        expected = metrics.matthews_corrcoef(labels, guess, sample_weight=weights)
        score = class_score("matthews", labels, guess, num_classes=9, weights=weights)
        assert score == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("num_classes", [3, 60])
def test_ranking_of_many_classes_is_that_of_scikit_learn(num_classes):
    rng = np.random.default_rng(num_classes)
    labels = rng.permutation(np.r_[np.arange(num_classes), rng.integers(0, num_classes, 400)])
    shares = softmax(rng.normal(size=(len(labels), num_classes)))
    found = classification_scores(np.log(shares), labels)
    assert found["roc_auc"] == pytest.approx(metrics.roc_auc_score(labels, shares, multi_class="ovr"), rel=1e-9)


def test_twenty_thousand_classes_need_no_matrix_of_them():
    labels = np.arange(0, 20_000, 200)
    logits = np.zeros((100, 20_000), dtype=np.float32)
    logits[np.arange(100), labels + (np.arange(100) % 2)] = 1
    tracemalloc.start()
    found = classification_scores(logits, labels)
    text = json.dumps(confusion_record(labels, logits.argmax(axis=1), 20_000))
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert found["accuracy"] == 0.5
    assert len(text) < 3_000
    assert peak_bytes < 100e6  # a matrix of 20,000 x 20,000 has at least 400e6; probabilities have 16e6


def test_very_many_classes_have_no_scores_of_the_ranking(monkeypatch):
    scores, labels = np.eye(4), np.arange(4)
    assert classification_scores(scores, labels)["roc_auc"] == 1
    monkeypatch.setattr("paratune.metrics.classification.MAX_RANKED_CLASSES", 3)
    assert classification_scores(scores, labels)["roc_auc"] is None
    assert classification_scores(scores, labels)["accuracy"] == 1


LABELS = np.array([[1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 0]])
LOGITS = np.array([[2.0, -1.0, -3.0], [-1.0, -2.0, -4.0], [3.0, 1.0, -2.0], [1.0, 2.0, -5.0]])
"""Predicted at one half: {0}, {}, {0, 1}, {0, 1}."""


def test_scores_equal_the_definitions():
    actual = multi_label_scores(LOGITS, LABELS)
    # True positives 1 + 2 + 1, false positives 0 + 0 + 1, false negatives 1 + 0 + 0: 2 * 4 / (2 * 4 + 1 + 1).
    assert actual["f1_micro"] == pytest.approx(0.8)
    # By class: 2 * 2 / (4 + 1) = 0.8, 2 * 2 / 4 = 1, and none found of the third.
    assert actual["f1_macro"] == pytest.approx((0.8 + 1.0 + 0.0) / 3)
    assert actual["f1_weighted"] == pytest.approx((2 * 0.8 + 2 * 1.0 + 1 * 0.0) / 5)
    # By row: 2 / 3, right about nothing, 1, 2 / 3.
    assert actual["f1_samples"] == pytest.approx((2 / 3 + 1 + 1 + 2 / 3) / 4)
    assert actual["accuracy"] == pytest.approx(2 / 4)
    assert actual["hamming_loss"] == pytest.approx(2 / 12)


def test_ranking_scores_of_sets_equal_scikit_learn():
    actual = multi_label_scores(LOGITS, LABELS)
    assert actual["roc_auc"] == pytest.approx(metrics.roc_auc_score(LABELS, LOGITS, average="macro"))
    wanted = metrics.average_precision_score(LABELS, LOGITS, average="macro")
    assert actual["average_precision"] == pytest.approx(wanted)


def test_classes_that_all_or_no_rows_have_do_not_count_in_ranks():
    labels = np.concatenate([LABELS, np.zeros((4, 1)), np.ones((4, 1))], axis=1)
    logits = np.concatenate([LOGITS, np.zeros((4, 2))], axis=1)
    whole, more = multi_label_scores(LOGITS, LABELS), multi_label_scores(logits, labels)
    assert more["roc_auc"] == whole["roc_auc"]
    assert more["average_precision"] == whole["average_precision"]
    alone = multi_label_scores(logits[:, 3:], labels[:, 3:])
    assert alone["roc_auc"] is None
    assert alone["average_precision"] is None


def test_a_lower_threshold_predicts_more_classes():
    # ln(0.04 / 0.96) = -3.18, so all but -4 and -5: {0, 1, 2}, {0, 1}, {0, 1, 2}, {0, 1}.
    actual = multi_label_scores(LOGITS, LABELS, threshold=0.04)
    # True positives 2 + 0 + 2 + 1, false positives 1 + 2 + 1 + 1, nothing missed: 2 * 5 / (2 * 5 + 5).
    assert actual["f1_micro"] == pytest.approx(2 / 3)
    assert actual["hamming_loss"] == pytest.approx(5 / 12)
    assert actual["accuracy"] == 0


def test_undefined_scores_are_none():
    assert set(multi_label_scores(np.zeros((0, 2)), np.zeros((0, 2))).values()) == {None}
    assert set(multi_label_scores(np.full((1, 2), np.nan), np.zeros((1, 2))).values()) == {None}
