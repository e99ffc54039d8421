"""The pages of a corpus: what each stage kept and dropped, its contents, and the perplexities of its sentences."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, counted, format_number, format_share
from paratune.reports.document import Notice, Part, Remarks, ReportDocument, ReportSection
from paratune.reports.figures.canvas import Drawing
from paratune.reports.figures.plots import Bars, histogram
from paratune.reports.page.document import document_html, made_by
from paratune.reports.tables.table import Row, Table, TableCell, make_table, number_cell
from paratune.reports.text import shorten

GROUPS = ("language", "variety", "year", "host", "mime", "extractor", "charset", "licence", "split")
MAX_CHARACTERS = 700  # shown characters of a text
_MOST_REASONS = 12
_DROPPED = ("Dropped", "num_dropped")


def corpus_html(
    title: str, figures: Mapping[str, Any], samples: Iterable[tuple[str, Iterable[Mapping[str, Any]]]]
) -> str:
    """Return the page of a corpus from the result of `paratune.corpus.contents.corpus_figures`.

    Args:
        samples: Headings with rows: url, timestamp, reason, detail and text, as far as they are known.
    """
    shown = [ReportSection(table.key, table.title, (table,)) for table in corpus_tables(figures)]
    for number, (heading, rows) in enumerate(samples):
        quotes = []
        for row in rows:
            about = ", ".join(plain(row[name]) for name in ("reason", "timestamp", "url") if row.get(name))
            detail, text = row.get("detail") or "", " ".join((row.get("text") or "").split())
            before = f"({shorten(detail, 120)}) " if detail and text else ""
            quotes.append((about, f"{before}{shorten(text or detail, MAX_CHARACTERS)}"))
        if quotes:
            shown.append(ReportSection(f"samples-{number}", heading, (Remarks(tuple(quotes)),), is_short=False))
    documents, sentences = figures["documents"], figures["sentences"]
    lead = f"{counted(len(figures['funnel']), 'stage')} finished; the corpus is not."
    if documents is not None:
        parts = [counted(documents["num"], "document"), counted(documents["num_words"], "word")]
        parts += [counted(sentences["num"], "sentence")] if sentences is not None else []
        lead = f"{', '.join(parts)} from {counted(documents['num_hosts'], 'host')}."
    return document_html(ReportDocument(title, (lead,), tuple(shown), made_by()))


def corpus_tables(figures: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a corpus that are not empty, from `paratune.corpus.contents.corpus_figures`."""
    documents, sentences, funnel = figures["documents"], figures["sentences"], figures["funnel"]
    tables = [funnel_table(funnel), reasons_table(funnel)]
    if documents is not None and documents["num"]:
        labels = {"Documents": "num", "Words": "num_words", "Characters": "num_characters", "Hosts": "num_hosts"}
        counts = {name: documents[key] for name, key in (labels | {"Masked personal data": "num_masked"}).items()}
        counts["Sentences"] = None if sentences is None else sentences["num"]
        known = ((name, number_cell(number, ",")) for name, number in counts.items())
        header = ("Of the finished corpus", ("Number", "num"))
        tables.insert(0, make_table("totals", "The finished corpus", header, known))
        numbers = (("Documents", "num_documents"), ("Documents (%)", "documents_percent"), ("Words", "num_words"))
        for name in GROUPS:
            key, groups = f"by_{name}", documents[f"by_{name}"]
            if any(group["value"] is not None for group in groups):
                rows = [
                    (NOT_AVAILABLE if group["value"] is None else plain(group["value"]), number_cell(group["num"], ","),
                     _percent(group["num"], documents["num"]), number_cell(group["num_words"], ","))
                    for group in groups
                ]  # fmt: skip
                is_cut = name == "host" and len(groups) < documents["num_hosts"]
                notes = [f"The {len(groups)} hosts with most documents, of {documents['num_hosts']:,}."] * is_cut
                columns = ((name.capitalize(), "value"), *numbers)
                tables.append(make_table(key, f"Documents by {name}", columns, rows, 1, notes, is_closed=True))
    spreads = {
        "Documents (words)": documents and documents["words"],
        "Sentences (words)": sentences and sentences["words"],
        "Sentences (perplexity)": sentences and sentences["perplexity"],
    }
    given = {name: spread for name, spread in spreads.items() if spread and spread["quantiles"]}
    names = {"0": "least", "0.5": "median", "1": "most"}
    shares = next(iter(given.values()))["quantiles"] if given else ()
    quantiles = ((names.get(share, f"{100 * float(share):g}%"), f"quantile_{share}") for share in shares)
    lines: list[Row] = [
        [name, *(TableCell(format_number(value, 4), value) for value in (own["mean"], *own["quantiles"].values()))]
        for name, own in given.items()
    ]
    note = "A quantile is the smallest value that this share of the texts does not exceed; perplexities are to 0.5%."
    lengths = make_table("lengths", "Lengths", (("Quantity", "what"), ("Mean", "mean"), *quantiles), lines, 1, [note])
    return [table for table in (*tables, lengths) if table.lines]


