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
from paratune.data.columns import USUAL_LABELS, USUAL_TEXTS, check_header, lists_of_texts, values_with_names
from paratune.data.labels import as_number, is_missing, with_points, without_lists
from paratune.data.tables import separator_of
from paratune.errors import DataError, did_you_mean

_ANSWERS = ("answers", "answer")
_PAIRS = (
    *(("premise", "hypothesis"), ("sentence1", "sentence2"), ("question1", "question2"), ("question", "sentence")),
    *(("text1", "text2"), ("sentence_1", "sentence_2"), ("text_a", "text_b"), ("query", "passage")),
    ("text", "text_pair"),
)
_LISTS_OF_CHOICES = ("choices", "options", "endings")
"""Usual names of columns, in lower case."""
_NUMBERED_CHOICE = re.compile(r"(choice|option|ending|solution|answer|sol)[_ ]?[0-9a-e]", re.IGNORECASE)
_LETTERS = "abcdefgh"
_SEPARATORS = ("|", ";", ",")
_MOST_WHOLE_CLASSES = 20
"""Label columns with more distinct whole numbers than this are targets of a regression."""
_BALANCED_SHARE = 0.6
"""Up to this share of the largest class, accuracy selects the model; above it, the macro F1."""
_MIN_ROWS_OF_A_SPLIT = 10
_BEST = {"mlm": "perplexity", "qa": "f1", "multiple_choice": "accuracy", "regression": "rmse", "ordinal": "qwk"}
_BEST["multi_label"] = "f1_micro"
"""Metric that selects the model; that of a classification depends on its classes."""


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


@dataclass(frozen=True)
class _Table:
    """A table, and the columns that the user named."""

    table: pa.Table
    source: str
    named: Mapping[str, str]
    """Columns by `text`, `text_pair` and `label`."""

    @property
    def names(self) -> list[str]:
        return list(self.table.column_names)

    def has(self) -> str:
        """Return the columns, for messages."""
        return listing(map(repr, self.names))

    def table_error(self, problem: str, *, code: str, **facts: Any) -> DataError:
        return DataError(f"{self.source}{problem}", code=code, source=self.source, **facts)

    def present(self, name: str) -> list[Any]:
        """Return the values of a column that are not missing."""
        return _present(values_with_names(self.table, name))


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
    guess, data = OptionGuess(), _Table(table, source, {key: name for key, name in columns.items() if name is not None})
    for key, name in data.named.items():
        if name not in data.names:
            near = did_you_mean(name, data.names)
            problem = f" has no column {name} (--{key.replace('_', '-')}){near} (it has: {data.has()})"
            raise data.table_error(problem, code="data.column_missing", name=name)
    answers = next((name for name in _ANSWERS if name in data.names), None)
    choices = _choice_columns(data)
    # One letter is a name of other columns, too.
    has_choices = isinstance(choices, str) or any(len(name) > 1 or "question" in data.names for name in choices or ())
    is_qa = {"question", "context"} <= {*data.names} and (data.named.get("label") in _ANSWERS or answers is not None)
    if task == "qa" or (task is None and is_qa):
        _put_questions(guess, data, answers or "answers")
    elif task == "multiple_choice" or (task is None and has_choices):
        _put_choices(guess, data, choices, answers)
    elif task == "mlm" or (task is None and data.names == ["text"] and "label" not in data.named):
        guess.put("task.kind", "mlm", None if task else "the file has only texts, no labels")
        _put_texts(guess, data)
    else:
        label = _label_column(data)
        check_header(table, label, source)
        more = [value for other in others if label in other.column_names for value in values_with_names(other, label)]
        _put_labels(guess, data, label, task, _present(more))
        _put_texts(guess, data, label)
        guess.put("data.columns.label", label, None if "label" in data.named else "its name and values")
    if guess.kind in _BEST:
        guess.put("evaluate.best", _BEST[guess.kind])
    if not separate_validation:
        share = 0.1 if table.num_rows >= 10 * _MIN_ROWS_OF_A_SPLIT else 0.2
        guess.put("data.split.validation", share, "no file for it was given")
        if not separate_test:
            guess.put("data.split.test", share)
        if guess.kind in ("classification", "ordinal"):
            guess.put("data.split.stratify", True)
        if guess.kind == "qa":
            guess.put("data.split.group_by", guess.values["data.columns.text_pair"])
    if num_missing := _num_missing(guess, table):
        guess.put("data.missing", "drop", f"{num_missing} rows have an empty text or label")
    return guess


