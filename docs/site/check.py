"""Check a built site: every link leads to a file and an anchor of it, and nothing is loaded from the network."""

import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}
"""Elements whose address a browser loads by itself -> the attribute that holds it."""
NOT_LOADED = {"canonical", "next", "prev", "alternate"}
"""Kinds of <link> that a browser does not load."""


class _Page(HTMLParser):
    """Anchors, links and loaded addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.anchors |= {values[name] for name in ("id", "name") if name in values}
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        address = values.get(LOADED.get(tag, ""), "")
        if address and not (tag == "link" and values.get("rel") in NOT_LOADED):
            self.loaded.append(address)


def problems_of(html: Path) -> list[str]:
    """Return a line for each link that leads nowhere and each address of the network that a page loads."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(html.rglob("*.html"))}
    problems = []
    for path, page in pages.items():
        name = path.relative_to(html)
        problems += [f"{name}: loads {address}" for address in page.loaded if urlsplit(address).netloc]
        problems += [f"{name}: {link} leads nowhere" for link in page.links if not _leads(link, path, html, pages)]
    return problems


def _leads(link: str, path: Path, html: Path, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # the network is not asked
    base = html if parts.path.startswith("/") else path.parent
    target = Path(os.path.normpath(base / unquote(parts.path).lstrip("/"))) if parts.path else path
    if target.is_dir():
        target /= "index.html"
    anchor = unquote(parts.fragment)
    if target in pages:
        return not anchor or anchor in pages[target].anchors
    return target.is_file()
