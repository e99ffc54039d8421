"""Selects the samples of a table by task: texts with a label, tagged words of sentences, questions with choices.

Imports no torch. Dimension: `N` questions.
"""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from string import ascii_uppercase
from typing import Any, Final, Literal, get_args

import numpy as np
import pyarrow as pa

from paratune.base.text import listing
from paratune.config.sections import Columns
from paratune.config.task_sections import (
    ClassTask,
    EmbeddingTask,
    MultiLabelTask,
    MultipleChoiceTask,
    QuestionAnsweringTask,
    RegressionTask,
    Task,
    TokenClassificationTask,
    class_names,
)
from paratune.data.columns import IntArray, Samples, TableReader, values_with_names
from paratune.data.json_tables import as_spans
from paratune.data.labels import (
    class_ids,
    encode,
    first_rows,
    is_missing,
    whole_number,
    with_points,
    without_lists,
    without_marks,
)
from paratune.data.questions import TooLong, select_questions
from paratune.data.tables import separator_of
from paratune.errors import DataError, coded

log = logging.getLogger(__name__)

_WORD = re.compile(r"\w+|[^\w\s]")
"""A word, or another character that is not white space, of a text with spans."""

LabelFormat = Literal["index", "number", "letter", "name", "text"]
_FORMATS: Final[tuple[LabelFormat, ...]] = get_args(LabelFormat)
_WORDS_NEEDED = (
    'lists of texts are needed, as in JSON lines {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}, or a file in '
    "CoNLL format (*.conll)"
)
_CHOICES_NEEDED = (
    "name several columns with a choice each ([a, b, c, d]), or one column with lists of texts, as in JSON lines "
    '{"choices": ["yes", "no"]}'
)


def select(reader: TableReader, task: Task, *, too_long: TooLong | None = None) -> Samples:
    """Return the samples of a table for any task; `too_long` is that of questions, none of which are by default."""
    if isinstance(task, TokenClassificationTask):
        return select_words(reader, task)
    if isinstance(task, MultipleChoiceTask):
        return select_choices(reader, task)[0]
    if isinstance(task, QuestionAnsweringTask):
        return select_questions(reader, too_long=too_long, may_lack_answers=task.unanswerable is not False)
    return _select_rows(reader, task)


def _select_rows(reader: TableReader, task: Task) -> Samples:
    """Return a sample for each row: its text, second text and negative, and its label.

    Several targets of a regression are labels (len, K); a row that lacks one of them lacks its label. Of several raters
    the label is the mean, and a row lacks it without any. A label is missing when it is null, an empty string (except
    where a row may have no class) or, for classes and raters, NaN.

    Raises:
        DataError: A column is of the wrong type, a value is missing (`refuse`), a label is not in `task.labels`, a
            target is not a finite number, or no row is left.
    """
    columns = {key: texts for key in ("text", "text_pair", "negative") if (texts := reader.texts(key)) is not None}
    lacks = {key: [text is None for text in texts] for key, texts in columns.items()}
    raters, raw_labels = task.raters if isinstance(task, RegressionTask) else None, None
    several: dict[str, list[Any]] = {}
    if isinstance(task, RegressionTask) and isinstance(reader.columns.label, list) and reader.require_labels:
        for name in reader.columns.label:
            values = without_marks(without_lists(values_with_names(reader.table, name, ())), ())
            values = with_points(values, separator_of(reader.table))
            several[name] = [None if is_missing(one, nan_is_missing=bool(raters)) else one for one in values]
        lack = all if raters else any
        lacks["label"] = [lack(one is None for one in row) for row in zip(*several.values(), strict=True)]
    else:
        raw_labels = reader.labels(task.labels if isinstance(task, ClassTask) else ())
    if raw_labels is not None:
        raw_labels = raw_labels if isinstance(task, MultiLabelTask) else without_lists(raw_labels)
        raw_labels = without_marks(raw_labels, task.labels if isinstance(task, ClassTask) else ())
        if isinstance(task, RegressionTask | EmbeddingTask):
            raw_labels = with_points(raw_labels, separator_of(reader.table))
        rule = {
            "nan_is_missing": isinstance(task, ClassTask),
            "blank_is_missing": not isinstance(task, MultiLabelTask),  # in this task, a row with no class
        }
        lacks["label"] = [is_missing(label, **rule) for label in raw_labels]
    rows, num_dropped = reader.complete_rows(lacks)
    samples = reader.samples(columns["text"], columns.get("text_pair"), rows, num_dropped)
    if "negative" in columns:
        samples = replace(samples, negatives=[columns["negative"][row] or "" for row in rows])  # none is missing
    if several:
        labels_NK = np.full((len(rows), len(several)), np.nan, dtype=np.float32)
        for at, (name, values) in enumerate(several.items()):
            known = [row for row in rows if values[row] is not None]
            numbers = encode([values[row] for row in known], known, task, f"{reader.source}, column {name}")
            labels_NK[np.isin(rows, known), at] = numbers
        if raters is None:
            return replace(samples, labels=labels_NK)
        means_N: Any = np.nanmean(labels_NK, axis=1, dtype=np.float64)
        return replace(samples, labels=means_N.astype(np.float32), ratings=labels_NK)
    if raw_labels is None:
        return samples
    return replace(samples, labels=encode([raw_labels[row] for row in rows], rows, task, reader.label_place))


