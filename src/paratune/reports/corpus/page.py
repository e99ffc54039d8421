"""The report of a corpus as a page, and the page that shows the progress of a corpus."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.text import plain
from paratune.base.units import counted, format_duration
from paratune.reports.corpus.figures import corpus_figures
from paratune.reports.corpus.tables import corpus_tables, reasons_table
from paratune.reports.document import QuotedTexts, ReportDocument, ReportSection
from paratune.reports.page.document import document_html, made_by, page, section_html
from paratune.reports.tables.table import Row, Table, make_table, number_cell
from paratune.reports.text import shorten, tag

MAX_CHARACTERS = 700
"""Shown characters of a text."""


@dataclass(frozen=True)
class ShownTexts:
    """Texts that a report shows."""

    heading: str
    rows: Sequence[Mapping[str, Any]]
    """url, timestamp, reason, detail and text, as far as they are known."""


def corpus_html(title: str, figures: Mapping[str, Any], samples: Sequence[ShownTexts]) -> str:
    """Return the page of a corpus from the result of `paratune.corpus.store.figures.corpus_figures`."""
    drawings = list(corpus_figures(figures))
    sections = [
        ReportSection(table.key, table.title, (*(drawing for key, drawing in drawings if key == table.key), table))
        for table in corpus_tables(figures)
    ]
    for number, group in enumerate(samples):
        quote = QuotedTexts(tuple((_source(row), _text(row)) for row in group.rows))
        sections.append(ReportSection(f"samples-{number}", group.heading, (quote,), is_short=False))
    return document_html(ReportDocument(title, (lead(figures),), tuple(sections), made_by()))


def lead(figures: Mapping[str, Any]) -> str:
    """Return the size of the corpus in one sentence."""
    documents, sentences = figures["documents"], figures["sentences"]
    if documents is None:
        return f"{counted(len(figures['funnel']), 'stage')} finished; the corpus is not."
    parts = [counted(documents["num"], "document"), counted(documents["num_words"], "word")]
    parts += [counted(sentences["num"], "sentence")] if sentences is not None else []
    return f"{', '.join(parts)} from {counted(documents['num_hosts'], 'host')}."


def _source(row: Mapping[str, Any]) -> str:
    return ", ".join(plain(row[name]) for name in ("reason", "timestamp", "url") if row.get(name))


def _text(row: Mapping[str, Any]) -> str:
    """Return the text of a row, or its detail if it has no text."""
    detail, text = row.get("detail") or "", row.get("text")
    if not text:
        return shorten(detail, MAX_CHARACTERS)
    shown = shorten(" ".join(text.split()), MAX_CHARACTERS)
    return f"({shorten(detail, 120)}) {shown}" if detail else shown


@dataclass(frozen=True)
class StageLine:
    """The progress of a stage; None is unknown."""

    name: str
    state: str
    """done, at work, stopped or waits."""
    num_kept: int | None = None
    dropped: Mapping[str, int] | None = None
    """Rows by reason."""
    rows_per_s: float | None = None
    """Rows that the stage reads each second, kept or not."""


@dataclass(frozen=True)
class CorpusProgress:
    """The progress of a corpus."""

    state: str
    """running, finished or stopped, with the reason."""
    is_over: bool
    lines: Sequence[StageLine]
    label: str
    """Name of the running task; empty for none."""
    done: int
    total: int
    """Parts of the running task."""
    left_s: float | None
    elapsed_s: float
    now: str
    """Time of day of this state."""


def progress_html(title: str, progress: CorpusProgress, *, every_s: int) -> str:
    """Return the page of a running corpus; browsers reload it every `every_s` seconds until the corpus is finished."""
    task = []
    if progress.label and not progress.is_over:
        left = "" if progress.left_s is None else f"; about {format_duration(progress.left_s)} left"
        bar = {"value": progress.done, "max": max(1, progress.total), "style": "width: 100%"}
        task = [
            tag("p", f"{progress.label}: {progress.done:,} of {progress.total:,} parts{left}"),
            tag("progress", "", **bar, aria_label=progress.label),
        ]
    about = f"{progress.state}; {format_duration(progress.elapsed_s)} so far, as of {progress.now}"
    header = tag("header", tag("h1", title), tag("p", about, class_="lead"), *task)
    known = [line for line in progress.lines if line.num_kept is not None]
    funnel = [{"stage": line.name, "kept": line.num_kept, "dropped": line.dropped or {}} for line in known]
    tables = (table for table in (_stages(progress), reasons_table(funnel)) if table.lines)
    sections = (section_html(ReportSection(table.key, table.title, (table,))) for table in tables)
    content = [header, *sections, tag("footer", tag("p", made_by()))]
    return page(title, content, first="stages", refresh_s=None if progress.is_over else every_s)


def _stages(progress: CorpusProgress) -> Table:
    rows: list[Row] = []
    for line in progress.lines:
        numbers = (line.num_kept, None if line.dropped is None else sum(line.dropped.values()), line.rows_per_s)
        rows.append([line.name, line.state, *(number_cell(number, ",.0f") for number in numbers)])
    return make_table("stages", "Stages", ("Stage", "State", "Kept", "Dropped", "Rows/s"), rows, 2)
