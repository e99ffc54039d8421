"""Figures of runs: loss curves, phases of a step, memory, predictions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_bytes, format_share
from paratune.records import ALL_PHASES
from paratune.reports.figures.canvas import INK, MUTED, ON_PHASE, RUN_COLOURS, Draw, Drawing, Hovers, Key
from paratune.reports.rows.row import byte_unit, decimals
from paratune.reports.rows.speed import MEMORY_KINDS, PHASE_NAMES, step_parts_ms
from paratune.reports.runs.read import Curve, RunRecord, rank_memory
from paratune.reports.text import shorten, some_names

Floats = npt.NDArray[np.float64]
DASHES: tuple[tuple[int, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))  # type: ignore[assignment]
PHASE_COLOURS = {
    "get_batch": "#e3b23c",
    "forward": "#8cc0e6",
    "backward": "#4f8fc4",
    "optimizer": "#e08a7d",
    "other": "#b9b9b9",
}
PHASE_LEGEND = tuple(Key(PHASE_NAMES[phase], PHASE_COLOURS[phase], is_area=True) for phase in ALL_PHASES)
_MAX_NUMBERED = 24
"""Figures with more bars have no numbers in them."""
MAX_FAINT = 4
"""Figures of more runs than this show only the running means."""
_MAX_POINTS = 800
_MAX_RANK_BARS = 16
"""More ranks than this share the height of so many bars."""
_NAME_WIDTH = 26


@dataclass(frozen=True, eq=False)
class LossBand:
    """A curve of several runs, at the steps that all of them have."""

    x: Floats
    """(N,), steps or epochs."""
    mean: Floats
    """(N,)."""
    low: Floats
    """(N,), smallest value of the runs."""
    high: Floats
    """(N,), largest value of the runs."""


def loss_curves(runs: Sequence[RunRecord], styles: Mapping[str, int], *, name: str = "loss") -> Drawing:
    """Draw the training loss (steps faint, running mean strong) and the validation loss (points) of runs of one task.

    `styles` has the position of each run's colour and dashes, the same in all figures of a page.
    """
    is_faint = len(runs) <= MAX_FAINT
    caption = loss_caption(runs)
    if is_faint and any(window_size(len(run.train.steps)) > 1 for run in runs):
        caption += " Faint: training loss of each step."
    if len(runs) > 1:
        caption += " Where curves coincide, the earlier run is the wider line."
    keys = tuple(Key(run.name, *run_style(styles[run.name])) for run in runs) if len(styles) > 1 else ()
    draw = draw_losses({run.name: [run] for run in runs}, [styles[run.name] for run in runs], has_steps=is_faint)
    return Drawing(name, f"Loss curves: {_names(runs)}", caption, draw, 3.5, legend=keys)


def draw_losses(lines: Mapping[str, Sequence[RunRecord]], positions: Sequence[int], *, has_steps: bool = False) -> Draw:
    """Return a function that draws the running mean of the training loss and, as points, the validation loss.

    Args:
        lines: Runs of each line by its label. Of several runs the mean is drawn, and a band from the smallest to the
            largest value.
        positions: Position of the colour and dashes of each line.
        has_steps: Whether the training loss of each step is drawn, too.
    """
    by_epoch = len({run.get("run.batch.global_batch_size") for runs in lines.values() for run in runs}) > 1

    def draw(axes: Any, hovers: Hovers) -> None:
        for number, (label, runs) in enumerate(lines.items()):
            # Lines of the same experiment coincide: the earlier one stays visible as the edge of the later, thinner
            # one.
            width = 1.4 + 1.8 * (len(lines) - 1 - number) / max(1, len(lines) - 1)
            line = line_style(positions[number])
            window = window_size(min(len(run.train.steps) for run in runs))
            band = loss_band([run.train for run in runs], by_epoch=by_epoch, window=window)
            if len(band.x) > 1:
                for points in (curve_points(run.train, by_epoch) for run in runs if has_steps):
                    gid = hovers.part_of(label)
                    axes.plot(*thinned(*points), color=line["color"], linewidth=0.6, alpha=0.3, gid=gid)
                axes.plot(*thinned(band.x, band.mean), linewidth=width, gid=hovers.part_of(label), **line)
                if len(runs) > 1:
                    x, low, high = thinned(band.x, band.low, band.high)
                    draw_band(axes, hovers, x, low, high, line["color"], [label])
            scored = loss_band([run.validation for run in runs], by_epoch=by_epoch)
            axes.plot(scored.x, scored.mean, linewidth=0.7, alpha=0.7, gid=hovers.part_of(label), **line)
            for at, loss, low, high in zip(scored.x, scored.mean, scored.low, scored.high, strict=True):
                spread = ""
                if len(runs) > 1:
                    axes.plot([at, at], [low, high], color=line["color"], linewidth=1.0, gid=hovers.part_of(label))
                    spread = f" ({low:.4f} to {high:.4f} over {len(runs)} runs)"
                text = f"{label}: validation loss {loss:.4f}{spread} at {'epoch' if by_epoch else 'step'} {at:g}"
                gid = hovers.part_of(label, text=text)
                axes.plot([at], [loss], marker="o", markersize=3.6 + width, color=line["color"], gid=gid)
        axes.set(xlabel="Epoch" if by_epoch else "Optimizer step", ylabel="Loss")
        axes.set_xlim(left=0)
        axes.grid(axis="y")

    return draw


def draw_band(axes: Any, hovers: Hovers, x: Any, low: Any, high: Any, colour: str, owners: Sequence[str]) -> None:
    """Draw a band from the smallest to the largest values of the runs of a line."""
    gid = hovers.part_of(*owners)
    axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0, gid=gid)


def loss_band(curves: Sequence[Curve], *, by_epoch: bool, window: int = 1) -> LossBand:
    """Return mean, smallest and largest loss over runs, at the steps or epochs that all of them have.

    The losses of each run are running means over `window` steps.
    """
    points = [curve_points(curve, by_epoch) for curve in curves]
    if len(points) == 1:
        ((x, y),) = points
        mean = running_mean(y, window)
        return LossBand(x, mean, mean, mean)
    shared = sorted(set.intersection(*(set(x.tolist()) for x, _ in points)))
    places = np.array(shared, dtype=np.float64)
    if not shared:
        return LossBand(places, places, places, places)
    by_place = [dict(zip(x.tolist(), running_mean(y, window).tolist(), strict=True)) for x, y in points]
    values = np.array([[means[at] for at in shared] for means in by_place], dtype=np.float64)
    return LossBand(places, values.mean(axis=0), values.min(axis=0), values.max(axis=0))


def loss_caption(runs: Sequence[RunRecord]) -> str:
    """Return what the lines and points of loss curves are."""
    window = ", ".join(sorted({f"{window_size(len(run.train.steps))}" for run in runs}, key=int))
    if window == "1":
        return "Lines: training loss of each step. Points: validation loss."
    return f"Lines: running mean of the training loss over the last {window} steps. Points: validation loss."


def phase_bars(runs: Sequence[RunRecord]) -> Drawing:
    """Draw the mean step of each run as a bar of its phases."""
    parts = [[value or 0.0 for value in step_parts_ms(run).values()] for run in runs]
    unit, size = ("s", 1000.0) if max(map(sum, parts), default=0) >= 1000 else ("ms", 1.0)

    def draw(axes: Any, hovers: Hovers) -> None:
        stack_phases(axes, hovers, [[value / size for value in row] for row in parts], [run.name for run in runs], unit)
        _run_axis(axes, hovers, runs, range(len(runs)))
        axes.set_xlabel(f"Mean time of a measured step ({unit})")

    height = 0.9 + 0.42 * len(runs)
    caption = "Mean step by phase, over measured steps and all ranks. The table of results has the values."
    return Drawing("phases", f"Phases of a step: {_names(runs)}", caption, draw, height, legend=PHASE_LEGEND)


def stack_phases(axes: Any, hovers: Hovers, rows: Sequence[Sequence[float]], names: Sequence[str], unit: str) -> None:
    """Draw a horizontal bar for each row, stacked from the times of its phases in the order of `ALL_PHASES`.

    `names` are the owners of the rows, and their names in tooltips.
    """
    totals, left = [sum(row) for row in rows], [0.0] * len(rows)
    places = decimals([max(row) for row in rows])
    for number, phase in enumerate(ALL_PHASES):
        widths = [row[number] for row in rows]
        bars = axes.barh(range(len(rows)), widths, left=left, height=0.63, color=PHASE_COLOURS[phase])
        for row, (bar, width) in enumerate(zip(bars, widths, strict=True)):
            text = f"{width:,.{places}f}"
            share = format_share(width / totals[row] if totals[row] else None)
            about = f"{names[row]}: {PHASE_NAMES[phase].lower()} {text} {unit} ({share})"
            bar.set_gid(hovers.part_of(names[row], row=row, text=about))
            if width > 0.08 * max(totals) and len(rows) <= _MAX_NUMBERED:
                gid = hovers.part_of(names[row], row=row)
                axes.text(
                    left[row] + width / 2, row, text, ha="center", va="center", color=ON_PHASE, fontsize=9, gid=gid
                )
            left[row] += width
    axes.set_ylim(len(rows) - 0.4, -0.6)


def memory_bars(runs: Sequence[RunRecord]) -> Drawing:
    """Draw the peak memory of every rank of each run."""
    memory = [rank_memory(run) for run in runs]
    unit, size = byte_unit([value for values in memory for value in values])
    kinds = {run.get("summary.memory.kind") for run in runs}

    rooms = [min(_MAX_RANK_BARS, max(1, len(values))) for values in memory]
    bottoms = [sum(rooms[:row]) + 0.8 * row for row in range(len(runs))]

    def draw(axes: Any, hovers: Hovers) -> None:
        for row, (run, values) in enumerate(zip(runs, memory, strict=True)):
            thick = rooms[row] / max(1, len(values))
            for rank, value in enumerate(values):
                if value is None:
                    continue
                y = bottoms[row] + (rank + 0.5) * thick
                bar = axes.barh([y], [value / size], height=0.86 * thick, color=RUN_COLOURS[0], alpha=0.85)[0]
                bar.set_gid(hovers.part_of(run.name, text=f"{run.name}, rank {rank}: {format_bytes(value)}"))
        middles = [bottom + room / 2 for bottom, room in zip(bottoms, rooms, strict=True)]
        _run_axis(axes, hovers, runs, middles, kinds=len(kinds) > 1)
        axes.set_ylim(bottoms[-1] + rooms[-1] + 0.4, -0.4)
        axes.set_xlabel(f"Peak memory of each rank ({unit})")

    height = 0.75 + 0.17 * (bottoms[-1] + rooms[-1])
    named = sorted(str(kind or NOT_AVAILABLE) for kind in kinds)
    kind_texts = "; ".join(f"{kind}: {MEMORY_KINDS.get(kind, 'kind not known to this report')}" for kind in named)
    caption = f"One bar for each rank, rank 0 on top. {kind_texts}."
    return Drawing("memory", f"Peak memory by rank: {_names(runs)}", caption, draw, max(1.3, height))


def predicted_against_actual(
    labels: Any, predictions: Any, run: str, split: str, *, limits: tuple[float, float], name: str = "predictions"
) -> Drawing:
    """Draw predictions over labels, (N,) and finite, and a histogram of the errors.

    `limits` are the lowest and highest value of both axes, the same for runs that are compared.
    """

    def draw(figure: Any, hovers: Hovers) -> None:
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        x, y = thinned(labels, predictions)
        low, high = limits
        pad = 0.04 * (high - low) or 0.5
        left.plot([low - pad, high + pad], [low - pad, high + pad], color=MUTED, linewidth=0.8, dashes=(4, 3))
        left.plot(x, y, "o", markersize=3.2, markeredgewidth=0, alpha=0.4, color=RUN_COLOURS[0])
        left.set(xlim=(low - pad, high + pad), ylim=(low - pad, high + pad), aspect="equal")
        left.set(xlabel="Actual", ylabel="Predicted")
        errors = predictions - labels
        counts, edges = np.histogram(errors, bins=_bins(errors))
        bars = right.bar(
            edges[:-1], counts, width=np.diff(edges) * 0.94, align="edge", color=RUN_COLOURS[0], alpha=0.85
        )
        bins = zip(counts, edges[:-1], edges[1:], strict=True)
        hovers.add_texts(bars, (f"{count} rows from {low:.3g} to {high:.3g}" for count, low, high in bins))
        right.axvline(0, color=INK, linewidth=0.8)
        right.set(xlabel="Error (predicted - actual)", ylabel="Rows")
        right.grid(axis="y")

    title = f"{run}: predicted against actual, and the histogram of errors"
    shown = num_shown(len(labels))
    rows_text = f"{shown:,} evenly spaced rows of {len(labels):,}" if shown < len(labels) else f"{len(labels):,} rows"
    errors = predictions - labels
    caption = (
        f"Predictions on {split}; points: {rows_text}; histogram: all rows. Dashed: predicted equals actual. "
        f"Errors: mean {errors.mean():.3g}, standard deviation {errors.std():.3g}."
    )
    return Drawing(name, title, caption, draw, 3.3, whole=True, owner=run)


def run_style(position: int) -> tuple[str, tuple[int, ...]]:
    """Return colour and dashes of the run at a position: first the solid colours, then the same colours dashed."""
    return RUN_COLOURS[position % len(RUN_COLOURS)], DASHES[position // len(RUN_COLOURS) % len(DASHES)]


def line_style(position: int) -> dict[str, Any]:
    """Return `run_style` as options of matplotlib."""
    colour, dashes = run_style(position)
    return {"color": colour, "dashes": dashes or (None, None)}


def line_keys(labels: Sequence[str], owners: Sequence[tuple[str, ...]] = ()) -> tuple[Key, ...]:
    """Return the legend of lines in the styles of their positions, with the owners of each line; empty for one line."""
    of_lines = owners or [()] * len(labels)
    keys = tuple(Key(label, *run_style(at), owners=of_lines[at]) for at, label in enumerate(labels))
    return keys if len(keys) > 1 else ()


def window_size(num_steps: int) -> int:
    """Return the number of steps in the running mean of the training loss."""
    return max(1, num_steps // 25)


def read_predictions(path: Path) -> tuple[Any, Any]:
    """Return labels and predictions of a regression, (N,) float64 each, without rows that have no finite label.

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
    """Return the number of rows that are drawn as points."""
    return len(range(0, num_rows, _stride(num_rows)))


