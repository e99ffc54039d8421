"""Turns a table into samples: takes texts, labels, ids and groups from the columns that the configuration names.

Imports no torch.
"""

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.base.text import listing
from paratune.config.sections import Columns, named_columns
from paratune.data.json_tables import NESTED_AT, column_of
from paratune.data.labels import as_number, first_rows, is_missing
from paratune.data.tables import FIRST_LINE
from paratune.errors import DataError, coded, did_you_mean

log = logging.getLogger(__name__)

USUAL_LABELS = (
    *("label", "labels", "target", "class", "category", "categories", "sentiment", "intent", "topic", "topics"),
    *("tags", "score", "rating", "stars", "grade", "gold_label", "y"),
)
USUAL_TEXTS = ("text", "sentence", "review", "content", "document", "tweet")
"""Usual names of columns, in lower case."""
_DIFFERING_SHARE = 0.95
"""A name differs from its column where this share of the values is of another kind: some texts have a single word."""
Missing = Literal["refuse", "drop"]
IntArray = npt.NDArray[np.int64]
HELD_OUT = "pseudo_of_held_out_group"
NO_MASK = "mask"
DUPLICATE = "duplicate"
ALWAYS_DROPPED = (HELD_OUT, NO_MASK, DUPLICATE)
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


class UnreadTexts(Sequence[str]):
    """The texts of rows that were read as tokens: their number, and no text."""

    def __init__(self, source: str, num_rows: int) -> None:
        """Keep the number of texts, and the name of the tokens for messages."""
        self._source, self._num_rows = source, num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, place: Any) -> Any:
        message = f"{self._source} has tokens and no texts, which this needs; name a file with the texts instead"
        raise DataError(message, code="data.only_tokens", source=self._source)


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
    """Texts that are not related to the first ones, for triplets of sentence embeddings."""
    choices: list[tuple[str, ...]] | None = None
    """Choices of each text, at least two; None in other tasks."""
    ratings: npt.NDArray[np.float32] | None = None
    """(len, R): the score of each rater, NaN where a rater did not rate; None without `task.raters`."""
    clusters: IntArray | None = None
    """(len,): number of the cluster of each row, of rows that belong together; None where rows are independent."""

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def has_texts(self) -> bool:
        """Whether the texts were read; of rows that were read as tokens only their number is known."""
        return isinstance(self.texts, list)

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


VALUES_OF_SAMPLES = (
    *("texts", "text_pairs", "labels", "ids", "rows", "groups", "pseudo", "file_index"),
    *("answers", "words", "tags", "choices", "negatives", "ratings"),
)
"""Fields of `Samples` that have one value for each sample, or are None."""


