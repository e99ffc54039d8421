"""How figures look and are written, as part of a page or as files, without touching matplotlib's global state.

Colours of a page's figures are placeholders that it replaces by CSS variables: one figure serves light and dark.
"""

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from paratune.errors import MissingDependency, require
from paratune.report.svg import inline_svg
from paratune.report.text import Html, shorten

INK, MUTED, RULE = "#111213", "#666768", "#dddedf"
RUN_COLOURS = ("#0072b2", "#d55e00", "#12a07a", "#4b1d6b", "#5f3a00", "#d0749f")
ON_PHASE = "#121314"
FOLDER = "figures"
WIDTH = 7.0
"""Inches."""
_LEGEND_WIDTH = 40
"""Characters of a name in a legend."""
_LEGEND_ROOM = 100
"""Characters of small print beside each other in a figure."""
_CSS = {INK: "currentColor", MUTED: "var(--muted)", RULE: "var(--rule)", ON_PHASE: "#111"}
_CSS |= {colour: f"var(--run-{position}, {colour})" for position, colour in enumerate(RUN_COLOURS, start=1)}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "paratune",
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": ["DejaVu Sans"],
    "font.size": 10.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.unicode_minus": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.autolayout": False,
    "figure.constrained_layout.use": False,
}

Draw = Callable[[Any, dict[str, str]], None]
"""Draws on axes, or on a figure; puts texts to show over elements into the mapping, by their gid."""


@dataclass(frozen=True)
class Key:
    """A line of a legend."""

    label: str
    colour: str
    """One of those that figures are drawn with."""
    dashes: tuple[float, ...] = ()
    is_area: bool = False
    """Whether it stands for bars instead of a line."""
    alpha: float = 1.0
    """Of such bars: 0 is not seen, 1 hides what is behind."""


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn when a format asks for it: `page_figure` for a page, `figure_files` for files."""

    key: str
    """Unique in a report: the id in a page, the name of a file."""
    title: str
    caption: str
    draw: Draw
    height: float
    """Inches."""
    whole: bool = False
    """Whether it draws on the figure, not on axes."""
    legend: tuple[Key, ...] = ()
    """Beside the figure in a page, in it elsewhere."""
    note: str | None = None
    """Why there is nothing to see; the figure says it too."""

    @property
    def full_height(self) -> float:
        """Inches, with the legend."""
        return self.height + 0.2 * num_legend_rows(self.legend)

    @cached_property
    def laid_out(self) -> "tuple[Any, dict[str, str]]":
        """The figure of matplotlib with its legend, and the texts to show over elements by their gid.

        Page, files and PDF are written of the same one, so that its parts are made and find their places once.
        Asked for inside `figure_style`.
        """
        from matplotlib.figure import Figure

        hovers: dict[str, str] = {}
        figure = Figure(figsize=(WIDTH, self.full_height), layout="constrained")
        self.draw(figure if self.whole else figure.subplots(), hovers)
        if self.legend:
            _draw_legend(figure, self.legend)
        settle(figure)
        return figure, hovers


def can_draw() -> str | None:
    """Return None when figures can be drawn, else what to install."""
    try:
        require("matplotlib", extra="plots")
    except MissingDependency as error:
        return str(error)
    return None


def page_figure(drawing: Drawing, *, prefix: str) -> Html:
    """Return a drawing for the page, without its legend and caption; `prefix` stands before the ids in it."""
    file = io.StringIO()
    with figure_style():
        figure, hovers = drawing.laid_out
        with _without_legend(figure) as below:
            about = {"Date": None, "Creator": None}
            figure.savefig(file, format="svg", transparent=True, bbox_inches=below, metadata=about)
    return inline_svg(file.getvalue(), prefix=prefix, title=drawing.title, colours=_CSS, hovers=hovers)


def figure_files(drawing: Drawing) -> dict[str, bytes]:
    """Draw one that stands by itself, on white; return its bytes by format: svg (letters as outlines), png."""
    files = {}
    with figure_style({"svg.fonttype": "path"}):
        figure, _ = drawing.laid_out
        for kind, options in (
            ("svg", {"metadata": {"Date": None, "Creator": None}}),
            ("png", {"dpi": 200, "pil_kwargs": {"compress_level": 3}}),
        ):
            file = io.BytesIO()
            figure.savefig(file, format=kind, facecolor="white", **options)
            files[kind] = file.getvalue()
    return files


def drawing_files(drawings: Iterable[Drawing]) -> dict[str, bytes]:
    """Return the files of drawings by their names below the report's folder; none where nothing can be drawn.

    One that says why there is nothing to see has none.
    """
    if can_draw() is not None:
        return {}
    return {
        f"{FOLDER}/{drawing.key}.{kind}": content
        for drawing in drawings
        if drawing.note is None
        for kind, content in figure_files(drawing).items()
    }


def css_colour(colour: str) -> str:
    """Return how the page writes a colour of figures, so that it follows light and dark."""
    return _CSS.get(colour, colour)


@contextmanager
def figure_style(changes: dict[str, Any] | None = None) -> Iterator[None]:
    """Draw in one way inside the block: colours, font, and nothing of the reader's own settings."""
    require("matplotlib", extra="plots")
    import matplotlib

    with matplotlib.rc_context({**_STYLE, **(changes or {})}), warnings.catch_warnings():
        # Widths are measured with a font that lacks some scripts; the page shows them in the reader's fonts.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        yield


