"""The page that helps to choose a perplexity threshold: a histogram, and the sentences next to each threshold."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any

from paratune.base.units import format_number, format_share
from paratune.reports.document import Notice, Part, ReportDocument, ReportSection
from paratune.reports.figures.canvas import Drawing
from paratune.reports.figures.plots import Bars, histogram
from paratune.reports.page.document import document_html, made_by
from paratune.reports.tables.table import TableCell, make_table


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
    drawing, notice = _histogram(scores), Notice(text, is_warning=False)
    yield ReportSection("histogram", "Sentences by perplexity", (notice, drawing, table))
    for number, line in enumerate(thresholds, start=1):
        share = format_share(line["share_above"])
        parts: list[Part] = [f"{line['num_above']:,} sentences, {share}, are above the threshold."]
        for side, kept in (("below", "Kept"), ("above", "Dropped")):
            lines = [(format_number(row["perplexity"]), row["text"], row["url"]) for row in line[side]]
            key, title = f"threshold-{number}-{side}", f"{kept} sentences next to the threshold"
            header, notes = ("Perplexity", "Sentence", "Source"), () if lines else ("None.",)
            parts.append(make_table(key, title, header, lines, 3, notes))
        yield ReportSection(f"threshold-{number}", f"Threshold {format_number(line['perplexity'])}", tuple(parts))


def _histogram(scores: Mapping[str, Any]) -> Drawing:
    """Draw the number of sentences over a logarithmic axis of perplexity, with a line at each threshold."""
    edges, counts = scores["histogram"]["edges"], scores["histogram"]["counts"]
    texts = [
        f"{format_number(left)} to {format_number(right)}: {count:,} sentences"
        for (left, right), count in zip(pairwise(edges), counts, strict=True)
    ]
    values, limit = [line["perplexity"] for line in scores["thresholds"]], scores["max_perplexity"]
    names = {value: f"{format_number(value)}{' (the limit)' if value == limit else ''}" for value in values}
    marks = {value: name for value, name in names.items() if edges[0] <= value <= edges[-1]}
    draw = histogram(
        edges, [Bars(counts, texts=texts)], marks=marks, log=True, xlim=(edges[0], edges[-1]), xlabel="Perplexity",
        ylabel="Sentences",
    )  # fmt: skip
    caption = "Ten bars for each decade; lower perplexity is better. Lines: the thresholds of the table."
    return Drawing("perplexities", "Histogram of perplexities", caption, draw, 3.4)
