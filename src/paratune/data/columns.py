"""From a table to samples: which columns are the texts, the label, the id; nothing is guessed.

Floor 3, without torch.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeVar

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
Value = TypeVar("Value")
HELD_OUT = "pseudo_of_held_out_group"
NO_MASK = "mask"
"""In `Samples.num_dropped`: rows that are left out whatever `data.missing` says."""
LabelArray = npt.NDArray[np.int64] | npt.NDArray[np.float32]


class AnswerSpan(NamedTuple):
    """A passage of a context that answers a question."""

    text: str
    start: int
    """Character of the context at which it begins, from 0."""

    @property
    def end(self) -> int:
        """The character behind it."""
        return self.start + len(self.text)


@dataclass(frozen=True, eq=False)
class Samples:
    """Texts and what is known of them, in the order of the file."""

    texts: list[str]
    """First texts."""
    text_pairs: list[str] | None
    """Second texts; None where the task has single texts."""
    labels: LabelArray | None
    """(len,): int64 class ids or float32 targets; (len, C) float32 where a row may have several classes; None when they
    were not asked for."""
    ids: list[str] | None
    """Values of `columns.id`; None when it is not given."""
    rows: IntArray
    """(len,): row of the source that each sample is from, counted from 0 without the header."""
    groups: list[str] | None
    """Values of `split.group_by`; None when it is not given."""
    num_dropped: dict[str, int]
    """Rows that were left out, by what they lacked: text, text_pair or label, or what a task needs besides; and
    those of `HELD_OUT`, which lack nothing."""
    pseudo: npt.NDArray[np.bool_] | None = None
    """(len,): whether a model gave the label (`paratune pseudo-label`); None where that was not looked at."""
    file_of: IntArray | None = None
    """(len,): which of `files` each sample is from; None where all are from one."""
    files: tuple[str, ...] = ()
    """Names of the files, where there are several; rows are counted in each from 0."""
    answers: list[tuple[AnswerSpan, ...]] | None = None
    """The gold answers of each question; none where it has no answer. None in other tasks, and when not asked for."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def sources(self) -> list[str] | None:
        """Name of each sample's file; None where all are from one."""
        return None if self.file_of is None else [self.files[number] for number in self.file_of]

    def take(self, indices: IntArray, *, num_dropped: dict[str, int] | None = None) -> "Samples":
        """Return the samples at `indices`, in that order, with dropped rows counted as `num_dropped` says (none)."""

        def pick(values: list[Value] | None) -> list[Value] | None:
            return None if values is None else [values[index] for index in indices]

        texts = pick(self.texts)
        assert texts is not None
        labels = None if self.labels is None else self.labels[indices]
        return Samples(
            texts,
            pick(self.text_pairs),
            labels,
            pick(self.ids),
            self.rows[indices],
            pick(self.groups),
            num_dropped or {},
            None if self.pseudo is None else self.pseudo[indices],
            None if self.file_of is None else self.file_of[indices],
            self.files,
            pick(self.answers),
        )

    def marked(self, pseudo: npt.NDArray[np.bool_]) -> "Samples":
        """Return the same samples, told whether a model gave the label of each, (len,)."""
        return replace(self, pseudo=pseudo)


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
    """Take from a table what the configuration names.

    A text is missing when it is null, empty or white space; of joined columns, when one of them is. A label is missing
    when it is null, an empty string (but where a row may have no class) or, for classes, NaN.

    Args:
        table: From `read_table`.
        columns: The mapping.
        task: Says what labels mean.
        missing: Whether rows with something missing are an error or are dropped and counted.
        source: Name of the table in messages.
        group_by: Column whose values say what belongs together in a split.
        require_labels: False leaves the label column alone, for prediction.

    Raises:
        DataError: A column is absent or of the wrong type, something is missing (`refuse`), a label is not one of
            the task's, a target is not a finite number, or no row is left.
    """
    assert columns.text is not None
    require_columns(table, columns, source, group_by, require_labels)
    texts = joined_texts(table, columns.text, columns.separator, source, "text", refuse_numbers=require_labels)
    pairs = None
    if columns.text_pair is not None:
        pairs = joined_texts(
            table, columns.text_pair, columns.separator, source, "text_pair", refuse_numbers=require_labels
        )
    raw_labels = table.column(columns.label).to_pylist() if require_labels and columns.label is not None else None

    kept, num_dropped = _without_missing(texts, pairs, raw_labels, task, columns, missing, source)
    labels: LabelArray | None = None
    if raw_labels is not None:
        known = [raw_labels[row] for row in kept]
        labels = encode(known, kept, task, f"{source}, column {columns.label}")
    every = Samples(
        texts=texts,  # type: ignore[arg-type]  # the missing ones go with `take`
        text_pairs=pairs,  # type: ignore[arg-type]
        labels=None,
        ids=None if columns.id is None else as_strings(table, columns.id),
        rows=np.arange(table.num_rows, dtype=np.int64),
        groups=None if group_by is None else groups_of(table, group_by, source),
        num_dropped={},
    )
    some = every.take(np.asarray(kept, dtype=np.int64))
    return Samples(some.texts, some.text_pairs, labels, some.ids, some.rows, some.groups, num_dropped)


