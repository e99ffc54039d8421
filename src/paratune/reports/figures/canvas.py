"""Style and output of figures, for page, PDF and files, without changes to matplotlib's global state.

Colours of figures are placeholders that a page replaces by CSS variables: one figure serves light and dark.
"""

import io
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paratune.errors import MissingDependency, require
from paratune.reports.text import Html, escape, shorten

INK, MUTED, RULE = "#111213", "#666768", "#dddedf"
RUN_COLOURS = ("#0072b2", "#d55e00", "#12a07a", "#4b1d6b", "#5f3a00", "#d0749f")
ON_PHASE = "#121314"
FOLDER = "figures"
WIDTH = 7.0  # inches
_LEGEND_WIDTH, _LEGEND_ROOM = 40, 100
"""Characters of a name in a legend, and of small print that fit next to each other in a figure."""
_CSS = {INK: "currentColor", MUTED: "var(--muted)", RULE: "var(--rule)", ON_PHASE: "#111"}
_CSS |= {colour: f"var(--run-{position}, {colour})" for position, colour in enumerate(RUN_COLOURS, start=1)}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none", "svg.hashsalt": "paratune", "text.parse_math": False, "text.usetex": False,
    "font.family": ["DejaVu Sans"], "font.size": 10.5, "text.color": INK,
    "axes.labelcolor": INK, "axes.edgecolor": MUTED, "axes.linewidth": 0.7, "axes.spines.top": False,
    "axes.spines.right": False, "axes.unicode_minus": True, "axes.axisbelow": True, "axes.titlesize": 9.5,
    "axes.titlelocation": "left", "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK,
    "ytick.labelcolor": INK, "xtick.major.width": 0.7, "ytick.major.width": 0.7, "grid.color": RULE,
    "grid.linewidth": 0.6, "legend.frameon": False, "legend.fontsize": 9,
    "figure.autolayout": False, "figure.constrained_layout.use": False,
}  # fmt: skip
_NOT_DRAWN = re.compile(r"<metadata>.*?</metadata>|<style.*?</style>", re.DOTALL)
_TAG, _ID, _VIEW = re.compile(r"<[^<>]+>"), re.compile(r' id="([^"]*)"'), re.compile(r'viewBox="([^"]*)"')
_REFERENCE = re.compile(r'url\(#([^)]+)\)|href="#([^"]+)"')
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"\s*font-family:[^;]*;?|(?<=px )'[^']*'(, [^;\"]*)?")


class Hovers(dict[str, str]):
    """The tooltips of a figure by gid."""

    def add(self, text: str) -> str:
        """Return the gid of a new part of the figure with this tooltip."""
        gid = f"part-{len(self)}"
        self[gid] = text
        return gid


Draw = Callable[[Any, Hovers], None]  # draws on axes or on a figure, and adds tooltips


@dataclass(frozen=True)
class Key:
    """An entry of a legend: a line, bars if `is_area`, or points if it has a marker of matplotlib."""

    label: str
    colour: str
    dashes: tuple[float, ...] = ()
    is_area: bool = False
    alpha: float = 1.0  # opacity of the bars
    marker: str = ""
    is_hollow: bool = False  # the marker is an outline


