"""The visible text of a page, for tests: cells and words with one space between them."""

from html.parser import HTMLParser


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in ("script", "style"):
            self.texts.append("\0")

    def handle_data(self, data: str) -> None:
        if self.texts[-1:] == ["\0"]:
            self.texts.pop()
        else:
            self.texts.append(data)


def page_text(html: str) -> str:
    """Return the texts of the elements of a page, without those of scripts and styles."""
    reader = _Text()
    reader.feed(html)
    return " ".join(" ".join(reader.texts).split())
