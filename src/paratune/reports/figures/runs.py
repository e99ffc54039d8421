"""Figures of runs and of configurations: loss curves, phases of a step, memory, predictions."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.text import listing, plain
from paratune.base.units import NOT_AVAILABLE, format_as, format_share
from paratune.records import ALL_PHASES
from paratune.records.finished import Curve, RunRecord, rank_memory
from paratune.reports.amounts import decimals, scale_of
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
from paratune.reports.measures import MEMORY_KINDS, PHASE_NAMES, STEP_PARTS
from paratune.reports.text import shorten

PHASE_COLOURS = {
    "get_batch": "#e3b23c", "forward": "#8cc0e6", "backward": "#4f8fc4", "optimizer": "#e08a7d", "other": "#b9b9b9"
}  # fmt: skip
MAX_FAINT = 4
"""Figures of more lines than this show only the running means."""


def loss_curves(runs: Sequence[RunRecord], styles: Mapping[str, int], *, name: str = "loss") -> Drawing:
    """Draw the losses of runs of one task; `styles` has the position of each run's colour and dashes in the page."""
    positions = [styles[run.name] for run in runs]
    return losses(name, f"Loss curves: {_names(runs)}", {run.name: [run] for run in runs}, positions)


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
    is_faint = len(runs) == len(runs_by_line) <= MAX_FAINT and windows[-1] > 1
    means = f"running mean of the training loss over the last {', '.join(map(str, windows))} steps"
    caption = (
        f"Lines: {means if windows != [1] else 'training loss of each step'}. Points: validation loss."
        + (" Faint: training loss of each step." if is_faint else "")
        + (" Bands and bars: smallest to largest of the runs of a line." if len(runs) > len(runs_by_line) else "")
        + (" Where lines coincide, the earlier one is wider." if len(runs_by_line) > 1 else "")
        + (f" {notes}" if notes else "")
    )
    series: list[Line] = []
    for number, ((label, members), position) in enumerate(zip(runs_by_line.items(), positions, strict=True)):
        window = min(map(window_size, members))
        x, mean, low, high = loss_band([run.train for run in members], by_epoch=by_epoch, window=window)
        if len(x) > 1:
            for run in members if is_faint else ():
                series.append(Line(*curve_points(run.train, by_epoch), position, width=0.6, alpha=0.3))
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
    known = [curve_points(curve, by_epoch) for curve in curves]
    by_place = [dict(zip(x.tolist(), _running_mean(y, window).tolist(), strict=True)) for x, y in known]
    shared = sorted(set.intersection(*map(set, by_place)))
    values = np.array([[means[at] for at in shared] for means in by_place], dtype=np.float64)
    ends = (values.min(axis=0), values.max(axis=0)) if len(curves) > 1 else (None, None)
    return np.array(shared, dtype=np.float64), values.mean(axis=0), *ends


