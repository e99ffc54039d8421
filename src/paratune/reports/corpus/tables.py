"""The tables of a corpus: what each stage kept and dropped, and the contents of the finished corpus."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_as, format_number, format_share
from paratune.reports.tables.table import Heading, Row, Table, TableCell, make_table

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
_MOST_REASONS = 12
_DROPPED = ("Dropped", "num_dropped")


def corpus_tables(figures: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a corpus that are not empty, from `paratune.corpus.store.figures.corpus_figures`."""
    documents = figures["documents"]
    has_documents = documents is not None and documents["num"]
    tables = [_totals(documents, figures["sentences"])] if has_documents else []
    tables += [funnel_table(figures["funnel"]), reasons_table(figures["funnel"]), _duplicates(figures["duplicates"])]
    tables += [_varieties(figures["varieties"])]
    tables += _groups(documents) if has_documents else []
    tables += lengths_tables(figures)
    return [table for table in tables if table.lines]


def funnel_table(funnel: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows that each stage read, kept and dropped."""
    columns = (
        "Stage", ("Read", "num_read"), ("Kept", "num_kept"), _DROPPED, ("Kept (%)", "kept_percent"),
    )  # fmt: skip
    lines = []
    for stage in funnel:
        dropped = sum(stage["dropped"].values())
        read = stage["kept"] + dropped
        name = f"{stage['stage']} (of an earlier run)" if stage["is_stale"] else stage["stage"]
        counts = map(_count, (read, stage["kept"], dropped))
        lines.append((name, *counts, _percent(stage["kept"] / read if read else None)))
    notes = []
    if any(stage["stage"] == "sentences" for stage in funnel):
        notes.append("Rows are captures, then documents, and sentences in the stages of that name.")
    if any(stage["is_stale"] for stage in funnel):
        notes.append(
            "Stages of an earlier run were made from what the stages before them kept then; run the corpus again."
        )
    return make_table("funnel", "Kept rows by stage", columns, lines, 1, notes)


def reasons_table(funnel: Sequence[Mapping[str, Any]]) -> Table:
    """Return the reasons why rows were dropped, the most frequent ones of each stage."""
    lines: list[Row] = []
    for stage in funnel:
        read = stage["kept"] + sum(stage["dropped"].values())
        ordered = sorted(stage["dropped"].items(), key=lambda item: (-item[1], item[0]))
        shown, others = ordered[:_MOST_REASONS], ordered[_MOST_REASONS:]
        lines += [(stage["stage"], plain(reason), _count(count), _percent(count / read)) for reason, count in shown]
        if others:
            left = sum(count for _, count in others)
            share = TableCell(format_share(left / read))
            lines.append((stage["stage"], f"{len(others)} more reasons", _count(left), share))
    columns = ("Stage", "Reason", _DROPPED, ("Share of the rows read (%)", "percent"))
    return make_table("reasons", "Reasons for dropped rows", columns, lines, 2)


def _duplicates(duplicates: Sequence[Mapping[str, Any]]) -> Table:
    rows = ((entry["stage"], plain(entry["reason"]), _count(entry["num"])) for entry in duplicates)
    return make_table("duplicates", "Duplicates", ("Stage", "Reason", _DROPPED), rows, 2)


def _varieties(varieties: Sequence[Mapping[str, Any]]) -> Table:
    """Return the accuracy of the variety classifier on texts of known variety."""
    recognised = {"european": "European recognised (%)", "brazilian": "Brazilian recognised (%)"}
    columns: list[Heading] = [
        "Texts", "Source", "Length", *((label, f"{key}_percent") for key, label in recognised.items()),
        ("Area under the curve", "auc"),
    ]  # fmt: skip
    rows = [
        (entry["texts"], entry["source"], entry["length"], *(_percent(entry[key]) for key in recognised),
         _number(entry["auc"]))
        for entry in varieties
    ]  # fmt: skip
    note = "Texts of unseen sources show what to expect for a corpus that differs from all of them."
    title = "Accuracy of the variety classifier"
    return make_table("variety_evaluation", title, columns, rows, 3, [note] if rows else [])


def _totals(documents: Mapping[str, Any], sentences: Mapping[str, Any] | None) -> Table:
    counts = {
        "Documents": documents["num"],
        "Words": documents["num_words"],
        "Characters": documents["num_characters"],
        "Hosts": documents["num_hosts"],
        "Masked personal data": documents["num_masked"],
        "Sentences": None if sentences is None else sentences["num"],
    }
    rows = ((name, _count(number)) for name, number in counts.items())
    return make_table("totals", "The finished corpus", ("Of the finished corpus", ("Number", "num")), rows)


def _groups(documents: Mapping[str, Any]) -> Iterator[Table]:
    for key, (title, name) in GROUPS.items():
        groups = documents[key]
        if not any(group["value"] is not None for group in groups):
            continue
        columns = (
            (name, "value"), ("Documents", "num_documents"), ("Documents (%)", "documents_percent"),
            ("Words", "num_words"),
        )  # fmt: skip
        rows = (_group(group, documents["num"]) for group in groups)
        notes: tuple[str, ...] = ()
        if key == "by_host" and len(groups) < documents["num_hosts"]:
            notes = (f"The {len(groups)} hosts with most documents, of {documents['num_hosts']:,}.",)
        yield make_table(key, title, columns, rows, 1, notes)


def _group(group: Mapping[str, Any], num_documents: int) -> Row:
    name = NOT_AVAILABLE if group["value"] is None else plain(group["value"])
    return name, _count(group["num"]), _percent(group["num"] / num_documents), _count(group["num_words"])


def lengths_tables(figures: Mapping[str, Any]) -> Iterator[Table]:
    """Yield the lengths of documents and sentences, and the perplexities of sentences."""
    spreads = [
        ("Documents (words)", figures["documents"] and figures["documents"]["words"]),
        ("Sentences (words)", figures["sentences"] and figures["sentences"]["words"]),
        ("Sentences (perplexity)", figures["sentences"] and figures["sentences"]["perplexity"]),
    ]
    known = [(name, spread) for name, spread in spreads if spread and spread["quantiles"]]
    if not known:
        return
    shares = list(known[0][1]["quantiles"])
    names = {"0": "least", "0.5": "median", "1": "most"}
    columns = (
        ("Quantity", "what"), ("Mean", "mean"),
        *((names.get(share, f"{100 * float(share):g}%"), f"quantile_{share}") for share in shares),
    )  # fmt: skip
    rows: list[Row] = [[name, *map(_number, (spread["mean"], *spread["quantiles"].values()))] for name, spread in known]
    note = (
        "A quantile is the smallest value that this share of the texts does not exceed; perplexities are exact to 0.5%."
    )
    yield make_table("lengths", "Lengths", columns, rows, 1, (note,))


def _count(number: int | None) -> TableCell:
    return TableCell(format_as(number, ","), number)


def _percent(share: float | None) -> TableCell:
    return TableCell(format_share(share), None if share is None else 100 * share)


def _number(value: float) -> TableCell:
    return TableCell(format_number(value, 4), value)