def _run_axis(
    axes: Any, hovers: Hovers, runs: Sequence[RunRecord], positions: Sequence[float], *, kinds: bool = False
) -> None:
    """Write the names of the runs on the vertical axis, the first on top."""
    names = [shorten(run.name, _NAME_WIDTH) for run in runs]
    if kinds:
        names = [
            f"{name} ({shorten(run.get('summary.memory.kind'), 16)})" for name, run in zip(names, runs, strict=True)
        ]
    axes.set_yticks(positions, names)
    is_row_each = [*positions] == [*range(len(runs))]
    for row, (label, run) in enumerate(zip(axes.get_yticklabels(), runs, strict=True)):
        label.set_gid(hovers.part_of(run.name, row=row if is_row_each else None))
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(left=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")


def curve_points(curve: Curve, by_epoch: bool) -> tuple[Any, Any]:
    """Return x and loss of the points of a curve with a known loss."""
    x = np.array(curve.epochs if by_epoch else curve.steps, dtype=np.float64)
    y = np.array(curve.losses, dtype=np.float64)
    known = np.isfinite(x) & np.isfinite(y)
    return x[known], y[known]


def running_mean(values: Any, window: int) -> Any:
    """Return the mean of each value and the values before it, over at most `window` values."""
    if window == 1:  # a sum and a difference would lose digits after a very large value
        return values
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return (sums[ends] - sums[starts]) / (ends - starts)


def _stride(num_rows: int) -> int:
    return max(1, -(-num_rows // _MAX_POINTS))


def thinned(*columns: Any) -> tuple[Any, ...]:
    """Return every n-th point, so that a long run does not make a large page."""
    stride = _stride(len(columns[0]))
    return tuple(column[::stride] for column in columns)


def _bins(errors: Any) -> int:
    """Return the number of bars by the Freedman-Diaconis rule, between 8 and 40."""
    spread = np.subtract(*np.percentile(errors, [75, 25]))
    width = 2 * spread / len(errors) ** (1 / 3)
    return int(np.clip(np.ptp(errors) / width, 8, 40)) if width > 0 else 8


def _names(runs: Sequence[RunRecord]) -> str:
    """Return the names for a title; only the first of many, since the figure shows all of them."""
    return some_names([shorten(run.name, 60) for run in runs], 6)
