"""Guesses the columns, the task and its labels from a table, for `paratune config init`.

Every guess comes with its reason, and with the other possibilities, so that the user can check it. Imports no torch.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from shlex import quote
from typing import Any

import pyarrow as pa

from paratune.base.text import listing
from paratune.config.metric_names import EMBEDDING_SCORES
from paratune.config.sections import Columns, named_columns
from paratune.data.columns import USUAL_LABELS, check_header, values_with_names
from paratune.data.guess_columns import (
    ANSWERS,
    GuessTable,
    choice_columns,
    is_few,
    label_candidates,
    pair_columns,
    present_values,
    tagged_columns,
    text_lengths,
    usual_or_longest,
    with_parts,
)
from paratune.data.json_tables import as_spans
from paratune.data.labels import as_number, with_points, without_lists, without_marks
from paratune.data.tables import separator_of
from paratune.errors import did_you_mean

_FLAGS = {"0", "1", "false", "true"}
_SEPARATORS = ("|", ";", ",")
_MOST_WHOLE_CLASSES = 20  # with more distinct whole numbers, a label column is the target of a regression
_BALANCED_SHARE = 0.6  # up to this share of the largest class, accuracy selects the model; above it, the macro F1
_WITHOUT_LABEL = "name it with --label, or give --task mlm (texts without labels) or --task embedding (pairs of texts)"
_BEST = {"mlm": "perplexity", "qa": "f1", "multiple_choice": "accuracy", "regression": "rmse", "ordinal": "qwk"}
_BEST["multi_label"] = "f1_micro"
"""Metric that selects the model; that of other tasks depends on the data."""


class OptionGuess:
    """Options of a configuration that fit a table."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}  # by dotted key, in the order of the file
        self.reasons: dict[str, str] = {}  # of each guessed value, by dotted key
        self.doubts: list[str] = []  # options of the command that are possible, too, each with its reason

    @property
    def kind(self) -> str:
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
        task: Kind of the task; None guesses it.
        columns: Columns that the user named, by `text`, `text_pair` and `label`, several with commas; None guesses it.
        others: Validation and test data, which may have classes that the training data lacks.
        separate_validation: Whether the validation set is a file, so that no rows are split off for it.
        separate_test: The same for the test set.

    Raises:
        DataError: A named column is absent, or there is no column that can be the text or the label.
    """
    paths = [path for name in columns.values() if name for path in name.split(",")]
    guess, (table, *others) = OptionGuess(), [with_parts(table, paths) for table in (table, *others)]
    has = table.column_names
    named = {key: name if name in has or "," not in name else name.split(",") for key, name in columns.items() if name}
    data = GuessTable(table, source, named)
    for key, name in [(key, name) for key, names in named.items() for name in named_columns(names)]:
        if name not in has:
            problem = f" has no column {name} (--{key.replace('_', '-')}){did_you_mean(name, has)}"
            raise data.table_error(f"{problem} (it has: {data.has()})", code="data.column_missing", name=name)
    _put_task(guess, data, task, others)
    if guess.kind in _BEST:
        guess.put("evaluate.best", _BEST[guess.kind])
    if separate_validation:
        return guess
    share = 0.1 if table.num_rows >= 100 else 0.2  # at least 10 rows of each part, where the table has them
    guess.put("data.split.validation", share, "no file for it was given")
    if not separate_test:
        guess.put("data.split.test", share)
    if guess.kind in ("classification", "ordinal"):
        guess.put("data.split.stratify", True)
    if guess.kind == "qa":
        guess.put("data.split.group_by", guess.values["data.columns.text_pair"])
    return guess


def example_row(table: pa.Table, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the first row that has all values, or the first one: the text of each option of `data.columns`."""
    keys = [f"data.columns.{key}" for key in Columns.model_fields]
    columns = {key: named_columns(values[key]) for key in keys if key in values}
    table = with_parts(table, [name for names in columns.values() for name in names])
    read = {name: values_with_names(table, name) for names in columns.values() for name in names}
    rows = list(zip(*read.values(), strict=True))
    whole = (row for row in rows if [] not in row and len(present_values(row)) == len(row))
    cells = dict(zip(read, next(whole, rows[0]), strict=True))
    shown = {name: " ".join(map(str, cell)) if isinstance(cell, list) else str(cell) for name, cell in cells.items()}
    return {key: " | ".join(shown[name] for name in names) for key, names in columns.items()}


