"""The report of a corpus, as one page that needs nothing else and as Markdown; and the page that shows its progress."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune import __version__
from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, counted, format_duration
from paratune.report.corpus_figures import corpus_figures
from paratune.report.corpus_tables import corpus_tables, reasons_table
from paratune.report.page import page, section
from paratune.report.page_figures import figure
from paratune.report.table_files import markdown_table
from paratune.report.tabular import Column, Table, TableCell
from paratune.report.tabular_page import table_html
from paratune.report.text import Html, join, markdown, shorten, tag

SHOWN = 700
"""Characters of a text that is shown."""
_FIGURES = {
    "funnel": ("funnel",),
    "by_year": ("years",),
    "by_host": ("hosts",),
    "lengths": ("words", "sentence_words", "perplexity"),
}
"""Figures that stand above tables, by the key of the table."""
_CLOSED = ("by_year", "by_host")
"""Tables that open on demand."""
_KINDS = ("by_mime", "by_extractor", "by_charset", "by_licence", "by_split")
"""Tables that share a section, and open on demand."""


@dataclass(frozen=True)
class ShownTexts:
    """Texts that a report shows."""

    heading: str
    rows: Sequence[Mapping[str, Any]]
    """url, timestamp, reason, detail and text, those that are known."""


def corpus_html(title: str, found: Mapping[str, Any], samples: Sequence[ShownTexts]) -> str:
    """Return the page of a corpus.

    Args:
        title: Of the page.
        found: As `paratune.corpus.store.figures.corpus_figures` has it.
        samples: In the order in which they are shown.
    """
    tables = {table.key: table for table in corpus_tables(found)}
    sections = [*_sections(found, tables), *_samples(samples)]
    links = (tag("a", heading, href=f"#{key}") for key, heading, _ in sections)
    header = tag(
        "header", tag("h1", title), tag("p", lead(found), class_="lead"), tag("nav", *links, aria_label="Sections")
    )
    content = [header, *(section(*each) for each in sections), footer()]
    return page(title, content, num_columns=9, first=sections[0][0])


def corpus_markdown(title: str, found: Mapping[str, Any], samples: Sequence[ShownTexts]) -> str:
    """Return the report of a corpus as Markdown."""
    parts = [f"# {markdown(title)}\n", f"{markdown(lead(found))}\n"]
    parts += [f"## {markdown(table.title)}\n\n{markdown_table(table)}" for table in corpus_tables(found)]
    for group in samples:
        lines = [f"- {markdown(_about(row))}\n\n  > {markdown(_text(row))}\n" for row in group.rows]
        parts.append(f"## {markdown(group.heading)}\n\n" + "\n".join(lines or ["None.\n"]))
    return "\n".join(parts)


def lead(found: Mapping[str, Any]) -> str:
    """Return in one line what there is."""
    documents, sentences = found["documents"], found["sentences"]
    if documents is None:
        return f"{counted(len(found['funnel']), 'stage')} finished; the corpus is not."
    parts = [counted(documents["num"], "document"), counted(documents["num_words"], "word")]
    parts += [counted(sentences["num"], "sentence")] if sentences is not None else []
    return f"{', '.join(parts)} from {counted(documents['num_hosts'], 'host')}."


def footer() -> Html:
    return tag("footer", tag("p", f"Made by paratune {__version__}."))


def _sections(found: Mapping[str, Any], tables: Mapping[str, Table]) -> Iterator[tuple[str, str, Html]]:
    """Yield the id, the heading and the content of each section."""
    drawings = {each.key: each for each in corpus_figures(found)}
    for key, table in tables.items():
        if key not in _KINDS:
            figures = [figure(drawings[name]) for name in _FIGURES.get(key, ()) if name in drawings]
            yield key, table.title, join([*figures, table_html(table, is_closed=key in _CLOSED)])
    kinds = [table_html(tables[key], is_closed=True) for key in _KINDS if key in tables]
    if kinds:
        yield "kinds", "Kinds of documents", join(kinds)


def _samples(samples: Sequence[ShownTexts]) -> Iterator[tuple[str, str, Html]]:
    for number, group in enumerate(samples):
        items = [tag("li", tag("p", _about(row), class_="caption"), tag("p", _text(row))) for row in group.rows]
        shown = tag("ul", *items, class_="plain") if items else tag("p", "None.")
        yield f"samples-{number}", group.heading, shown


def _about(row: Mapping[str, Any]) -> str:
    known = [row.get(name) for name in ("reason", "timestamp", "url")]
    return ", ".join(plain(each) for each in known if each)


def _text(row: Mapping[str, Any]) -> str:
    """Return the text of a row, or what is known of it."""
    detail, text = row.get("detail"), row.get("text")
    if not text:
        return shorten(detail or "", SHOWN)
    shown = shorten(" ".join(text.split()), SHOWN)
    return f"({shorten(detail, 120)}) {shown}" if detail else shown


@dataclass(frozen=True)
class StageLine:
    """A stage and what it is at; None is unknown."""

    name: str
    state: str
    """done, at work, stopped or waits."""
    num_kept: int | None = None
    dropped: Mapping[str, int] | None = None
    """Rows by reason."""
    rows_per_s: float | None = None
    """Rows that it takes a second, kept or not."""


@dataclass(frozen=True)
class CorpusProgress:
    """How far the making of a corpus is."""

    state: str
    """running, finished or stopped, with the reason."""
    is_over: bool
    lines: Sequence[StageLine]
    label: str
    """What is at work now; empty for nothing."""
    done: int
    total: int
    """Parts of that."""
    left_s: float | None
    elapsed_s: float
    now: str
    """Time of day at which this was true."""


def progress_html(title: str, found: CorpusProgress, *, every_s: int) -> str:
    """Return the page of a corpus that is being made; it loads itself anew until that is over.

    Args:
        title: Of the page.
        found: How far it is.
        every_s: Seconds until it is loaded again.
    """
    now = []
    if found.label and not found.is_over:
        left = "" if found.left_s is None else f"; about {format_duration(found.left_s)} left"
        now = [
            tag("p", f"{found.label}: {found.done:,} of {found.total:,} parts{left}"),
            tag("progress", "", value=found.done, max=max(1, found.total), style="width: 100%", aria_label=found.label),
        ]
    about = f"{found.state}; {format_duration(found.elapsed_s)} so far, seen {found.now}"
    header = tag("header", tag("h1", title), tag("p", about, class_="lead"), *now)
    tables = [_stages(found), reasons_table(_funnel(found.lines))]
    content = [header, *(section(table.key, table.title, table_html(table)) for table in tables if table.lines)]
    return page(
        title, [*content, footer()], num_columns=6, first="stages", refresh_s=None if found.is_over else every_s
    )


def _funnel(lines: Sequence[StageLine]) -> list[dict[str, Any]]:
    known = [each for each in lines if each.num_kept is not None]
    return [{"stage": each.name, "kept": each.num_kept, "dropped": each.dropped or {}} for each in known]


def _stages(found: CorpusProgress) -> Table:
    columns = (
        *(Column(name, is_text=True) for name in ("Stage", "State")),
        *(Column(name) for name in ("Kept", "Dropped", "Rows/s")),
    )
    lines = []
    for each in found.lines:
        numbers = (each.num_kept, None if each.dropped is None else sum(each.dropped.values()), each.rows_per_s)
        shown = (TableCell(NOT_AVAILABLE if number is None else f"{number:,.0f}", number) for number in numbers)
        lines.append((TableCell(each.name), TableCell(each.state), *shown))
    return Table("stages", "Stages", columns, tuple(lines))
