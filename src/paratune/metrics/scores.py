"""Scores by kind of task, and the comparison of two values of a metric."""

import importlib
import math
from collections.abc import Callable
from typing import Any, Final

import numpy.typing as npt

from paratune.config.metric_names import METRICS, direction
from paratune.metrics.choices import choice_scores
from paratune.metrics.classification import classification_scores
from paratune.metrics.multi_label import multi_label_scores
from paratune.metrics.ordinal import ordinal_scores
from paratune.metrics.regression import regression_scores

__all__ = ["METRICS", "SCORES", "direction", "import_scorers", "is_better", "scores"]

Score = Callable[..., dict[str, float | None]]

SCORES: Final[dict[str, Score]] = {
    "classification": classification_scores,
    "multi_label": multi_label_scores,
    "multiple_choice": choice_scores,
    "ordinal": ordinal_scores,
    "regression": regression_scores,
}
"""The function that scores the outputs of each kind of task: all of its `METRICS` except the loss."""


def import_scorers(task_kind: str) -> None:
    """Import the libraries that score a kind of task (about a second), so that the first evaluation is not slower."""
    for module in ("scipy.stats", "sklearn.metrics") if task_kind in SCORES else ():
        importlib.import_module(module)


def scores(task_kind: str, outputs: npt.ArrayLike, labels: npt.ArrayLike, **options: Any) -> dict[str, float | None]:
    """Return the scores of the outputs of a whole split for a key of `SCORES`; None where a value is undefined.

    Outputs are (N, C) logits, (N, C - 1) of ordinal classes, (N, K) of choices, or (N,) or (N, 1) predictions of a
    regression; labels are (N,) class ids, places of right choices or targets, or (N, C) sets of classes. `options` are
    further arguments of the scores of this kind, such as the `scale` of a regression. The engine computes the loss.

    Raises:
        ValueError: Shapes or labels do not fit the task.
    """
    return SCORES[task_kind](outputs, labels, **options)


def is_better(metric: str, new: float | None, old: float | None, min_delta: float = 0.0) -> bool:
    """Return whether `new` is better than `old` by more than `min_delta`.

    A known value is better than an unknown one (None or NaN); an unknown value is never better.

    Raises:
        KeyError: No task has a metric of this name.
    """
    sign = 1.0 if direction(metric) == "max" else -1.0
    if new is None or math.isnan(new):
        return False
    if old is None or math.isnan(old):
        return True
    return sign * (new - old) > min_delta
