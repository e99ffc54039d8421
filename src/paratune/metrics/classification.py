"""Scores of class predictions, as scikit-learn computes them.

Dimensions: `N` samples, `C` classes.
"""

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import all_none, known

NAMES = ("accuracy", "f1", "f1_macro", "f1_micro", "f1_weighted", "precision", "recall", "matthews")


def classification_scores(logits: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float | None]:
    """Score the class with the largest logit of each sample; of equal logits the lower class id wins.

    `f1`, `precision` and `recall` are those of class id 1 when there are two classes, and macro averages when there are
    more. Averages run over the classes that occur among labels or predictions. A ratio whose denominator is 0 (the
    precision of a class that was never predicted) counts as 0, as does Matthews' coefficient when labels or predictions
    are all of one class: these are scikit-learn's own conventions.

    Args:
        logits: (N, C), any real dtype; probabilities serve as well.
        labels: (N,), class ids from 0 to C - 1.

    Returns:
        A value for each of `NAMES`, all in [0, 1] but `matthews`, in [-1, 1]. All None when there is no sample or a
        logit is NaN.

    Raises:
        ValueError: Shapes do not fit, or a label is not a class id.

    Source: sklearn.metrics.accuracy_score, f1_score, precision_score, recall_score, matthews_corrcoef.
    """
    scores_NC, labels_N = _checked(logits, labels)
    if len(labels_N) == 0 or np.isnan(scores_NC).any():
        return all_none(NAMES)
    predictions_N = scores_NC.argmax(axis=1)
    return {name: class_score(name, labels_N, predictions_N, num_classes=scores_NC.shape[1]) for name in NAMES}


def class_score(
    name: str, labels: npt.NDArray[Any], predictions: npt.NDArray[Any], *, num_classes: int,
    weights: npt.NDArray[Any] | None = None,
) -> float | None:  # fmt: skip
    """Return one score of predicted classes, with the conventions of `classification_scores`.

    Args:
        name: One of `NAMES`.
        labels: (N,), class ids, at least one.
        predictions: (N,), class ids.
        num_classes: C.
        weights: (N,), how many samples each stands for; None counts each once.
    """
    from sklearn import metrics

    pair: dict[str, Any] = {"y_true": labels, "y_pred": predictions, "sample_weight": weights}
    main: dict[str, Any] = {"average": "binary", "pos_label": 1} if num_classes == 2 else {"average": "macro"}
    averages = {"f1_macro": "macro", "f1_micro": "micro", "f1_weighted": "weighted"}
    with warnings.catch_warnings():
        # "A single label was found": a fact about the data, already said by the value.
        warnings.simplefilter("ignore", UserWarning)
        if name == "accuracy":
            return known(metrics.accuracy_score(**pair))
        if name == "matthews":
            return known(metrics.matthews_corrcoef(**pair))
        if name in averages:
            return known(metrics.f1_score(**pair, average=averages[name], zero_division=0))
        by_class = {"f1": metrics.f1_score, "precision": metrics.precision_score, "recall": metrics.recall_score}
        return known(by_class[name](**pair, **main, zero_division=0))


def confusion(labels: npt.ArrayLike, predictions: npt.ArrayLike, num_classes: int) -> list[list[int]]:
    """Count the samples of each true class (row) that were predicted as each class (column).

    Args:
        labels: (N,), class ids.
        predictions: (N,), class ids.
        num_classes: C; ids run from 0 to C - 1, and classes that do not occur have zeros.

    Returns:
        C rows of C counts.

    Raises:
        ValueError: Shapes differ, or a value is not a class id.
    """
    from sklearn.metrics import confusion_matrix

    labels_N = _class_ids("labels", labels, num_classes)
    predictions_N = _class_ids("predictions", predictions, num_classes)
    if labels_N.shape != predictions_N.shape:
        raise ValueError(f"{labels_N.size} labels, but {predictions_N.size} predictions: there must be one for each")
    if labels_N.size == 0:
        return [[0] * num_classes for _ in range(num_classes)]
    counts: list[list[int]] = confusion_matrix(labels_N, predictions_N, labels=np.arange(num_classes)).tolist()
    return counts


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


def _class_ids(what: str, values: npt.ArrayLike, num_classes: int) -> npt.NDArray[Any]:
    ids_N = np.asarray(values)
    if ids_N.size == 0:
        return ids_N.reshape(-1).astype(np.int64)
    if ids_N.ndim != 1 or not np.issubdtype(ids_N.dtype, np.integer):
        raise ValueError(f"{what} have the shape {ids_N.shape} and dtype {ids_N.dtype}; (samples,) integers are needed")
    wrong = ids_N[(ids_N < 0) | (ids_N >= num_classes)]
    if wrong.size:
        raise ValueError(f"{what} hold {wrong[0]}, which is not a class id; ids run from 0 to {num_classes - 1}")
    return ids_N
