"""Turns a table into questions with contexts and gold answers; unusable rows are an error, or dropped and counted.

Imports no torch.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from paratune.config.sections import Columns
from paratune.data.columns import AnswerSpan, Missing, Samples, TableReader, column_strings
from paratune.data.labels import first_rows
from paratune.errors import DataError, coded

log = logging.getLogger(__name__)

IS_IMPOSSIBLE: Final = "is_impossible"
"""Optional column that marks questions without an answer; the gold answers must agree with it."""
PROBLEMS: Final = {
    "question": "no question",
    "context": "no context",
    "answers": "no gold answers, not even an empty list",
    "readable answers": "answers without texts and their positions",
    "matching is_impossible": "answers that contradict is_impossible",
    "an answer": (
        "no answer, and task.unanswerable is false (set, or because every question of train and validation has an "
        "answer; true allows questions without an answer)"
    ),
    "matching offset": (
        "a first answer that is not at its position in the context (positions count characters, not bytes)"
    ),
    "id": "no id (data.columns.id: null counts rows instead)",
    "unique id": "the id of an earlier question",
    "room for the context": "a question so long that no tokens are left for the context (data.max_length, task.stride)",
}
"""What a row may lack: its key in `Samples.num_dropped`, and its text in messages. A row counts for the first problem
found."""
_NUM_EXAMPLES = 3
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")

TooLong = Callable[[Sequence[str]], Sequence[bool]]
"""From questions to a flag for each: whether it is too long for a window."""


@dataclass
class _UnusableRows:
    """Rows that cannot be used, by problem, with a few examples."""

    rows: dict[str, list[int]] = field(default_factory=lambda: {name: [] for name in PROBLEMS})
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, row: int, example: str = "") -> None:
        self.rows[name].append(row)
        shown = self.examples.setdefault(name, [])
        if example and len(shown) < _NUM_EXAMPLES:
            shown.append(f"row {row}: {example}")

    def __str__(self) -> str:
        parts = []
        for name, rows in self.rows.items():
            if rows:
                shown = self.examples.get(name)
                parts.append(
                    f"{len(rows)} with {PROBLEMS[name]}, {first_rows(rows)}"
                    + (f" ({'; '.join(shown)})" if shown else "")
                )
        return "; ".join(parts)


def select_questions(reader: TableReader, *, too_long: TooLong, may_lack_answers: bool = True) -> Samples:
    """Return questions, contexts and gold answers of a table; positions of answers are not checked.

    Gold answers are an object {text: [...], answer_start: [...]}, a list of objects {text, answer_start}, either of
    them as JSON in a text column, or a text with its position in the column `columns.answer_start`. A question without
    answers is unanswerable.

    Args:
        reader: The table; its columns name questions, contexts and answers.
        too_long: Returns which questions do not fit into a window.
        may_lack_answers: False where every question must have an answer.

    Returns:
        Questions as `texts`, contexts as `text_pairs`, and `answers`.

    Raises:
        DataError: A column is of the wrong type, rows cannot be used (`refuse`), or no row is left.
    """
    table, columns = reader.table, reader.columns
    assert isinstance(columns.text_pair, str), "positions of answers are in one text"
    questions, contexts = reader.texts("text"), reader.texts("text_pair")
    assert questions is not None
    assert contexts is not None
    ids = None if columns.id is None else column_strings(table, columns.id)
    golds = _read_answers(table, columns) if reader.require_labels else None
    has_flags = reader.require_labels and IS_IMPOSSIBLE in table.column_names
    impossible = _flags(table, reader.source) if has_flags else None
    is_long = _too_long_rows(questions, too_long)
    values = _QuestionTable(questions, contexts, ids, golds, impossible, is_long, may_lack_answers)
    rows, problems = values.usable()
    num_dropped = _check_unusable(problems, len(questions), len(rows), reader.missing, reader.source)
    samples = reader.samples(questions, contexts, rows, num_dropped)
    return samples if golds is None else replace(samples, answers=[values.answers(row) for row in rows])


@dataclass(frozen=True)
class _QuestionTable:
    """Values of a table of questions, by row; None for columns that are absent or not read."""

    questions: Sequence[str | None]
    contexts: Sequence[str | None]
    ids: Sequence[str] | None
    golds: Sequence[tuple[AnswerSpan, ...] | str | None] | None
    impossible: Sequence[bool | None] | None
    is_long: Sequence[bool]
    may_lack_answers: bool

    def usable(self) -> tuple[list[int], _UnusableRows]:
        """Return the rows that can be used, and the problems of the others."""
        problems, usable = _UnusableRows(), []
        seen: set[str] = set()
        for row in range(len(self.questions)):
            problem, example = self._problem(row, seen)
            if problem is not None:
                problems.add(problem, row, example)
                continue
            if self.ids is not None:
                seen.add(self.ids[row])
            usable.append(row)
        return usable, problems

    def answers(self, row: int) -> tuple[AnswerSpan, ...]:
        """Return the gold answers of a usable row; an empty tuple for an unanswerable question."""
        gold = None if self.golds is None else self.golds[row]
        return gold if isinstance(gold, tuple) else ()

    def _problem(self, row: int, seen: Collection[str]) -> tuple[str | None, str]:
        """Return the problem of a row, or None, and an example; `seen` are the ids of earlier rows."""
        question, context = self.questions[row], self.contexts[row]
        if question is None or context is None:
            return ("question" if question is None else "context"), ""
        if self.golds is not None:
            flag = None if self.impossible is None else self.impossible[row]
            problem, example = _problem(self.golds[row], context, flag, self.may_lack_answers)
            if problem is not None:
                return problem, example
            if self.ids is not None and not self.ids[row].strip():
                return "id", ""
            if self.ids is not None and self.ids[row] in seen:
                return "unique id", repr(self.ids[row])
        return ("room for the context", f"{question[:60]!r}...") if self.is_long[row] else (None, "")


def drop_unanswered(samples: Samples, missing: Missing, *, source: str) -> Samples:
    """Return the questions that have an answer, with the others counted as dropped.

    For a test set: it is read before train and validation decide whether questions may lack an answer.

    Raises:
        DataError: A question has no answer (`refuse`), or no question is left.
    """
    assert samples.answers is not None
    if all(samples.answers):
        return samples
    problems = _UnusableRows()
    for row, gold in zip(samples.rows.tolist(), samples.answers, strict=True):
        if not gold:
            problems.add("an answer", row)
    answered = np.flatnonzero([bool(gold) for gold in samples.answers]).astype(np.int64)
    num_dropped = _check_unusable(problems, len(samples), len(answered), missing, source)
    return samples.take(answered, num_dropped={**samples.num_dropped, **num_dropped})


def drop_misplaced(samples: Samples, missing: Missing, *, source: str) -> Samples:
    """Return the questions of a training set whose first answer is at its position, or that have no answer.

    Training learns the position of the first answer. Positions of other answers are not used: scores use texts.

    Raises:
        DataError: A first answer is misplaced (`refuse`), or no question is left.
    """
    assert samples.answers is not None
    misplaced = _misplaced(samples)
    if not misplaced:
        return samples
    assert samples.text_pairs is not None
    problems, rows = _UnusableRows(), samples.rows.tolist()
    for index in misplaced:
        example = _misplaced_text(samples.answers[index][0], samples.text_pairs[index])
        problems.add("matching offset", rows[index], example)
    kept = np.delete(np.arange(len(samples), dtype=np.int64), misplaced)
    num_dropped = _check_unusable(problems, len(samples), len(kept), missing, source)
    counts = Counter(samples.num_dropped) + Counter(num_dropped)
    return samples.take(kept, num_dropped=dict(counts))


def place_answers(samples: Samples, *, source: str) -> Samples:
    """Return the questions of an evaluation set; each has first an answer that is at its position, where there is one.

    Only the loss of an evaluation set uses positions. A question whose answers are all misplaced has the place of the
    text that is nearest to the position of its first answer; without one it counts as unanswerable in the loss.
    """
    if samples.answers is None or not (misplaced := _misplaced(samples)):
        return samples
    assert samples.text_pairs is not None
    answers, num_absent = list(samples.answers), 0
    for index in misplaced:
        gold, context = answers[index], samples.text_pairs[index]
        place = next((place for place, answer in enumerate(gold) if _is_placed(answer, context)), 0)
        first = gold[place] if place else AnswerSpan(gold[0].text, _nearest(gold[0], context))
        num_absent += first.start < 0
        answers[index] = (first, *gold[:place], *gold[place + 1 :])
    log.warning(
        "%s: the first answer of %d of %d questions is not at its position: %s; scores use the texts of answers, the "
        "loss uses the nearest place of the text (%d are not in their context and count as unanswerable in the loss)",
        source,
        len(misplaced),
        len(samples),
        first_rows(samples.rows[misplaced].tolist()),
        num_absent,
        extra=coded("data.answer_misplaced", source=source, count=len(misplaced)),
    )
    return replace(samples, answers=answers)


def _misplaced(samples: Samples) -> list[int]:
    """Return the indices of the questions whose first answer is not at its position."""
    assert samples.text_pairs is not None
    pairs = zip(samples.answers or (), samples.text_pairs, strict=True)
    return [index for index, (gold, context) in enumerate(pairs) if gold and not _is_placed(gold[0], context)]


def _check_unusable(
    problems: _UnusableRows, num_rows: int, num_usable: int, missing: Missing, source: str
) -> dict[str, int]:
    """Return the number of rows by problem; raise a DataError where they may not be dropped."""
    num_dropped = {name: len(rows) for name, rows in problems.rows.items() if rows}
    if num_dropped and missing == "refuse":
        raise DataError(
            f"{source}: {sum(num_dropped.values())} of {num_rows} questions cannot be used: {problems}. Correct the "
            "file, or drop such rows with data.missing: drop",
            code="data.question_unusable",
            source=source,
        )
    if num_usable == 0:
        raise DataError(f"{source}: no question is left: {problems}", code="data.no_rows_left", source=source)
    return num_dropped


def _too_long_rows(questions: Sequence[str | None], too_long: TooLong) -> list[bool]:
    present = [row for row, question in enumerate(questions) if question is not None]
    flags = [False] * len(questions)
    for row, flag in zip(present, too_long([questions[row] or "" for row in present]), strict=True):
        flags[row] = flag
    return flags


def _problem(gold: Any, context: str, impossible: bool | None, may_lack_answers: bool) -> tuple[str | None, str]:
    """Return the problem of the answers of a question, or None, and an example."""
    if gold is None:
        # A file may have null answers for a question that it marks as impossible.
        gold = () if impossible else None
    if gold is None:
        return "answers", ""
    if isinstance(gold, str):
        return "readable answers", gold
    if impossible is not None and impossible == bool(gold):
        return "matching is_impossible", f"{IS_IMPOSSIBLE} is {impossible} with {len(gold)} answers"
    if not gold and not may_lack_answers:
        return "an answer", ""
    if gold and not any(answer.text.strip() for answer in gold):
        return "matching offset", _misplaced_text(gold[0], context)
    return None, ""


def _is_placed(answer: AnswerSpan, context: str) -> bool:
    return bool(answer.text.strip()) and answer.start >= 0 and context[answer.start : answer.end] == answer.text


def _nearest(answer: AnswerSpan, context: str) -> int:
    """Return the position of the text of an answer in the context that is nearest to its start; -1 without one."""
    if not answer.text.strip():
        return -1
    found = [match.start() for match in re.finditer(f"(?={re.escape(answer.text)})", context)]
    return min(found, key=lambda position: abs(position - answer.start), default=-1)


def _misplaced_text(answer: AnswerSpan, context: str) -> str:
    if not answer.text.strip():
        return f"an empty text at {answer.start}"
    text_there = context[answer.start : answer.end][:40] if answer.start >= 0 else ""
    there = f"the context has {text_there!r}" if text_there else "the context has ended"
    position = context.find(answer.text)
    elsewhere = f"; it is at {position}" if position >= 0 else "; it is not in the context"
    return f"{answer.text[:40]!r} at {answer.start}, where {there}{elsewhere}"


def _read_answers(table: pa.Table, columns: Columns) -> list[tuple[AnswerSpan, ...] | str | None]:
    """Return the gold answers of each row; None where the value is null, an excerpt as text where it is unreadable."""
    assert columns.label is not None
    values = table.column(columns.label).to_pylist()
    if columns.answer_start is None:
        return [_answers(value) for value in values]
    starts = table.column(columns.answer_start).to_pylist()
    return [_answers_from_columns(text, start) for text, start in zip(values, starts, strict=True)]


def _answers_from_columns(text: Any, start: Any) -> tuple[AnswerSpan, ...] | str | None:
    """Return the answers of a row that has texts and positions in two columns."""
    if isinstance(text, list) and isinstance(start, list):
        return _answers({"text": text, "answer_start": start})
    if text is None or text == "":
        position = _whole_number(start)
        return () if position is None or position < 0 else f"no text, but a position ({start!r})"
    return _answers({"text": [text], "answer_start": [start]})


def _answers(value: Any) -> tuple[AnswerSpan, ...] | str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return f"{value[:60]!r} is not JSON; for plain texts, data.columns.answer_start must name their positions"
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = [value]
    if isinstance(value, list) and all(isinstance(answer, dict) for answer in value):
        value = {key: [answer.get(key) for answer in value] for key in ("text", "answer_start")}
    if not isinstance(value, dict):
        return repr(value)[:60]
    texts, starts = value.get("text"), value.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return f"{repr(value)[:60]} does not have as many `answer_start` as `text`"
    spans = []
    for text, start in zip(texts, starts, strict=True):
        position = _whole_number(start)
        if position is None or not isinstance(text, str):
            return f"{text!r} at {start!r}"[:60]
        spans.append(AnswerSpan(text, position))
    return tuple(spans)


def _whole_number(value: Any) -> int | None:
    """Return a value, or the text of a value, as a whole number; None for others."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _flags(table: pa.Table, source: str) -> list[bool | None]:
    """Return the values of the column `is_impossible`."""
    values = table.column(IS_IMPOSSIBLE).to_pylist()
    odd = Counter(str(value) for value in values if value is not None and str(value).lower() not in (*_TRUE, *_FALSE))
    if odd:
        raise DataError(
            f"{source}, column {IS_IMPOSSIBLE} contains {odd.most_common(1)[0][0][:40]!r}; expected true or false: it "
            "marks questions without an answer",
            code="data.question_unusable",
            source=source,
        )
    return [None if value is None else str(value).lower() in _TRUE for value in values]
