"""Style and output of figures, for pages and files, without changes to matplotlib's global state.

Colours of a page's figures are placeholders that it replaces by CSS variables: one figure serves light and dark.
"""

import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paratune.errors import MissingDependency, require
from paratune.reports.figures.svg import inline_svg
from paratune.reports.text import Html, shorten

INK, MUTED, RULE = "#111213", "#666768", "#dddedf"
RUN_COLOURS = ("#0072b2", "#d55e00", "#12a07a", "#4b1d6b", "#5f3a00", "#d0749f")
ON_PHASE = "#121314"
FOLDER = "figures"
WIDTH = 7.0
"""Inches."""
_LEGEND_WIDTH = 40
"""Characters of a name in a legend."""
_LEGEND_ROOM = 100
"""Characters of small print that fit next to each other in a figure."""
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


class Hovers(dict[str, str]):
    """The tooltips of a figure by gid, and the parts of it that belong to a configuration or a run."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: dict[str, tuple[tuple[str, ...], int | None]] = {}
        """Owners and row by gid."""

    def part_of(self, *owners: str, row: int | None = None, text: str = "") -> str:
        """Return the gid of a new part of the figure, which a page hides while none of its owners is selected.

        Args:
            owners: Names of configurations or runs; a part without an owner is never hidden.
            row: Row from the top, 0 first, in a figure with a row for each owner: a page moves rows together.
            text: Tooltip; none if it is empty.
        """
        gid = f"part-{len(self.parts)}"
        self.parts[gid] = (owners, row)
        if text:
            self[gid] = text
        return gid

    def add_texts(self, bars: Iterable[Any], texts: Iterable[str]) -> None:
        """Give each bar its tooltip."""
        for bar, text in zip(bars, texts, strict=True):
            bar.set_gid(self.part_of(text=text))


Draw = Callable[[Any, Hovers], None]
"""Draws on axes or on a figure, and adds tooltips and parts by gid."""


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    label: str
    colour: str
    """A colour of the figures."""
    dashes: tuple[float, ...] = ()
    is_area: bool = False
    """Whether it represents bars instead of a line."""
    alpha: float = 1.0
    """Opacity of the bars: 0 is invisible, 1 is opaque."""
    marker: str = ""
    """Marker of matplotlib if it represents points: a circle "o", square "s" or diamond "D"."""
    is_hollow: bool = False
    """Whether the marker is an outline."""
    owners: tuple[str, ...] = ()
    """Configurations or runs that it represents, beside one with its label."""


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn when a format needs it: by `page_figure` for a page, by `figure_files` for files."""

    key: str
    """Unique in a report: the id in a page and the name of the files."""
    title: str
    caption: str
    draw: Draw
    height: float
    """Inches."""
    whole: bool = False
    """Whether it draws on the figure, not on axes."""
    legend: tuple[Key, ...] = ()
    """Next to the figure in a page, inside the figure in files."""
    note: str | None = None
    """Reason why there is no data; the figure shows it too."""
    owner: str = ""
    """Configuration or run that all of the figure shows; empty if it shows several."""

    @property
    def full_height(self) -> float:
        """Height in inches, with the legend."""
        return self.height + 0.2 * num_legend_rows(self.legend)

    @cached_property
    def laid_out(self) -> "tuple[Any, Hovers]":
        """The matplotlib figure with its legend, and its tooltips; to be read inside `figure_style`.

        Page, files and PDF are written from the same figure, so that it is drawn and laid out once.
        """
        from matplotlib.figure import Figure

        hovers = Hovers()
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


def page_figure(drawing: Drawing, *, prefix: str, owners: Mapping[str, str] | None = None) -> Html:
    """Return a figure for a page, without legend and caption.

    `prefix` makes its ids unique; `owners` has the number of each configuration or run that readers can select.
    """
    file = io.StringIO()
    with figure_style():
        figure, hovers = drawing.laid_out
        with _without_legend(figure) as below:
            about = {"Date": None, "Creator": None}
            figure.savefig(file, format="svg", transparent=True, bbox_inches=below, metadata=about)
    numbers = owners or {}
    parts = {
        gid: (" ".join(dict.fromkeys(numbers[name] for name in names if name in numbers)), row)
        for gid, (names, row) in hovers.parts.items()
        if numbers
    }
    return inline_svg(
        file.getvalue(), prefix=prefix, title=drawing.title, colours=_CSS, hovers=hovers, parts=parts,
        row_height=_row_height(figure) if any(row is not None for _, row in parts.values()) else None,
    )  # fmt: skip


