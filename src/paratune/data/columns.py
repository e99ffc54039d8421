"""Turns a table into samples: takes texts, labels, ids and groups from the columns that the configuration names.

Imports no torch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.base.text import listing
from paratune.config.sections import Columns
from paratune.config.task_sections import ClassTask, MultiLabelTask, Task
from paratune.data.labels import encode, first_rows, is_missing
from paratune.data.text_tables import NESTED_AT
from paratune.errors import DataError, did_you_mean

Missing = Literal["refuse", "drop"]
IntArray = npt.NDArray[np.int64]
HELD_OUT = "pseudo_of_held_out_group"
NO_MASK = "mask"
"""Keys of `Samples.num_dropped` for rows that are dropped whatever the value of `data.missing`."""
LabelArray = npt.NDArray[np.int64] | npt.NDArray[np.float32]


class AnswerSpan(NamedTuple):
    """A passage of a context that answers a question."""

    text: str
    start: int
    """Index of its first character in the context."""

    @property
    def end(self) -> int:
        """Index after its last character in the context."""
        return self.start + len(self.text)


@dataclass(frozen=True, eq=False)
class Samples:
    """Texts with their labels, ids, rows and groups, in the order of the file."""

    texts: list[str]
    """First texts."""
    text_pairs: list[str] | None
    """Second texts; None where the task has single texts."""
    labels: LabelArray | None
    """(len,): int64 class ids or float32 targets; (len, C) float32 where a row may have several classes; None where
    labels were not read."""
    ids: list[str] | None
    """Values of `columns.id`; None when it is not given."""
    rows: IntArray
    """(len,): row in the file of each sample, counted from 0 without the header."""
    groups: list[str] | None
    """Values of `split.group_by`; None when it is not given."""
    num_dropped: dict[str, int]
    """Number of dropped rows by reason: the value that is missing (text, text_pair, label, or one that the task needs),
    or `HELD_OUT`."""
    pseudo: npt.NDArray[np.bool_] | None = None
    """(len,): whether the label is a pseudo-label (`paratune pseudo-label`); None where the file was not checked."""
    file_index: IntArray | None = None
    """(len,): index into `files` of each sample; None where all samples are from one file."""
    files: tuple[str, ...] = ()
    """Names of the files, where there are several; `rows` restarts at 0 in each."""
    answers: list[tuple[AnswerSpan, ...]] | None = None
    """Gold answers of each question; an empty tuple where it has no answer. None in other tasks, and where labels were
    not read."""
    words: list[list[str]] | None = None
    """Words of each text, for tags of words; `texts` has them joined by spaces."""
    tags: list[IntArray] | None = None
    """Tag ids of the words of each text; None in other tasks, and where labels were not read."""
    negatives: list[str] | None = None
    """Texts that are not related to the first ones, for triplets of sentence embeddings; None in other tasks."""
    choices: list[tuple[str, ...]] | None = None
    """Choices of each text, at least two; None in other tasks."""
    clusters: IntArray | None = None
    """(len,): number of the cluster of each row, of rows that belong together; None where rows are independent."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def sources(self) -> list[str] | None:
        """File name of each sample; None where all samples are from one file."""
        return None if self.file_index is None else [self.files[number] for number in self.file_index]

    def take(self, indices: IntArray, *, num_dropped: dict[str, int] | None = None) -> "Samples":
        """Return the samples at `indices`, in that order, with `num_dropped` (default: no dropped rows)."""

        def pick(values: Any) -> Any:
            if values is None or isinstance(values, np.ndarray):
                return None if values is None else values[indices]
            return [values[index] for index in indices]

        picked: dict[str, Any] = {name: pick(getattr(self, name)) for name in VALUES_OF_SAMPLES}
        return replace(self, **picked, num_dropped=num_dropped or {})

    def with_pseudo(self, pseudo: npt.NDArray[np.bool_]) -> "Samples":
        """Return the same samples with `pseudo`, (len,)."""
        return replace(self, pseudo=pseudo)


VALUES_OF_SAMPLES = (
    *("texts", "text_pairs", "labels", "ids", "rows", "groups", "pseudo", "file_index"),
    *("answers", "words", "tags", "choices", "negatives"),
)
"""Fields of `Samples` that have one value for each sample, or are None."""