def _put_task(guess: OptionGuess, data: GuessTable, task: str | None, others: Sequence[pa.Table]) -> None:
    """Set task, columns and labels: of the task that was given, or of the first one whose columns the table has."""
    answers = next((name for name in data.names if name.lower() in ANSWERS), None)
    choices = choice_columns(data)
    # One letter is a name of other columns, too.
    has_choices = isinstance(choices, str) or any(len(name) > 1 or "question" in data.names for name in choices or ())
    is_qa = {"question", "context"} <= {*data.names} and (data.named.get("label") in ANSWERS or answers is not None)
    tagged, pair = tagged_columns(data), pair_columns(data, None)
    may_lack_label = task is None and "label" not in data.named
    if task == "qa" or (task is None and is_qa):
        _put_questions(guess, data, answers or "answers")
    elif task == "multiple_choice" or (task is None and has_choices):
        _put_choices(guess, data, choices, answers)
    elif task == "token_classification" or (task is None and tagged is not None):
        _put_tags(guess, data, tagged, others)
    elif task == "embedding" or (may_lack_label and pair is not None and not label_candidates(data, pair)):
        _put_embedding(guess, data, pair, is_given=task is not None)
    elif task == "mlm" or (may_lack_label and data.names == ["text"]):
        guess.put("task.kind", "mlm", None if task else "the file has only texts, no labels")
        _put_texts(guess, data)
    else:
        label = _label_column(guess, data, task)
        if isinstance(label, str):
            check_header(data.table, label, data.source)
        tables = [other for other in others if label in other.column_names]
        more = [value for other in tables for value in values_with_names(other, str(label))]
        _put_labels(guess, data, label, task, more)
        _put_texts(guess, data, label)
        guess.put("data.columns.label", label, _label_reason(data, label))


def _put_choices(guess: OptionGuess, data: GuessTable, choices: str | list[str] | None, answers: str | None) -> None:
    if choices is None:
        advice = "rename them to choice1, choice2, ..., or one column with lists to choices"
        raise data.lacks("columns with usual names of choices", advice)
    guess.put("task.kind", "multiple_choice", "columns of choices")
    rest = [name for name in data.names if name not in named_columns(choices)]
    usual = {"text": "question"} if "question" in rest else {}
    usual |= {"label": answers} if answers in rest else {}
    data = GuessTable(data.table.select(rest), data.source, {**usual, **data.named})
    label = _label_column(guess, data, "multiple_choice")
    _put_texts(guess, data, label)
    guess.put("data.columns.choices", choices, "usual names of choices")
    guess.put("data.columns.label", label, _label_reason(data, label))


def _put_questions(guess: OptionGuess, data: GuessTable, answers: str) -> None:
    guess.put("task.kind", "qa", "columns of questions, contexts and answers")
    columns = {"text": "question", "text_pair": "context", "label": answers, **data.named}
    if absent := [name for name in columns.values() if name not in data.names]:
        if nested := _nested_rows(data):
            raise data.table_error(nested, code="data.column_missing", absent=absent)
        advice = "name it with --text (question), --text-pair (context) or --label (answers)"
        raise data.lacks(f"column {listing(map(repr, absent))} for the task qa", advice, absent=absent)
    columns |= {name: name for name in ("answer_start", "id") if name in data.names}
    for key, name in columns.items():
        guess.put(f"data.columns.{key}", name)
    if "id" not in columns:
        guess.put("data.columns.id", None, "no column id: rows are numbered")