def _row_height(figure: Any) -> float:
    """Return the distance of two rows, whose vertical places are integers, in points: the unit of an SVG file."""
    to_pixels = figure.axes[0].transData.transform
    return float(abs(to_pixels((0, 1))[1] - to_pixels((0, 0))[1]) * 72 / figure.dpi)


def figure_files(drawing: Drawing) -> dict[str, bytes]:
    """Return the files of a figure on white by format: svg (text as outlines) and png."""
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
    """Return the files of figures by file name below the folder of the report; empty when figures cannot be drawn.

    Figures without data, which show the reason instead, have no files.
    """
    if can_draw() is not None:
        return {}
    return {
        f"{FOLDER}/{drawing.key}.{kind}": content
        for drawing in drawings
        if drawing.note is None
        for kind, content in figure_files(drawing).items()
    }


def label_rows(axes: Any, hovers: Hovers, texts: Sequence[str], owners: Sequence[Sequence[str]], **style: Any) -> None:
    """Write the names of rows at the vertical places 0, 1, 2, ..., row 0 on top, as parts of the owners of each row.

    A row without owners is never hidden; `style` is the style of the texts.
    """
    axes.set_yticks(range(len(texts)), texts, **style)
    axes.set_ylim(len(texts) - 0.4, -0.6)
    for row, (label, names) in enumerate(zip(axes.get_yticklabels(), owners, strict=True)):
        label.set_gid(hovers.part_of(*names, row=row))


def css_colour(colour: str) -> str:
    """Return the CSS colour for a colour of the figures; it follows light and dark."""
    return _CSS.get(colour, colour)


@contextmanager
def figure_style(changes: dict[str, Any] | None = None) -> Iterator[None]:
    """Apply the style of the figures inside the block, without the reader's own settings."""
    require("matplotlib", extra="plots")
    import matplotlib

    with matplotlib.rc_context({**_STYLE, **(changes or {})}), warnings.catch_warnings():
        # The font that measures widths lacks some scripts; the page shows them in the reader's fonts.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        yield


def settle(figure: Any) -> None:
    """Compute the layout of a figure once, for all files that are written from it.

    matplotlib would otherwise compute it for each file, and draw the whole figure once more for that. It does so for
    any layout engine, also "none": so the figure is left without one.
    """
    if figure.axes:  # a note alone needs no layout
        figure.get_layout_engine().execute(figure)
    figure.set_layout_engine(None)


def _draw_legend(figure: Any, keys: Sequence[Key]) -> None:
    """Add a legend above all axes, in as many columns as fit."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    def handle(key: Key) -> Any:
        if key.is_area:
            return Patch(facecolor=key.colour, alpha=key.alpha)
        if key.marker:
            inside = "none" if key.is_hollow else key.colour
            return Line2D([], [], color=key.colour, linestyle="none", marker=key.marker, markerfacecolor=inside)
        return Line2D([], [], color=key.colour, linewidth=2, linestyle=(0, key.dashes) if key.dashes else "-")

    handles = [handle(key) for key in keys]
    labels = [shorten(key.label, _LEGEND_WIDTH) for key in keys]
    columns = -(-len(keys) // num_legend_rows(keys))
    figure.legend(handles, labels, loc="outside upper left", ncols=columns, frameon=False, fontsize=9)


def num_legend_rows(keys: Sequence[Key]) -> int:
    """Return the number of lines of a legend."""
    if not keys:
        return 0
    widest = max(len(shorten(key.label, _LEGEND_WIDTH)) for key in keys)
    return -(-len(keys) // max(1, _LEGEND_ROOM // (widest + 6)))


@contextmanager
def _without_legend(figure: Any) -> Iterator[Any]:
    """Hide the legend inside the block; yield the area of the figure below it, None without a legend."""
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