def require_columns(table: pa.Table, columns: Columns, source: str, group_by: str | None, require_labels: bool) -> None:
    """Look whether the columns that are named are there, once each.

    Raises:
        DataError: They are not; the text has what may have been meant.
    """
    named = {"text": columns.text, "text_pair": columns.text_pair, "id": columns.id}
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
    """Return the texts of a column or of several joined ones; None where one is missing."""
    names = [names] if isinstance(names, str) else names
    if not names:
        raise DataError(
            f"data.columns.{key} is an empty list; name at least one column",
            code="data.column_missing",
            key=f"data.columns.{key}",
        )
    parts = [_texts(table, name, source, key, refuse_numbers=refuse_numbers) for name in names]
    if len(parts) == 1:
        return parts[0]
    return [
        None if any(part is None for part in row) else separator.join(part for part in row if part is not None)
        for row in zip(*parts, strict=True)
    ]


def _texts(table: pa.Table, name: str, source: str, key: str, *, refuse_numbers: bool) -> list[str | None]:
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    values: list[Any] = column.to_pylist()
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or _is_view(kind) or pa.types.is_null(kind)):
        example = next((value for value in values if value is not None), None)
        raise DataError(
            f"{source}, column {name} (data.columns.{key}) holds {kind}, such as {str(example)[:40]}, and not text",
            code="data.not_text",
            source=source,
            name=name,
            key=key,
            kind=kind,
        )
    if place := (table.schema.field(name).metadata or {}).get(NESTED_AT.encode()):
        raise DataError(
            f"{source}, {place.decode()}: column {name} (data.columns.{key}) holds an object or a list, and not text",
            code="data.not_text",
            source=source,
            name=name,
            key=key,
        )
    texts = [None if value is None or not value.strip() else value for value in values]
    present = [text for text in texts if text is not None]
    if refuse_numbers and present and all(map(_is_number, present)):
        raise DataError(
            f"{source}, column {name} (data.columns.{key}) holds nothing but numbers, such as {present[0][:40]!r}, "
            f"and not text (columns: {listing(map(repr, table.column_names))})",
            code="data.not_text",
            source=source,
            name=name,
            key=key,
        )
    return texts


def _is_view(kind: Any) -> bool:
    return bool(pa.types.is_string_view(kind))


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _without_missing(
    texts: Sequence[str | None],
    pairs: Sequence[str | None] | None,
    labels: Sequence[Any] | None,
    task: Task,
    columns: Columns,
    missing: Missing,
    source: str,
) -> tuple[list[int], dict[str, int]]:
    """Return the rows that are whole, and the number of the others by what they lack first."""
    rule = {
        "nan_is_missing": isinstance(task, ClassTask),
        "blank_is_missing": not isinstance(task, MultiLabelTask),  # a row without any label
    }
    lacking: dict[str, list[int]] = {"text": [], "text_pair": [], "label": []}
    kept = []
    for row, text in enumerate(texts):
        if text is None:
            lacking["text"].append(row)
        elif pairs is not None and pairs[row] is None:
            lacking["text_pair"].append(row)
        elif labels is not None and is_missing(labels[row], **rule):
            lacking["label"].append(row)
        else:
            kept.append(row)
    names = {"text": columns.text, "text_pair": columns.text_pair, "label": columns.label}
    found = "; ".join(
        f"{key} (column {_listed(names[key])}) in {len(rows)} of {len(texts)} rows: {first_rows(rows)}"
        for key, rows in lacking.items()
        if rows
    )
    if found and missing == "refuse":
        raise DataError(
            f"{source}: something is missing: {found}. Mend the file, or leave such rows out with data.missing: drop",
            code="data.value_missing",
            source=source,
        )
    if not kept:
        raise DataError(f"{source}: no row is left; missing are {found}", code="data.no_rows_left", source=source)
    return kept, {key: len(rows) for key, rows in lacking.items() if rows}


def num_lacking(num_dropped: Mapping[str, int]) -> int:
    """Return how many of the rows that were left out are an error with `data.missing: refuse`."""
    return sum(count for key, count in num_dropped.items() if key not in (HELD_OUT, NO_MASK))


def dropped_text(num_dropped: Mapping[str, int]) -> str:
    """Return how many rows were left out and why: "2 without label, 1 pseudo-labelled of a group that is held out"."""
    said = {HELD_OUT: "pseudo-labelled of a group that is held out"}
    return ", ".join(f"{count} {said.get(key, f'without {key}')}" for key, count in num_dropped.items())


def _listed(names: str | list[str] | None) -> str:
    return " + ".join(names) if isinstance(names, list) else str(names)


def as_strings(table: pa.Table, name: str) -> list[str]:
    """Return the values of a column as text, empty where they are null."""
    return ["" if value is None else str(value) for value in table.column(name).to_pylist()]


def groups_of(table: pa.Table, name: str, source: str) -> list[str]:
    """Return the values of the column `data.split.group_by` as text.

    Raises:
        DataError: One is missing.
    """
    values = table.column(name).to_pylist()
    absent = [row for row, value in enumerate(values) if is_missing(value, nan_is_missing=True)]
    if absent:
        raise DataError(
            f"{source}, column {name} (data.split.group_by) is empty in {len(absent)} of {len(values)} rows: "
            f"{first_rows(absent)}; a row without a group cannot be kept together with its like",
            code="data.value_missing",
            source=source,
            name=name,
            key="data.split.group_by",
        )
    return [str(value) for value in values]
