"""A figure in a page, with its legend and caption."""

from collections.abc import Mapping

from paratune.reports.figures import canvas
from paratune.reports.figures.canvas import Drawing, Key, css_colour, page_figure
from paratune.reports.tables.html import line_key, scroll
from paratune.reports.text import Html, tag


def figure_html(drawing: Drawing, owners: Mapping[str, str] = {}) -> Html:
    """Return a figure in a region that scrolls on narrow windows; a message where it cannot be drawn.

    `owners` has the number in the page of each configuration or run that readers can select.
    """
    if drawing.note is not None:
        return tag("p", drawing.note, class_="notice")
    missing = canvas.can_draw()
    if missing is not None:
        content = tag("p", f"No figure: {missing}. The tables contain the values of all figures.", class_="notice")
    else:
        content = scroll(page_figure(drawing, prefix=drawing.key, owners=owners), f"Figure: {drawing.title}")
    keys = (tag("li", _sample(key), key.label, data_of=_owners_of(key, owners)) for key in drawing.legend)
    legend = tag("ul", *keys, class_="legend") if drawing.legend else None
    caption = tag("figcaption", drawing.caption)
    return tag("figure", legend, content, caption, data_of=owners.get(drawing.owner))


def _owners_of(key: Key, owners: Mapping[str, str]) -> str | None:
    return " ".join(owners[name] for name in (key.label, *key.owners) if name in owners) or None


def _sample(key: Key) -> Html:
    """Return a sample of a line or of an area for the legend."""
    if key.is_area:
        faint = f"; opacity: {key.alpha:g}" if key.alpha < 1 else ""
        return tag("span", class_="swatch", style=f"background: {css_colour(key.colour)}{faint}")
    return _marker(key) if key.marker else line_key(key.colour, key.dashes)


_SHAPES: dict[str, tuple[str, dict[str, str]]] = {
    "o": ("circle", {"cx": "6", "cy": "6", "r": "4.2"}),
    "s": ("rect", {"x": "2", "y": "2", "width": "8", "height": "8"}),
    "D": ("path", {"d": "M6 1 11 6 6 11 1 6z"}),
}


def _marker(key: Key) -> Html:
    """Return a sample of a point for the legend."""
    name, place = _SHAPES[key.marker]
    colour = css_colour(key.colour)
    shape = tag(name, **place, fill="none" if key.is_hollow else colour, stroke=colour, stroke_width="1.6")
    return tag("svg", shape, viewBox="0 0 12 12", class_="key point", aria_hidden="true")
