"""`ReportDocument`: the contents of a report in reading order, which renderers write as a page, a PDF or Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from paratune.base.text import plain_lines
from paratune.base.units import NOT_AVAILABLE
from paratune.reports.figures.canvas import Drawing
from paratune.reports.tables.markdown import markdown_table
from paratune.reports.tables.table import Table
from paratune.reports.text import GENERATOR, markdown


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
    items: tuple[str, ...] = ()
    """Points of a list below the text."""
    is_warning: bool = True


@dataclass(frozen=True)
class Remarks:
    """Remarks, shown as a list."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class QuotedTexts:
    """Quoted texts, each with a line about it."""

    rows: tuple[tuple[str, str], ...]
    """Description and text."""


@dataclass(frozen=True)
class MarkedWord:
    """A word of a `MarkedText`."""

    before: str
    """What is before it: nothing, a space, or line breaks."""
    text: str
    effect: float | None
    """Positive where the word raises the output; None where no effect is shown."""


@dataclass(frozen=True)
class MarkedText:
    """A text whose words are marked by their effects: raising and lowering ones differ without colour, too."""

    title: str
    words: tuple[MarkedWord, ...]
    is_closed: bool = False
    """Whether a page shows the text only on request."""
    full: float = 0.0
    """Smallest effect that can have the full colour."""

    @property
    def largest(self) -> float:
        """The largest absolute effect; 0 where none is shown."""
        return max((abs(word.effect) for word in self.words if word.effect is not None), default=0.0)

    def strength(self, word: MarkedWord) -> float:
        """Return the effect of a word relative to that with the full colour, -1 to 1; 0 where none is shown."""
        return word.effect / max(self.largest, self.full) if word.effect else 0.0

    @property
    def plain_text(self) -> str:
        """The text as one line, with the effects of its strongest words in brackets."""
        return "".join(
            f"{word.before and ' '}{word.text}"
            + (f" [{signed(word.effect)}]" if abs(self.strength(word)) >= STRONG else "")
            for word in self.words
        )


STRONG = 0.4
"""Strength from which a word of a `MarkedText` has a sign beside it."""


def signed(value: float | None) -> str:
    """Return a number with its sign and three significant digits; n/a for None."""
    return NOT_AVAILABLE if value is None else f"{value:+.3g}".replace("-", "\u2212")


@dataclass(frozen=True)
class Statement:
    """A sentence that was computed from the runs, with the section that has its figures."""

    label: str
    """Subject, such as "Speed"."""
    text: str
    is_good: bool | None = None
    """True: decided, or as it should be; False: a problem; None: cannot tell, or only a fact."""
    evidence: str = ""
    """Key of a section of the report; empty without one."""
    evidence_name: str = ""
    """Heading of that section."""

    @property
    def sign(self) -> str:
        """The sign that pages and files show next to the text, so that colours are not needed."""
        return {True: "\u2713", False: "!", None: "?"}[self.is_good]


@dataclass(frozen=True)
class StatementBox:
    """Statements, one below the other; in a frame if there is a title."""

    statements: tuple[Statement, ...]
    title: str = ""
    has_signs: bool = True
    """Whether readers see which statements are good; without it they are facts."""


Part = Table | Drawing | Listing | Notice | Remarks | QuotedTexts | StatementBox | MarkedText | str
"""Part of a section; a string is a paragraph."""


@dataclass(frozen=True)
class ReportSection:
    """Parts of a report under a heading."""

    key: str
    """Unique in a report: the id in a page."""
    heading: str
    parts: tuple[Part, ...]
    is_short: bool = True
    """Whether the terminal prints its tables."""
    is_beside: bool = False
    """Whether a page places the parts side by side where they fit."""

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(part for part in self.parts if isinstance(part, Table))

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        return tuple(part for part in self.parts if isinstance(part, Drawing))

    @property
    def boxes(self) -> tuple[StatementBox, ...]:
        return tuple(part for part in self.parts if isinstance(part, StatementBox))


@dataclass(frozen=True)
class Selectable:
    """A configuration or a run that readers of a page can select."""

    label: str
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Selection:
    """What readers of a page can select: other lines of tables and parts of figures are hidden."""

    kind: str
    """What they are, in the plural: "configurations" or "runs"."""
    entries: tuple[Selectable, ...]
    note: str = ""
    """Parts of the page that always show all of them."""

    @cached_property
    def numbers(self) -> Mapping[str, str]:
        """The number of each entry in a page, by its label and by its runs."""
        of_labels = {entry.label: str(at) for at, entry in enumerate(self.entries)}
        return {run: str(at) for at, entry in enumerate(self.entries) for run in entry.runs} | of_labels


@dataclass(frozen=True)
class ReportDocument:
    """A report."""

    title: str
    lead: tuple[str, ...]
    """Paragraphs below the title; pages print the first one larger."""
    sections: tuple[ReportSection, ...]
    """Sections with at least one part."""
    footer: str
    notices: tuple[Notice, ...] = ()
    selection: Selection | None = None

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(table for section in self.sections for table in section.tables)

    @property
    def drawings(self) -> tuple[Drawing, ...]:
        return tuple(drawing for section in self.sections for drawing in section.drawings)


def document_markdown(document: ReportDocument) -> str:
    """Return a report as Markdown (GitHub's flavour), without figures and listings."""
    parts = [f"<!-- {GENERATOR} -->", f"# {markdown(document.title)}", *map(markdown, document.lead)]
    for notice in document.notices:
        items = "".join(f"\n> - {markdown(item)}" for item in notice.items)
        parts.append(f"> {markdown(notice.text)}{items}")
    for section in document.sections:
        texts = list(_markdown_parts(section))
        parts += [f"## {markdown(section.heading)}", *texts] if texts else []
    return "\n\n".join([*parts, markdown(document.footer)]) + "\n"


def _markdown_parts(section: ReportSection) -> Iterator[str]:
    for part in section.parts:
        if isinstance(part, Table):
            if part.title and part.title != section.heading:
                yield f"### {markdown(part.title)}"
            yield markdown_table(part).rstrip("\n")
        elif isinstance(part, str | Notice):
            yield markdown(part if isinstance(part, str) else part.text)
        elif isinstance(part, MarkedText):
            yield f"### {markdown(part.title)}"
            yield markdown(part.plain_text)
        elif isinstance(part, Remarks):
            yield "\n".join(f"- {markdown(text)}" for text in part.texts)
        elif isinstance(part, StatementBox):
            yield from [f"### {markdown(part.title)}"] if part.title else []
            yield "\n".join(_markdown_statement(statement, part) for statement in part.statements)
        elif isinstance(part, QuotedTexts):
            yield "\n".join(f"- {markdown(about)}\n\n  > {markdown(text)}\n" for about, text in part.rows) or "None."


def _markdown_statement(statement: Statement, box: StatementBox) -> str:
    sign = f"{statement.sign} " if box.has_signs else ""
    see = f" (see {markdown(statement.evidence_name)})" if statement.evidence else ""
    return f"- {sign}**{markdown(statement.label)}:** {markdown(statement.text)}{see}"


def shown_sections(sections: Sequence[ReportSection]) -> tuple[ReportSection, ...]:
    """Return the sections that are not empty."""
    return tuple(section for section in sections if section.parts)