def select_words(reader: TableReader, task: TokenClassificationTask) -> Samples:
    """Return the sentences of a table: lists of words of `columns.text`, and of tags where labels are read.

    Raises:
        DataError: A column has no lists, a sentence has no words or not a tag for each word (`refuse`), or a tag is
            unknown.
    """
    columns = reader.columns
    assert isinstance(columns.text, str)
    words: list[list[Any]]
    tags: list[list[Any]] | None = None
    kind = reader.table.column(columns.text).type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        words, tags = _words_and_span_tags(reader, task)
    else:
        words = reader.lists(columns.text, "text", advice=_WORDS_NEEDED)
        if reader.require_labels and columns.label is not None:
            assert isinstance(columns.label, str)
            tags = tag_lists(reader, columns.label, task)
    lacks = {"text": [not sentence or any(not (word or "").strip() for word in sentence) for sentence in words]}
    if tags is not None:
        pairs = zip(words, tags, strict=True)
        lacks["label"] = [len(of_words) != len(sentence) or None in of_words for sentence, of_words in pairs]
    rows, num_dropped = reader.complete_rows(lacks, rule="each row needs words, and as many tags; not so for")
    samples = reader.samples([" ".join(map(str, sentence)) for sentence in words], None, rows, num_dropped)
    samples = replace(samples, words=[words[row] for row in rows])
    if tags is None:
        return samples
    lengths = [len(tags[row]) for row in rows]
    of_tag = np.repeat(rows, lengths).tolist()
    ids = class_ids([tag for row in rows for tag in tags[row]], of_tag, task, reader.label_place)
    return replace(samples, tags=np.split(ids, np.cumsum(lengths)[:-1]))


