"""Matplotlib figures as part of a page: colours that follow the page, unique ids, text as text.

matplotlib writes a whole XML file. A page needs an element that follows light and dark, shares no id with another
figure, and has its values as texts for screen readers and pointers.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

from paratune.base.text import plain
from paratune.reports.text import Html

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"\s*font-family:[^;]*;?")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def inline_svg(
    source: str, *, prefix: str, title: str, colours: Mapping[str, str], hovers: Mapping[str, str],
    parts: Mapping[str, tuple[str, int | None]] | None = None, row_height: float | None = None,
) -> Html:  # fmt: skip
    """Return an `<svg>` element for a page.

    Args:
        source: What matplotlib's SVG backend wrote, with texts as text (`svg.fonttype: none`).
        prefix: Stands before each id; unique in the page.
        title: What the figure shows, for screen readers.
        colours: CSS colour for each colour drawn with, "#rrggbb" in lower case.
        hovers: Text to show over an element, by its gid.
        parts: Numbers of the owners of an element, with spaces between, and its row from the top, by its gid.
        row_height: Distance of two rows in the units of `source`; None if the figure has no rows.
    """
    root = ET.fromstring(source)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in (f"{_SVG}metadata", f"{_SVG}style") or not child.tag.startswith(_SVG):
                parent.remove(child)
    used = _references(root)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        _rewrite(element, prefix, used, colours)
        element_id: str | None = element.attrib.pop("id", None)
        if element_id in used:
            element.set("id", f"{prefix}-{element_id}")
        owner, row = (parts or {}).get(element_id or "", ("", None))
        if owner:
            element.set("data-of", owner)
        if row is not None:
            element.set("data-row", str(row))
        if element_id is not None and element_id in hovers:
            element.set("data-point", "")
            _add_title(element, hovers[element_id])
    width = float(root.get("viewBox", "0 0 640 0").split()[2])
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    if row_height is not None:
        root.set("data-row-height", f"{row_height:.3f}")
    root.set("role", "img")
    root.set("style", f"--figure-width: {width:.0f}px")
    _add_title(root, title)
    return Html(ET.tostring(root, encoding="unicode", short_empty_elements=True))


def _references(root: ET.Element) -> set[str]:
    """Return the ids that elements of the figure refer to."""
    used = set()
    for element in root.iter():
        used.update(_REFERENCE.findall(" ".join((element.get("clip-path", ""), element.get("style", "")))))
        used.add(element.get(_XLINK_HREF, "#")[1:])
    return used - {""}


def _rewrite(element: ET.Element, prefix: str, used: set[str], colours: Mapping[str, str]) -> None:
    target = element.attrib.pop(_XLINK_HREF, None)
    if target is not None:
        element.set("href", f"#{prefix}-{target[1:]}")
    clip = element.get("clip-path")
    if clip is not None:
        element.set("clip-path", _REFERENCE.sub(rf"url(#{prefix}-\1)", clip))
    style = element.get("style")
    if style is not None:
        # Use the font of the page: texts must look like the page, and the list of fallback fonts is long.
        style = _FONT.sub("", style)
        element.set("style", _COLOUR.sub(lambda match: colours.get(match.group(), match.group()), style))


def _add_title(element: ET.Element, text: str) -> None:
    title = ET.Element("title")
    title.text = plain(text)
    element.insert(0, title)
