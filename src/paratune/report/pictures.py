"""The pictures of a report of runs, by the section that they belong to; page, files and PDF draw the same ones."""

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

from paratune.base.text import plain
from paratune.records import predictions_file
from paratune.report import figures
from paratune.report.canvas import Drawing
from paratune.report.model import Report, rank_memory, split_shown
from paratune.report.read import RunRecord

Predictions = tuple[str, Any, Any]
"""Split, labels and predictions, (N,) float64 each."""


def loss_pictures(report: Report) -> Iterator[Drawing]:
    """Yield the loss curves of the runs that have steps, one picture a task."""
    styles = {run.name: position for position, run in enumerate(report.runs)}
    groups = [tuple(group) for _, group in groupby(sorted(_with_steps(report), key=_task), key=_task)]
    for number, runs in enumerate(groups, start=1):
        yield figures.loss_curves(runs, styles, name="loss" if len(groups) == 1 else f"loss-{number}")


def speed_pictures(report: Report) -> Iterator[Drawing]:
    """Yield the phases of a step, where a run has steps."""
    if runs := _with_steps(report):
        yield figures.phase_bars(runs)


def memory_pictures(report: Report) -> Iterator[Drawing]:
    """Yield the memory of each rank, where any is known."""
    if any(rank_memory(run) for run in report.runs):
        yield figures.memory_bars(report.runs)


def prediction_pictures(read: Mapping[str, Predictions]) -> Iterator[Drawing]:
    """Yield predicted against actual of each run, by its name, all with the same axes."""
    values = [array for found in read.values() for array in found[1:]]
    limits = (min(array.min() for array in values), max(array.max() for array in values)) if values else (0.0, 1.0)
    for number, (run, (split, labels, predictions)) in enumerate(read.items(), start=1):
        name = "predictions" if len(read) == 1 else f"predictions-{number}"
        yield figures.predicted_against_actual(labels, predictions, run, split, limits=limits, name=name)


def read_all_predictions(report: Report) -> dict[str, Predictions | str]:
    """Return for each regression its predictions, or why there are none to draw."""
    return {run.name: predictions_of(run) for run in report.runs if run.task == "regression" and not run.is_probe}


def _with_steps(report: Report) -> list[RunRecord]:
    """Return the runs but fitted baselines, which have no steps."""
    return [run for run in report.runs if not run.is_baseline]


def _task(run: RunRecord) -> str:
    return run.task


def predictions_of(run: RunRecord) -> Predictions | str:
    """Return the predictions of a regression on test, else on validation; or why there are none to draw."""
    split = split_shown(run)
    if split is None:
        return f"No figure: {run.name} has no scores on test or validation."
    file = predictions_file(split)
    try:
        return (split, *figures.read_predictions(run.folder / file))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        return f"No figure: {file} of {run.name} cannot be used: {plain(reason)}"
