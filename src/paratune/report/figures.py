"""The figures of a report; `paratune.report.canvas` says how they look."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_bytes
from paratune.records import ALL_PHASES
from paratune.report.canvas import INK, MUTED, ON_PHASE, RUN_COLOURS, Drawing, Key
from paratune.report.model import rank_memory
from paratune.report.read import Curve, RunRecord
from paratune.report.rows import byte_unit, decimals
from paratune.report.speed_rows import MEMORY_KINDS, PHASE_NAMES, step_parts_ms
from paratune.report.text import shorten, some_names

DASHES: tuple[tuple[int, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))  # type: ignore[assignment]
PHASE_COLOURS = {
    "get_batch": "#e3b23c",
    "forward": "#8cc0e6",
    "backward": "#4f8fc4",
    "optimizer": "#e08a7d",
    "other": "#b9b9b9",
}
MAX_FAINT = 4
"""With more runs than this in a figure, only the running means are drawn."""
_MAX_POINTS = 800
_MAX_RANK_BARS = 16
"""More ranks than this share the room of so many bars."""
_NAME_WIDTH = 26


def loss_curves(runs: Sequence[RunRecord], styles: Mapping[str, int], *, name: str = "loss") -> Drawing:
    """Draw the training loss (each step faint, running mean strong) and the validation loss (points) of runs.

    Args:
        runs: Runs of one task.
        styles: Position of each run's colour and dashes, by name; the same in all figures of a page.
        name: Of its files and its place in the page.
    """
    by_epoch = len({run.get("run.batch.global_batch_size") for run in runs}) > 1

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        for number, run in enumerate(runs):
            # Runs of the same experiment coincide: an earlier run stays visible as the edge of the later, thinner line.
            width = 1.4 + 1.8 * (len(runs) - 1 - number) / max(1, len(runs) - 1)
            colour, dashes = run_style(styles[run.name])
            line = {"color": colour, "dashes": dashes or (None, None)}
            x, y = _points(run.train, by_epoch)
            if len(x) > 1:
                if len(runs) <= MAX_FAINT:
                    axes.plot(*_thinned(x, y), color=colour, linewidth=0.6, alpha=0.3)
                axes.plot(*_thinned(x, _running_mean(y, window_of(len(y)))), linewidth=width, **line)
            x, y = _points(run.validation, by_epoch)
            axes.plot(x, y, linewidth=0.7, alpha=0.7, **line)
            for position, (at, loss) in enumerate(zip(x, y, strict=True)):
                gid = f"hover-{styles[run.name]}-{position}"
                axes.plot([at], [loss], marker="o", markersize=3.6 + width, color=colour, gid=gid)
                hovers[gid] = f"{run.name}: validation loss {loss:.4f} at {'epoch' if by_epoch else 'step'} {at:g}"
        axes.set_xlabel("Epoch" if by_epoch else "Optimizer step")
        axes.set_ylabel("Loss")
        axes.set_xlim(left=0)
        axes.grid(axis="y")

    keys = tuple(Key(run.name, *run_style(styles[run.name])) for run in runs) if len(styles) > 1 else ()
    title = f"Loss over the run: {_names(runs)}"
    return Drawing(name, title, _loss_caption(runs), draw, 3.5, legend=keys)


def _loss_caption(runs: Sequence[RunRecord]) -> str:
    window = ", ".join(sorted({f"{window_of(len(run.train.steps))}" for run in runs}, key=int))
    caption = f"Lines: running mean of the training loss over the last {window} steps. Points: validation loss."
    if window == "1":
        caption = "Lines: training loss of each step. Points: validation loss."
    elif len(runs) <= MAX_FAINT:
        caption += " Faint: training loss of each step."
    return f"{caption} Where runs coincide, the earlier is the wider line." if len(runs) > 1 else caption


def phase_bars(runs: Sequence[RunRecord]) -> Drawing:
    """Draw the mean step of each run as a bar of its phases."""
    parts = [step_parts_ms(run) for run in runs]
    totals = [sum(value or 0 for value in part.values()) for part in parts]
    in_seconds = max(totals, default=0) >= 1000

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        size = 1000 if in_seconds else 1
        places = decimals([max(value or 0 for value in part.values()) / size for part in parts])
        left = np.zeros(len(runs))
        for phase in ALL_PHASES:
            values = [part[phase] for part in parts]
            widths = np.array([(value or 0) / size for value in values])
            bars = axes.barh(range(len(runs)), widths, left=left, height=0.62, color=PHASE_COLOURS[phase])
            for row, bar in enumerate(bars):
                text = f"{widths[row]:,.{places}f}"
                gid = f"hover-{phase}-{row}"
                bar.set_gid(gid)
                unit = "s" if in_seconds else "ms"
                hovers[gid] = f"{runs[row].name}: {PHASE_NAMES[phase].lower()} {text} {unit} of a mean step"
                if widths[row] > 0.075 * max(totals) / size:
                    middle = left[row] + widths[row] / 2
                    axes.text(middle, row, text, ha="center", va="center", color=ON_PHASE, fontsize=9.5)
            left += widths
        _run_axis(axes, runs, range(len(runs)))
        axes.set_ylim(len(runs) - 0.5, -0.5)
        axes.set_xlabel(f"Mean time of a measured step ({'s' if in_seconds else 'ms'})")

    height = 0.9 + 0.42 * len(runs)
    keys = tuple(Key(PHASE_NAMES[phase], PHASE_COLOURS[phase], is_area=True) for phase in ALL_PHASES)
    caption = "Mean step by phase, over the measured steps and all ranks. The figures stand in the table of results."
    return Drawing("phases", f"Phases of a step: {_names(runs)}", caption, draw, height, legend=keys)


def memory_bars(runs: Sequence[RunRecord]) -> Drawing:
    """Draw the peak memory of every rank of each run."""
    memory = [rank_memory(run) for run in runs]
    unit, size = byte_unit([value for values in memory for value in values])
    kinds = {run.get("summary.memory.kind") for run in runs}

    rooms = [min(_MAX_RANK_BARS, max(1, len(values))) for values in memory]
    bottoms = [sum(rooms[:row]) + 0.8 * row for row in range(len(runs))]

    def draw(axes: Any, hovers: dict[str, str]) -> None:
        for row, (run, values) in enumerate(zip(runs, memory, strict=True)):
            thick = rooms[row] / max(1, len(values))
            for rank, value in enumerate(values):
                if value is None:
                    continue
                gid = f"hover-{row}-{rank}"
                y = bottoms[row] + (rank + 0.5) * thick
                bar = axes.barh([y], [value / size], height=0.86 * thick, color=RUN_COLOURS[0], alpha=0.85)[0]
                bar.set_gid(gid)
                hovers[gid] = f"{run.name}, rank {rank}: {format_bytes(value)}"
        middles = [bottom + room / 2 for bottom, room in zip(bottoms, rooms, strict=True)]
        _run_axis(axes, runs, middles, kinds=len(kinds) > 1)
        axes.set_ylim(bottoms[-1] + rooms[-1] + 0.4, -0.4)
        axes.set_xlabel(f"Peak memory of each rank ({unit})")

    height = 0.75 + 0.17 * (bottoms[-1] + rooms[-1])
    named = sorted(str(kind or NOT_AVAILABLE) for kind in kinds)
    what = "; ".join(f"{kind}: {MEMORY_KINDS.get(kind, 'kind not known to this report')}" for kind in named)
    caption = f"One bar a rank, rank 0 on top. {what}."
    return Drawing("memory", f"Peak memory by rank: {_names(runs)}", caption, draw, max(1.3, height))


def predicted_against_actual(
    labels: Any, predictions: Any, run: str, split: str, *, limits: tuple[float, float], name: str = "predictions"
) -> Drawing:
    """Draw predictions over labels, beside a histogram of the errors.

    Args:
        labels: (N,), finite.
        predictions: (N,), finite.
        run: Name of the run.
        split: Of which they are.
        limits: Lowest and highest value of both axes, the same for runs that are compared.
        name: Of its files and its place in the page.
    """

    def draw(figure: Any, hovers: dict[str, str]) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        x, y = _thinned(labels, predictions)
        low, high = limits
        pad = 0.04 * (high - low) or 0.5
        left.plot([low - pad, high + pad], [low - pad, high + pad], color=MUTED, linewidth=0.8, dashes=(4, 3))
        left.plot(
            x, y, linestyle="none", marker="o", markersize=3.2, markeredgewidth=0, alpha=0.4, color=RUN_COLOURS[0]
        )
        left.set(xlim=(low - pad, high + pad), ylim=(low - pad, high + pad), aspect="equal")
        left.set(xlabel="Actual", ylabel="Predicted")
        errors = predictions - labels
        counts, edges = np.histogram(errors, bins=_bins(errors))
        bars = right.bar(
            edges[:-1], counts, width=np.diff(edges) * 0.94, align="edge", color=RUN_COLOURS[0], alpha=0.85
        )
        for position, bar in enumerate(bars):
            bar.set_gid(f"hover-{position}")
            hovers[f"hover-{position}"] = (
                f"{counts[position]} rows from {edges[position]:.3g} to {edges[position + 1]:.3g}"
            )
        right.axvline(0, color=INK, linewidth=0.8)
        right.set(xlabel="Error (predicted - actual)", ylabel="Rows")
        right.grid(axis="y")

    title = f"{run}: predicted against actual, and the histogram of errors"
    shown = num_shown(len(labels))
    some = f"{shown:,} evenly spaced rows of {len(labels):,}" if shown < len(labels) else f"{len(labels):,} rows"
    errors = predictions - labels
    caption = (
        f"Predictions on {split}; points: {some}; histogram: all rows. Dashed: predicted equals actual. "
        f"Errors: mean {errors.mean():.3g}, standard deviation {errors.std():.3g}."
    )
    return Drawing(name, title, caption, draw, 3.3, whole=True)


def run_style(position: int) -> tuple[str, tuple[int, ...]]:
    """Return colour and dashes of the run at a position: colours first, then the same ones dashed."""
    return RUN_COLOURS[position % len(RUN_COLOURS)], DASHES[position // len(RUN_COLOURS) % len(DASHES)]


def window_of(num_steps: int) -> int:
    """Return over how many steps the strong training line is averaged."""
    return max(1, num_steps // 25)


def read_predictions(path: Path) -> tuple[Any, Any]:
    """Return labels and predictions of a regression, (N,) float64 each, rows without a finite label left out.

    Raises:
        ValueError: The file is damaged or lacks a column.
        OSError: It cannot be read.
    """
    from pyarrow import ArrowException, parquet

    try:
        table = parquet.read_table(path, columns=["label", "prediction"])
        labels, predictions = (
            np.asarray(table.column(name).to_numpy(zero_copy_only=False), dtype=np.float64)
            for name in table.column_names
        )
    except (ArrowException, KeyError, TypeError) as error:
        raise ValueError(plain(error)) from error
    known = np.isfinite(labels) & np.isfinite(predictions)
    if not known.any():
        raise ValueError("it has no row with a label and a prediction")
    return labels[known], predictions[known]


def num_shown(num_rows: int) -> int:
    """Return how many of the rows are drawn as points."""
    return len(range(0, num_rows, _stride(num_rows)))


def _run_axis(axes: Any, runs: Sequence[RunRecord], positions: Sequence[float], *, kinds: bool = False) -> None:
    """Put the names of the runs on the vertical axis, the first on top."""
    names = [shorten(run.name, _NAME_WIDTH) for run in runs]
    if kinds:
        names = [
            f"{name} ({shorten(run.get('summary.memory.kind'), 16)})" for name, run in zip(names, runs, strict=True)
        ]
    axes.set_yticks(positions, names)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def _points(curve: Curve, by_epoch: bool) -> tuple[Any, Any]:
    """Return x and loss of the points of a curve whose loss is known."""
    x = np.array(curve.epochs if by_epoch else curve.steps, dtype=np.float64)
    y = np.array(curve.losses, dtype=np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def _running_mean(values: Any, window: int) -> Any:
    """Return the mean of each value and those before it, up to `window` of them."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _stride(num_rows: int) -> int:
    return max(1, -(-num_rows // _MAX_POINTS))


def _thinned(x: Any, y: Any) -> tuple[Any, Any]:
    """Return every n-th point, so that a long run does not make a large page."""
    stride = _stride(len(x))
    return x[::stride], y[::stride]


def _bins(errors: Any) -> int:
    """Return how many bars: the Freedman-Diaconis rule, held between 8 and 40."""
    spread = np.subtract(*np.percentile(errors, [75, 25]))
    width = 2 * spread / len(errors) ** (1 / 3)
    return int(np.clip(np.ptp(errors) / width, 8, 40)) if width > 0 else 8


def _names(runs: Sequence[RunRecord]) -> str:
    """Return the names for a title; of many the first, since the figure itself has all of them."""
    return some_names([shorten(run.name, 60) for run in runs], 6)
