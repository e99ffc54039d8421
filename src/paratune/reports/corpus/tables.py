"""The tables of a corpus: what each stage kept and dropped, and the contents of the finished corpus."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_number, format_share
from paratune.reports.tables.table import Column, Table, TableCell

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


def corpus_tables(figures: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a corpus that are not empty.

    Args:
        figures: As `paratune.corpus.store.figures.corpus_figures` has it.
    """
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
        Column("Stage", is_text=True),
        Column("Read", "num_read"),
        Column("Kept", "num_kept"),
        Column("Dropped", "num_dropped"),
        Column("Kept (%)", "kept_percent"),
    )
    lines = []
    for stage in funnel:
        dropped = sum(stage["dropped"].values())
        read = stage["kept"] + dropped
        share = stage["kept"] / read if read else None
        name = f"{stage['stage']} (of an earlier run)" if stage["is_stale"] else stage["stage"]
        counts = [_count(number) for number in (read, stage["kept"], dropped)]
        percent = None if share is None else 100 * share
        lines.append((TableCell(name), *counts, TableCell(format_share(share), percent)))
    notes = []
    if any(stage["stage"] == "sentences" for stage in funnel):
        notes.append("Rows are captures, then documents, and sentences in the stages of that name.")
    if any(stage["is_stale"] for stage in funnel):
        notes.append(
            "Stages of an earlier run were made from what the stages before them kept then; run the corpus again."
        )
    return Table("funnel", "Kept rows by stage", columns, tuple(lines), tuple(notes))


def reasons_table(funnel: Sequence[Mapping[str, Any]]) -> Table:
    """Return the reasons why rows were dropped, the most frequent ones of each stage."""
    columns = (
        Column("Stage", is_text=True),
        Column("Reason", is_text=True),
        Column("Dropped", "num_dropped"),
        Column("Share of the rows read (%)", "percent"),
    )
    lines = []
    for stage in funnel:
        read = stage["kept"] + sum(stage["dropped"].values())
        ordered = sorted(stage["dropped"].items(), key=lambda item: (-item[1], item[0]))
        for reason, count in ordered[:_MOST_REASONS]:
            share = count / read
            lines.append(
                (
                    TableCell(stage["stage"]),
                    TableCell(plain(reason)),
                    _count(count),
                    TableCell(format_share(share), 100 * share),
                )
            )
        if len(ordered) > _MOST_REASONS:
            left = sum(count for _, count in ordered[_MOST_REASONS:])
            name = f"{len(ordered) - _MOST_REASONS} more reasons"
            lines.append(
                (TableCell(stage["stage"]), TableCell(name), _count(left), TableCell(format_share(left / read)))
            )
    return Table("reasons", "Reasons for dropped rows", columns, tuple(lines))


def _duplicates(duplicates: Sequence[Mapping[str, Any]]) -> Table:
    columns = (Column("Stage", is_text=True), Column("Reason", is_text=True), Column("Dropped", "num_dropped"))
    lines = tuple(
        (TableCell(entry["stage"]), TableCell(plain(entry["reason"])), _count(entry["num"])) for entry in duplicates
    )
    return Table("duplicates", "Duplicates", columns, lines)


def _varieties(varieties: Sequence[Mapping[str, Any]]) -> Table:
    """Return the accuracy of the variety classifier on texts of known variety."""
    columns = (
        *(Column(label, is_text=True) for label in ("Texts", "Source", "Length")),
        *(
            Column("European recognised (%)", "european_percent"),
            Column("Brazilian recognised (%)", "brazilian_percent"),
        ),
        Column("Area under the curve", "auc"),
    )
    lines = []
    for entry in varieties:
        recognised = [TableCell(format_share(entry[key]), 100 * entry[key]) for key in ("european", "brazilian")]
        lines.append(
            (*(TableCell(entry[key]) for key in ("texts", "source", "length")), *recognised, _number(entry["auc"]))
        )
    notes = (
        ("Texts of unseen sources show what to expect for a corpus that differs from all of them.",) if lines else ()
    )
    return Table("variety_evaluation", "Accuracy of the variety classifier", columns, tuple(lines), notes)


def _totals(documents: Mapping[str, Any], sentences: Mapping[str, Any] | None) -> Table:
    columns = (Column("Of the finished corpus", is_text=True), Column("Number", "num"))
    counts = [
        ("Documents", documents["num"]),
        ("Words", documents["num_words"]),
        ("Characters", documents["num_characters"]),
        ("Hosts", documents["num_hosts"]),
        ("Masked personal data", documents["num_masked"]),
        ("Sentences", None if sentences is None else sentences["num"]),
    ]
    lines = tuple((TableCell(name), _count(number)) for name, number in counts)
    return Table("totals", "The finished corpus", columns, lines)


def _groups(documents: Mapping[str, Any]) -> Iterator[Table]:
    for key, (title, name) in GROUPS.items():
        groups = documents[key]
        if not any(group["value"] is not None for group in groups):
            continue
        columns = (
            Column(name, "value", is_text=True),
            Column("Documents", "num_documents"),
            Column("Documents (%)", "documents_percent"),
            Column("Words", "num_words"),
        )
        lines = tuple(_group(group, documents["num"]) for group in groups)
        notes: tuple[str, ...] = ()
        if key == "by_host" and len(groups) < documents["num_hosts"]:
            notes = (f"The {len(groups)} hosts with most documents, of {documents['num_hosts']:,}.",)
        yield Table(key, title, columns, lines, notes)


def _group(group: Mapping[str, Any], num_documents: int) -> tuple[TableCell, ...]:
    share = group["num"] / num_documents
    name = NOT_AVAILABLE if group["value"] is None else plain(group["value"])
    return (
        TableCell(name),
        _count(group["num"]),
        TableCell(format_share(share), 100 * share),
        _count(group["num_words"]),
    )


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
        Column("Quantity", "what", is_text=True),
        Column("Mean", "mean"),
        *(Column(names.get(share, f"{100 * float(share):g}%"), f"quantile_{share}") for share in shares),
    )
    lines = tuple(
        (TableCell(name), *(_number(value) for value in (spread["mean"], *spread["quantiles"].values())))
        for name, spread in known
    )
    note = (
        "A quantile is the smallest value that this share of the texts does not exceed; perplexities are exact to 0.5%."
    )
    yield Table("lengths", "Lengths", columns, lines, (note,))


def _count(number: int | None) -> TableCell:
    return TableCell(NOT_AVAILABLE if number is None else f"{number:,}", number)


def _number(value: float) -> TableCell:
    return TableCell(format_number(value, 4), value)