@dataclass(frozen=True, eq=False)
class TableReader:
    """A table, and how its columns become samples; it has each column that the configuration names, once."""

    table: pa.Table
    columns: Columns
    missing: Missing
    """Whether rows with missing values are an error, or are dropped and counted."""
    source: str
    """Name of the table in messages."""
    group_by: str | None = None
    """Column of groups; a split keeps the rows of a group together."""
    require_labels: bool = True
    """False, for prediction, does not read labels."""

    def __post_init__(self) -> None:
        """Check the columns.

        Raises:
            DataError: A column is absent or occurs twice, or the file has no header.
        """
        keys = ["text", "text_pair", "negative", "choices", "id", *["label", "answer_start"] * self.require_labels]
        wanted = [(f"data.columns.{key}", name) for key in keys for name in named_columns(getattr(self.columns, key))]
        wanted += [] if self.group_by is None else [("data.split.group_by", self.group_by)]
        object.__setattr__(self, "table", with_paths(self.table, [name for _, name in wanted]))
        has = self.table.column_names
        if absent := [f"{key} names {name}{did_you_mean(name, has)}" for key, name in wanted if name not in has]:
            message = f"{self.source} lacks a column: {'; '.join(absent)} (it has: {listing(map(repr, has))})"
            message += "; data.columns.id: null numbers the rows" if self.columns.id not in (None, *has) else ""
            if FIRST_LINE in (self.table.schema.metadata or {}):
                message += "; if line 1 is a row, set data.header: false and name columns by number: {text: 1}"
            raise DataError(message, code="data.column_missing", source=self.source)
        if repeated := sorted({name for _, name in wanted if has.count(name) > 1}):
            message = f"{self.source}: column {', '.join(repeated)} occurs more than once; rename one"
            raise DataError(message, code="data.column_twice", source=self.source, repeated=repeated)
        label = self.columns.label
        if isinstance(label, str) and label in has:  # also where labels are not read: a row would be lost
            check_header(self.table, label, self.source)

    def texts(self, key: str, *, refuse_numbers: bool | None = None) -> list[str | None] | None:
        """Return the texts of an option of `data.columns`, of several columns joined; None where it names none.

        A text is None where it is missing: null, empty or white space; a text of joined columns, when one of them is.
        `refuse_numbers`, an error for a column of numbers, is `require_labels` where it is None.

        Raises:
            DataError: A column has no texts, or the option is an empty list.
        """
        option = getattr(self.columns, key)
        if option is None:
            return None
        if not (names := named_columns(option)):
            message = f"data.columns.{key} is an empty list; name at least one column"
            raise DataError(message, code="data.column_missing", key=f"data.columns.{key}")
        refuses = self.require_labels if refuse_numbers is None else refuse_numbers
        parts = [self.column_texts(name, key, refuse_numbers=refuses) for name in names]
        if len(parts) == 1:
            return parts[0]
        return [
            None if None in row else self.columns.separator.join(part for part in row if part is not None)
            for row in zip(*parts, strict=True)
        ]

    def column_texts(self, name: str, key: str, *, refuse_numbers: bool) -> list[str | None]:
        """Return the texts of a column; None where a value is missing. Errors as in `texts`."""
        column = self.table.column(name)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        values: list[Any] = column.to_pylist()
        option = f"data.columns.{key}"
        if not any(is_text(column.type) for is_text in _TEXT_TYPES):
            example = next((value for value in values if value is not None), None)
            content = f"contains {column.type}, such as {str(example)[:40]}, not text"
            raise self._wrong_column(name, option, content, code="data.wrong_type", kind=column.type)
        if place := (self.table.schema.field(name).metadata or {}).get(NESTED_AT.encode()):
            content, row = "contains an object or a list, not text", f"{place.decode()}: "
            raise self._wrong_column(name, option, content, code="data.wrong_type", row=row)
        texts = [None if value is None or not value.strip() else value for value in values]
        present = [text for text in texts if text is not None]
        if refuse_numbers and present and all(as_number(text) is not None for text in present):
            has = f"(columns: {listing(map(repr, self.table.column_names))})"
            content = f"contains only numbers, such as {present[0][:40]!r}, not text {has}"
            raise self._wrong_column(name, option, content, code="data.wrong_type")
        return texts

    def _wrong_column(self, name: str, key: str, content: str, *, code: str, row: str = "", **facts: Any) -> DataError:
        place = f"{self.source}, {row}column {name} ({key})"
        return DataError(f"{place} {content}", code=code, source=self.source, name=name, key=key, **facts)

    def lists(self, name: str, key: str, *, advice: str) -> list[list[Any]]:
        """Return the values of a column of lists of texts, an empty list for null; else an error with `advice`."""
        lists = lists_of_texts(self.table, name)
        if lists is None:
            content = f"contains {self.table.column(name).type}; {advice}"
            raise self._wrong_column(name, f"data.columns.{key}", content, code="data.wrong_type")
        return lists

    def labels(self, values: Iterable[object] = ()) -> list[Any] | None:
        """Return the values of the label column, or the names of the columns with 1; None where they are not read.

        `values` are those of the task: numbers with names (`values_with_names`) become names where they are among them.

        Raises:
            DataError: One of several columns has another value than 0 and 1.
        """
        if not self.require_labels or self.columns.label is None:
            return None
        if isinstance(self.columns.label, str):
            return values_with_names(self.table, self.columns.label, values)
        rows: list[Any] = [[] for _ in range(self.table.num_rows)]
        for name in self.columns.label:
            for row, value in enumerate(self.table.column(name).to_pylist()):
                flag = None if is_missing(value, nan_is_missing=True) else str(value).strip().lower().removesuffix(".0")
                if flag not in (None, "0", "1", "false", "true"):
                    content = f"contains {str(value)[:40]!r}; a column for one label has 0 and 1"
                    place = f"row {row}: "
                    raise self._wrong_column(name, "data.columns.label", content, code="data.label_unfit", row=place)
                if flag is None:
                    rows[row] = None
                elif flag in ("1", "true") and rows[row] is not None:
                    rows[row].append(name)
        return rows

    @property
    def label_place(self) -> str:
        """File and column of the labels, for messages."""
        return f"{self.source}, column {listing(named_columns(self.columns.label))}"

    def complete_rows(
        self, lacks: Mapping[str, Sequence[bool]], *, rule: str = "values are missing"
    ) -> tuple[list[int], dict[str, int]]:
        """Return the complete rows, and the number of other rows by the first value that is missing.

        `lacks` has, by option of `data.columns`, whether each row lacks the value; `rule` is what is wrong with it.

        Raises:
            DataError: A value is missing (`refuse`), or no row is left.
        """
        problems = [
            next((key for key, lacking in zip(lacks, row, strict=True) if lacking), None)
            for row in zip(*lacks.values(), strict=True)
        ]

        def describe(key: str, rows: list[int]) -> str:
            column = " + ".join(named_columns(getattr(self.columns, key)))
            return f"{key} (column {column}) in {len(rows)} of {len(problems)} rows: {first_rows(rows)}"

        return usable_rows(
            problems, range(len(problems)), describe, self.missing, self.source, rule=rule, code="data.value_missing"
        )

    def samples(
        self, texts: Sequence[Any], text_pairs: Sequence[Any] | None, rows: Sequence[int], num_dropped: dict[str, int]
    ) -> Samples:
        """Return the samples of `rows` with ids and groups, without labels; no text of these rows is None."""
        ids = None if self.columns.id is None else column_strings(self.table, self.columns.id)
        numbers = np.arange(self.table.num_rows, dtype=np.int64)
        pairs = None if text_pairs is None else list(text_pairs)
        every = Samples(list(texts), pairs, None, ids, numbers, self._groups(), {})
        return every.take(np.asarray(rows, dtype=np.int64), num_dropped=num_dropped)

    def _groups(self) -> list[str] | None:
        if self.group_by is None:
            return None
        values = self.table.column(self.group_by).to_pylist()
        if absent := [row for row, value in enumerate(values) if is_missing(value, nan_is_missing=True)]:
            content = (
                f"is empty in {len(absent)} of {len(values)} rows: {first_rows(absent)}; fill in a group for each row"
            )
            raise self._wrong_column(self.group_by, "data.split.group_by", content, code="data.value_missing")
        return [str(value) for value in values]