def select(
    table: pa.Table,
    columns: Columns,
    task: Task,
    missing: Missing,
    *,
    source: str,
    group_by: str | None = None,
    require_labels: bool = True,
) -> Samples:
    """Return the samples of a table, from the columns that the configuration names.

    A text is missing when it is null, empty or white space; a text of joined columns, when one of them is. A label is
    missing when it is null, an empty string (except where a row may have no class) or, for classes, NaN.

    Args:
        table: From `read_table`.
        columns: Names of the columns.
        task: Gives the meaning of the labels.
        missing: Whether rows with missing values are an error, or are dropped and counted.
        source: Name of the table in messages.
        group_by: Column of groups; a split keeps the rows of a group together.
        require_labels: False, for prediction, does not read the label column.

    Raises:
        DataError: A column is absent or of the wrong type, a value is missing (`refuse`), a label is not in
            `task.labels`, a target is not a finite number, or no row is left.
    """
    assert columns.text is not None
    require_columns(table, columns, source, group_by, require_labels)
    texts = joined_texts(table, columns.text, columns.separator, source, "text", refuse_numbers=require_labels)
    pairs = None
    if columns.text_pair is not None:
        pairs = joined_texts(
            table, columns.text_pair, columns.separator, source, "text_pair", refuse_numbers=require_labels
        )
    negatives = None
    if columns.negative is not None:
        negatives = joined_texts(
            table, columns.negative, columns.separator, source, "negative", refuse_numbers=require_labels
        )
    raw_labels = table.column(columns.label).to_pylist() if require_labels and columns.label is not None else None

    lacks = {"text": [text is None for text in texts]}
    for key, column in (("text_pair", pairs), ("negative", negatives)):
        if column is not None:
            lacks[key] = [text is None for text in column]
    if raw_labels is not None:
        rule = {
            "nan_is_missing": isinstance(task, ClassTask),
            "blank_is_missing": not isinstance(task, MultiLabelTask),  # in this task, a row with no class
        }
        lacks["label"] = [is_missing(label, **rule) for label in raw_labels]
    rows, num_dropped = complete_rows(lacks, columns, missing, source)
    samples = unlabelled_samples(table, columns, texts, pairs, rows, num_dropped, source=source, group_by=group_by)
    if negatives is not None:
        samples = replace(samples, negatives=[negatives[row] or "" for row in rows])  # none of these is missing
    if raw_labels is None:
        return samples
    labels = encode([raw_labels[row] for row in rows], rows, task, f"{source}, column {columns.label}")
    return replace(samples, labels=labels)


def unlabelled_samples(
    table: pa.Table,
    columns: Columns,
    texts: Sequence[str | None],
    text_pairs: Sequence[str | None] | None,
    rows: Sequence[int],
    num_dropped: dict[str, int],
    *,
    source: str,
    group_by: str | None,
) -> Samples:
    """Return the samples of `rows` with ids and groups, without labels; no text of these rows is None."""
    every = Samples(
        texts=texts,  # type: ignore[arg-type]  # `take` leaves the rows out in which a text is None
        text_pairs=text_pairs,  # type: ignore[arg-type]
        labels=None,
        ids=None if columns.id is None else column_strings(table, columns.id),
        rows=np.arange(table.num_rows, dtype=np.int64),
        groups=None if group_by is None else group_values(table, group_by, source),
        num_dropped={},
    )
    return every.take(np.asarray(rows, dtype=np.int64), num_dropped=num_dropped)


def require_columns(table: pa.Table, columns: Columns, source: str, group_by: str | None, require_labels: bool) -> None:
    """Check that the table has each column that the configuration names, once.

    Raises:
        DataError: A column is absent or occurs twice; the message suggests similar names.
    """
    keys = ("text", "text_pair", "negative", "choices", "id")
    named = {key: getattr(columns, key) for key in keys}
    if require_labels:
        named |= {"label": columns.label, "answer_start": columns.answer_start}
    wanted = [
        (f"data.columns.{key}", name)
        for key, value in named.items()
        for name in (value if isinstance(value, list) else [value])
        if name is not None
    ]
    wanted += [] if group_by is None else [("data.split.group_by", group_by)]
    has = table.column_names
    absent = [f"{key} names {name}{did_you_mean(name, has)}" for key, name in wanted if name not in has]
    if absent:
        raise DataError(
            f"{source} lacks a column: {'; '.join(absent)} (it has: {listing(map(repr, has))})",
            code="data.column_missing",
            source=source,
        )
    counts = Counter(has)
    repeated = sorted({name for _, name in wanted if counts[name] > 1})
    if repeated:
        raise DataError(
            f"{source}: column {', '.join(repeated)} occurs more than once; rename one",
            code="data.column_twice",
            source=source,
            repeated=repeated,
        )


def joined_texts(
    table: pa.Table, names: str | list[str], separator: str, source: str, key: str, *, refuse_numbers: bool
) -> list[str | None]:
    """Return the texts of one column, or of several columns joined; None where a value is missing."""
    names = [names] if isinstance(names, str) else names
    if not names:
        raise DataError(
            f"data.columns.{key} is an empty list; name at least one column",
            code="data.column_missing",
            key=f"data.columns.{key}",
        )
    parts = [column_texts(table, name, source, key, refuse_numbers=refuse_numbers) for name in names]
    if len(parts) == 1:
        return parts[0]
    return [
        None if any(part is None for part in row) else separator.join(part for part in row if part is not None)
        for row in zip(*parts, strict=True)
    ]


