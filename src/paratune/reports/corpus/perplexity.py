"""The page that helps to choose a perplexity threshold: a histogram, and the sentences next to each threshold."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from paratune.base.units import format_number, format_share
from paratune.reports.document import Notice, Part, ReportDocument, ReportSection
from paratune.reports.figures.canvas import Drawing
from paratune.reports.figures.plots import Bars, histogram
from paratune.reports.page.document import document_html, made_by
from paratune.reports.tables.table import Table, TableCell, make_table

_SCORERS = {"ngram": "an n-gram model", "mlm": "a masked language model (pseudo-perplexity)"}
_TITLE = "Perplexity of the sentences"


def perplexity_page(scores: Mapping[str, Any]) -> str:
    """Return a page that needs no other file from the contents of perplexity.json."""
    sections = tuple(_sections(scores))
    return document_html(ReportDocument(_TITLE, (_lead(scores),), sections, made_by("perplexity.json")))


def _lead(scores: Mapping[str, Any]) -> str:
    num_unknown = scores["num_unknown"]
    scorer = f", scored by {_SCORERS[scores['scorer']]}" if scores["scorer"] in _SCORERS else ""
    unknown = f"; {num_unknown:,} more have no perplexity" if num_unknown else ""
    return f"{scores['num_sentences'] - num_unknown:,} sentences{scorer}{unknown}."


def _sections(scores: Mapping[str, Any]) -> Iterator[ReportSection]:
    if not scores["histogram"]["counts"]:
        yield ReportSection("nothing", "No perplexities", (Notice("No sentence has a perplexity.", is_warning=False),))
        return
    limit = scores["max_perplexity"]
    text = "No sentence is dropped: sentences.max_perplexity is not set. The table shows the effect of each threshold."
    if limit is not None:
        text = f"Sentences above {format_number(limit)} are dropped (sentences.max_perplexity)."
    overview = (Notice(text, is_warning=False), _histogram(scores), _thresholds(scores["thresholds"]))
    yield ReportSection("histogram", "Sentences by perplexity", overview)
    for number, threshold in enumerate(scores["thresholds"], start=1):
        heading = f"Threshold {format_number(threshold['perplexity'])}"
        yield ReportSection(f"threshold-{number}", heading, tuple(_samples(threshold, number)))


def _thresholds(thresholds: Sequence[Mapping[str, Any]]) -> Table:
    labels = {"perplexity": "Threshold", "num_above": "Sentences above", "share_above": "Share above"}
    texts = {"perplexity": format_number, "num_above": "{:,}".format, "share_above": format_share}
    rows = (
        [TableCell(text(threshold[key]), threshold[key]) for key, text in texts.items()] for threshold in thresholds
    )
    columns = ((label, key) for key, label in labels.items())
    return make_table("thresholds", "Thresholds", columns, rows, 0)


def _samples(threshold: Mapping[str, Any], number: int) -> Iterator[Part]:
    yield f"{threshold['num_above']:,} sentences, {format_share(threshold['share_above'])}, are above the threshold."
    for side, title in (("below", "Kept sentences next to the threshold"),
                        ("above", "Dropped sentences next to the threshold")):  # fmt: skip
        rows = [(format_number(row["perplexity"]), row["text"], row["url"]) for row in threshold[side]]
        header = ("Perplexity", "Sentence", "Source")
        yield make_table(f"threshold-{number}-{side}", title, header, rows, 3, () if rows else ("None.",))


def _histogram(scores: Mapping[str, Any]) -> Drawing:
    """Draw the number of sentences over a logarithmic axis of perplexity, with a line at each threshold."""
    edges, counts = scores["histogram"]["edges"], scores["histogram"]["counts"]
    texts = [
        f"{format_number(left)} to {format_number(right)}: {count:,} sentences"
        for (left, right), count in zip(pairwise(edges), counts, strict=True)
    ]
    values = [threshold["perplexity"] for threshold in scores["thresholds"]]
    limit = scores["max_perplexity"]
    marks = {
        value: f"{format_number(value)}{' (the limit)' if value == limit else ''}"
        for value in values
        if edges[0] <= value <= edges[-1]
    }
    layers = [Bars(counts, texts=texts)]
    draw = histogram(
        edges, layers, marks=marks, log=True, xlim=(edges[0], edges[-1]), xlabel="Perplexity", ylabel="Sentences"
    )
    caption = "Ten bars for each decade; lower perplexity is better. Lines: the thresholds of the table."
    return Drawing("perplexities", "Histogram of perplexities", caption, draw, 3.4)
