"""Scores of predicted classes, of sets of classes, and of chosen answers, computed by scikit-learn.

Dimensions: `N` samples, `C` classes, `K` most choices of a question.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import known, no_scores
from paratune.records.predictions import probabilities
from paratune.records.scores import MAX_DENSE_CLASSES

Array = npt.NDArray[Any]

OF_CLASSES = ("accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "precision", "recall", "matthews")
"""Scores of the predicted classes."""
MAX_RANKED_CLASSES = 1000
"""Of more classes there are no scores of the ranking, for which all rows are sorted once for each class."""
OF_RANKING = ("roc_auc", "average_precision")
"""Scores of the order of samples by the probability of a class."""
_BLOCK = 1_000_000
"""Logits of which log odds are computed at a time: it takes several times their memory."""


def classification_scores(logits: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float | None]:
    """Return the scores of the class with the largest logit of each sample; of equal logits, the lower class id.

    With two classes, `f1`, `precision` and `recall` are those of class id 1; with more, macro averages. Averages are
    over the classes that occur in labels or predictions. By the conventions of scikit-learn, a ratio with a denominator
    of 0 (the precision of a class that was never predicted) is 0, and so is Matthews' coefficient where all labels or
    all predictions are one class.

    With two classes, `roc_auc` and `average_precision` are those of class id 1; with more, each class is compared with
    all others, and the value is the mean over classes. They are None where a class has no sample, or
    where the largest logit of a sample is infinite; others may be -inf.

    Args:
        logits: (N, C), any real dtype; or their logarithms of probabilities.
        labels: (N,), class ids from 0 to C - 1.

    Returns:
        A value for each metric, in [0, 1]; `matthews` in [-1, 1]. All None without samples or with a NaN logit.

    Source: sklearn.metrics.accuracy_score, f1_score, precision_score, recall_score, matthews_corrcoef, roc_auc_score
    (multi_class="ovr"), average_precision_score.
    """
    from sklearn import metrics

    scores_NC, labels_N = np.asarray(logits), np.asarray(labels)
    if len(labels_N) == 0 or np.isnan(scores_NC).any():
        return no_scores("classification")
    predictions_N = scores_NC.argmax(axis=1)
    num_classes = scores_NC.shape[1]
    scores = {name: class_score(name, labels_N, predictions_N, num_classes=num_classes) for name in OF_CLASSES}
    is_ranked = num_classes <= MAX_RANKED_CLASSES and np.isfinite(scores_NC.max(axis=1)).all()
    if not is_ranked or len(np.unique(labels_N)) < num_classes:
        return scores | dict.fromkeys(OF_RANKING)
    odds_NC, ranked = log_odds(scores_NC), ranked_classes(num_classes)
    for name, score in zip(OF_RANKING, (metrics.roc_auc_score, metrics.average_precision_score), strict=True):
        scores[name] = known(np.mean([score(labels_N == number, odds_NC[:, number]) for number in ranked]))
    return scores


def ranked_classes(num_classes: int) -> range:
    """Return the ids of the classes by whose probability samples are ranked: class 1 of two, else all."""
    return range(1 if num_classes == 2 else 0, num_classes)


def log_odds(logits: Array) -> npt.NDArray[np.float64]:
    """Return log p / (1 - p) of the probabilities of logits, (N, C), by which samples are ranked.

    A logit may be -inf, for a class that a model excludes, and not all of a sample. All log odds are finite.

    Probabilities near 1 are equal as numbers, and their log odds are not. Samples whose other logits have the same
    distances in another order are tied: sums are over sorted values, because the last digit of a sum depends on the
    order, and would break such ties.
    """
    num_rows = max(1, _BLOCK // logits.shape[1])
    blocks = (_block_log_odds(logits[row : row + num_rows]) for row in range(0, len(logits), num_rows))
    return np.concatenate(list(blocks))


def _block_log_odds(logits: Array) -> npt.NDArray[np.float64]:
    logits_NC = np.asarray(logits, dtype=np.float64)
    ordered_NC = np.sort(logits_NC, axis=1)
    top_N1, second_N1 = ordered_NC[:, -1:], np.maximum(ordered_NC[:, -2:-1], np.finfo(np.float64).min)
    # Of the largest logit the others are summed; of the rest the sum of all, at least 1, loses nothing by subtraction.
    with np.errstate(divide="ignore"):
        above_N1 = second_N1 - top_N1 + np.log(np.exp(ordered_NC[:, :-1] - second_N1).sum(axis=1, keepdims=True))
    total_N1 = np.exp(ordered_NC - top_N1).sum(axis=1, keepdims=True)
    distance_NC = logits_NC - top_N1
    is_top_NC = distance_NC == 0
    others_NC = np.where(is_top_NC, 1.0, total_N1 - np.exp(distance_NC))
    return np.nan_to_num(np.where(is_top_NC, -above_N1, distance_NC - np.log(others_NC)))


def odds(shares: Array) -> npt.NDArray[np.float64]:
    """Return p / (1 - p) of probabilities, (N, C), in the order of `log_odds`, for files that have no logits.

    1 - p is the sum of the other probabilities: many float32 probabilities are equal near 1, and not near 0.
    """
    shares_NC = np.asarray(shares, dtype=np.float64)
    ordered_NC = np.sort(shares_NC, axis=1)
    rest_N1 = ordered_NC[:, :-1].sum(axis=1, keepdims=True)
    total_N1 = rest_N1 + ordered_NC[:, -1:]
    others_NC = np.where(shares_NC == ordered_NC[:, -1:], rest_N1, total_N1 - shares_NC)
    return np.asarray(shares_NC / np.maximum(others_NC, np.finfo(np.float64).tiny))


def class_score(
    name: str, labels: Array, predictions: Array, *, num_classes: int,
    weights: Array | None = None,
) -> float | None:  # fmt: skip
    """Return one of `OF_CLASSES`, with the conventions of `classification_scores`.

    Labels (at least one) and predictions are (N,) class ids, `weights`, (N,), those of the samples; None for 1 each.
    """
    from sklearn import metrics

    pair: dict[str, Any] = {"y_true": labels, "y_pred": predictions, "sample_weight": weights}
    main: dict[str, Any] = {"average": "binary", "pos_label": 1} if num_classes == 2 else {"average": "macro"}
    averages = {"f1_macro": "macro", "f1_micro": "micro", "f1_weighted": "weighted"}
    with warnings.catch_warnings():
        # scikit-learn warns "A single label was found", which the score shows, too.
        warnings.simplefilter("ignore", UserWarning)
        if name == "accuracy":
            return known(metrics.accuracy_score(**pair))
        if name == "matthews":
            return known(_matthews(labels, predictions, num_classes, weights))
        if name in averages:
            return known(metrics.f1_score(**pair, average=averages[name], zero_division=0))
        by_class = {"f1": metrics.f1_score, "precision": metrics.precision_score, "recall": metrics.recall_score}
        return known(by_class[name](**pair, **main, zero_division=0))


def _matthews(labels: Array, predictions: Array, num_classes: int, weights: Array | None) -> float:
    """Return Matthews' coefficient; `matthews_corrcoef` of scikit-learn makes a matrix of C x C.

    Source: Gorodkin, Computational Biology and Chemistry 28(5-6), 2004, as in scikit-learn.
    """
    weights_N = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    true_C = np.bincount(labels, weights_N, minlength=num_classes)
    predicted_C = np.bincount(predictions, weights_N, minlength=num_classes)
    right = weights_N[labels == predictions].sum()
    spread = (predicted_C.sum() ** 2 - predicted_C @ predicted_C) * (true_C.sum() ** 2 - true_C @ true_C)
    return float((right * true_C.sum() - true_C @ predicted_C) / np.sqrt(spread)) if spread > 0 else 0.0


def confusion_record(
    labels: npt.ArrayLike, predictions: npt.ArrayLike, num_classes: int
) -> list[list[int]] | dict[str, Any]:
    """Return how many samples of each true class have each predicted class, from class ids, (N,), as in a record."""
    labels_N, predictions_N = (np.asarray(ids).astype(np.int64) for ids in (labels, predictions))
    cells, counts = np.unique(labels_N * num_classes + predictions_N, return_counts=True)
    if num_classes <= MAX_DENSE_CLASSES:
        dense = np.zeros((num_classes, num_classes), dtype=np.int64)
        dense.flat[cells] = counts
        return dense.tolist()
    rows = np.stack([cells // num_classes, cells % num_classes, counts], axis=1)
    return {"num_classes": num_classes, "counts": rows.tolist()}


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
        A value for each metric, in [0, 1]. All None without samples, or where a logit is NaN.

    Source: sklearn.metrics.f1_score, accuracy_score, hamming_loss, roc_auc_score, average_precision_score.
    """
    from sklearn import metrics

    logits_NC, labels_NC = np.asarray(logits), np.asarray(labels)
    if len(labels_NC) == 0 or np.isnan(logits_NC).any():
        return no_scores("multi_label")
    labels_NC = labels_NC.astype(np.int64)
    predicted_NC = (probabilities(logits_NC.astype(np.float64)) >= threshold).astype(np.int64)
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


def choice_scores(logits: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float | None]:
    """Return the share of questions whose choice with the largest logit is the right one; of equal logits, the first.

    `logits` are (N, K), -inf behind the last choice of a question; `labels`, (N,), the places of the right choices,
    from 0. The value, in [0, 1], is None without questions or with a NaN logit.
    """
    logits_NK, labels_N = np.asarray(logits), np.asarray(labels)
    if len(labels_N) == 0 or np.isnan(logits_NK).any():
        return no_scores("multiple_choice")
    return {"accuracy": float((logits_NK.argmax(axis=1) == labels_N).mean())}
