"""Scores of predicted sets of classes, computed by scikit-learn.

Dimensions: `N` samples, `C` classes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import all_none, known
from paratune.records.predictions import predicted_sets

Array = npt.NDArray[Any]
NAMES = (
    *("f1_micro", "f1_macro", "f1_weighted", "f1_samples"),
    *("accuracy", "hamming_loss", "roc_auc", "average_precision"),
)


def multi_label_scores(logits: npt.ArrayLike, labels: npt.ArrayLike, threshold: float = 0.5) -> dict[str, float | None]:
    """Return the scores of predicting the classes whose probability is at least `threshold`.

    Without true and predicted positives, the F1 of a class is 0, but the F1 of a row, in `f1_samples`, is 1: the empty
    set was predicted correctly. `accuracy` is the share of rows with equal sets. `roc_auc` and `average_precision` use
    the logits: they are means over the classes that some rows have and other rows do not, None without such a class.

    Args:
        logits: (N, C).
        labels: (N, C), 1 for the classes of a row and 0 for others.
        threshold: Above 0 and below 1.

    Returns:
        A value for each of `NAMES`, in [0, 1]. All None without samples, or where a logit is NaN.

    Raises:
        ValueError: Shapes do not fit, or a label is neither 0 nor 1.

    Source: sklearn.metrics.f1_score, accuracy_score, hamming_loss, roc_auc_score, average_precision_score.
    """
    from sklearn import metrics

    logits_NC, labels_NC = np.asarray(logits), np.asarray(labels)
    if logits_NC.ndim != 2 or labels_NC.shape != logits_NC.shape:
        raise ValueError(
            f"logits have the shape {logits_NC.shape} and labels {labels_NC.shape}; (N, C) is needed twice"
        )
    if not np.isin(labels_NC, (0, 1)).all():
        raise ValueError("labels contain other values than 0 and 1")
    if len(labels_NC) == 0 or np.isnan(logits_NC).any():
        return all_none(NAMES)
    labels_NC = labels_NC.astype(np.int64)
    predicted_NC = predicted_sets(logits_NC, threshold).astype(np.int64)
    rule: dict[str, Any] = {"y_true": labels_NC, "y_pred": predicted_NC, "zero_division": 0}
    values = {f"f1_{how}": metrics.f1_score(**rule, average=how) for how in ("micro", "macro", "weighted")}
    values["f1_samples"] = metrics.f1_score(**{**rule, "zero_division": 1}, average="samples")
    values["accuracy"] = metrics.accuracy_score(labels_NC, predicted_NC)
    values["hamming_loss"] = metrics.hamming_loss(labels_NC, predicted_NC)
    return {name: known(value) for name, value in values.items()} | {
        "roc_auc": _mean_over_classes(metrics.roc_auc_score, labels_NC, logits_NC),
        "average_precision": _mean_over_classes(metrics.average_precision_score, labels_NC, logits_NC),
    }


def _mean_over_classes(score: Callable[[Any, Any], float], labels: Array, logits: Array) -> float | None:
    """Return the mean of a score over the classes that some rows have and others do not; None without such a class."""
    counts = labels.sum(axis=0)
    defined = np.flatnonzero((counts > 0) & (counts < len(labels)))
    if len(defined) == 0:
        return None
    return known(float(np.mean([score(labels[:, number], logits[:, number]) for number in defined])))