def place_drawing(sheet: Any, drawing: Drawing, left: float, bottom: float) -> None:
    """Put a drawing on a larger figure of matplotlib, at a distance in inches from its left and lower edge.

    It is the drawing that page and files are written of, moved: made and laid out again it would take twice as long.
    """
    from matplotlib.artist import Artist

    class PlacedDrawing(Artist):
        def draw(self, renderer: Any) -> None:
            figure, _ = drawing.laid_out
            corners, dots = figure.bbox_inches.get_points().copy(), figure.dpi
            try:
                figure.dpi = sheet.dpi
                figure.bbox_inches.set_points(corners + np.array([left, bottom]))
                figure.draw(renderer)
            finally:
                figure.dpi = dots
                figure.bbox_inches.set_points(corners)

    placed = PlacedDrawing()
    placed.set_in_layout(False)
    sheet.add_artist(placed)


def settle(figure: Any) -> None:
    """Find the places of a figure's parts, for all files that are written of it.

    Left to itself matplotlib looks for them whenever it writes one, and draws the whole figure once more for that;
    so it does for any layout engine, that of "none" too, which is why the figure is left without one.
    """
    if figure.axes:  # a note alone stands where it was put
        figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)


def _draw_legend(figure: Any, keys: Sequence[Key]) -> None:
    """Put a legend above all axes, in as many columns as fit."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [
        Patch(facecolor=key.colour, alpha=key.alpha)
        if key.is_area
        else Line2D([], [], color=key.colour, linewidth=2, linestyle=(0, key.dashes) if key.dashes else "-")
        for key in keys
    ]
    labels = [shorten(key.label, _LEGEND_WIDTH) for key in keys]
    columns = -(-len(keys) // num_legend_rows(keys))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=9)


def num_legend_rows(keys: Sequence[Key]) -> int:
    """Return how many lines a legend takes."""
    if not keys:
        return 0
    widest = max(len(shorten(key.label, _LEGEND_WIDTH)) for key in keys)
    return -(-len(keys) // max(1, _LEGEND_ROOM // (widest + 6)))


@contextmanager
def _without_legend(figure: Any) -> Iterator[Any]:
    """Hide the legend inside the block; yield the part of the figure that is below it, None where there is none."""
    if not figure.legends:
        yield None
        return
    from matplotlib.transforms import Bbox

    (legend,) = figure.legends
    bottom = legend.get_window_extent().y0 / figure.dpi
    legend.set_visible(False)
    try:
        yield Bbox([[0.0, 0.0], [figure.get_figwidth(), bottom]])
    finally:
        legend.set_visible(True)
