"""Figures of runs and of configurations: loss curves, phases of a step, memory, predictions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from paratune.base.text import listing, plain
from paratune.base.units import format_as, format_share
from paratune.records import ALL_PHASES
from paratune.records.finished import Curve, RunRecord
from paratune.reports.amounts import decimals
from paratune.reports.figures.canvas import Drawing, Key
from paratune.reports.figures.plots import (
    Bars,
    Line,
    Points,
    bars,
    height_of_rows,
    histogram,
    lines,
    panels,
    points,
    run_style,
    thinned,
)
from paratune.reports.measures import PHASE_NAMES, STEP_PARTS
from paratune.reports.text import shorten
from paratune.verdicts.scoring import CannotTell, read_rows

PHASE_COLOURS = {
    "get_batch": "#e3b23c", "forward": "#8cc0e6", "backward": "#4f8fc4", "optimizer": "#e08a7d", "other": "#b9b9b9"
}  # fmt: skip
Predictions = tuple[str, Any, Any]  # split, labels and predictions, (N,) float64 each


def losses(
    key: str, title: str, runs_by_line: Mapping[str, Sequence[RunRecord]], positions: Sequence[int], notes: str = ""
) -> Drawing:
    """Draw the running mean of the training loss and, as points, the validation loss.

    Of a line of several runs the mean is drawn, and a band from the smallest to the largest value. `positions` are
    those of the colour and dashes of each line; `notes` are sentences after the caption.
    """
    runs = [run for members in runs_by_line.values() for run in members]
    windows = sorted({window_size(run) for run in runs})
    by_epoch = len({run.run.batch.global_batch_size for run in runs}) > 1
    means = f"running mean of the training loss over the last {', '.join(map(str, windows))} steps"
    caption = (
        f"Lines: {means if windows != [1] else 'training loss of each step'}. Points: validation loss."
        + (" Bands and bars: smallest to largest of the runs of a line." if len(runs) > len(runs_by_line) else "")
        + (" Where lines coincide, the earlier one is wider." if len(runs_by_line) > 1 else "")
        + (f" {notes}" if notes else "")
    )
    series: list[Line] = []
    for number, ((label, members), position) in enumerate(zip(runs_by_line.items(), positions, strict=True)):
        window = min(map(window_size, members))
        x, mean, low, high = loss_band([run.train for run in members], by_epoch=by_epoch, window=window)
        if len(x) > 1:
            width = 1.4 + 1.8 * (len(runs_by_line) - 1 - number) / max(1, len(runs_by_line) - 1)
            series.append(Line(x, mean, position, low, high, width=width))
        x, mean, low, high = loss_band([run.validation for run in members], by_epoch=by_epoch)
        texts = [
            f"{label}: validation loss {loss:.4f}"
            + (f" ({low[number]:.4f} to {high[number]:.4f} over {len(members)} runs)" if len(members) > 1 else "")
            + f" at {'epoch' if by_epoch else 'step'} {at:g}"
            for number, (at, loss) in enumerate(zip(x, mean, strict=True))
        ]
        series.append(Line(x, mean, position, low, high, texts, 0.7, 0.7))
    draw = lines(series, xlabel="Epoch" if by_epoch else "Optimizer step", ylabel="Loss", xlim=(0, None))
    keys = tuple(Key(label, *run_style(at)) for label, at in zip(runs_by_line, positions, strict=True))
    return Drawing(key, title, caption, draw, 3.5, legend=() if [*positions] == [0] else keys)


def loss_band(curves: Sequence[Curve], *, by_epoch: bool, window: int = 1) -> tuple[Any, Any, Any, Any]:
    """Return steps or epochs that all runs have, and mean, and of several runs smallest and largest loss there, (N,).

    The losses of each run are running means over `window` steps.
    """
    import pandas as pd

    columns = []
    for curve in curves:
        places = np.array(curve.epochs if by_epoch else curve.steps, dtype=np.float64)
        losses = pd.Series(np.array(curve.losses, dtype=np.float64), places)
        losses = losses[np.isfinite(places) & np.isfinite(losses)]
        # A sum and a difference would lose digits after a very large value.
        means = losses if window == 1 else losses.rolling(window, min_periods=1).mean()
        columns.append(means[~means.index.duplicated(keep="last")])
    table = pd.concat(columns, axis=1, join="inner").sort_index()
    ends = (table.min(axis=1), table.max(axis=1)) if len(curves) > 1 else (None, None)
    return table.index.to_numpy(), *(None if end is None else end.to_numpy() for end in (table.mean(axis=1), *ends))


def window_size(run: RunRecord) -> int:
    """Return the number of steps in the running mean of the training loss."""
    return max(1, len(run.train.steps) // 25)


def phase_bars(runs: Sequence[RunRecord]) -> Drawing:
    """Draw the mean step of each run as a bar of its phases."""
    rows = [[measure.of(run) for measure in STEP_PARTS] for run in runs]
    caption = "Mean step by phase, over measured steps and all ranks. The table of results has the values."
    title, names = f"Phases of a step: {names_of(runs)}", [run.name for run in runs]
    return phases("phases", title, caption, names, rows, "Mean time of a measured step (ms)")


def phases(
    key: str, title: str, caption: str, names: Sequence[str], rows: Sequence[Sequence[float | None]], label: str
) -> Drawing:
    """Draw a bar for each name, stacked from the times of its phases in the order of `ALL_PHASES`.

    `label` is the label of the axis; it ends in the unit in brackets. A name of which a phase is unknown has no bar.
    """
    unit = label.rpartition("(")[2].rstrip(")")
    known = [[] if None in row else [part or 0.0 for part in row] for row in rows]
    places = decimals([max(parts) for parts in known if parts])
    layers = []
    for number, phase in enumerate(ALL_PHASES):
        values = [parts[number] if parts else None for parts in known]
        numbers = [format_as(value, f",.{places}f") for value in values]
        shares = [format_share(parts[number] / sum(parts) if sum(parts) else None) for parts in known]
        texts = [
            f"{name}: {PHASE_NAMES[phase].lower()} {text} {unit} ({share})"
            for name, text, share in zip(names, numbers, shares, strict=True)
        ]
        layers.append(Bars(values, PHASE_COLOURS[phase], texts, alpha=1.0, numbers=numbers))
    legend = tuple(Key(PHASE_NAMES[phase], PHASE_COLOURS[phase], is_area=True) for phase in ALL_PHASES)
    draw = bars(names, layers, stacked=True, xlabel=label)
    return Drawing(key, title, caption, draw, height_of_rows(len(names)), legend=legend)


def read_predictions(run: RunRecord) -> Predictions | str:
    """Return the predictions of a regression on test, else on validation, without rows that have no finite label.

    The reason is returned where there are none to draw.
    """
    split = next((split for split in ("test", "validation") if run.summary.scores.get(split)), None)
    if split is None:
        return f"No figure: {run.name} has no scores on test or validation."
    try:
        rows = read_rows(run, split)
        labels, values = (np.asarray(rows[name], dtype=np.float64) for name in ("label", "prediction"))
    except (CannotTell, TypeError, ValueError) as error:
        return f"No figure: {plain(error)}."
    known = np.isfinite(labels) & np.isfinite(values)
    return (split, labels[known], values[known]) if known.any() else f"No figure: {run.name} has no row with a label."


def prediction_figures(predictions: Mapping[str, Predictions]) -> Iterator[Drawing]:
    """Yield predicted over actual values and a histogram of the errors of each run, by its name; axes are the same."""
    arrays = [array for _, *pair in predictions.values() for array in pair]
    low, high = (min(map(np.min, arrays)), max(map(np.max, arrays))) if arrays else (0.0, 1.0)
    pad = 0.04 * (high - low) or 0.5
    limit = (low - pad, high + pad)
    for number, (run, (split, labels, values)) in enumerate(predictions.items(), start=1):
        errors = values - labels
        # By the Freedman-Diaconis rule, between 8 and 40.
        width = 2 * np.subtract(*np.percentile(errors, [75, 25])) / len(errors) ** (1 / 3)
        counts, edges = np.histogram(errors, bins=int(np.clip(np.ptp(errors) / width, 8, 40)) if width > 0 else 8)
        texts = [
            f"{count} rows from {first:.3g} to {below:.3g}"
            for count, first, below in zip(counts, edges[:-1], edges[1:], strict=True)
        ]
        draw = panels(
            points([Points(labels, values)], diagonal=True, xlim=limit, ylim=limit,
                   aspect="equal", xlabel="Actual", ylabel="Predicted"),
            histogram(edges, [Bars(counts, texts=texts)], marks={0.0: ""}, xlabel="Error (predicted - actual)",
                      ylabel="Rows"),
            width_ratios=(1, 1.15),
        )  # fmt: skip
        num_shown = len(thinned(labels)[0])
        shown = f"{num_shown:,} evenly spaced rows of " if num_shown < len(labels) else ""
        caption = (
            f"Predictions on {split}; points: {shown}{len(labels):,} rows; histogram: all rows. Dashed: predicted "
            f"equals actual. Errors: mean {errors.mean():.3g}, standard deviation {errors.std():.3g}."
        )
        key = "predictions" if len(predictions) == 1 else f"predictions-{number}"
        title = f"{run}: predicted against actual, and the histogram of errors"
        yield Drawing(key, title, caption, draw, 3.3, whole=True)


def names_of(runs: Sequence[RunRecord]) -> str:
    """Return the names for a title; only the first of many, since the figure shows all of them."""
    return listing([shorten(run.name, 60) for run in runs], 6)
