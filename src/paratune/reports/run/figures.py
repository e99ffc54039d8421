"""The figures of a report of runs."""

from collections.abc import Iterator, Mapping
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.records import predictions_file
from paratune.records.finished import RunRecord, rank_memory
from paratune.reports.figures import runs as run_figures
from paratune.reports.figures.canvas import Drawing
from paratune.reports.run.model import Report, split_shown

Predictions = tuple[str, Any, Any]
"""Split, labels and predictions, (N,) float64 each."""


def loss_figures(report: Report) -> Iterator[Drawing]:
    """Yield the loss curves of the runs that have steps, one figure for each task."""
    styles = {run.name: position for position, run in enumerate(report.runs)}
    groups = sorted(grouped((run.task, run) for run in _with_steps(report)).items())
    for number, (_, runs) in enumerate(groups, start=1):
        yield run_figures.loss_curves(runs, styles, name="loss" if len(groups) == 1 else f"loss-{number}")


def phase_figures(report: Report) -> Iterator[Drawing]:
    """Yield the phases of a step, if a run has steps."""
    if runs := _with_steps(report):
        yield run_figures.phase_bars(runs)


def memory_figures(report: Report) -> Iterator[Drawing]:
    """Yield the memory of each rank, if it is known for a run."""
    if any(rank_memory(run) for run in report.runs):
        yield run_figures.memory_bars(report.runs)


def prediction_figures(predictions: Mapping[str, Predictions]) -> Iterator[Drawing]:
    """Yield predicted against actual values of each run, by its name, all with the same axes."""
    arrays = [array for _, *pair in predictions.values() for array in pair]
    limits = (min(array.min() for array in arrays), max(array.max() for array in arrays)) if arrays else (0.0, 1.0)
    for number, (run, (split, labels, values)) in enumerate(predictions.items(), start=1):
        name = "predictions" if len(predictions) == 1 else f"predictions-{number}"
        yield run_figures.predicted_against_actual(labels, values, run, split, limits=limits, name=name)


def read_all_predictions(report: Report) -> dict[str, Predictions | str]:
    """Return the predictions of each regression, or the reason why they cannot be drawn."""
    return {run.name: read_predictions(run) for run in report.runs if run.task == "regression" and not run.is_probe}


def read_predictions(run: RunRecord) -> Predictions | str:
    """Return the predictions of a regression on test, else on validation; or the reason why they cannot be drawn."""
    split = split_shown(run)
    if split is None:
        return f"No figure: {run.name} has no scores on test or validation."
    file = predictions_file(split)
    try:
        return (split, *run_figures.read_predictions(run.folder / file))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        return f"No figure: {file} of {run.name} cannot be used: {plain(reason)}"


def _with_steps(report: Report) -> list[RunRecord]:
    """Return the runs without fitted baselines, which have no steps."""
    return [run for run in report.runs if not run.is_baseline]