def _put_tags(
    guess: OptionGuess, data: GuessTable, columns: tuple[str, str] | None, others: Sequence[pa.Table]
) -> None:
    if columns is None:
        advice = "lists of words with as many tags, texts with spans {start, end, label}, or a file in CoNLL format"
        raise data.lacks("words with tags", f"needed: {advice}", code="data.label_column_unknown")
    text, label = columns
    tables = [data.table, *(other for other in others if label in other.column_names)]
    values = [value for table in tables for value in present_values(values_with_names(table, label)) if value]
    spans = [as_spans(value) for value in values]
    if None in spans:
        found, what = {str(tag) for row in values for tag in row if tag is not None}, "a tag for each word"
    else:
        found, what = {f"B-{kind}" for row in spans for _, _, kind in row or ()}, "spans of characters"
    types = sorted({tag[2:] for tag in found if re.fullmatch("[BI]-.+", tag)})
    is_iob = bool(types) and all(tag == "O" or tag[2:] in types for tag in found)
    guess.put("task.kind", "token_classification", f"{label} has {what}")
    numbers_first = sorted(found, key=lambda tag: (len(tag) * tag.isdecimal(), tag))
    guess.put("task.labels", ["O", *(f"{mark}-{kind}" for kind in types for mark in "BI")] if is_iob else numbers_first)
    if not is_iob:
        guess.put("task.scheme", "none", "the tags are not O, B-TYPE and I-TYPE")
    if all(tag.isdecimal() for tag in found):
        guess.doubts.append("entities: if numbers are tags, write task.labels: {0: O, 1: B-PER, ...}, scheme: iob2")
    guess.put("evaluate.best", "f1" if is_iob else "accuracy")
    guess.put("data.columns.text", text)
    guess.put("data.columns.label", label)
    for name in [name for name in data.names if name not in columns]:
        if tagged_columns(GuessTable(data.table.select([text, name]), data.source, {})) is not None:
            guess.doubts.append(f"--label {quote(name)}: it has tags, too")


def _put_embedding(guess: OptionGuess, data: GuessTable, pair: tuple[str, str] | None, *, is_given: bool) -> None:
    """Set pairs or triplets, and the loss for their labels: 0 and 1, other numbers, or none."""
    negative = next((name for name in data.names if name.lower() in ("negative", "negatives")), None)
    texts = [name for name in text_lengths(data, set()) if name != negative]
    usual = pair or (*texts[:1], *texts[-1:]) or ("", "")
    first, second = data.named.get("text", usual[0]), data.named.get("text_pair", usual[1])
    if first == second:
        raise data.lacks("two columns of texts for the task embedding", "name them with --text and --text-pair")
    guess.put("task.kind", "embedding", None if is_given else "pairs of texts without a label")
    label = data.named.get("label") or next(iter(label_candidates(data, (first, second))), None)
    values = [] if label is None else data.present(str(label))
    numbers = [number for value in values if (number := as_number(value)) is not None]
    loss = "multiple_negatives_ranking"
    if numbers and len(numbers) == len(values):
        loss = "contrastive" if {*numbers} <= {0, 1} else "cosine_similarity"
        guess.put("task.loss", loss, f"{label} has {'0 and 1' if loss == 'contrastive' else 'scores'}")
        if loss == "cosine_similarity":
            guess.put("task.score_range", [min(numbers), max(numbers)], "lowest and highest score in the data")
        guess.put("data.columns.label", label)
    elif negative is not None:
        guess.put("data.columns.negative", negative)
    guess.put("evaluate.best", EMBEDDING_SCORES[loss][0])
    guess.put("data.columns.text", first, _pair_reason(pair) if pair else None)
    guess.put("data.columns.text_pair", second)


def _pair_reason(pair: tuple[str, str]) -> str:
    joined = f"two texts, about equally long; --text {pair[0]},{pair[1]} joins them"
    return joined if pair[0].isdecimal() else "usual names of a pair"


