"""The report of a corpus as a page, and the page that shows the progress of a corpus."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paratune.base.text import plain
from paratune.base.units import counted, format_duration
from paratune.reports.corpus.figures import corpus_figures
from paratune.reports.corpus.tables import corpus_tables, reasons_table
from paratune.reports.document import Remarks, ReportDocument, ReportSection
from paratune.reports.page.document import document_html, made_by, page, section_html
from paratune.reports.tables.table import Row, make_table, number_cell
from paratune.reports.text import shorten, tag

MAX_CHARACTERS = 700
"""Shown characters of a text."""


def corpus_html(
    title: str, figures: Mapping[str, Any], samples: Iterable[tuple[str, Iterable[Mapping[str, Any]]]]
) -> str:
    """Return the page of a corpus from the result of `paratune.corpus.store.figures.corpus_figures`.

    Args:
        samples: Headings with rows: url, timestamp, reason, detail and text, as far as they are known.
    """
    drawings = list(corpus_figures(figures))
    sections = [
        ReportSection(table.key, table.title, (*(drawing for key, drawing in drawings if key == table.key), table))
        for table in corpus_tables(figures)
    ]
    for number, (heading, rows) in enumerate(samples):
        quote = Remarks(tuple((_source(row), _text(row)) for row in rows))
        sections.append(ReportSection(f"samples-{number}", heading, (quote,), is_short=False))
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


def progress_html(
    title: str, lines: Sequence[StageLine], task: tuple[str, int, int, float | None], *, state: str, elapsed_s: float,
    every_s: int | None,
) -> str:  # fmt: skip
    """Return the page of a running corpus.

    Args:
        task: Name of the running task, empty for none; its finished parts, all its parts, and the seconds left.
        every_s: Seconds after which browsers reload the page; None when the corpus is finished or stopped.
    """
    label, done, total, left_s = task
    shown = []
    if label and every_s is not None:
        left = "" if left_s is None else f"; about {format_duration(left_s)} left"
        bar = {"value": done, "max": max(1, total), "style": "width: 100%"}
        shown = [tag("p", f"{label}: {done:,} of {total:,} parts{left}"), tag("progress", "", **bar, aria_label=label)]
    about = f"{state}; {format_duration(elapsed_s)} so far, as of {time.strftime('%Y-%m-%d %H:%M:%S')}"
    header = tag("header", tag("h1", title), tag("p", about, class_="lead"), *shown)
    rows: list[Row] = []
    for line in lines:
        numbers = (line.num_kept, None if line.dropped is None else sum(line.dropped.values()), line.rows_per_s)
        rows.append([line.name, line.state, *(number_cell(number, ",.0f") for number in numbers)])
    stages = make_table("stages", "Stages", ("Stage", "State", "Kept", "Dropped", "Rows/s"), rows, 2)
    known = [line for line in lines if line.num_kept is not None]
    funnel = [{"stage": line.name, "kept": line.num_kept, "dropped": line.dropped or {}} for line in known]
    tables = (table for table in (stages, reasons_table(funnel)) if table.lines)
    sections = (section_html(ReportSection(table.key, table.title, (table,))) for table in tables)
    content = [header, *sections, tag("footer", tag("p", made_by()))]
    return page(title, content, first="stages", refresh_s=every_s)
