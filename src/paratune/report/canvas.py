"""How figures look and are written, as part of a page or as files, without touching matplotlib's global state.

Colours of a page's figures are placeholders that it replaces by CSS variables: one figure serves light and dark.
"""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from paratune.errors import MissingDependency, require
from paratune.report.svg import inline_svg
from paratune.report.text import Html

INK, MUTED, RULE = "#111213", "#666768", "#dddedf"
RUN_COLOURS = ("#0072b2", "#d55e00", "#12a07a", "#4b1d6b", "#5f3a00", "#d0749f")
ON_PHASE = "#121314"
WIDTH = 7.6
"""Inches."""
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
}

Draw = Callable[[Any, dict[str, str]], None]
"""Draws on axes, or on a figure; puts texts to show over elements into the mapping, by their gid."""


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


def can_draw() -> str | None:
    """Return None when figures can be drawn, else what to install."""
    try:
        require("matplotlib", extra="plots")
    except MissingDependency as error:
        return str(error)
    return None


def page_figure(draw: Draw, *, height: float, prefix: str, title: str, whole: bool = False) -> Html:
    """Draw on the axes of a new figure (on the figure itself when `whole`) and return it for the page."""
    hovers: dict[str, str] = {}
    file = io.StringIO()
    with _drawn(draw, hovers, height=height, whole=whole) as figure:
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return inline_svg(file.getvalue(), prefix=prefix, title=title, colours=_CSS, hovers=hovers)


def figure_files(draw: Draw, *, height: float, whole: bool = False) -> dict[str, bytes]:
    """Draw a figure that stands by itself, on white, and return its bytes by format: svg (letters as outlines), png."""
    files = {}
    with _drawn(draw, {}, height=height, whole=whole) as figure:
        for kind, options in (("svg", {"metadata": {"Date": None, "Creator": None}}), ("png", {"dpi": 200})):
            file = io.BytesIO()
            figure.savefig(file, format=kind, facecolor="white", **options)
            files[kind] = file.getvalue()
    return files


@contextmanager
def _drawn(draw: Draw, hovers: dict[str, str], *, height: float, whole: bool) -> Iterator[Any]:
    """Yield a figure that was drawn, in a place where it can be written as it was meant."""
    require("matplotlib", extra="plots")
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE), warnings.catch_warnings():
        # Widths are measured with a font that lacks some scripts; the page shows them in the reader's fonts.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        draw(figure if whole else figure.subplots(), hovers)
        yield figure
