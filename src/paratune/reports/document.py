"""`ReportDocument`: the contents of a report in reading order, which one renderer for each format writes."""

from dataclasses import dataclass
from functools import cached_property

from paratune.base.text import plain_lines
from paratune.base.units import NOT_AVAILABLE
from paratune.reports.figures.canvas import Drawing
from paratune.reports.tables.table import Table

STRONG = 0.4  # strength from which a word of a `MarkedText` has a sign beside it


def signed(value: float | None) -> str:
    """Return a number with its sign and three significant digits; n/a for None."""
    return NOT_AVAILABLE if value is None else f"{value:+.3g}".replace("-", "\u2212")


@dataclass(frozen=True)
class Listing:
    """A text whose lines and indentation are kept: a configuration, a script, commands."""

    title: str
    text: str

    @property
    def lines(self) -> list[str]:
        """The lines of the text, without control characters."""
        return plain_lines(self.text).rstrip().splitlines()


@dataclass(frozen=True)
class Notice:
    """A highlighted message: a result that applies to the whole report, or a warning."""

    text: str
    is_warning: bool = True


@dataclass(frozen=True)
class Remarks:
    """A list of remarks, or of quoted texts, each with a line about it: pairs of description and text."""

    texts: tuple[str | tuple[str, str], ...]


@dataclass(frozen=True)
class MarkedWord:
    """A word of a `MarkedText`."""

    before: str  # nothing, a space, or line breaks
    text: str
    effect: float | None  # positive where the word raises the output; None where no effect is shown


@dataclass(frozen=True)
class MarkedText:
    """A text whose words are marked by their effects: raising and lowering ones differ without colour, too."""

    title: str
    words: tuple[MarkedWord, ...]
    is_closed: bool = False  # a page shows the text only on request
    full: float = 0.0  # smallest effect that can have the full colour

    @cached_property
    def strengths(self) -> list[float]:
        """The effect of each word relative to that with the full colour, -1 to 1; 0 where none is shown."""
        full = max([self.full, *(abs(word.effect) for word in self.words if word.effect)])
        return [word.effect / full if word.effect else 0.0 for word in self.words]


@dataclass(frozen=True)
class Statement:
    """A sentence that was computed from the runs, with the section of the report that has its figures."""

    label: str  # subject, such as "Speed"
    text: str
    is_good: bool | None = None  # decided, or as it should be; False: a problem; None: cannot tell
    evidence: str = ""  # key of the section, to which a page links if the report has it

    @property
    def sign(self) -> str:
        """The sign that pages and files show next to the text, so that colours are not needed."""
        return {True: "\u2713", False: "!", None: "?"}[self.is_good]


@dataclass(frozen=True)
class StatementBox:
    """Statements, one below the other; with a title, a page shows them on request, or if one of them is a problem."""

    title: str
    statements: tuple[Statement, ...]


Part = Table | Drawing | Listing | Notice | Remarks | StatementBox | MarkedText | str
"""Part of a section; a string is a paragraph."""


@dataclass(frozen=True)
class ReportSection:
    """Parts of a report under a heading."""

    key: str  # unique in a report: the id in a page
    heading: str
    parts: tuple[Part, ...]
    is_short: bool = True  # a page shows its parts without a request

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(part for part in self.parts if isinstance(part, Table))


@dataclass(frozen=True)
class ReportDocument:
    """A report; pages print the first paragraph of the lead larger."""

    title: str
    lead: tuple[str, ...]
    sections: tuple[ReportSection, ...]
    footer: str
    notices: tuple[Notice, ...] = ()

    @property
    def parts(self) -> list[Part]:
        """The parts of all sections."""
        return [part for section in self.sections for part in section.parts]