def _put_texts(guess: OptionGuess, data: GuessTable, label: str | list[str] | None = None) -> None:
    pair = pair_columns(data, label)
    if "text" in data.named:
        guess.put("data.columns.text", data.named["text"])
    elif pair is not None and data.named.get("text_pair", pair[1]) == pair[1]:
        guess.put("data.columns.text", pair[0], _pair_reason(pair))
        guess.put("data.columns.text_pair", pair[1])
    else:
        lengths = text_lengths(data, {*named_columns(label), *named_columns(data.named.get("text_pair"))})
        if not lengths:
            examples = {name: str(data.present(name)[:1])[1:-1][:40] or "empty" for name in data.names}
            found = listing((f"{name}: {example}" for name, example in examples.items()), width=200)
            problem = f" has no column of texts, only numbers, lists or a label ({found}); name the text with --text"
            raise data.table_error(problem, code="data.wrong_type")
        guess.put("data.columns.text", *usual_or_longest(lengths))
    if "text_pair" in data.named and guess.kind != "mlm":
        guess.put("data.columns.text_pair", data.named["text_pair"])
    if guess.kind == "regression" and "data.columns.text_pair" in guess.values:
        guess.doubts.append("--task embedding: a vector for each text, for search, not a score of two texts")
    used = [guess.values.get(f"data.columns.{key}") for key in ("text", "text_pair")]
    more = [name for name in text_lengths(data, {*named_columns(label)}) if name not in used]
    if pair is not None and pair[0] == used[0] and used[1] is None and guess.kind not in ("mlm", "multiple_choice"):
        guess.doubts.append(f"--text-pair {quote(pair[1])}: {_pair_reason(pair)}")
    if more and "text" not in data.named and guess.kind != "multiple_choice":
        option = "" if guess.kind == "mlm" else f", or --text-pair {quote(more[0])}"
        guess.doubts.append(f"--text {quote(f'{used[0]},{more[0]}')}{option}: more texts: {listing(more, width=100)}")


def _nested_rows(data: GuessTable) -> str | None:
    """Return the problem of a file whose rows are in lists of objects: those of one object, or questions."""
    for name, parts in data.lists_of_objects().items():
        found = f", column {name} has lists of objects ({listing(parts, width=100)})"
        if any(re.search("question|query|answer|qas", key, re.IGNORECASE) for key in (name, *parts)):
            answers = "answers as {text: [...], answer_start: [...]}"
            return f"{found}; needed is a row for each question, with id, question, context and {answers}"
        if data.table.num_rows == 1:
            return f", which is one object{found}; write a file with its list alone"
    return None


def _label_column(guess: OptionGuess, data: GuessTable, task: str | None) -> str | list[str]:
    """Return the column of the label, or those with 0 and 1 for each label; the others are doubts."""
    if "label" in data.named:
        return data.named["label"]
    found = label_candidates(data)
    likely = sorted(found, key=lambda key: (re.split(r"[\W_]", key.lower())[-1] not in USUAL_LABELS, len(found[key])))
    shown = {
        name: f"--label {quote(name[:40])} ({len(found[name])} values, such as {listing(found[name][:3])[:40]})"
        for name in likely
    }
    first = next(iter(found), "")
    if first.lower() not in USUAL_LABELS:
        members = {name: {value.lower().removesuffix(".0") for value in values} for name, values in found.items()}
        flags = [name for name, values in members.items() if values <= _FLAGS]
        if len(flags) > {None: 2, "multi_label": 1}.get(task, len(flags)):  # two may be two questions
            guess.doubts.append(f"--label {quote(flags[0])}: a single label of {listing(flags)[:60]}")
            return flags
        few = [name for name, values in found.items() if is_few(len(values), len(data.present(name)))]
        if len(few or found) != 1:
            advice = f"possible: {listing(shown.values(), most=5)}" if found else _WITHOUT_LABEL
            problem, code = ": the column of the label cannot be guessed", "data.label_column_unknown"
            if not found and (nested := _nested_rows(data)):
                raise data.table_error(nested, code=code)
            values = ((name[:40], {*map(str, data.present(name))}) for name in data.names)
            only = [f"{name} has {min(texts)!r}" for name, texts in values if len(texts) == 1 and len(min(texts)) <= 40]
            if only and not found:
                problem, code = f": one class only: {listing(only, width=100)}", "data.one_class"
            raise data.table_error(f"{problem} (columns: {data.has()}); {advice}", code=code)
    guess.doubts += [doubt for name, doubt in shown.items() if name != first][:3]
    return first


def _label_reason(data: GuessTable, label: str | list[str]) -> str | None:
    is_usual = isinstance(label, str) and label.lower() in USUAL_LABELS
    return None if "label" in data.named else "a usual name" if is_usual else "its values; no other name is usual"