def window_size(run: RunRecord) -> int:
    """Return the number of steps in the running mean of the training loss."""
    return max(1, len(run.train.steps) // 25)


def curve_points(curve: Curve, by_epoch: bool) -> tuple[Any, Any]:
    """Return x and loss of the points of a curve with a known loss."""
    x = np.array(curve.epochs if by_epoch else curve.steps, dtype=np.float64)
    y = np.array(curve.losses, dtype=np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def _running_mean(values: Any, window: int) -> Any:
    """Return the mean of each value and the values before it, over at most `window` values."""
    if window == 1:  # a sum and a difference would lose digits after a very large value
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def phase_bars(runs: Sequence[RunRecord]) -> Drawing:
    """Draw the mean step of each run as a bar of its phases."""
    parts = [[measure.of(run) for measure in STEP_PARTS] for run in runs]
    longest = max((math.fsum(part or 0.0 for part in row) for row in parts), default=0.0)
    unit, size = ("s", 1000.0) if longest >= 1000 else ("ms", 1.0)
    caption = "Mean step by phase, over measured steps and all ranks. The table of results has the values."
    rows = [[None if value is None else value / size for value in row] for row in parts]
    label = f"Mean time of a measured step ({unit})"
    return phases("phases", f"Phases of a step: {_names(runs)}", caption, [run.name for run in runs], rows, label)


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


def memory_bars(runs: Sequence[RunRecord]) -> Drawing:
    """Draw the peak memory of the ranks of each run: the largest, and the smallest where they differ."""
    memory = [[value for value in rank_memory(run) if value is not None] for run in runs]
    scale = scale_of("bytes", [value for values in memory for value in values])
    kinds = [run.summary.memory.kind for run in runs]
    layers = []
    for which, pick, alpha in (("largest", max, 0.4), ("smallest", min, 0.85)):
        peaks = [pick(values) / scale.size if values else None for values in memory]
        texts = [
            f"{run.name}, {which} of {len(values)} ranks: {format_as(value, '.3g')} {scale.unit}"
            for run, values, value in zip(runs, memory, peaks, strict=True)
        ]
        layers.append(Bars(peaks, texts=texts, alpha=alpha))
    several = len(set(kinds)) > 1
    names = [f"{run.name} ({kind})" if several else run.name for run, kind in zip(runs, kinds, strict=True)]
    named = sorted({str(kind or NOT_AVAILABLE) for kind in kinds})
    kind_texts = "; ".join(f"{kind}: {MEMORY_KINDS.get(kind, 'kind not known to this report')}" for kind in named)
    caption = f"Bar: the rank with the least memory; its faint end: the rank with the most. {kind_texts}."
    draw = bars(names, layers, xlabel=scale.label("Peak memory"))
    return Drawing("memory", f"Peak memory by rank: {_names(runs)}", caption, draw, height_of_rows(len(runs)))


def predicted_against_actual(
    labels: Any, predictions: Any, run: str, split: str, *, limits: tuple[float, float], name: str = "predictions"
) -> Drawing:
    """Draw predictions over labels, (N,) and finite, and a histogram of the errors.

    `limits` are the lowest and highest value of both axes, the same for runs that are compared.
    """
    low, high = limits
    pad = 0.04 * (high - low) or 0.5
    limit = (low - pad, high + pad)
    errors = predictions - labels
    # By the Freedman-Diaconis rule, between 8 and 40.
    width = 2 * np.subtract(*np.percentile(errors, [75, 25])) / len(errors) ** (1 / 3)
    counts, edges = np.histogram(errors, bins=int(np.clip(np.ptp(errors) / width, 8, 40)) if width > 0 else 8)
    texts = [
        f"{count} rows from {first:.3g} to {below:.3g}"
        for count, first, below in zip(counts, edges[:-1], edges[1:], strict=True)
    ]
    draw = panels(
        points([Points(labels, predictions, size=3.2, alpha=0.4)], diagonal=True, xlim=limit, ylim=limit,
               aspect="equal", xlabel="Actual", ylabel="Predicted"),
        histogram(edges, [Bars(counts, texts=texts)], marks={0.0: ""}, xlabel="Error (predicted - actual)",
                  ylabel="Rows"),
        width_ratios=(1, 1.15),
    )  # fmt: skip
    num_shown = len(thinned(labels)[0])
    rows = f"{len(labels):,} rows"
    if num_shown < len(labels):
        rows = f"{num_shown:,} evenly spaced rows of {len(labels):,}"
    caption = (
        f"Predictions on {split}; points: {rows}; histogram: all rows. Dashed: predicted equals actual. "
        f"Errors: mean {errors.mean():.3g}, standard deviation {errors.std():.3g}."
    )
    title = f"{run}: predicted against actual, and the histogram of errors"
    return Drawing(name, title, caption, draw, 3.3, whole=True)


def read_predictions(path: Path) -> tuple[Any, Any]:
    """Return labels and predictions of a regression, (N,) float64 each, without rows that have no finite label.

    Raises:
        ValueError: The file is damaged or lacks a column.
        OSError: It cannot be read.
    """
    from pyarrow import ArrowException, parquet

    try:
        table = parquet.read_table(path, columns=["label", "prediction"])
        columns = [column.to_numpy(zero_copy_only=False).astype(np.float64) for column in table.itercolumns()]
        labels, predictions = columns
    except (ArrowException, KeyError, TypeError) as error:
        raise ValueError(plain(error)) from error
    known = np.isfinite(labels) & np.isfinite(predictions)
    if not known.any():
        raise ValueError("it has no row with a label and a prediction")
    return labels[known], predictions[known]


def _names(runs: Sequence[RunRecord]) -> str:
    """Return the names for a title; only the first of many, since the figure shows all of them."""
    return listing([shorten(run.name, 60) for run in runs], 6)
