"""Tables of a corpus, from its figures: what each stage kept and dropped, and what is in what is left."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_number, format_share
from paratune.report.tabular import Column, Table, TableCell

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
"""Groups of documents, by their key in the figures: title of the table, and of its first column."""
_MOST_REASONS = 12


def corpus_tables(found: Mapping[str, Any]) -> list[Table]:
    """Return the tables of a corpus that have something to say.

    Args:
        found: As `paratune.corpus.store.figures.corpus_figures` has it.
    """
    documents = found["documents"]
    has_documents = documents is not None and documents["num"]
    tables = [_totals(documents, found["sentences"])] if has_documents else []
    tables += [funnel_table(found["funnel"]), reasons_table(found["funnel"]), _duplicates(found["duplicates"])]
    tables += [_varieties(found["varieties"])]
    tables += _groups(documents) if has_documents else []
    tables += lengths_tables(found)
    return [table for table in tables if table.lines]


def funnel_table(funnel: Sequence[Mapping[str, Any]]) -> Table:
    """Return what each stage kept of what it read."""
    columns = (
        Column("Stage", is_text=True),
        Column("Read", "num_read"),
        Column("Kept", "num_kept"),
        Column("Dropped", "num_dropped"),
        Column("Kept (%)", "kept_percent"),
    )
    lines = []
    for each in funnel:
        dropped = sum(each["dropped"].values())
        read = each["kept"] + dropped
        share = each["kept"] / read if read else None
        name = f"{each['stage']} (of an earlier run)" if each["is_stale"] else each["stage"]
        counts = [_count(number) for number in (read, each["kept"], dropped)]
        percent = None if share is None else 100 * share
        lines.append((TableCell(name), *counts, TableCell(format_share(share), percent)))
    notes = []
    if any(each["stage"] == "sentences" for each in funnel):
        notes.append("Rows are captures, then documents, and sentences in the stages of that name.")
    if any(each["is_stale"] for each in funnel):
        notes.append(
            "Stages of an earlier run were made from what the stages before them kept then; run the corpus again."
        )
    return Table("funnel", "What each stage kept", columns, tuple(lines), tuple(notes))


def reasons_table(funnel: Sequence[Mapping[str, Any]]) -> Table:
    """Return why rows were dropped, the commonest reasons of each stage."""
    columns = (
        Column("Stage", is_text=True),
        Column("Reason", is_text=True),
        Column("Dropped", "num_dropped"),
        Column("Of what it read (%)", "percent"),
    )
    lines = []
    for each in funnel:
        read = each["kept"] + sum(each["dropped"].values())
        ordered = sorted(each["dropped"].items(), key=lambda item: (-item[1], item[0]))
        for reason, count in ordered[:_MOST_REASONS]:
            share = count / read
            lines.append(
                (
                    TableCell(each["stage"]),
                    TableCell(plain(reason)),
                    _count(count),
                    TableCell(format_share(share), 100 * share),
                )
            )
        if len(ordered) > _MOST_REASONS:
            left = sum(count for _, count in ordered[_MOST_REASONS:])
            name = f"{len(ordered) - _MOST_REASONS} more reasons"
            lines.append(
                (TableCell(each["stage"]), TableCell(name), _count(left), TableCell(format_share(left / read)))
            )
    return Table("reasons", "Why rows were dropped", columns, tuple(lines))


def _duplicates(duplicates: Sequence[Mapping[str, Any]]) -> Table:
    columns = (Column("Stage", is_text=True), Column("Reason", is_text=True), Column("Dropped", "num_dropped"))
    lines = tuple(
        (TableCell(each["stage"]), TableCell(plain(each["reason"])), _count(each["num"])) for each in duplicates
    )
    return Table("duplicates", "Duplicates", columns, lines)


def _varieties(varieties: Sequence[Mapping[str, Any]]) -> Table:
    """Return how many texts whose variety is known the classifier told."""
    columns = (
        *(Column(label, is_text=True) for label in ("Texts", "Source", "Length")),
        *(
            Column("European recognised (%)", "european_percent"),
            Column("Brazilian recognised (%)", "brazilian_percent"),
        ),
        Column("Area under the curve", "auc"),
    )
    lines = []
    for each in varieties:
        told = [TableCell(format_share(each[key]), 100 * each[key]) for key in ("european", "brazilian")]
        lines.append((*(TableCell(each[key]) for key in ("texts", "source", "length")), *told, _number(each["auc"])))
    notes = (
        ("Texts of unseen sources show what to expect for a corpus that differs from all of them.",) if lines else ()
    )
    return Table("variety_evaluation", "How varieties are distinguished", columns, tuple(lines), notes)


def _totals(documents: Mapping[str, Any], sentences: Mapping[str, Any] | None) -> Table:
    columns = (Column("Of the finished corpus", is_text=True), Column("Number", "num"))
    counts = [
        ("Documents", documents["num"]),
        ("Words", documents["num_words"]),
        ("Characters", documents["num_characters"]),
        ("Hosts", documents["num_hosts"]),
        ("Masked pieces of personal data", documents["num_masked"]),
        ("Sentences", None if sentences is None else sentences["num"]),
    ]
    lines = tuple((TableCell(name), _count(number)) for name, number in counts)
    return Table("totals", "The finished corpus", columns, lines)


def _groups(documents: Mapping[str, Any]) -> Iterator[Table]:
    for key, (title, name) in GROUPS.items():
        groups = documents[key]
        if not any(each["value"] is not None for each in groups):
            continue
        columns = (
            Column(name, "value", is_text=True),
            Column("Documents", "num_documents"),
            Column("Documents (%)", "documents_percent"),
            Column("Words", "num_words"),
        )
        lines = tuple(_group(each, documents["num"]) for each in groups)
        notes: tuple[str, ...] = ()
        if key == "by_host" and len(groups) < documents["num_hosts"]:
            notes = (f"The {len(groups)} hosts with most documents, of {documents['num_hosts']:,}.",)
        yield Table(key, title, columns, lines, notes)


def _group(each: Mapping[str, Any], num_documents: int) -> tuple[TableCell, ...]:
    share = each["num"] / num_documents
    name = NOT_AVAILABLE if each["value"] is None else plain(each["value"])
    return TableCell(name), _count(each["num"]), TableCell(format_share(share), 100 * share), _count(each["num_words"])


def lengths_tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """Yield how long documents and sentences are, and how perplexed a model is by sentences."""
    spreads = [
        ("Documents (words)", found["documents"] and found["documents"]["words"]),
        ("Sentences (words)", found["sentences"] and found["sentences"]["words"]),
        ("Sentences (perplexity)", found["sentences"] and found["sentences"]["perplexity"]),
    ]
    known = [(name, each) for name, each in spreads if each and each["quantiles"]]
    if not known:
        return
    shares = list(known[0][1]["quantiles"])
    names = {"0": "least", "0.5": "median", "1": "most"}
    columns = (
        Column("Of", "what", is_text=True),
        Column("Mean", "mean"),
        *(Column(names.get(share, f"{100 * float(share):g}%"), f"quantile_{share}") for share in shares),
    )
    lines = tuple(
        (TableCell(name), *(_number(value) for value in (each["mean"], *each["quantiles"].values())))
        for name, each in known
    )
    note = "A quantile is the least value that so large a share does not exceed; of perplexity to half a per cent."
    yield Table("lengths", "Lengths", columns, lines, (note,))


def _count(number: int | None) -> TableCell:
    return TableCell(NOT_AVAILABLE if number is None else f"{number:,}", number)


def _number(value: float) -> TableCell:
    return TableCell(format_number(value, 4), value)