def usable_rows(
    problems: Sequence[str | None],
    rows: Sequence[int],
    describe: Callable[[str, list[int]], str],
    missing: Missing,
    source: str,
    *,
    rule: str,
    code: str,
) -> tuple[list[int], dict[str, int]]:
    """Return the indices of rows without a problem (None), and the number of other rows by problem.

    `rows` has the number of each row in the file. `describe` makes a text of a problem and the rows that have it;
    `rule` and `code` are the heading and the code of the error, where a row has a problem (`refuse`) or none is left.
    """
    by_problem: dict[str, list[int]] = {}
    for problem, row in zip(problems, rows, strict=True):
        if problem is not None:
            by_problem.setdefault(problem, []).append(row)
    described = "; ".join(describe(problem, of_problem) for problem, of_problem in by_problem.items())
    if by_problem and missing == "refuse":
        message = f"{source}: {rule}: {described}. Correct the file, or drop such rows (data.missing: drop)"
        raise DataError(message, code=code, source=source)
    usable = [index for index, problem in enumerate(problems) if problem is None]
    if not usable:
        message = f"{source}: no row is left; {rule}: {described}"
        raise DataError(message, code="data.empty", source=source)
    return usable, {problem: len(of_problem) for problem, of_problem in by_problem.items()}


_TEXT_TYPES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_null)


def lists_of_texts(table: pa.Table, name: str) -> list[list[str | None]] | None:
    """Return the values of a column of lists of texts, an empty list for null; None where it has other types."""
    kind = table.column(name).type
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    if pa.types.is_null(kind) or (is_list and any(is_text(kind.value_type) for is_text in _TEXT_TYPES)):
        return [value or [] for value in table.column(name).to_pylist()]
    return None