def _present(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if not is_missing(value, nan_is_missing=True)]


def _choice_columns(data: _Table) -> str | list[str] | None:
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


def _put_choices(guess: OptionGuess, data: _Table, choices: str | list[str] | None, answers: str | None) -> None:
    if choices is None:
        advice = "rename them to choice1, choice2, ..., or one column with lists to choices"
        problem = f" has no columns with usual names of choices (it has: {data.has()}); {advice}"
        raise data.table_error(problem, code="data.column_missing")
    guess.put("task.kind", "multiple_choice", "columns of choices")
    rest = [name for name in data.names if name not in ([choices] if isinstance(choices, str) else choices)]
    usual = {"text": "question"} if "question" in rest else {}
    usual |= {"label": answers} if answers in rest else {}
    data = _Table(data.table.select(rest), data.source, {**usual, **data.named})
    label = _label_column(data)
    _put_texts(guess, data, label)
    guess.put("data.columns.choices", choices, "usual names of choices")
    guess.put("data.columns.label", label, None if "label" in data.named else "its name and values")


def _put_questions(guess: OptionGuess, data: _Table, answers: str) -> None:
    guess.put("task.kind", "qa", "columns of questions, contexts and answers")
    columns = {"text": "question", "text_pair": "context", "label": answers, **data.named}
    if absent := [name for name in columns.values() if name not in data.names]:
        advice = "name the columns of question, context and answers with --text, --text-pair and --label"
        problem = f" has no column {listing(map(repr, absent))} for the task qa (it has: {data.has()}); {advice}"
        raise data.table_error(problem, code="data.column_missing", absent=absent)
    columns |= {name: name for name in ("answer_start", "id") if name in data.names}
    for key, name in columns.items():
        guess.put(f"data.columns.{key}", name)


def _put_texts(guess: OptionGuess, data: _Table, label: str | None = None) -> None:
    names = {name.lower(): name for name in data.names if name != label}
    pair = next(((names[first], names[second]) for first, second in _PAIRS if {first, second} <= {*names}), None)
    if "text" in data.named:
        guess.put("data.columns.text", data.named["text"])
    elif "text_pair" not in data.named and pair is not None:
        guess.put("data.columns.text", pair[0], "usual names of a pair")
        guess.put("data.columns.text_pair", pair[1])
    else:
        guess.put("data.columns.text", *_text_column(data, {label, data.named.get("text_pair")}))
    if "text_pair" in data.named and guess.kind != "mlm":
        guess.put("data.columns.text_pair", data.named["text_pair"])


def _text_column(data: _Table, others: set[str | None]) -> tuple[str, str]:
    """Return the column of the text and the reason: a usual name, or the longest values."""
    lengths: dict[str, float] = {}
    for name in data.names:
        values = [] if name in others else data.present(name)
        is_text = all(isinstance(value, str) for value in values)
        if values and is_text and not all(as_number(value) is not None for value in values):
            lengths[name] = sum(map(len, values)) / len(values)
    if not lengths:
        problem = f" has no column of texts (columns: {data.has()}); name it with --text"
        raise data.table_error(problem, code="data.not_text")
    usual = next((name for usual in USUAL_TEXTS for name in lengths if name.lower() == usual), None)
    return (
        (usual, "a usual name") if usual else (max(lengths, key=lambda name: lengths[name]), "it has the longest texts")
    )