def column_texts(table: pa.Table, name: str, source: str, key: str, *, refuse_numbers: bool) -> list[str | None]:
    """Return the texts of a column; None where a value is missing.

    Raises:
        DataError: The column has no texts or, with `refuse_numbers`, only numbers.
    """
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    values: list[Any] = column.to_pylist()
    if not any(is_text(kind) for is_text in _TEXT_TYPES):
        example = next((value for value in values if value is not None), None)
        raise DataError(
            f"{source}, column {name} (data.columns.{key}) contains {kind}, such as {str(example)[:40]}, not text",
            code="data.not_text",
            source=source,
            name=name,
            key=key,
            kind=kind,
        )
    if place := (table.schema.field(name).metadata or {}).get(NESTED_AT.encode()):
        raise DataError(
            f"{source}, {place.decode()}: column {name} (data.columns.{key}) contains an object or a list, not text",
            code="data.not_text",
            source=source,
            name=name,
            key=key,
        )
    texts = [None if value is None or not value.strip() else value for value in values]
    present = [text for text in texts if text is not None]
    if refuse_numbers and present and all(_is_float(text) for text in present):
        raise DataError(
            f"{source}, column {name} (data.columns.{key}) contains only numbers, such as {present[0][:40]!r}, "
            f"not text (columns: {listing(map(repr, table.column_names))})",
            code="data.not_text",
            source=source,
            name=name,
            key=key,
        )
    return texts


_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)


def lists_of_texts(table: pa.Table, name: str) -> list[list[str | None]] | None:
    """Return the values of a column of lists of texts, an empty list for null; None where it has other types."""
    kind = table.column(name).type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    has_texts = is_list and any(is_text(kind.value_type) for is_text in _TEXT_TYPES)
    if not (has_texts or pa.types.is_null(kind)):
        return None
    return [value or [] for value in table.column(name).to_pylist()]


def _is_float(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def complete_rows(
    lacks: Mapping[str, Sequence[bool]], columns: Columns, missing: Missing, source: str
) -> tuple[list[int], dict[str, int]]:
    """Return the complete rows, and the number of other rows by the first value that is missing.

    Args:
        lacks: By option of `data.columns`: whether each row lacks the value.
        columns: Names of the columns.
        missing: As for `select`.
        source: Name of the table in messages.

    Raises:
        DataError: A value is missing (`refuse`), or no row is left.
    """
    lacking: dict[str, list[int]] = {key: [] for key in lacks}
    kept_rows: list[int] = []
    num_rows = len(lacks["text"])
    for row in range(num_rows):
        key = next((key for key, is_lacking in lacks.items() if is_lacking[row]), None)
        (kept_rows if key is None else lacking[key]).append(row)
    missing_text = "; ".join(
        f"{key} (column {_column_text(getattr(columns, key))}) in {len(rows)} of {num_rows} rows: {first_rows(rows)}"
        for key, rows in lacking.items()
        if rows
    )
    if missing_text and missing == "refuse":
        raise DataError(
            f"{source}: values are missing: {missing_text}. Correct the file, or drop such rows (data.missing: drop)",
            code="data.value_missing",
            source=source,
        )
    if not kept_rows:
        raise DataError(f"{source}: no row is left; missing: {missing_text}", code="data.no_rows_left", source=source)
    return kept_rows, {key: len(rows) for key, rows in lacking.items() if rows}


def num_lacking(num_dropped: Mapping[str, int]) -> int:
    """Return the number of dropped rows that are an error with `data.missing: refuse`."""
    return sum(count for key, count in num_dropped.items() if key not in (HELD_OUT, NO_MASK))


def dropped_text(num_dropped: Mapping[str, int]) -> str:
    """Return the dropped rows by reason as text: "2 without label, 1 pseudo-labelled in a held-out group"."""
    reasons = {HELD_OUT: "pseudo-labelled in a held-out group"}
    return ", ".join(f"{count} {reasons.get(key, f'without {key}')}" for key, count in num_dropped.items())


def _column_text(names: str | list[str] | None) -> str:
    return " + ".join(names) if isinstance(names, list) else str(names)


def column_strings(table: pa.Table, name: str) -> list[str]:
    """Return the values of a column as text; the empty text for null."""
    return ["" if value is None else str(value) for value in table.column(name).to_pylist()]


def group_values(table: pa.Table, name: str, source: str) -> list[str]:
    """Return the values of the column `data.split.group_by` as text.

    Raises:
        DataError: A value is missing.
    """
    values = table.column(name).to_pylist()
    absent = [row for row, value in enumerate(values) if is_missing(value, nan_is_missing=True)]
    if absent:
        raise DataError(
            f"{source}, column {name} (data.split.group_by) is empty in {len(absent)} of {len(values)} rows: "
            f"{first_rows(absent)}; fill in a group for each row",
            code="data.value_missing",
            source=source,
            name=name,
            key="data.split.group_by",
        )
    return [str(value) for value in values]
