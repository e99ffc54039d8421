"""Predicted against actual values of regressions."""

from collections.abc import Iterator, Mapping
from typing import Any

from paratune.base.text import plain
from paratune.records import predictions_file
from paratune.records.finished import RunRecord
from paratune.reports.figures import runs as run_figures
from paratune.reports.figures.canvas import Drawing

Predictions = tuple[str, Any, Any]  # split, labels and predictions, (N,) float64 each


def prediction_figures(predictions: Mapping[str, Predictions]) -> Iterator[Drawing]:
    """Yield predicted against actual values of each run, by its name, all with the same axes."""
    arrays = [array for _, *pair in predictions.values() for array in pair]
    limits = (min(array.min() for array in arrays), max(array.max() for array in arrays)) if arrays else (0.0, 1.0)
    for number, (run, (split, labels, values)) in enumerate(predictions.items(), start=1):
        name = "predictions" if len(predictions) == 1 else f"predictions-{number}"
        yield run_figures.predicted_against_actual(labels, values, run, split, limits=limits, name=name)


def read_predictions(run: RunRecord) -> Predictions | str:
    """Return the predictions of a regression on test, else on validation; or the reason why they cannot be drawn."""
    split = next((split for split in ("test", "validation") if run.summary.scores.get(split)), None)
    if split is None:
        return f"No figure: {run.name} has no scores on test or validation."
    file = predictions_file(split)
    try:
        return (split, *run_figures.read_predictions(run.folder / file))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        return f"No figure: {file} of {run.name} cannot be used: {plain(reason)}"
