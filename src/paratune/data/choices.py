"""Reads questions with choices from a table, and tokenizes each choice with its question.

Imports no torch. Dimensions: `N` questions, `Q` choices of all questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any, Final, Literal, get_args

import numpy as np

from paratune.base.text import listing
from paratune.config.sections import Columns
from paratune.config.task_sections import MultipleChoiceTask
from paratune.data.columns import IntArray, Samples, TableReader
from paratune.data.labels import first_rows, is_missing
from paratune.data.token_store import TokenStore
from paratune.data.tokens import TokenizeOptions, tokenize
from paratune.errors import DataError

LabelFormat = Literal["index", "number", "letter", "name", "text"]
_FORMATS: Final[tuple[LabelFormat, ...]] = get_args(LabelFormat)
Choices = Sequence[str]
MIN_CHOICES: Final = 2


def select_choices(reader: TableReader, task: MultipleChoiceTask) -> tuple[Samples, LabelFormat | None]:
    """Return the questions of a table with their choices, and the place of the right choice as label; and its format.

    `text_pairs` have the texts in front of the choices, with the separator at their end. `columns.choices` are several
    columns, or one column with lists. The last columns may be empty, so that a row has fewer choices. A row with fewer
    than two choices, or with an empty choice before another one, lacks choices. A format of labels that the task does
    not give is found by `_Labels.find_format`.

    Raises:
        DataError: A column is of the wrong type, a value is missing (`refuse`), a label is not one of the choices of
            its row, or no row is left.
    """
    texts, pairs = reader.texts("text"), reader.texts("text_pair", refuse_numbers=False)
    assert texts is not None
    choices, raw_labels = _read_choices(reader), reader.labels()
    lacks = {"text": [text is None for text in texts]}
    if pairs is not None:
        lacks["text_pair"] = [pair is None for pair in pairs]
    lacks["choices"] = [row_choices is None for row_choices in choices]
    if raw_labels is not None:
        lacks["label"] = [is_missing(label, nan_is_missing=True) for label in raw_labels]
    rows, num_dropped = reader.complete_rows(lacks)
    samples = reader.samples(texts, pairs, rows, num_dropped)
    if samples.text_pairs is not None:
        samples = replace(samples, text_pairs=[text + reader.columns.separator for text in samples.text_pairs])
    kept = [row_choices for row_choices in (choices[row] for row in rows) if row_choices is not None]
    samples = replace(samples, choices=kept)
    if raw_labels is None:
        return samples, task.label_format
    values = [raw_labels[row] for row in rows]
    labels = _Labels(values, kept, choice_names(reader.columns), rows, reader.label_place)
    how = task.label_format or labels.find_format()
    return replace(samples, labels=labels.places(how)), how


def choice_names(columns: Columns) -> list[str] | None:
    """Return the names of the columns of choices; None where one column has lists."""
    return columns.choices if isinstance(columns.choices, list) else None


def _read_choices(reader: TableReader) -> list[tuple[str, ...] | None]:
    """Return the choices of each row; None where a row lacks choices."""
    names = reader.columns.choices
    assert names is not None
    if isinstance(names, str):
        advice = (
            "name several columns with a choice each ([a, b, c, d]), or one column with lists of texts, as in JSON "
            'lines {"choices": ["yes", "no"]}'
        )
        rows = reader.lists(names, "choices", advice=advice)
        return [_known_choices(row) for row in rows]
    parts = [reader.column_texts(name, "choices", refuse_numbers=False) for name in names]
    return [_known_choices(row) for row in zip(*parts, strict=True)]


def _known_choices(values: Sequence[str | None]) -> tuple[str, ...] | None:
    is_known = [value is not None and bool(value.strip()) for value in values]
    count = sum(is_known)
    if count < MIN_CHOICES or not all(is_known[:count]):
        return None
    return tuple(str(value) for value in values[:count])


def _index(value: Any) -> int | None:
    """Return a label as a whole number; None for other values."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    text = str(value).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _place(value: Any, choices: Choices, names: Choices | None, how: LabelFormat) -> int | None:
    """Return the place of the right choice of a row; None where the label has another format. It may be too large."""
    text = str(value)
    if how in ("index", "number"):
        number = _index(value)
        return None if number is None else number - (how == "number")
    if how == "name":
        return None if names is None or text not in names else names.index(text)
    text = text.strip()
    if how == "letter":
        text = text.upper()  # of some single characters several letters
        return ascii_uppercase.index(text) if len(text) == 1 and text in ascii_uppercase else None
    stripped = [choice.strip() for choice in choices]
    return stripped.index(text) if stripped.count(text) == 1 else None


