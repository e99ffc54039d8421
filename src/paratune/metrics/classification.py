"""Scores of predicted classes, computed by scikit-learn.

Dimensions: `N` samples, `C` classes.
"""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import all_none, known
from paratune.records.confusion import Confusion

OF_CLASSES = ("accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "precision", "recall", "matthews")
"""Scores of the predicted classes."""
MAX_RANKED_CLASSES = 1000
"""Of more classes there are no scores of the ranking, for which all rows are sorted once for each class."""
OF_RANKING = ("roc_auc", "average_precision")
"""Scores of the order of samples by the probability of a class."""
NAMES = (*OF_CLASSES, *OF_RANKING)


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
        A value for each of `NAMES`, in [0, 1]; `matthews` in [-1, 1]. All None without samples or with a NaN logit.

    Raises:
        ValueError: Shapes do not fit, or a label is not a class id.

    Source: sklearn.metrics.accuracy_score, f1_score, precision_score, recall_score, matthews_corrcoef, roc_auc_score
    (multi_class="ovr"), average_precision_score.
    """
    scores_NC, labels_N = _checked(logits, labels)
    if len(labels_N) == 0 or np.isnan(scores_NC).any():
        return all_none(NAMES)
    predictions_N = scores_NC.argmax(axis=1)
    num_classes = scores_NC.shape[1]
    scores = {name: class_score(name, labels_N, predictions_N, num_classes=num_classes) for name in OF_CLASSES}
    return scores | _ranking_scores(labels_N, scores_NC)


def _ranking_scores(labels: npt.NDArray[Any], logits: npt.NDArray[Any]) -> dict[str, float | None]:
    from sklearn import metrics

    num_classes = logits.shape[1]
    is_ranked = num_classes <= MAX_RANKED_CLASSES and np.isfinite(logits.max(axis=1)).all()
    if not is_ranked or len(np.unique(labels)) < num_classes:
        return all_none(OF_RANKING)
    odds_NC = log_odds(logits)
    scorers = dict(zip(OF_RANKING, (metrics.roc_auc_score, metrics.average_precision_score), strict=True))
    ranked = ranked_classes(num_classes)
    return {
        name: known(np.mean([score(labels == number, odds_NC[:, number]) for number in ranked]))
        for name, score in scorers.items()
    }


_BLOCK = 1_000_000
"""Logits of which log odds are computed at a time: it takes several times their memory."""


def ranked_classes(num_classes: int) -> range:
    """Return the ids of the classes by whose probability samples are ranked: class 1 of two, else all."""
    return range(1 if num_classes == 2 else 0, num_classes)


def log_odds(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return log p / (1 - p) of the probabilities of logits, (N, C), by which samples are ranked.

    A logit may be -inf, for a class that a model excludes, and not all of a sample. All log odds are finite.

    Probabilities near 1 are equal as numbers, and their log odds are not. Samples whose other logits have the same
    distances in another order are tied: sums are over sorted values, because the last digit of a sum depends on the
    order, and would break such ties.
    """
    num_rows = max(1, _BLOCK // logits.shape[1])
    blocks = (_block_log_odds(logits[row : row + num_rows]) for row in range(0, len(logits), num_rows))
    return np.concatenate(list(blocks))


def _block_log_odds(logits: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
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


def odds(shares: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
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
    name: str, labels: npt.NDArray[Any], predictions: npt.NDArray[Any], *, num_classes: int,
    weights: npt.NDArray[Any] | None = None,
) -> float | None:  # fmt: skip
    """Return one score of predicted classes, one of `OF_CLASSES`, with the conventions of `classification_scores`.

    Labels (at least one) and predictions are (N,) class ids; `weights`, (N,), are those of the samples, None for 1
    each; `num_classes` is C.
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


def _matthews(
    labels: npt.NDArray[Any], predictions: npt.NDArray[Any], num_classes: int, weights: npt.NDArray[Any] | None
) -> float:
    """Return Matthews' coefficient; `matthews_corrcoef` of scikit-learn makes a matrix of C x C.

    Source: Gorodkin, Computational Biology and Chemistry 28(5-6), 2004, as in scikit-learn.
    """
    weights_N = np.ones(len(labels)) if weights is None else np.asarray(weights, dtype=np.float64)
    true_C = np.bincount(labels, weights_N, minlength=num_classes)
    predicted_C = np.bincount(predictions, weights_N, minlength=num_classes)
    right = weights_N[labels == predictions].sum()
    spread = (predicted_C.sum() ** 2 - predicted_C @ predicted_C) * (true_C.sum() ** 2 - true_C @ true_C)
    return float((right * true_C.sum() - true_C @ predicted_C) / np.sqrt(spread)) if spread > 0 else 0.0


def confusion(labels: npt.ArrayLike, predictions: npt.ArrayLike, num_classes: int) -> Confusion:
    """Return how many samples of each true class have each predicted class.

    Labels and predictions are (N,) class ids from 0 to C - 1.

    Raises:
        ValueError: Shapes differ, or a value is not a class id.
    """
    labels_N = _class_ids("labels", labels, num_classes).astype(np.int64)
    predictions_N = _class_ids("predictions", predictions, num_classes)
    if labels_N.shape != predictions_N.shape:
        raise ValueError(f"{labels_N.size} labels, but {predictions_N.size} predictions: there must be one for each")
    cells, counts = np.unique(labels_N * num_classes + predictions_N, return_counts=True)
    pairs = zip((cells // num_classes).tolist(), (cells % num_classes).tolist(), strict=True)
    return Confusion(num_classes, dict(zip(pairs, counts.tolist(), strict=True)))


def _checked(logits: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    scores_NC = np.asarray(logits)
    if scores_NC.ndim != 2 or scores_NC.shape[1] < 2:
        raise ValueError(
            f"logits have the shape {scores_NC.shape}; (samples, classes) with at least 2 classes is needed"
        )
    labels_N = _class_ids("labels", labels, scores_NC.shape[1])
    if len(labels_N) != len(scores_NC):
        raise ValueError(f"{len(labels_N)} labels, but logits of {len(scores_NC)} samples: there must be one for each")
    return scores_NC, labels_N


def _class_ids(name: str, values: npt.ArrayLike, num_classes: int) -> npt.NDArray[Any]:
    ids_N = np.asarray(values)
    if ids_N.size == 0:
        return ids_N.reshape(-1).astype(np.int64)
    if ids_N.ndim != 1 or not np.issubdtype(ids_N.dtype, np.integer):
        raise ValueError(f"{name} have the shape {ids_N.shape} and dtype {ids_N.dtype}; (samples,) integers are needed")
    wrong = ids_N[(ids_N < 0) | (ids_N >= num_classes)]
    if wrong.size:
        raise ValueError(f"{name} contain {wrong[0]}, which is not a class id; ids are 0 to {num_classes - 1}")
    return ids_N
