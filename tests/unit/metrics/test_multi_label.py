import numpy as np
import pytest
from sklearn import metrics

from paratune.metrics.classification import multi_label_scores

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


def test_ranking_scores_equal_scikit_learn():
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
