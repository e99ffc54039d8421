"""A figure of matplotlib as part of a page: its colours follow the page, its ids are its own, its texts are text.

matplotlib writes a whole XML file; a page needs an element that knows light and dark, that shares no id with the next
figure, and that a screen reader and a pointer can ask for values.
"""

import re
import xml.etree.ElementTree as ET
from collections.abc import Mapping

from paratune.base.text import plain
from paratune.report.text import Html

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"\s*font-family:[^;]*;?")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def inline_svg(source: str, *, prefix: str, title: str, colours: Mapping[str, str], hovers: Mapping[str, str]) -> Html:
    """Return an `<svg>` element for a page.

    Args:
        source: What matplotlib's SVG backend wrote, with texts as text (`svg.fonttype: none`).
        prefix: Stands before each id; unique in the page.
        title: What the figure shows, for screen readers.
        colours: CSS colour for each colour drawn with, "#rrggbb" in lower case.
        hovers: Text to show over an element, by its gid.
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
        own: str | None = element.attrib.pop("id", None)
        if own in used:
            element.set("id", f"{prefix}-{own}")
        if own is not None and own in hovers:
            element.set("data-point", "")
            _add_title(element, hovers[own])
    width = float(root.get("viewBox", "0 0 640 0").split()[2])
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("role", "img")
    root.set("style", f"--figure-width: {width:.0f}px")
    _add_title(root, title)
    return Html(ET.tostring(root, encoding="unicode", short_empty_elements=True))


def _references(root: ET.Element) -> set[str]:
    """Return the ids that something in the figure points to."""
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
        # The page's own font is used: texts must look like the page, and the list of fallbacks is long.
        style = _FONT.sub("", style)
        element.set("style", _COLOUR.sub(lambda found: colours.get(found.group(), found.group()), style))


def _add_title(element: ET.Element, text: str) -> None:
    title = ET.Element("title")
    title.text = plain(text)
    element.insert(0, title)