def _put_labels(
    guess: OptionGuess, data: GuessTable, label: str | list[str], task: str | None, more_labels: list[Any]
) -> None:
    """Set the task and its labels from the values of the label column, or from the columns of labels."""
    if isinstance(label, list):
        guess.put("task.kind", task or "multi_label", None if task else "a column of 0 and 1 for each label")
        guess.put("task.labels", label)
        return
    column = data.present(label)
    more_labels = present_values(without_marks(without_lists(more_labels), column))
    values = present_values(with_points(without_lists(column) + more_labels, separator_of(data.table)))
    if not values:
        problem = f", column {label} is empty; name the column of the label with --label"
        raise data.table_error(problem, code="data.value_missing", name=label)
    separator = _separator(values) if task in (None, "multi_label") else None
    kind, reason = (task, None) if task else _kind(guess, values, separator, label)
    guess.put("task.kind", kind, reason)
    if kind == "regression":
        numbers = [number for value in values if (number := as_number(value)) is not None]
        ends = [min(numbers, default=0.0), max(numbers, default=0.0)]
        # The ends of a scale are whole numbers that occur more than once, unlike those of an amount.
        if ends[0] < ends[1] and all(end.is_integer() and numbers.count(end) > 1 for end in ends):
            guess.put("task.range", [int(end) for end in ends], "lowest and highest score; widen it for a wider scale")
        return
    num_rows = len(values)
    if kind == "multi_label":
        lists = [value if isinstance(value, list) else str(value).split(separator or "|") for value in values]
        values = [member.strip() if isinstance(member, str) else member for members in lists for member in members]
    labels = _distinct(values)
    found = f", column {label} has {len(labels)} different values in {num_rows} rows, such as {str(values[0])[:40]!r}"
    if len(labels) < 2:
        advice = f"{str(values[0])[:40]!r}; name another column with --label, or a file with all classes"
        raise data.table_error(f", column {label} has one class only, {advice}", code="data.one_class")
    if len(labels) > max(_MOST_WHOLE_CLASSES, num_rows // 2):
        advice = f"too many for the task {kind}; name another column with --label, or give --task regression"
        raise data.table_error(f"{found}: {advice}", code="data.too_many_values", num_labels=len(labels))
    is_unordered = kind == "ordinal" and any(isinstance(name, str) for name in labels)
    marks = {*map(str, present_values(values_with_names(data.table, label)))} - {*map(str, column)}
    reason = f"{listing(map(repr, sorted(marks)))} stands for no label" if marks else None
    guess.put("task.labels", labels, "in alphabetical order; write the lowest first" if is_unordered else reason)
    if kind == "multi_label" and separator not in (None, "|"):
        guess.put("task.separator", separator)
    if kind not in _BEST:
        counts = Counter(map(str, without_lists(column)))
        largest = max(counts.values()) / counts.total() if counts else 0
        best = "accuracy" if largest <= _BALANCED_SHARE else "f1_macro"
        guess.put("evaluate.best", best, f"the largest class has {largest:.0%} of the rows")


def _kind(guess: OptionGuess, values: Sequence[Any], separator: str | None, label: str) -> tuple[str, str]:
    if any(isinstance(value, list) for value in values):
        return "multi_label", f"{label} has lists of labels"
    if separator is not None:
        guess.doubts.append(f"--task classification: {separator!r} is part of the labels and does not separate them")
        return "multi_label", f"{label} has several labels, separated by {separator!r}"
    distinct = set(map(str, values))
    numbers = [number for value in values if (number := as_number(value)) is not None]
    if len(numbers) == len(values):
        if len(distinct) > _MOST_WHOLE_CLASSES or not all(number.is_integer() for number in numbers):
            return "regression", f"{label} has {len(distinct)} different numbers"
        if len(distinct) > 2:
            scale = f"the whole numbers {min(numbers):g} to {max(numbers):g} may be a scale"
            guess.doubts.append(f"--task ordinal, or --task regression: {scale}")
            return "classification", f"{len(distinct)} whole numbers in {label}"
    return "classification", f"{len(distinct)} different values in {label}"


def _separator(values: Sequence[Any]) -> str | None:
    """Return the text between several labels of a value: both labels must also occur in other values."""
    if not all(isinstance(value, str) for value in values):
        return None
    for separator in [separator for separator in _SEPARATORS if any(separator in text for text in values)]:
        count = Counter(part.strip() for text in values for part in text.split(separator))
        joined = {part.strip() for text in values if separator in text for part in text.split(separator)}
        if len(count) < len(set(values)) and all(count[part] >= 2 for part in joined):
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
