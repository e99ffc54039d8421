"""A text of a report that is shown as it is, line by line: a configuration, a script, commands."""

from dataclasses import dataclass

from paratune.base.text import plain_lines
from paratune.report.text import Html, escape, tag


@dataclass(frozen=True)
class Listing:
    """A text whose lines and indentation count."""

    title: str
    text: str

    @property
    def lines(self) -> list[str]:
        """The lines of the text, without what a terminal or a page might act on."""
        return plain_lines(self.text).rstrip().splitlines()


def listing_html(listing: Listing) -> Html:
    """Return a listing as an element that opens on demand."""
    return tag(
        "details",
        tag("summary", listing.title),
        tag("pre", Html("\n".join(map(escape, listing.lines))), tabindex="0", role="region", aria_label=listing.title),
    )
