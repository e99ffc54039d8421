"""Finds the columns of a table that may be texts, pairs, choices, words with tags, or labels, for `config init`.

Imports no torch.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from typing import Any

import pyarrow as pa

from paratune.base.text import listing
from paratune.config.sections import named_columns
from paratune.data.columns import USUAL_LABELS, USUAL_TEXTS, is_name, lists_of_texts, values_with_names, with_paths
from paratune.data.json_tables import as_spans
from paratune.data.labels import as_number, is_missing, with_points, without_marks
from paratune.data.tables import FIRST_LINE, separator_of
from paratune.errors import DataError

ANSWERS = ("answers", "answer")
_PAIRS = (
    *(("premise", "hypothesis"), ("question", "sentence"), ("query", "passage"), ("query", "document")),
    *(("question", "passage"), ("claim", "evidence"), ("text", "text_pair"), ("anchor", "positive")),
    *(("question", "answer"), ("q", "a")),
)
_NUMBERED_PAIRS = (("1", "2"), ("0", "1"), ("a", "b"))  # parts of names that are otherwise the same, as text_a, text_b
_LISTS_OF_CHOICES = ("choices", "choices.text", "options", "options.text", "endings")  # usual names, in lower case
_NUMBERED_CHOICE = re.compile(r"(choice|option|ending|solution|answer|sol)[_ ]?[0-9a-e]", re.IGNORECASE)
_LETTERS = "abcdefgh"
_LONG_TEXT = 20  # mean characters from which texts with few different values are no names of classes


@dataclass(frozen=True)
class GuessTable:
    """A table, and the columns that the user named."""

    table: pa.Table
    source: str
    named: Mapping[str, str | list[str]]  # by `text`, `text_pair` and `label`; several columns as a list
    read: dict[str, list[Any]] = field(default_factory=dict)  # values of columns that were read

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    def has(self) -> str:
        """Return the columns and the parts of lists of objects, for messages; a name may be a text of the first row."""
        parts = [f"{name}.{part}" for name, parts in self.lists_of_objects().items() for part in parts]
        return listing((repr(name[:40]) for name in [*self.names, *parts]), width=200)

    def lists_of_objects(self) -> dict[str, list[str]]:
        """Return the columns with lists of objects, and the keys of the objects."""
        types = {field.name: getattr(field.type, "value_type", None) for field in self.table.schema}
        return {name: [part.name for part in kind] for name, kind in types.items() if kind and pa.types.is_struct(kind)}

    def lacks(self, what: str, advice: str, *, code: str = "data.column_missing", **facts: Any) -> DataError:
        return self.table_error(f" has no {what} (it has: {self.has()}); {advice}", code=code, **facts)

    def table_error(self, problem: str, *, code: str, **facts: Any) -> DataError:
        if FIRST_LINE in (self.table.schema.metadata or {}) and begins_with_row(self.table):
            problem += "; if line 1 is a row, add --set data.header=false"
        return DataError(f"{self.source}{problem}", code=code, source=self.source, **facts)

    def present(self, name: str) -> list[Any]:
        """Return the values of a column that are not missing."""
        if name not in self.read:
            self.read[name] = _without_clear_marks(present_values(values_with_names(self.table, name)))
        return self.read[name]


def _without_clear_marks(values: list[Any]) -> list[Any]:
    """Return values without marks such as n/a and -, where they are clearly no classes: among numbers, or rare."""
    numbers = present_values(without_marks(values, ()))
    if numbers and all(as_number(value) is not None for value in numbers):
        return numbers
    words = present_values(without_marks(values, ["na", "nan", "null", *(["-"] if "+" in values else [])]))
    return words if 10 * (len(values) - len(words)) <= len(values) else values


def with_parts(table: pa.Table, names: Sequence[str] = ()) -> pa.Table:
    """Return a table with the parts of objects but answers as columns, such as `review.body`, and parts in `names`."""

    def parts(name: str, kind: pa.DataType) -> list[str]:
        if not pa.types.is_struct(kind) or name.lower().rpartition(".")[2] in ANSWERS:
            return [name]
        return [part for inner in kind for part in parts(f"{name}.{inner.name}", inner.type)]

    paths = {field.name: parts(field.name, field.type) for field in table.schema}
    whole = with_paths(table, [*names, *chain(*paths.values())])
    return whole.drop_columns([name for name in paths if paths[name] != [name]])


def present_values(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if not is_missing(value, nan_is_missing=True)]


def begins_with_row(table: pa.Table) -> bool:
    """Return whether the first line of a file of fields, read as its header or not, is a row: without a name, or with
    a class."""
    head = FIRST_LINE in (table.schema.metadata or {})
    columns = [[*[name] * head, *table.column(name).to_pylist()] for name in table.column_names]
    rows = [
        (str(first).strip(), [text for value in below if (text := str(value).strip())]) for first, *below in columns
    ]
    counts = [(first, Counter(below)) for first, below in rows if is_few(len({*below}), len(below))]
    is_class = any(count[first] > 1 for first, count in counts)
    return separator_of(table) is not None and (is_class or not any(is_name(*row) for row in rows))


def choice_columns(data: GuessTable) -> str | list[str] | None:
    """Return the column with lists of choices, or the columns with a choice each; None where no names are usual."""
    by_name = {name.lower(): name for name in data.names}
    for usual in _LISTS_OF_CHOICES:
        if usual in by_name and lists_of_texts(data.table, by_name[usual]) is not None:
            return by_name[usual]
    numbered = [name for name in data.names if _NUMBERED_CHOICE.fullmatch(name)]
    letters = [by_name[letter] for letter in _LETTERS if letter in by_name]
    is_row = letters == [by_name.get(letter) for letter in _LETTERS[: len(letters)]]
    if len(numbered) > 1:
        return numbered
    return letters if len(letters) > 1 and is_row else None


def tagged_columns(data: GuessTable) -> tuple[str, str] | None:
    """Return a column of words with the column of their tags, or a column of texts with its spans of characters."""
    named, lists = [data.named.get(key) for key in ("text", "label")], dict[str, list[Any]]()
    for name in data.names:
        values = data.present(name)
        if values and all(isinstance(value, list) for value in values):
            lists[name] = values
    # Lists of lists are boxes or vectors, lists of objects with the keys of spans are spans.
    flat = [name for name, rows in lists.items() if all(isinstance(tag, str | int) for row in rows for tag in row)]
    for spans in [name for name, values in lists.items() if any(values) and named[1] in (None, name)]:
        if all(as_spans(value) is not None for value in lists[spans]) and (texts := text_lengths(data, {spans})):
            return str(named[0] or usual_or_longest(texts)[0]), spans
    words = [name for name in lists if lists_of_texts(data.table, name) is not None and named[0] in (None, name)]
    for text, tags in product(words, flat):
        lengths = [[*map(len, lists[name])] for name in (text, tags)]
        if text != tags and named[1] in (None, tags) and lengths[0] == lengths[1] and max(lengths[0]) > 1:
            kinds = [len({value for row in lists[name] for value in row}) for name in (text, tags)]
            if kinds[1] <= kinds[0]:  # there are not more tags than words
                return text, tags
    return None


def pair_columns(data: GuessTable, label: str | list[str] | None) -> tuple[str, str] | None:
    """Return two columns of texts: with usual names, or with the longest texts of those that differ in _1 and _2 and
    contain no other such name; in a file without names, two about equally long ones, if no other column has texts."""
    lengths = text_lengths(data, {*named_columns(label)})
    if len(lengths) == 2 and all(name.isdecimal() and not _has_codes(data, name) for name in lengths):
        first, second = lengths
        return (first, second) if 0.5 <= lengths[first] / lengths[second] <= 2 else None
    names = {name.lower(): name for name in lengths}
    usual = [pair for pair in _PAIRS if {*pair} <= {*names}]
    for (one, two), name in product(_NUMBERED_PAIRS, [] if usual else sorted(names, key=len)):
        for place in re.finditer(rf"(?<![^\W_{'a-z' * one.isdecimal()}]){one}(?![^\W_])", name):
            other = name[: place.start()] + two + name[place.end() :]
            is_longer = any(short != name and short in name for short, _ in usual)  # sentence1_parse, of sentence1
            usual += [(name, other)] if other in names and len(name) > 1 and not is_longer else []
    pairs = [(names[first], names[second]) for first, second in usual]
    return max(pairs, key=lambda pair: lengths[pair[0]] + lengths[pair[1]], default=None)


def text_lengths(data: GuessTable, others: set[str]) -> dict[str, float]:
    """Return the mean characters of each column of texts but `others`; a column of numbers has no texts, and codes are
    texts where there are no others."""
    lengths: dict[str, float] = {}
    for name in data.names:
        values = [] if name in others else data.present(name)
        is_text = all(isinstance(value, str) for value in values)
        if values and is_text and not all(as_number(value) is not None for value in values):
            lengths[name] = sum(map(len, values)) / len(values)
    return {name: length for name, length in lengths.items() if not _has_codes(data, name)} or lengths


def _has_codes(data: GuessTable, name: str) -> bool:
    """Return whether the texts of a column are codes, names or links without spaces, or of few short classes."""
    values, usual = data.present(name), name.lower()
    is_long = sum(map(len, values)) >= _LONG_TEXT * len(values) or usual in chain(USUAL_TEXTS, *_PAIRS)
    are_classes = is_few(len({*values}), len(values)) and (not is_long or name.isdecimal())
    first = values[:1000]
    # From Thai on, alphabets have texts without spaces.
    num_texts = sum(" " in value.strip() or max(value) >= "\u0e00" for value in first)
    return are_classes or (usual not in USUAL_TEXTS and 20 * num_texts < len(first))


def usual_or_longest(lengths: Mapping[str, float]) -> tuple[str, str]:
    """Return the column of the text and the reason: a usual name, or the longest values."""
    for usual in USUAL_TEXTS:
        if name := next((name for name in lengths if name.lower() == usual), None):
            return name, "a usual name"
    return max(lengths, key=lambda name: lengths[name]), "it has the longest texts"


def label_candidates(data: GuessTable, without: Sequence[str | list[str]] = ()) -> dict[str, list[str]]:
    """Return the columns that may be the label with their values: of usual names, else of few values, else numbers."""
    taken = {*data.lists_of_objects(), *chain(*map(named_columns, (*without, *data.named.values())))}
    values = {name: [*map(str, data.present(name))] for name in data.names if name not in taken}
    usual = [name for usual in USUAL_LABELS for name in values if name.lower() == usual]
    few = [name for name, texts in values.items() if is_few(len(set(texts)), len(texts))]
    read = {name: [*map(as_number, with_points(texts, separator_of(data.table)))] for name, texts in values.items()}
    # Numbers with fractions: ids are whole.
    scores = [name for name, row in read.items() if None not in row and any(value % 1 for value in row if value)]
    return {name: sorted(set(values[name])) for name in dict.fromkeys([*usual, *few, *scores])}


def is_few(num_values: int, num_rows: int) -> bool:
    """Return whether a column with these different values in these rows may have classes."""
    return 2 <= num_values <= max(2, num_rows // 10)