def _words_and_span_tags(
    reader: TableReader, task: TokenClassificationTask
) -> tuple[list[list[Any]], list[list[Any]] | None]:
    """Return the words and other marks of texts and, where labels are read, their tags, from spans of characters.

    A span that begins or ends inside a word is widened to it. A span without a word, and one of whose words another
    span has, are left out. A row with null for its spans has no tags.
    """
    texts, label = [text or "" for text in reader.texts("text") or ()], reader.columns.label
    places = [[match.span() for match in _WORD.finditer(text)] for text in texts]
    words: list[list[Any]] = [[text[slice(*place)] for place in row] for text, row in zip(texts, places, strict=True)]
    if not reader.require_labels or not isinstance(label, str):
        return words, None
    tags: list[list[Any]] = []
    counts = dict.fromkeys(("spans", "widened", "overlapping", "without a word"), 0)
    for row, value in enumerate(reader.table.column(label).to_pylist()):
        if (spans := as_spans(value or [])) is None:
            message = f"{reader.source}, row {row}, column {label} is {str(value)[:60]}, not spans of characters"
            raise DataError(f"{message}; {_WORDS_NEEDED}", code="data.wrong_type", source=reader.source, row=row)
        tags.append([] if value is None else ["O"] * len(places[row]))
        for start, end, kind in sorted(spans):
            piece = texts[row][max(start, 0) : end]
            first, last = start + len(piece) - len(piece.lstrip()), start + len(piece.rstrip())
            inside = [at for at, (begin, stop) in enumerate(places[row]) if begin < last and stop > first]
            is_free = all(tags[row][at] == "O" for at in inside)
            counts["spans"] += 1
            counts["without a word"] += not inside
            counts["overlapping"] += not is_free
            if inside and is_free:
                counts["widened"] += (places[row][inside[0]][0], places[row][inside[-1]][1]) != (first, last)
                marks = ("B-", "I-") if task.scheme == "iob2" else ("", "")
                for at in inside:
                    tags[row][at] = marks[at > inside[0]] + kind
    if any([*counts.values()][1:]):
        listed = ", ".join(f"{count} {name}" for name, count in counts.items())
        remedy = "widened: to whole words; overlapping and without a word: left out"
        extra = coded("data.spans_unaligned", counts=counts)
        log.warning("%s: %s (%s)", reader.label_place, listed, remedy, extra=extra)
    return words, tags


def tag_lists(reader: TableReader, name: str, task: TokenClassificationTask) -> list[list[Any]]:
    """Return the tags of each row as texts; numbers as the values or, by their positions, the tags of `task.labels`.

    Raises:
        DataError: The column has other values.
    """
    kind = reader.table.column(name).type
    if not ((pa.types.is_list(kind) or pa.types.is_large_list(kind)) and pa.types.is_integer(kind.value_type)):
        return reader.lists(name, "label", advice=_WORDS_NEEDED)
    values, tags = [*map(str, task.labels)], class_names(task)
    rows = values_with_names(reader.table, name, values)
    by_place = {number: tag for number, tag in enumerate(values) if isinstance(task.labels, list)}
    if all(isinstance(tag, str) for row in rows for tag in row or ()) or set(map(str, by_place)) & set(values):
        by_place = {}
    elif by_place:
        listed = listing(f"{number} = {tag}" for number, tag in enumerate(tags))
        log.info("%s: numbers are positions in task.labels, %s", reader.label_place, listed)
    return [[None if tag is None else by_place.get(tag, str(tag)) for tag in row or ()] for row in rows]


def select_choices(reader: TableReader, task: MultipleChoiceTask) -> tuple[Samples, LabelFormat | None]:
    """Return the questions of a table with their choices, and the place of the right choice as label; and its format.

    `text_pairs` have the texts in front of the choices, with the separator at their end. `columns.choices` are several
    columns, or one column with lists. The last columns may be empty, so that a row has fewer choices. A row with fewer
    than two choices, or with an empty choice before another one, lacks choices. Where the task gives no format of
    labels, the one that fits all labels is taken.

    Raises:
        DataError: A column is of the wrong type, a value is missing (`refuse`), a label is not one of the choices of
            its row, or no row is left.
    """
    texts, pairs = reader.texts("text") or [], reader.texts("text_pair", refuse_numbers=False)
    choices, raw_labels = _read_choices(reader), reader.labels()
    lacks = {"text": [text is None for text in texts]}
    if pairs is not None:
        lacks["text_pair"] = [pair is None for pair in pairs]
    lacks["choices"] = [not row_choices for row_choices in choices]
    if raw_labels is not None:
        lacks["label"] = [is_missing(label, nan_is_missing=True) for label in raw_labels]
    rows, num_dropped = reader.complete_rows(lacks)
    samples = reader.samples(texts, pairs, rows, num_dropped)
    if samples.text_pairs is not None:
        samples = replace(samples, text_pairs=[text + reader.columns.separator for text in samples.text_pairs])
    samples = replace(samples, choices=[choices[row] for row in rows])
    if raw_labels is None:
        return samples, task.label_format
    labels, how = _label_places(reader, [raw_labels[row] for row in rows], samples, task.label_format)
    return replace(samples, labels=labels), how