def _label_column(data: _Table) -> str:
    if "label" in data.named:
        return data.named["label"]
    others = [name for name in data.names if name not in data.named.values()]
    usual = next((name for usual in USUAL_LABELS for name in others if name.lower() == usual), None)
    if usual is not None:
        return usual
    few = []
    for name in others:
        values = list(map(str, data.present(name)))
        if 2 <= len(set(values)) <= max(2, len(values) // 10):
            few.append(name)
    if len(few) != 1:
        advice = "name it with --label, or give --task mlm for texts without labels"
        problem = f": the column of the label cannot be guessed (columns: {data.has()}); {advice}"
        raise data.table_error(problem, code="data.label_column_unknown")
    return few[0]


def _put_labels(guess: OptionGuess, data: _Table, label: str, task: str | None, more_labels: list[Any]) -> None:
    """Set the task and its labels from the values of the label column."""
    column = data.present(label)
    values = with_points(without_lists(column + more_labels), separator_of(data.table))
    if not values:
        problem = f", column {label} is empty; name the column of the label with --label"
        raise data.table_error(problem, code="data.value_missing", name=label)
    separator = _separator(values) if task in (None, "multi_label") else None
    kind, reason = (task, None) if task else _kind(values, separator, label)
    guess.put("task.kind", kind, reason)
    if kind == "regression":
        return
    num_rows = len(values)
    if kind == "multi_label":
        lists = [value if isinstance(value, list) else str(value).split(separator or "|") for value in values]
        values = [member.strip() if isinstance(member, str) else member for members in lists for member in members]
    labels = _distinct(values)
    found = f", column {label} has {len(labels)} different values in {num_rows} rows, such as {str(values[0])[:40]!r}"
    if len(labels) < 2:
        advice = "classes need at least two: name another column with --label, or a file with all classes"
        raise data.table_error(f"{found}; {advice}", code="data.one_class")
    if len(labels) > max(_MOST_WHOLE_CLASSES, num_rows // 2):
        advice = f"too many for the task {kind}; name another column with --label, or give --task regression"
        raise data.table_error(f"{found}: {advice}", code="data.too_many_labels", num_labels=len(labels))
    guess.put("task.labels", labels)
    if kind == "multi_label" and separator not in (None, "|"):
        guess.put("task.separator", separator)
    if kind not in _BEST:
        largest = max(Counter(map(str, column)).values()) / len(column) if column else 0
        best = "accuracy" if largest <= _BALANCED_SHARE else "f1_macro"
        guess.put("evaluate.best", best, f"the largest class has {largest:.0%} of the rows")


def _kind(values: Sequence[Any], separator: str | None, label: str) -> tuple[str, str]:
    if any(isinstance(value, list) for value in values):
        return "multi_label", f"{label} has lists of labels"
    if separator is not None:
        return "multi_label", f"{label} has several labels, separated by {separator!r}"
    distinct = set(map(str, values))
    numbers = [number for value in values if (number := as_number(value)) is not None]
    if len(numbers) == len(values):
        if len(distinct) > _MOST_WHOLE_CLASSES or not all(number.is_integer() for number in numbers):
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


def _distinct(values: Sequence[Any]) -> list[str | int]:
    """Return the labels in order: whole numbers by value, other values by their text, as in the configuration."""
    texts = {str(value).lower() if isinstance(value, bool) else str(value) for value in values if value is not None}
    numbers = {text: as_number(text) for text in texts}
    wholes = {text: int(number) for text, number in numbers.items() if number is not None and number.is_integer()}
    if len(wholes) == len(texts) and all(text in (str(whole), f"{whole}.0") for text, whole in wholes.items()):
        return sorted(set(wholes.values()))
    return sorted(text for text in texts if text.strip())


def _num_missing(guess: OptionGuess, table: pa.Table) -> int:
    """Return the number of rows with an empty text or label; questions may have no answer."""
    if guess.kind == "qa":
        return 0
    is_lacking = [False] * table.num_rows
    for key in ("text", "text_pair", "label"):
        name = guess.values.get(f"data.columns.{key}")
        blank_is_missing = not (guess.kind == "multi_label" and key == "label")
        for row, value in enumerate([] if name is None else table.column(name).to_pylist()):
            is_lacking[row] |= is_missing(value, nan_is_missing=True, blank_is_missing=blank_is_missing)
    return sum(is_lacking)
