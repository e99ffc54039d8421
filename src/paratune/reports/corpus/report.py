"""The report of a corpus: what each stage kept and dropped, and the contents of the finished corpus."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, counted, format_number, format_share
from paratune.reports.document import Remarks, ReportDocument, ReportSection
from paratune.reports.page.document import document_html, made_by
from paratune.reports.tables.table import Row, Table, TableCell, make_table, number_cell
from paratune.reports.text import shorten

GROUPS = {
    "by_language": ("Languages", "Language"),
    "by_variety": ("Varieties", "Variety"),
    "by_year": ("Years", "Year"),
    "by_host": ("Hosts", "Host"),
    "by_mime": ("MIME types", "Type"),
    "by_extractor": ("Extractors", "Extractor"),
    "by_charset": ("Charsets", "Charset"),
    "by_licence": ("Licences", "Licence"),
    "by_split": ("Splits", "Split"),
}
"""Groups of documents by their key in the figures: title of the table, and heading of its first column."""
MAX_CHARACTERS = 700
"""Shown characters of a text."""
_MOST_REASONS = 12
_DROPPED = ("Dropped", "num_dropped")


def corpus_html(
    title: str, figures: Mapping[str, Any], samples: Iterable[tuple[str, Iterable[Mapping[str, Any]]]]
) -> str:
    """Return the page of a corpus from the result of `paratune.corpus.store.figures.corpus_figures`.

    Args:
        samples: Headings with rows: url, timestamp, reason, detail and text, as far as they are known.
    """
    shown = [ReportSection(table.key, table.title, (table,)) for table in corpus_tables(figures)]
    for number, (heading, rows) in enumerate(samples):
        quotes = Remarks(tuple((_source(row), _text(row)) for row in rows))
        shown.append(ReportSection(f"samples-{number}", heading, (quotes,), is_short=False))
    documents, sentences = figures["documents"], figures["sentences"]
    lead = f"{counted(len(figures['funnel']), 'stage')} finished; the corpus is not."
    if documents is not None:
        parts = [counted(documents["num"], "document"), counted(documents["num_words"], "word")]
        parts += [counted(sentences["num"], "sentence")] if sentences is not None else []
        lead = f"{', '.join(parts)} from {counted(documents['num_hosts'], 'host')}."
    return document_html(ReportDocument(title, (lead,), tuple(shown), made_by()))


def _source(row: Mapping[str, Any]) -> str:
    return ", ".join(plain(row[name]) for name in ("reason", "timestamp", "url") if row.get(name))


def _text(row: Mapping[str, Any]) -> str:
    """Return the text of a row, or its detail if it has no text."""
    detail, text = row.get("detail") or "", row.get("text")
    if not text:
        return shorten(detail, MAX_CHARACTERS)
    shown = shorten(" ".join(text.split()), MAX_CHARACTERS)
    return f"({shorten(detail, 120)}) {shown}" if detail else shown


def corpus_tables(figures: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a corpus that are not empty, from `paratune.corpus.store.figures.corpus_figures`."""
    documents, sentences, funnel = figures["documents"], figures["sentences"], figures["funnel"]
    tables = [funnel_table(funnel), reasons_table(funnel)]
    if documents is not None and documents["num"]:
        labels = {"Documents": "num", "Words": "num_words", "Characters": "num_characters", "Hosts": "num_hosts"}
        counts = {name: documents[key] for name, key in (labels | {"Masked personal data": "num_masked"}).items()}
        counts["Sentences"] = None if sentences is None else sentences["num"]
        rows = ((name, _count(number)) for name, number in counts.items())
        totals = make_table("totals", "The finished corpus", ("Of the finished corpus", ("Number", "num")), rows)
        tables = [totals, *tables, *_groups(documents)]
    return [table for table in (*tables, _lengths(documents, sentences)) if table.lines]