def funnel_table(funnel: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows that each stage read, kept and dropped."""
    columns = ("Stage", ("Read", "num_read"), ("Kept", "num_kept"), _DROPPED, ("Kept (%)", "kept_percent"))
    lines = []
    for stage in funnel:
        kept, dropped = stage["kept"], sum(stage["dropped"].values())
        name = f"{stage['stage']} (of an earlier run)" if stage["is_stale"] else stage["stage"]
        counts = (number_cell(count, ",") for count in (kept + dropped, kept, dropped))
        lines.append((name, *counts, _percent(kept, kept + dropped)))
    notes = ["Rows are captures, then documents, and sentences in the stages of that name."]
    if any(stage["is_stale"] for stage in funnel):
        notes = ["Stages of an earlier run are not made from the present ones before them; run the corpus again."]
    return make_table("funnel", "Kept rows by stage", columns, lines, 1, notes)


def reasons_table(funnel: Sequence[Mapping[str, Any]]) -> Table:
    """Return the reasons why rows were dropped, the most frequent ones of each stage."""
    lines: list[Row] = []
    for stage in funnel:
        name, read = stage["stage"], stage["kept"] + sum(stage["dropped"].values())
        ordered = sorted(stage["dropped"].items(), key=lambda item: (-item[1], item[0]))
        counts, others = {plain(reason): count for reason, count in ordered[:_MOST_REASONS]}, ordered[_MOST_REASONS:]
        if others:
            counts[f"{len(others)} more reasons"] = sum(count for _, count in others)
        lines += [(name, reason, number_cell(count, ","), _percent(count, read)) for reason, count in counts.items()]
    columns = ("Stage", "Reason", _DROPPED, ("Share of the rows read (%)", "percent"))
    return make_table("reasons", "Reasons for dropped rows", columns, lines, 2)


def _percent(part: float, whole: float) -> TableCell:
    share = part / whole if whole else None
    return TableCell(format_share(share), None if share is None else 100 * share)


def perplexity_page(scores: Mapping[str, Any]) -> str:
    """Return a page that needs no other file from the contents of perplexity.json."""
    num_unknown = scores["num_unknown"]
    scorer = ", scored by an n-gram model" if scores["scorer"] == "ngram" else ""
    unknown = f"; {num_unknown:,} more have no perplexity" if num_unknown else ""
    lead = f"{scores['num_sentences'] - num_unknown:,} sentences{scorer}{unknown}."
    title = "Perplexity of the sentences"
    return document_html(ReportDocument(title, (lead,), tuple(_sections(scores)), made_by("perplexity.json")))


def _sections(scores: Mapping[str, Any]) -> Iterator[ReportSection]:
    if not scores["histogram"]["counts"]:
        yield ReportSection("nothing", "No perplexities", (Notice("No sentence has a perplexity.", is_warning=False),))
        return
    limit, thresholds = scores["max_perplexity"], scores["thresholds"]
    text = "No sentence is dropped: sentences.max_perplexity is not set. The table shows the effect of each threshold."
    if limit is not None:
        text = f"Sentences above {format_number(limit)} are dropped (sentences.max_perplexity)."
    columns = (("Threshold", "perplexity"), ("Sentences above", "num_above"), ("Share above", "share_above"))
    forms = (format_number, "{:,}".format, format_share)
    rows = (
        [TableCell(form(line[key]), line[key]) for (_, key), form in zip(columns, forms, strict=True)]
        for line in thresholds
    )
    table = make_table("thresholds", "Thresholds", columns, rows, 0)
    edges, counts = scores["histogram"]["edges"], scores["histogram"]["counts"]
    bins = zip(pairwise(edges), counts, strict=True)
    tips = [f"{format_number(low)} to {format_number(high)}: {count:,} sentences" for (low, high), count in bins]
    names = {
        value: f"{format_number(value)}{' (the limit)' if value == limit else ''}"
        for value in (line["perplexity"] for line in thresholds)
    }
    marks = {value: name for value, name in names.items() if edges[0] <= value <= edges[-1]}
    axes: Mapping[str, Any] = {"xlim": (edges[0], edges[-1]), "xlabel": "Perplexity", "ylabel": "Sentences"}
    draw = partial(histogram, edges, [Bars(counts, texts=tips)], marks=marks, log=True, **axes)
    caption = "Ten bars for each decade; lower perplexity is better. Lines: the thresholds of the table."
    drawing = Drawing("perplexities", "Histogram of perplexities", caption, draw, 3.4)
    yield ReportSection("histogram", "Sentences by perplexity", (Notice(text, is_warning=False), drawing, table))
    for number, line in enumerate(thresholds, start=1):
        share = format_share(line["share_above"])
        parts: list[Part] = [f"{line['num_above']:,} sentences, {share}, are above the threshold."]
        for side, kept in (("below", "Kept"), ("above", "Dropped")):
            lines = [(format_number(row["perplexity"]), row["text"], row["url"]) for row in line[side]]
            key, title = f"threshold-{number}-{side}", f"{kept} sentences next to the threshold"
            header, notes = ("Perplexity", "Sentence", "Source"), () if lines else ("None.",)
            parts.append(make_table(key, title, header, lines, 3, notes))
        yield ReportSection(f"threshold-{number}", f"Threshold {format_number(line['perplexity'])}", tuple(parts))