def with_paths(table: pa.Table, names: Iterable[str]) -> pa.Table:
    """Return a table in which the parts of objects among `names`, such as `review.body`, are columns."""
    for name in names:
        if name not in table.column_names and (values := at_path(table, name)) is not None:
            table = table.append_column(name, values)
    return table


def at_path(table: pa.Table, path: str) -> pa.Array | None:
    """Return the values of a part of objects, such as `review.body`, of lists of objects as lists; None without it."""
    name, *keys = path.split(".")
    if not keys or table.column_names.count(name) != 1:
        return None
    values: list[Any] = table.column(name).to_pylist()
    if NESTED_AT.encode() in (table.schema.field(name).metadata or {}):  # texts, and objects as JSON
        for row, value in enumerate(values):
            with suppress(ValueError, TypeError):
                values[row] = json.loads(value)
    has_part = False

    def part(value: Any, key: str) -> Any:
        nonlocal has_part
        if isinstance(value, list):
            return [part(item, key) for item in value]
        is_object = isinstance(value, dict)
        has_part = has_part or (is_object and key in value)
        return value.get(key) if is_object else None

    for key in keys:
        has_part = False
        values = [part(value, key) for value in values]
    return column_of(values, path) if has_part else None


def values_with_names(table: pa.Table, name: str, known: Iterable[object] | None = None) -> list[Any]:
    """Return the values of a column; numbers that have names (ClassLabel of `datasets`) as names, -1 as None.

    They stay numbers where none of the names is among `known`, which are all values where it is None.
    """
    values: list[Any] = table.column(name).to_pylist()
    try:
        feature = json.loads((table.schema.metadata or {})[b"huggingface"])["info"]["features"][name]
        while "names" not in feature:
            feature = feature[0] if isinstance(feature, list) else feature["feature"]  # of a list
        names = list(feature["names"])
    except (LookupError, TypeError, ValueError):
        return values
    if known is not None and set(map(str, known)).isdisjoint(names):
        return values

    def named(value: Any) -> Any:
        if isinstance(value, list):
            return [named(item) for item in value]
        if isinstance(value, str):
            return value
        return names[value] if isinstance(value, int) and 0 <= value < len(names) else None

    return [named(value) for value in values]


def dropped_text(num_dropped: Mapping[str, int]) -> str:
    """Return the dropped rows by reason as text: "2 without label, 1 pseudo-labelled in a held-out group"."""
    reasons = {HELD_OUT: "pseudo-labelled in a held-out group", DUPLICATE: "with a text of other rows"}
    return ", ".join(f"{count} {reasons.get(key, f'without {key}')}" for key, count in num_dropped.items())


def column_strings(table: pa.Table, name: str) -> list[str]:
    """Return the values of a column as text; the empty text for null."""
    return ["" if value is None else str(value) for value in table.column(name).to_pylist()]


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
    has_names = any(is_name(name, _present(table, name)) for name in table.column_names if name != label)
    if not is_label and (has_names or label.strip() not in counts):
        return
    named = [name for name in table.column_names if name]
    if has_names and named == [str(number) for number in range(len(named))]:
        return  # 0, 1, 2, ...: pandas writes columns without names so, with or without its index
    found = f"{source}, line 1: {label[:40]!r}, the name of the label column, looks like a label"
    remedy = "line 1 is a row, set data.header: false and name columns by number, else rename the label column"
    facts: dict[str, Any] = {"source": source, "name": label}
    if is_label and not has_names:
        columns = f"(columns: {listing([name[:40] for name in table.column_names])})"
        raise DataError(f"{found} of the rows below it {columns}; if {remedy}", code="data.no_header", **facts)
    log.warning("%s; if %s", found, remedy, extra=coded("data.no_header", **facts))


def _present(table: pa.Table, name: str) -> list[str]:
    return [text for value in table.column(name).to_pylist() if value is not None and (text := str(value).strip())]


def is_name(name: str, values: Sequence[str]) -> bool:
    """Return whether the entry of a column in the first line can be told from the values below it, without blanks."""
    if not name.strip():
        return False
    if name.lower() in USUAL_TEXTS:
        return True
    kind = _kind(name)
    return bool(values) and sum(_kind(value) != kind for value in values) >= _DIFFERING_SHARE * len(values)


def _kind(value: str) -> str:
    return "number" if as_number(value) is not None else "texts" if len(value.split()) > 1 else "word"