@dataclass(frozen=True)
class _Labels:
    """The labels of questions, none missing, in a format that may be unknown."""

    values: Sequence[Any]
    choices: Sequence[Choices]
    """Choices of each row."""
    names: Choices | None
    """Names of the columns of choices, if there are several."""
    rows: Sequence[int]
    """Row of each label, for messages."""
    where: str
    """File and column, for messages."""

    def find_format(self) -> LabelFormat:
        """Return the format that fits all labels.

        Raises:
            DataError: No format fits all labels, or several do and give different places.
        """
        by_format = {how: self._places(how) for how in _FORMATS}
        fitting = {how: places for how, places in by_format.items() if None not in places}
        if not fitting:
            raise self._unknown(max(by_format, key=lambda how: sum(place is not None for place in by_format[how])))
        first, places = next(iter(fitting.items()))
        if others := [how for how, other in fitting.items() if other != places]:
            raise DataError(
                f"{self.where}: the labels, such as {str(self.values[0])[:40]!r}, can be read in several ways "
                f"({listing([first, *others])}); set task.label_format to the right one",
                code="data.choice_label",
                formats=[first, *others],
                key="task.label_format",
            )
        return first

    def places(self, how: LabelFormat) -> IntArray:
        """Return the place of each right choice, (N,).

        Raises:
            DataError: A label is not one of the choices of its row.
        """
        places = self._places(how)
        if None in places:
            raise self._unknown(how)
        return np.asarray(places, dtype=np.int64)

    def _places(self, how: LabelFormat) -> list[int | None]:
        places: list[int | None] = []
        for label, choices in zip(self.values, self.choices, strict=True):
            place = _place(label, choices, self.names, how)
            places.append(place if place is not None and 0 <= place < len(choices) else None)
        return places

    def _unknown(self, how: LabelFormat) -> DataError:
        wrong = [number for number, place in enumerate(self._places(how)) if place is None]
        first, rows = wrong[0], [self.rows[number] for number in wrong]
        return DataError(
            f"{self.where}: {len(wrong)} of {len(self.values)} labels are not among the choices of their row (read as "
            f"task.label_format: {how}), such as {str(self.values[first])[:40]!r} with {len(self.choices[first])} "
            f"choices: {first_rows(rows)}; correct them, or set task.label_format ({listing(_FORMATS)})",
            code="data.choice_label",
            value=self.values[first],
            format=how,
            rows=rows[:5],
        )


def tokenize_choices(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> TokenStore:
    """Return the tokens of each choice with its question, [CLS] text [SEP] choice [SEP], as sequences of its sample.

    Arguments and errors as in `tokens.tokenize`; `truncation` is that of pairs of texts.
    """
    assert samples.choices is not None
    counts = np.array([len(choices) for choices in samples.choices], dtype=np.int64)
    of_choice = np.repeat(np.arange(len(samples)), counts)
    prefixes = samples.text_pairs or [""] * len(samples)
    second = [text + choice for text, choices in zip(prefixes, samples.choices, strict=True) for choice in choices]
    flat = replace(samples.take(of_choice), text_pairs=second)

    def report(done: int, total: int) -> None:
        if options.progress is not None:
            options.progress(int(of_choice[done - 1]) + 1, len(samples))

    return tokenize(flat, replace(options, progress=report), source=source).grouped(counts)
