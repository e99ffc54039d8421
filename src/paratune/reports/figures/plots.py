"""The six kinds of plots of all figures: lines with bands, bars, histograms, points, intervals (forest), heat maps.

Each function draws on axes and adds tooltips; `panels` puts several side by side. A figure has one with its data, as
`functools.partial`. Options are those of matplotlib's `Axes.set`: xlabel, ylabel, xlim, ylim, title.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy.typing as npt

from paratune.base.units import NOT_AVAILABLE
from paratune.reports.figures.canvas import INK, MUTED, ON_PHASE, RULE, RUN_COLOURS, Draw, Hovers, Key
from paratune.reports.text import shorten

Numbers = Sequence[float] | npt.NDArray[Any]
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (6, 2, 1.5, 2))
NAME_WIDTH = 42  # characters of the name of a row
_MAX_POINTS = 800
_MAX_NUMBERED = 24  # figures with more bars have no numbers in them
_DOT = Key("", RUN_COLOURS[0], marker="o")
_BAR, _BARS, _REST = 0.3, 7.2, 0.85
"""Heights in inches: of a row, of all rows at most, and of the rest; a figure fits on a page of the PDF."""


def run_style(position: int) -> tuple[str, tuple[float, ...]]:
    """Return colour and dashes of the line at a position: first the solid colours, then the same colours dashed."""
    return RUN_COLOURS[position % len(RUN_COLOURS)], DASHES[position // len(RUN_COLOURS) % len(DASHES)]


def height_of_rows(num_rows: int) -> float:
    """Return the height in inches of a figure with so many rows."""
    return _REST + min(_BAR * max(1, num_rows), _BARS)


def thinned(*columns: Any) -> tuple[Any, ...]:
    """Return every n-th point, so that a long run does not make a large page."""
    stride = max(1, -(-len(columns[0]) // _MAX_POINTS))
    return tuple(column[::stride] for column in columns)


def panels(
    draws: Sequence[Draw], figure: Any, hovers: Hovers, *, share_y: bool = False, share_x: bool = False, **options: Any
) -> None:
    """Draw panels on a figure, two in a row; with `share_y` all in one row, names on the first only."""
    columns = len(draws) if share_y else min(2, len(draws))
    num_rows = -(-len(draws) // columns)
    grid = figure.subplots(num_rows, columns, squeeze=False, sharex=share_x, sharey=share_y, **options)
    for one, axes in zip(draws, grid.flat, strict=False):
        one(axes, hovers)
    for axes in grid.flat[1:] if share_y else ():
        axes.yaxis.set_visible(False)  # invisible, but its layout would take as long as that of the first axis
    for at, axes in enumerate(grid.flat[: len(draws)]):
        if share_x:  # only where nothing is below
            axes.tick_params(labelbottom=True)
            axes.set_xlabel(axes.get_xlabel() if at + columns >= len(draws) else "")
    for axes in grid.flat[len(draws) :]:
        axes.set_axis_off()


def name_rows(axes: Any, names: Sequence[str], bold: Sequence[int] = ()) -> None:
    """Write the names of rows at the vertical places 0, 1, 2, ..., row 0 on top."""
    axes.set_yticks(range(len(names)), [shorten(name, NAME_WIDTH) for name in names], fontsize=9)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    for at, label in enumerate(axes.get_yticklabels()):  # none in the second panel of a row
        label.set_fontweight("bold" if at in bold else "normal")


@dataclass(frozen=True)
class Line:
    """A line over x, with a band, and with points where it has texts."""

    x: Numbers
    y: Numbers
    position: int = 0  # of its colour and dashes; -1 is the grey dashed line of a reference
    low: Numbers | None = None
    high: Numbers | None = None
    texts: Sequence[str] = ()  # tooltip of each point; without them no points are drawn
    width: float = 1.6
    alpha: float = 1.0


def lines(
    series: Sequence[Line], axes: Any, hovers: Hovers, *, log: float = 0, ticks: Sequence[float] = (), **options: Any
) -> None:
    """Draw lines; `log` is the base of a logarithmic x axis, `ticks` are the places of its numbers."""
    for line in series:
        colour, dashes = (MUTED, (4, 3)) if line.position < 0 else run_style(line.position)
        style = {"color": colour, "dashes": dashes or (None, None)}
        marker = {"marker": "o", "markersize": 3.5} if len(line.x) == 1 and not line.texts else {}
        axes.plot(*thinned(line.x, line.y), linewidth=line.width, alpha=line.alpha, **style, **marker)
        if line.low is not None and line.high is not None:
            x, low, high = thinned(line.x, line.low, line.high)
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
            for ends in zip(x, low, high, strict=True) if line.texts else ():
                axes.plot([ends[0], ends[0]], ends[1:], color=colour, linewidth=1.0)
        for x, y, text in zip(line.x, line.y, line.texts, strict=False):
            axes.plot([x], [y], "o", markersize=5, color=colour, gid=hovers.add(text), in_layout=False)
    if log:
        axes.set_xscale("log", base=log)
        axes.minorticks_off()
    if ticks:
        axes.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
    axes.set(**options)
    axes.grid(axis="y")


@dataclass(frozen=True)
class Bars:
    """The bars of one colour: a value for each row or bin, None where it is unknown."""

    values: Sequence[float | None] | npt.NDArray[Any]
    colour: str = RUN_COLOURS[0]
    texts: Sequence[str] = ()  # tooltip of each bar
    alpha: float = 0.85
    height: float = 0.66
    deviations: Sequence[float | None] = ()  # half the length of a whisker at the end of each bar
    numbers: Sequence[str] = ()  # written into the bars where they fit


def bars(
    names: Sequence[str], layers: Sequence[Bars], axes: Any, hovers: Hovers, *, stacked: bool = False, **options: Any
) -> None:
    """Draw horizontal bars, one row for each name; layers lie on each other, or are stacked."""
    left = [0.0] * len(names)
    room = max([sum(layer.values[row] or 0.0 for layer in layers) for row in range(len(names))], default=0.0)
    for layer in layers:
        values = [value or 0.0 for value in layer.values]
        style = {"height": layer.height, "color": layer.colour, "alpha": layer.alpha}
        for bar, text in zip(axes.barh(range(len(names)), values, left=left, **style), layer.texts, strict=False):
            bar.set_gid(hovers.add(text))
        for row, deviation in enumerate(layer.deviations):
            if deviation:
                ends = [values[row] - deviation, values[row] + deviation]
                axes.plot(ends, [row, row], color=MUTED, linewidth=1.0, marker="|", markersize=4)
        for row, text in enumerate(layer.numbers if len(names) <= _MAX_NUMBERED else ()):
            if values[row] > 0.08 * room:
                middle = left[row] + values[row] / 2
                axes.text(middle, row, text, ha="center", va="center", color=ON_PHASE, fontsize=9)
        left = [start + value for start, value in zip(left, values, strict=True)] if stacked else left
    for row in range(len(names)):
        if not any(layer.values[row] for layer in layers):
            axes.text(0, row, f" {NOT_AVAILABLE}", va="center", color=MUTED, fontsize=9)
    name_rows(axes, names)
    axes.set_xlim(left=0)
    axes.set(**options)
    axes.grid(axis="x")


def histogram(
    edges: Numbers, layers: Sequence[Bars], axes: Any, hovers: Hovers, *, marks: Mapping[float, str] = {},
    log: bool = False, **options: Any,
) -> None:  # fmt: skip
    """Draw stacked columns between edges, (bins + 1,), and a vertical line at each of `marks`.

    The text of a mark is its name beside the line.
    """
    base = [0.0] * (len(edges) - 1)
    widths = [0.94 * (high - low) for low, high in pairwise(edges)]
    for layer in layers:
        values = [float(value or 0.0) for value in layer.values]
        style = {"width": widths, "align": "edge", "color": layer.colour, "alpha": layer.alpha}
        for bar, text in zip(axes.bar(edges[:-1], values, bottom=base, **style), layer.texts, strict=False):
            bar.set_gid(hovers.add(text))
        base = [low + value for low, value in zip(base, values, strict=True)]
    for at, (place, name) in enumerate(marks.items()):
        axes.axvline(place, color=INK, linewidth=0.9, dashes=(4, 3))
        where = {"transform": axes.get_xaxis_transform(), "ha": "left", "va": "top"}
        axes.text(place, 1 - 0.1 * (at % 3), f" {name}", fontsize=8.5, **where)
    if log:
        axes.set_xscale("log")
        for set_formatter in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            set_formatter(lambda value, _: f"{value:g}")  # not as a formula
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if value == int(value) else "")
    axes.set(**options)
    axes.grid(axis="y")


@dataclass(frozen=True)
class Points:
    x: Numbers
    y: Numbers
    colour: str = RUN_COLOURS[0]
    size: float = 3.2
    alpha: float = 0.4


def points(groups: Sequence[Points], axes: Any, hovers: Hovers, *, diagonal: bool = False, **options: Any) -> None:
    """Draw points; `diagonal` adds a dashed line where both axes are equal."""
    for group in groups:
        style = {"color": group.colour, "markersize": group.size, "alpha": group.alpha, "in_layout": False}
        axes.plot(*thinned(group.x, group.y), "o", markeredgewidth=0, **style)
    axes.margins(0.1)
    axes.set(**options)
    if diagonal:
        axes.axline((0, 0), slope=1, color=MUTED, linewidth=0.8, dashes=(4, 3))
    axes.grid()


@dataclass(frozen=True)
class Interval:
    """A row of a forest plot: a value with its interval, and the margin that counts as equal."""

    value: float | None
    low: float | None = None
    high: float | None = None
    margin: float = 0.0
    style: Key = _DOT  # colour and marker
    text: str = ""  # tooltip
    whiskers: tuple[float, float] | None = None


def forest(
    names: Sequence[str], rows: Mapping[int, Interval], axes: Any, hovers: Hovers, *, bold: Sequence[int] = (),
    from_zero: bool = True, **more: Any,
) -> None:  # fmt: skip
    """Draw an interval for each row; 0 is in the middle unless `from_zero` is False.

    No interval is cut without notice: one far longer than the others ends in an arrow with the number of its end.
    """
    # The end of all intervals, up to 3 times the largest change; where all are small, 2 to 6 times the largest margin.
    known = [row for row in rows.values() if row.value is not None]
    values = [abs(row.value or 0.0) for row in known]
    ends = [*values, *(abs(end) for row in known for end in (row.low, row.high) if end is not None), 0.0]
    margin = max((row.margin for row in known), default=0.0)
    most = max(3 * max(values, default=0.0), 6 * margin) or max(ends)
    limit = max(min(max(ends), most), 2 * margin) or 1.0
    for at, row in rows.items():
        if row.margin:
            axes.barh([at], [2 * row.margin], left=-row.margin, height=1.0, color=RULE, alpha=0.7, in_layout=False)
        if row.value is None:
            where = {"transform": axes.get_yaxis_transform(), "ha": "center", "va": "center"}
            axes.text(0.5, at, NOT_AVAILABLE, color=MUTED, fontsize=8, **where)
            continue
        colour = row.style.colour
        if row.whiskers is not None:
            axes.plot(row.whiskers, [at, at], color=MUTED, linewidth=0.9, marker="|", markersize=4)
        if row.low is not None and row.high is not None:
            ends = [max(row.low, -limit), min(row.high, limit)] if from_zero else [row.low, row.high]
            axes.plot(ends, [at, at], color=colour, linewidth=1.8, in_layout=False)
            for end, cut, marker, side in ((row.low, ends[0], "<", "left"), (row.high, ends[1], ">", "right")):
                if end != cut:
                    axes.plot([cut], [at], marker=marker, color=colour, markersize=5, in_layout=False)
                    text = f" {end:+.3g} ".replace("-", "\u2212")
                    axes.text(cut, at - 0.28, text, ha=side, fontsize=7.5, color=INK)
        style = {"color": colour, "markerfacecolor": "none" if row.style.is_hollow else colour, "markersize": 6}
        gid = hovers.add(row.text)
        axes.plot([row.value], [at], marker=row.style.marker, gid=gid, in_layout=False, **style)
    name_rows(axes, names, bold)
    if from_zero:
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set_xlim(-1.06 * limit, 1.06 * limit)
        axes.locator_params(axis="x", nbins=4, steps=[1, 2, 5, 10])
    axes.set(**more)
    axes.tick_params(axis="x", labelsize=9)
    axes.grid(axis="x")


def heat_map(names: Sequence[str], values: Sequence[Sequence[float | None]], axes: Any, hovers: Hovers) -> None:
    """Draw a square of numbers from -1 to 1 with their colours; None is n/a."""
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    for row, numbers in enumerate(values):
        for column, value in enumerate(numbers):
            colour = "#e6e6e6" if value is None else colormaps["RdBu_r"](0.5 + value / 2)
            # Not an image: the content policy of a page blocks images.
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, facecolor=colour, edgecolor="white"))
            text = NOT_AVAILABLE if value is None else f"{round(value, 2) + 0.0:.2f}".replace("-", "\u2212")
            ink = "white" if value is not None and abs(value) > 0.65 else "#111111"
            axes.text(column, row, text, ha="center", va="center", fontsize=9.5, color=ink)
    name_rows(axes, names)
    axes.set(xlim=(-0.5, len(names) - 0.5), ylim=(len(names) - 0.5, -0.5), aspect="equal")
    short = [shorten(name, 22) for name in names]
    axes.set_xticks(range(len(names)), short, rotation=35, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0)
    axes.spines["bottom"].set_visible(False)