@dataclass(frozen=True)
class Drawing:
    """A figure that is drawn when a format needs it."""

    key: str  # unique in a report: prefix of the ids in a page, and name of the file
    title: str
    caption: str
    draw: Draw
    height: float  # inches, without the legend
    whole: bool = False  # draws on the figure, not on axes
    legend: tuple[Key, ...] = ()
    note: str | None = None  # reason why there is no data, shown in place of the figure

    @cached_property
    def laid_out(self) -> "tuple[Any, Hovers]":
        """The matplotlib figure with its legend, and its tooltips; to be read inside `figure_style`.

        All formats are written from the same figure, so that it is drawn and laid out once.
        """
        from matplotlib.figure import Figure
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        hovers, labels = Hovers(), [shorten(key.label, _LEGEND_WIDTH) for key in self.legend]
        widest = max(map(len, labels), default=0)
        num_rows = -(-len(labels) // max(1, _LEGEND_ROOM // (widest + 6)))
        figure = Figure(figsize=(WIDTH, self.height + 0.2 * num_rows), layout="constrained")
        self.draw(figure if self.whole else figure.subplots(), hovers)
        if labels:
            columns = -(-len(labels) // num_rows)
            handles: list[Any] = []
            for key in self.legend:
                if key.is_area:
                    handles.append(Patch(facecolor=key.colour, alpha=key.alpha))
                elif key.marker:
                    inside = "none" if key.is_hollow else key.colour
                    points = Line2D(
                        [], [], color=key.colour, linestyle="none", marker=key.marker, markerfacecolor=inside
                    )
                    handles.append(points)
                else:
                    dashes = (0, key.dashes) if key.dashes else "-"
                    handles.append(Line2D([], [], color=key.colour, linewidth=2, linestyle=dashes))
            figure.legend(handles, labels, loc="outside upper left", ncols=columns)
        # matplotlib would compute the layout again for each file, and draw the whole figure once more for that, with
        # any layout engine, also "none": so the figure is left without one.
        if figure.axes and (engine := figure.get_layout_engine()) is not None:
            engine.execute(figure)
        figure.set_layout_engine(None)
        return figure, hovers

    @cached_property
    def svg(self) -> str:
        """The figure as an SVG file whose texts are texts, for page and PDF."""
        return self.written({}, transparent=True)

    def written(self, style: Mapping[str, Any], **options: Any) -> str:
        """Return the figure as an SVG file, with changes to the style, and options of matplotlib's `savefig`."""
        file = io.StringIO()
        with figure_style(style):
            self.laid_out[0].savefig(file, format="svg", metadata={"Date": None, "Creator": None}, **options)
        return file.getvalue()


def can_draw() -> str | None:
    """Return None when figures can be drawn, else what to install."""
    try:
        require("matplotlib", extra="plots")
    except MissingDependency as error:
        return str(error)
    return None


def drawing_files(drawings: Iterable[Drawing]) -> dict[str, bytes]:
    """Return the files of figures for a paper by file name, on white, with texts as outlines; none without matplotlib.

    Figures without data, which show the reason instead, have no files.
    """
    drawn = [drawing for drawing in drawings if drawing.note is None] if can_draw() is None else []
    style = {"svg.fonttype": "path"}
    return {f"{FOLDER}/{one.key}.svg": one.written(style, facecolor="white").encode() for one in drawn}


@contextmanager
def figure_style(changes: Mapping[str, Any] = {}) -> Iterator[None]:
    """Apply the style of the figures inside the block, without the reader's own settings."""
    require("matplotlib", extra="plots")
    import matplotlib

    with matplotlib.rc_context({**_STYLE, **changes}), warnings.catch_warnings():
        # The font that measures widths lacks some scripts; the page shows them in the reader's fonts.
        warnings.filterwarnings("ignore", message=r"Glyph \d+")
        yield


def page_figure(drawing: Drawing) -> Html:
    """Return a figure as an element of a page: it follows light and dark, and its tooltips are texts.

    Its ids start with the key of the drawing: no other figure of the page has them. Only tags are changed: matplotlib
    writes the angle brackets of texts as entities.
    """
    svg = _NOT_DRAWN.sub("", drawing.svg[drawing.svg.index("<svg") :])
    hovers, used = drawing.laid_out[1], {"".join(found) for found in _REFERENCE.findall(svg)}

    def rewritten(match: re.Match[str]) -> str:
        found = _ID.search(match.group())
        name = found.group(1) if found else ""
        text = _ID.sub(f' id="{drawing.key}-{name}"' if name in used else "", match.group())
        text = text.replace("xlink:href", "href")
        text = _REFERENCE.sub(lambda target: target.group().replace("#", f"#{drawing.key}-"), text)
        text = _COLOUR.sub(lambda colour: _CSS.get(colour.group(), colour.group()), _FONT.sub("", text))
        if name not in hovers:
            return text
        return f"{text}<title>{escape(hovers[name])}</title>"

    svg = _TAG.sub(rewritten, svg)
    (view,) = _VIEW.findall(svg[: svg.index(">")])
    start = f'<svg viewBox="{view}" role="img"><title>{escape(drawing.title)}</title>'
    return Html(start + svg[svg.index(">") + 1 :].rstrip())
