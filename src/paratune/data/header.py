"""Recognises files whose first line is a row and not a header, so that no row is lost without a word.

Imports no torch.
"""

import logging
from collections import Counter
from typing import Any

import pyarrow as pa

from paratune.base.text import listing
from paratune.data.labels import as_number
from paratune.errors import DataError, coded

log = logging.getLogger(__name__)

FIRST_LINE = b"header"
"""Key in the metadata of a table whose names of columns are the first line of a file."""
USUAL_LABELS = (
    *("label", "labels", "target", "class", "category", "categories", "sentiment", "intent", "topic", "topics"),
    *("tags", "score", "rating", "stars", "grade", "gold_label", "y"),
)
USUAL_TEXTS = ("text", "sentence", "review", "content", "document", "tweet")
"""Usual names of columns, in lower case."""
_DIFFERING_SHARE = 0.95
"""A name differs from its column where this share of the values is of another kind: some texts have a single word."""


def check_header(table: pa.Table, label: str, source: str) -> None:
    """Raise a DataError, or log a warning, where the name of the label column of a CSV or TSV file looks like a label.

    The name is a label where it is one of at least two values that occur twice or more below it, or a number in a
    column of numbers. It is a name where it is usual for labels, or where the name of another column is usual for
    texts, or of another kind (number, word, several words) than 95% of the values below it. A label and no name is
    refused. There is a warning where both hold, and where the name occurs below as the only class, or once, and is no
    name.

    Raises:
        DataError: The first line is a row.
    """
    if FIRST_LINE not in (table.schema.metadata or {}) or label.lower() in USUAL_LABELS:
        return
    counts = Counter(_present(table, label))
    classes = [value for value, count in counts.items() if count > 1]
    is_number = bool(counts) and all(as_number(value) is not None for value in (label, *counts))
    is_label = is_number or (label.strip() in classes and len(classes) > 1)
    is_name = any(_is_name(table, name) for name in table.column_names if name != label)
    if not is_label and (is_name or label.strip() not in counts):
        return
    if is_name and _are_numbers_of_columns(table.column_names):
        return
    found = f"{source}, line 1: {label[:40]!r}, the name of the label column, looks like a label"
    remedy = "line 1 is a row, add a line with the names of the columns before it, else rename the label column"
    facts: dict[str, Any] = {"source": source, "name": label}
    if is_label and not is_name:
        columns = f"(columns: {listing([name[:40] for name in table.column_names])})"
        raise DataError(f"{found} of the rows below it {columns}; if {remedy}", code="data.no_header", **facts)
    log.warning("%s; if %s", found, remedy, extra=coded("data.no_header", **facts))


def _are_numbers_of_columns(names: list[str]) -> bool:
    """Return whether names are 0, 1, 2, ..., as pandas writes columns without names, with or without its index."""
    named = [name for name in names if name]
    return named == [str(number) for number in range(len(named))]


def _present(table: pa.Table, name: str) -> list[str]:
    return [value.strip() for value in table.column(name).to_pylist() if value is not None and value.strip()]


def _is_name(table: pa.Table, name: str) -> bool:
    """Return whether the entry of a column in the first line can be told from the values below it."""
    if not name.strip():
        return False
    if name.lower() in USUAL_TEXTS:
        return True
    values = _present(table, name)
    kind = _kind(name)
    return bool(values) and sum(_kind(value) != kind for value in values) >= _DIFFERING_SHARE * len(values)


def _kind(value: str) -> str:
    return "number" if as_number(value) is not None else "texts" if len(value.split()) > 1 else "word"