def choice_names(columns: Columns) -> list[str] | None:
    """Return the names of the columns of choices; None where one column has lists."""
    return columns.choices if isinstance(columns.choices, list) else None


def _read_choices(reader: TableReader) -> list[tuple[str, ...]]:
    """Return the choices of each row; none where a row lacks choices."""
    names = reader.columns.choices
    assert names is not None
    if isinstance(names, str):
        rows: Sequence[Sequence[str | None]] = reader.lists(names, "choices", advice=_CHOICES_NEEDED)
    else:
        columns = [reader.column_texts(name, "choices", refuse_numbers=False) for name in names]
        rows = list(zip(*columns, strict=True))
    read = []
    for values in rows:
        known = [value for value in values if value is not None and value.strip()]
        is_complete = len(known) > 1 and known == list(values[: len(known)])
        read.append(tuple(known) if is_complete else ())
    return read


def _label_places(
    reader: TableReader, values: Sequence[Any], samples: Samples, how: LabelFormat | None
) -> tuple[IntArray, LabelFormat]:
    """Return the place of each right choice, (N,), and the format of the labels, or the only one that fits all.

    Raises:
        DataError: A label is not one of the choices of its row in any format, or several formats give other places.
    """
    all_choices, names, where = samples.choices or [], choice_names(reader.columns), reader.label_place
    by_format: dict[LabelFormat, list[int | None]] = {}
    for form in _FORMATS if how is None else (how,):
        places = [_place(*row, names, form) for row in zip(values, all_choices, strict=True)]
        by_format[form] = places
    fitting = {form: places for form, places in by_format.items() if None not in places}
    if not fitting:
        form = max(by_format, key=lambda form: sum(place is not None for place in by_format[form]))
        wrong = [number for number, place in enumerate(by_format[form]) if place is None]
        first, rows = wrong[0], samples.rows[wrong].tolist()
        message = (
            f"{where}: {len(wrong)} of {len(values)} labels are not among the choices of their row (read as "
            f"task.label_format: {form}), such as {str(values[first])[:40]!r} with {len(all_choices[first])} "
            f"choices: {first_rows(rows)}; correct them, or set task.label_format ({listing(_FORMATS)})"
        )
        raise DataError(message, code="data.label_unfit", value=values[first], format=form, rows=rows[:5])
    form, right = next(iter(fitting.items()))
    if others := [other for other, places in fitting.items() if places != right]:
        message = (
            f"{where}: the labels, such as {str(values[0])[:40]!r}, can be read in several ways "
            f"({listing([form, *others])}); set task.label_format to the right one"
        )
        raise DataError(message, code="data.label_unfit", formats=[form, *others], key="task.label_format")
    return np.asarray(right, dtype=np.int64), form


def _place(value: Any, choices: Sequence[str], names: Sequence[str] | None, how: LabelFormat) -> int | None:
    """Return the place of the right choice of a row; None where the label has another format, or is too large."""
    text, place = str(value), None
    if how in ("index", "number"):
        # A text such as 1.0 is a choice of a row of numbers, not a place.
        number = None if isinstance(value, str) and not value.strip().isdecimal() else whole_number(value)
        place = None if number is None else number - (how == "number")
    elif how == "name":
        place = None if names is None or text not in names else names.index(text)
    elif how == "letter":
        letter = text.strip().upper()  # of some single characters several letters
        place = ascii_uppercase.index(letter) if len(letter) == 1 and letter in ascii_uppercase else None
    else:
        stripped = [choice.strip() for choice in choices]
        place = stripped.index(text.strip()) if stripped.count(text.strip()) == 1 else None
    return place if place is not None and 0 <= place < len(choices) else None
