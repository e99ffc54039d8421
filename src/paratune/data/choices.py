"""Reads questions with choices from a table, and tokenizes each choice with its question.

Imports no torch. Dimensions: `N` questions, `Q` choices of all questions.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from string import ascii_uppercase
from typing import Any, Final, Literal

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
Choices = Sequence[str]
MIN_CHOICES: Final = 2


def select_choices(reader: TableReader, task: MultipleChoiceTask) -> tuple[Samples, LabelFormat | None]:
    """Return the questions of a table with their choices, and the place of the right choice as label; and its format.

    `text_pairs` have the texts in front of the choices, with the separator at their end. The last columns of choices
    may be empty, so that a row has fewer choices. A row with fewer than two choices, or with an empty choice before
    another one, lacks choices.

    Args:
        reader: The table; `columns.choices` are several columns, or one column with lists.
        task: Gives the format of labels; None finds it, see `label_format`.

    Raises:
        DataError: A column is of the wrong type, a value is missing (`refuse`), a label is none of the choices of its
            row, or no row is left.
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
    labels, names = [raw_labels[row] for row in rows], choice_names(reader.columns)
    how = task.label_format or label_format(labels, kept, names, rows, reader.label_place)
    return replace(samples, labels=_label_places(labels, kept, names, how, rows, reader.label_place)), how


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


def _place_of_number(value: Any, choices: Choices, names: Choices | None) -> int | None:
    number = _index(value)
    return None if number is None else number - 1


def _place_of_letter(value: Any, choices: Choices, names: Choices | None) -> int | None:
    letter = str(value).strip().upper()
    return ascii_uppercase.index(letter) if len(letter) == 1 and letter in ascii_uppercase else None


def _place_of_name(value: Any, choices: Choices, names: Choices | None) -> int | None:
    return None if names is None or str(value) not in names else names.index(str(value))


def _place_of_text(value: Any, choices: Choices, names: Choices | None) -> int | None:
    text = str(value).strip()
    stripped = [choice.strip() for choice in choices]
    return stripped.index(text) if stripped.count(text) == 1 else None


_PLACES: Final[dict[LabelFormat, Callable[[Any, Choices, Choices | None], int | None]]] = {
    "index": lambda value, choices, names: _index(value),
    "number": _place_of_number,
    "letter": _place_of_letter,
    "name": _place_of_name,
    "text": _place_of_text,
}
"""By format: from a label, the choices of its row and the names of the columns to the place of the right choice; None
where the label has another format. A place may be too large."""


def _places(
    labels: Sequence[Any], choices: Sequence[Choices], names: Choices | None, how: LabelFormat
) -> list[int | None]:
    """Return the place of each right choice, or None where a label is none of the choices."""
    places = [_PLACES[how](label, row, names) for label, row in zip(labels, choices, strict=True)]
    return [
        place if place is not None and 0 <= place < len(row) else None
        for place, row in zip(places, choices, strict=True)
    ]


def label_format(
    labels: Sequence[Any], choices: Sequence[Choices], names: Choices | None, rows: Sequence[int], where: str
) -> LabelFormat:
    """Return the format that fits all labels.

    Args:
        labels: Values of the column, none missing.
        choices: Choices of each row.
        names: Names of the columns of choices, if there are several.
        rows: Row of each label, for messages.
        where: File and column, for messages.

    Raises:
        DataError: No format fits all labels, or several do and give different places.
    """
    by_format = {how: _places(labels, choices, names, how) for how in _PLACES}
    fitting = {how: places for how, places in by_format.items() if None not in places}
    if not fitting:
        nearest = max(by_format, key=lambda how: sum(place is not None for place in by_format[how]))
        raise _unknown_labels(labels, choices, by_format[nearest], nearest, rows, where)
    first, places = next(iter(fitting.items()))
    if others := [how for how, other in fitting.items() if other != places]:
        raise DataError(
            f"{where}: the labels, such as {str(labels[0])[:40]!r}, can be read in several ways "
            f"({listing([first, *others])}); set task.label_format to the right one",
            code="data.choice_label",
            formats=[first, *others],
            key="task.label_format",
        )
    return first


def _label_places(
    labels: Sequence[Any],
    choices: Sequence[Choices],
    names: Choices | None,
    how: LabelFormat,
    rows: Sequence[int],
    where: str,
) -> IntArray:
    places = _places(labels, choices, names, how)
    if None in places:
        raise _unknown_labels(labels, choices, places, how, rows, where)
    return np.asarray(places, dtype=np.int64)


def _unknown_labels(
    labels: Sequence[Any],
    choices: Sequence[Choices],
    places: Sequence[int | None],
    how: LabelFormat,
    rows: Sequence[int],
    where: str,
) -> DataError:
    wrong = [number for number, place in enumerate(places) if place is None]
    first = wrong[0]
    return DataError(
        f"{where}: {len(wrong)} of {len(labels)} labels are none of the choices of their row (read as "
        f"task.label_format: {how}), such as {str(labels[first])[:40]!r} with {len(choices[first])} choices: "
        f"{first_rows([rows[number] for number in wrong])}; correct them, or set task.label_format "
        f"({listing(list(_PLACES))})",
        code="data.choice_label",
        value=labels[first],
        format=how,
        rows=[rows[number] for number in wrong[:5]],
    )


def tokenize_choices(samples: Samples, options: TokenizeOptions, *, source: str = "data") -> TokenStore:
    """Return the tokens of each choice with its question, [CLS] text [SEP] choice [SEP], as sequences of its sample.

    Args:
        samples: From `select_choices`.
        options: Tokenizer, limit, cache; `truncation` is that of pairs of texts.
        source: Name of the samples in messages.

    Raises:
        ConfigError: As `tokens.tokenize`.
        DataError: As `tokens.tokenize`.
        Stopped: `options.stop` returned true.
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