def funnel_table(funnel: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows that each stage read, kept and dropped."""
    columns = ("Stage", ("Read", "num_read"), ("Kept", "num_kept"), _DROPPED, ("Kept (%)", "kept_percent"))
    lines = []
    for stage in funnel:
        kept, dropped = stage["kept"], sum(stage["dropped"].values())
        name = f"{stage['stage']} (of an earlier run)" if stage["is_stale"] else stage["stage"]
        lines.append((name, *map(_count, (kept + dropped, kept, dropped)), _percent(kept, kept + dropped)))
    notes = ["Rows are captures, then documents, and sentences in the stages of that name."]
    if any(stage["is_stale"] for stage in funnel):
        notes = ["Stages of an earlier run are not made from the present ones before them; run the corpus again."]
    return make_table("funnel", "Kept rows by stage", columns, lines, 1, notes)


def reasons_table(funnel: Sequence[Mapping[str, Any]]) -> Table:
    """Return the reasons why rows were dropped, the most frequent ones of each stage."""
    lines: list[Row] = []
    for stage in funnel:
        read = stage["kept"] + sum(stage["dropped"].values())
        ordered = sorted(stage["dropped"].items(), key=lambda item: (-item[1], item[0]))
        counts, others = {plain(reason): count for reason, count in ordered[:_MOST_REASONS]}, ordered[_MOST_REASONS:]
        if others:
            counts[f"{len(others)} more reasons"] = sum(count for _, count in others)
        lines += [(stage["stage"], reason, _count(count), _percent(count, read)) for reason, count in counts.items()]
    columns = ("Stage", "Reason", _DROPPED, ("Share of the rows read (%)", "percent"))
    return make_table("reasons", "Reasons for dropped rows", columns, lines, 2)


def _groups(documents: Mapping[str, Any]) -> Iterator[Table]:
    numbers = (("Documents", "num_documents"), ("Documents (%)", "documents_percent"), ("Words", "num_words"))
    for key, (title, name) in GROUPS.items():
        groups = documents[key]
        if any(group["value"] is not None for group in groups):
            rows = [
                (NOT_AVAILABLE if group["value"] is None else plain(group["value"]), _count(group["num"]),
                 _percent(group["num"], documents["num"]), _count(group["num_words"]))
                for group in groups
            ]  # fmt: skip
            is_cut = key == "by_host" and len(groups) < documents["num_hosts"]
            note = f"The {len(groups)} hosts with most documents, of {documents['num_hosts']:,}."
            yield make_table(key, title, ((name, "value"), *numbers), rows, 1, [note] * is_cut, is_closed=True)


def _lengths(documents: Mapping[str, Any] | None, sentences: Mapping[str, Any] | None) -> Table:
    """Return the lengths of documents and sentences, and the perplexities of sentences."""
    spreads = {
        "Documents (words)": documents and documents["words"],
        "Sentences (words)": sentences and sentences["words"],
        "Sentences (perplexity)": sentences and sentences["perplexity"],
    }
    known = {name: spread for name, spread in spreads.items() if spread and spread["quantiles"]}
    names = {"0": "least", "0.5": "median", "1": "most"}
    shares = next(iter(known.values()))["quantiles"] if known else ()
    quantiles = ((names.get(share, f"{100 * float(share):g}%"), f"quantile_{share}") for share in shares)
    rows: list[Row] = []
    for name, spread in known.items():
        rows.append([name, *map(_number, (spread["mean"], *spread["quantiles"].values()))])
    note = "A quantile is the smallest value that this share of the texts does not exceed; perplexities are to 0.5%."
    return make_table("lengths", "Lengths", (("Quantity", "what"), ("Mean", "mean"), *quantiles), rows, 1, [note])


def _count(number: int | None) -> TableCell:
    return number_cell(number, ",")


def _percent(part: float | None, whole: float = 1) -> TableCell:
    share = None if part is None or not whole else part / whole
    return TableCell(format_share(share), None if share is None else 100 * share)


def _number(value: float) -> TableCell:
    return TableCell(format_number(value, 4), value)
