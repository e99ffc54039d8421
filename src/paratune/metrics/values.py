"""Undefined scores, which are None and never NaN, and the comparison of two values of a metric."""

import importlib
import math

from paratune.config.metric_names import METRICS, direction


def known(value: float) -> float | None:
    """Return a plain float, or None for NaN and infinities."""
    return float(value) if math.isfinite(value) else None


def no_scores(task_kind: str) -> dict[str, float | None]:
    """Return None for each metric of a kind of task except the loss."""
    return {name: None for name in METRICS[task_kind] if name != "loss"}


def import_scorers(task_kind: str) -> None:
    """Import the libraries that score a kind of task (about a second), so that the first evaluation is not slower."""
    if task_kind in ("classification", "multi_label", "ordinal", "regression", "multiple_choice"):
        importlib.import_module("scipy.stats")
        importlib.import_module("sklearn.metrics")


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
