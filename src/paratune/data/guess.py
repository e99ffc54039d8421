"""Guesses the columns, the task and its labels from a table, for `paratune config init`.

Every guess comes with its reason, so that the user can check it. Imports no torch.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from paratune.base.text import listing
from paratune.data.columns import lists_of_texts
from paratune.data.header import USUAL_LABELS, USUAL_TEXTS, check_header
from paratune.data.labels import as_number, is_missing
from paratune.errors import DataError, did_you_mean

_ANSWERS = ("answers", "answer")
_PAIRS = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("question", "sentence")),
    *(("text1", "text2"), ("sentence_1", "sentence_2"), ("text_a", "text_b"), ("query", "passage")),
    ("text", "text_pair"),
)
"""Usual names of columns, in lower case."""
_LISTS_OF_CHOICES = ("choices", "options", "endings")
"""Usual names of a column with lists of choices, in lower case."""
_NUMBERED_CHOICE = re.compile(r"(choice|option|ending|solution|answer|sol)[_ ]?[0-9a-e]", re.IGNORECASE)
_LETTERS = "abcdefgh"
_SEPARATORS = ("|", ";", ",")
_MOST_WHOLE_CLASSES = 20
"""Label columns with more distinct whole numbers than this are targets of a regression."""
_BALANCED_SHARE = 0.6
"""Up to this share of the largest class, accuracy selects the model; above it, the macro F1."""
_MIN_ROWS_OF_A_SPLIT = 10


@dataclass
class OptionGuess:
    """Options of a configuration that fit a table."""

    values: dict[str, Any] = field(default_factory=dict)
    """Values by dotted key, in the order of the file."""
    reasons: dict[str, str] = field(default_factory=dict)
    """The reason of each guessed value, by dotted key."""

    @property
    def kind(self) -> str:
        """The kind of the task."""
        return str(self.values["task.kind"])

    def put(self, key: str, value: Any, reason: str | None = None) -> None:
        """Set a value, with the reason when it is guessed."""
        self.values[key] = value
        if reason is not None:
            self.reasons[key] = reason


def guess_options(
    table: pa.Table,
    source: str,
    *,
    task: str | None = None,
    columns: Mapping[str, str | None],
    others: Sequence[pa.Table] = (),
    separate_validation: bool = False,
    separate_test: bool = False,
) -> OptionGuess:
    """Return task, columns, split and selecting metric for a table of training data.

    Args:
        table: From `read_table`.
        source: Name of the table, for messages.
        task: Kind of the task; None guesses it.
        columns: Columns that the user named, by `text`, `text_pair` and `label`; None guesses it.
        others: Validation and test data, which may have classes that the training data lacks.
        separate_validation: Whether the validation set is a file, so that no rows are split off for it.
        separate_test: The same for the test set.

    Raises:
        DataError: A named column is absent, or there is no column that can be the text or the label.
    """
    guess = OptionGuess()
    named = _named_columns(table, source, columns)
    if _is_questions(table, task, named):
        _put_questions(guess, table, source, named)
    elif _is_choices(table, task, named):
        _put_choices(guess, table, source, named)
    elif task == "mlm" or (task is None and table.column_names == ["text"] and "label" not in named):
        guess.put("task.kind", "mlm", None if task else "the file has only texts, no labels")
        _put_texts(guess, table, source, named)
    else:
        label = _label_column(table, source, named)
        check_header(table, label, source)
        tables = [other for other in others if label in other.column_names]
        more_labels = [value for other in tables for value in other.column(label).to_pylist()]
        _put_labels(guess, table, source, label, task, more_labels)
        _put_texts(guess, table, source, named, label)
        guess.put("data.columns.label", label, None if "label" in named else "its name and values")
    _put_split(guess, table, separate_validation, separate_test)
    if _num_missing(guess, table):
        guess.put("data.missing", "drop", f"{_num_missing(guess, table)} rows have an empty text or label")
    return guess


def _named_columns(table: pa.Table, source: str, columns: Mapping[str, str | None]) -> dict[str, str]:
    named = {key: name for key, name in columns.items() if name is not None}
    for key, name in named.items():
        if name not in table.column_names:
            raise DataError(
                f"--{key.replace('_', '-')} {name}: {source} has no such column"
                f"{did_you_mean(name, table.column_names)} (it has: {listing(map(repr, table.column_names))})",
                code="data.column_missing",
                source=source,
                name=name,
            )
    return named


def _is_questions(table: pa.Table, task: str | None, named: Mapping[str, str]) -> bool:
    if task is not None:
        return task == "qa"
    has = {"question", "context"} <= set(table.column_names)
    return has and (named.get("label") in _ANSWERS or _answer_column(table) is not None)


def _is_choices(table: pa.Table, task: str | None, named: Mapping[str, str]) -> bool:
    if task is not None:
        return task == "multiple_choice"
    choices = choice_columns(table)
    # One letter is a name of other columns, too.
    is_usual = isinstance(choices, str) or any(len(name) > 1 for name in choices or ())
    return choices is not None and (is_usual or "question" in table.column_names)


def choice_columns(table: pa.Table) -> str | list[str] | None:
    """Return the column with lists of choices, or the columns with a choice each; None where no names are usual."""
    names: list[str] = table.column_names
    by_name = {name.lower(): name for name in names}
    for usual in _LISTS_OF_CHOICES:
        if usual in by_name and lists_of_texts(table, by_name[usual]) is not None:
            return by_name[usual]
    numbered = [name for name in names if _NUMBERED_CHOICE.fullmatch(name)]
    letters = [by_name[letter] for letter in _LETTERS if letter in by_name]
    is_row = letters == [by_name.get(letter) for letter in _LETTERS[: len(letters)]]
    if len(numbered) > 1:
        return numbered
    return letters if len(letters) > 1 and is_row else None


def _put_choices(guess: OptionGuess, table: pa.Table, source: str, named: Mapping[str, str]) -> None:
    choices = choice_columns(table)
    if choices is None:
        raise DataError(
            f"{source} has no columns with usual names of choices (it has: {listing(map(repr, table.column_names))}); "
            "rename them to choice1, choice2, ..., or one column with lists to choices",
            code="data.column_missing",
            source=source,
        )
    guess.put("task.kind", "multiple_choice", "columns of choices")
    of_choices = [choices] if isinstance(choices, str) else choices
    rest = table.select([name for name in table.column_names if name not in of_choices])
    if "text" not in named and "question" in rest.column_names:
        named = {**named, "text": "question"}
    if "label" not in named and (answer := _answer_column(rest)) is not None:
        named = {**named, "label": answer}
    label = _label_column(rest, source, named)
    _put_texts(guess, rest, source, named, label)
    guess.put("data.columns.choices", choices, "usual names of choices")
    guess.put("data.columns.label", label, None if "label" in named else "its name and values")
    guess.put("evaluate.best", "accuracy")


def _answer_column(table: pa.Table) -> str | None:
    return next((name for name in _ANSWERS if name in table.column_names), None)


def _put_questions(guess: OptionGuess, table: pa.Table, source: str, named: Mapping[str, str]) -> None:
    guess.put("task.kind", "qa", "columns of questions, contexts and answers")
    wanted = {"text": "question", "text_pair": "context", "label": _answer_column(table) or "answers"}
    absent = [name for key, name in wanted.items() if key not in named and name not in table.column_names]
    if absent:
        raise DataError(
            f"{source} has no column {listing(map(repr, absent))} for the task qa (it has: "
            f"{listing(map(repr, table.column_names))}); name the columns of question, context and answers with "
            "--text, --text-pair and --label",
            code="data.column_missing",
            source=source,
            absent=absent,
        )
    for key, name in wanted.items():
        guess.put(f"data.columns.{key}", named.get(key, name))
    for key, name in (("answer_start", "answer_start"), ("id", "id")):
        if name in table.column_names:
            guess.put(f"data.columns.{key}", name)
    guess.put("evaluate.best", "f1")


def _put_texts(
    guess: OptionGuess, table: pa.Table, source: str, named: Mapping[str, str], label: str | None = None
) -> None:
    if "text" in named:
        guess.put("data.columns.text", named["text"])
    elif "text_pair" not in named and (pair := _pair(table, label)) is not None:
        guess.put("data.columns.text", pair[0], "usual names of a pair")
        guess.put("data.columns.text_pair", pair[1])
    else:
        guess.put("data.columns.text", *_text_column(table, source, {label, named.get("text_pair")}))
    if "text_pair" in named and guess.kind != "mlm":
        guess.put("data.columns.text_pair", named["text_pair"])
    if guess.kind == "mlm":
        guess.put("evaluate.best", "perplexity")


def _pair(table: pa.Table, label: str | None) -> tuple[str, str] | None:
    names = {name.lower(): name for name in table.column_names if name != label}
    return next(((names[first], names[second]) for first, second in _PAIRS if {first, second} <= set(names)), None)


def _text_column(table: pa.Table, source: str, others: set[str | None]) -> tuple[str, str]:
    """Return the column of the text and the reason: a usual name, or the longest values."""
    lengths = {name: _mean_length(table, name) for name in table.column_names if name not in others}
    lengths = {name: length for name, length in lengths.items() if length > 0}
    if not lengths:
        raise DataError(
            f"{source} has no column of texts (columns: {listing(map(repr, table.column_names))}); name it with --text",
            code="data.not_text",
            source=source,
        )
    usual = next((name for usual in USUAL_TEXTS for name in lengths if name.lower() == usual), None)
    if usual:
        return usual, "a usual name"
    return max(lengths, key=lambda name: lengths[name]), "it has the longest texts"


def _present(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if not is_missing(value, nan_is_missing=True)]


def _mean_length(table: pa.Table, name: str) -> float:
    """Return the mean number of characters of a column of texts; 0 for other columns, and for numbers as text."""
    values = _present(table.column(name).to_pylist())
    is_text = all(isinstance(value, str) for value in values)
    if not values or not is_text or all(as_number(value) is not None for value in values):
        return 0.0
    return sum(map(len, values)) / len(values)


def _label_column(table: pa.Table, source: str, named: Mapping[str, str]) -> str:
    if "label" in named:
        return named["label"]
    others: list[str] = [name for name in table.column_names if name not in named.values()]
    usual = next((name for usual in USUAL_LABELS for name in others if name.lower() == usual), None)
    if usual is not None:
        return usual
    few = [name for name in others if _has_few_values(table, name)]
    if len(few) != 1:
        raise DataError(
            f"{source}: the column of the label cannot be guessed (columns: {listing(map(repr, table.column_names))}); "
            "name it with --label, or give --task mlm for texts without labels",
            code="data.label_column_unknown",
            source=source,
        )
    return few[0]


def _has_few_values(table: pa.Table, name: str) -> bool:
    values = list(map(str, _present(table.column(name).to_pylist())))
    return 2 <= len(set(values)) <= max(2, len(values) // 10)


def _put_labels(
    guess: OptionGuess, table: pa.Table, source: str, label: str, task: str | None, more_labels: Sequence[Any]
) -> None:
    """Set the task and its labels from the values of the label column."""
    column = _present(table.column(label).to_pylist())
    values = column + _present(more_labels)
    if not values:
        raise DataError(
            f"{source}, column {label} is empty; name the column of the label with --label",
            code="data.value_missing",
            source=source,
            name=label,
        )
    separator = _separator(values) if task in (None, "multi_label") else None
    kind, reason = (task, None) if task else _kind(values, separator, label)
    guess.put("task.kind", kind, reason)
    if kind == "regression":
        guess.put("evaluate.best", "rmse")
        return
    labels = _distinct(values if kind != "multi_label" else _members(values, separator))
    _check_labels(labels, len(values), f"{source}, column {label}", guess)
    guess.put("task.labels", labels)
    if kind == "multi_label":
        if separator not in (None, "|"):
            guess.put("task.separator", separator)
        guess.put("evaluate.best", "f1_micro")
    elif kind == "ordinal":
        guess.put("evaluate.best", "qwk")
    else:
        largest = max(Counter(map(str, column)).values()) / len(column) if column else 0
        reason = f"the largest class has {largest:.0%} of the rows"
        guess.put("evaluate.best", "accuracy" if largest <= _BALANCED_SHARE else "f1_macro", reason)


def _kind(values: Sequence[Any], separator: str | None, label: str) -> tuple[str, str]:
    if any(isinstance(value, list) for value in values):
        return "multi_label", f"{label} has lists of labels"
    if separator is not None:
        return "multi_label", f"{label} has several labels, separated by {separator!r}"
    distinct = set(map(str, values))
    numbers = [as_number(value) for value in values]
    if all(number is not None for number in numbers):
        is_whole = all(number is not None and number.is_integer() for number in numbers)
        if not is_whole or len(distinct) > _MOST_WHOLE_CLASSES:
            return "regression", f"{label} has {len(distinct)} different numbers"
        if len(distinct) > 2:
            reason = f"{len(distinct)} whole numbers in {label}; --task ordinal or regression for a scale"
            return "classification", reason
    return "classification", f"{len(distinct)} different values in {label}"


def _separator(values: Sequence[Any]) -> str | None:
    """Return the text between several labels of a value: both labels must also occur in other values."""
    texts = [value for value in values if isinstance(value, str)]
    for separator in _SEPARATORS:
        joined = [text for text in set(texts) if separator in text]
        if len(texts) == len(values) and joined:
            count = Counter(part.strip() for text in texts for part in text.split(separator))
            is_repeated = all(count[part.strip()] >= 2 for text in joined for part in text.split(separator))
            if is_repeated and len(count) < len(set(texts)):
                return separator
    return None


def _members(values: Sequence[Any], separator: str | None) -> list[Any]:
    lists = [value if isinstance(value, list) else str(value).split(separator or "|") for value in values]
    return [member.strip() if isinstance(member, str) else member for members in lists for member in members]


def _distinct(values: Sequence[Any]) -> list[str | int]:
    """Return the labels in order: whole numbers by value, other values by their text, as in the configuration."""
    texts = {str(value).lower() if isinstance(value, bool) else str(value) for value in values if value is not None}
    numbers = {text: as_number(text) for text in texts}
    wholes = {text: int(number) for text, number in numbers.items() if number is not None and number.is_integer()}
    if len(wholes) == len(texts) and all(text in (str(whole), f"{whole}.0") for text, whole in wholes.items()):
        return sorted(set(wholes.values()))
    return sorted(text for text in texts if text.strip())


def _check_labels(labels: Sequence[str | int], num_rows: int, where: str, guess: OptionGuess) -> None:
    if len(labels) < 2:
        raise DataError(
            f"{where} has one value, {str(labels[0])[:40]!r}; classes need at least two: name another column with "
            "--label, or a file with all classes",
            code="data.one_class",
            where=where,
        )
    if len(labels) > max(_MOST_WHOLE_CLASSES, num_rows // 2):
        raise DataError(
            f"{where} has {len(labels)} different values in {num_rows} rows, such as {str(labels[0])[:40]!r}: too "
            f"many for the task {guess.kind}; name another column with --label, or give --task regression",
            code="data.too_many_labels",
            where=where,
            num_labels=len(labels),
        )


def _put_split(guess: OptionGuess, table: pa.Table, separate_validation: bool, separate_test: bool) -> None:
    """Split off a validation and a test set where no file is given."""
    if separate_validation:
        return
    share = 0.1 if table.num_rows >= 10 * _MIN_ROWS_OF_A_SPLIT else 0.2
    reason = "no file for it was given"
    guess.put("data.split.validation", share, reason)
    if not separate_test:
        guess.put("data.split.test", share)
    if guess.kind in ("classification", "ordinal"):
        guess.put("data.split.stratify", True)
    if guess.kind == "qa":
        guess.put("data.split.group_by", guess.values["data.columns.text_pair"])


def _num_missing(guess: OptionGuess, table: pa.Table) -> int:
    """Return the number of rows with an empty text or label; questions may have no answer."""
    if guess.kind == "qa":
        return 0
    keys = ("data.columns.text", "data.columns.text_pair", "data.columns.label")
    columns = [(key, table.column(name).to_pylist()) for key in keys if (name := guess.values.get(key)) is not None]
    blank = {key: not (guess.kind == "multi_label" and key.endswith("label")) for key, _ in columns}
    return sum(
        any(is_missing(values[row], nan_is_missing=True, blank_is_missing=blank[key]) for key, values in columns)
        for row in range(table.num_rows)
    )
