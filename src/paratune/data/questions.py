"""From a table to questions with their contexts and gold answers; what does not fit is refused, or counted.

Floor 3, without torch.
"""

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from paratune.config.sections import Columns
from paratune.data.columns import AnswerSpan, Missing, Samples, as_strings, groups_of, joined_texts, require_columns
from paratune.data.labels import first_rows
from paratune.errors import DataError

IS_IMPOSSIBLE: Final = "is_impossible"
"""Column that says, where a file has it, which questions have no answer; the gold answers must agree with it."""
PROBLEMS: Final = {
    "question": "no question",
    "context": "no context",
    "answers": "no gold answers, not even an empty list",
    "readable answers": "answers without texts and their positions",
    "matching is_impossible": "answers that contradict is_impossible",
    "an answer": (
        "no answer, and task.unanswerable is false (as it says, or because no question of train or validation lacks an "
        "answer; true allows it)"
    ),
    "matching offset": "an answer that does not stand at its place in the context (places count characters, not bytes)",
    "id": "no id (data.columns.id: null counts rows instead)",
    "unique id": "the id of an earlier question",
    "room for the context": "a question so long that data.max_length leaves no room for the context beside task.stride",
}
"""What a row may lack, as it is counted and in words; a row counts for the first that holds."""
_NUM_EXAMPLES = 3
_TRUE, _FALSE = ("true", "1", "yes"), ("false", "0", "no", "")

TooLong = Callable[[Sequence[str]], Sequence[bool]]
"""Says of each question whether it is too long for a window."""


@dataclass
class _Findings:
    """Which rows lack what, and of some of them how."""

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


def select_questions(
    table: pa.Table,
    columns: Columns,
    missing: Missing,
    *,
    source: str,
    too_long: TooLong,
    group_by: str | None = None,
    require_labels: bool = True,
    may_lack_answers: bool = True,
) -> Samples:
    """Take questions, contexts and gold answers from a table.

    Gold answers are an object {text: [...], answer_start: [...]}, a list of objects {text, answer_start}, either of
    them as JSON in a text column, or a text with its place in the column `columns.answer_start`. A question without
    answers is unanswerable.

    Args:
        table: From `read_table`.
        columns: Which columns hold what.
        missing: Whether rows that cannot be used are an error or are dropped and counted.
        source: Name of the table in messages.
        too_long: Finds the questions that do not fit into a window.
        group_by: Column whose values say what belongs together in a split.
        require_labels: False leaves answers alone, for prediction.
        may_lack_answers: False where every question must have an answer.

    Returns:
        Questions as `texts`, contexts as `text_pairs`, and `answers`.

    Raises:
        DataError: A column is absent or of the wrong type, rows cannot be used (`refuse`), or none is left.
    """
    assert columns.text is not None
    assert isinstance(columns.text_pair, str)
    require_columns(table, columns, source, group_by, require_labels)
    questions = joined_texts(table, columns.text, columns.separator, source, "text", refuse_numbers=require_labels)
    contexts = joined_texts(table, columns.text_pair, "", source, "text_pair", refuse_numbers=require_labels)
    ids = None if columns.id is None else as_strings(table, columns.id)
    golds = _read_answers(table, columns) if require_labels else None
    impossible = _flags(table, source) if require_labels and IS_IMPOSSIBLE in table.column_names else None
    read = _Read(questions, contexts, ids, golds, impossible, _by_row(questions, too_long), may_lack_answers)
    kept, found = read.usable()
    num_dropped = _judge(found, len(questions), len(kept), missing, source)
    every = Samples(
        texts=questions,  # type: ignore[arg-type]  # the missing ones go with `take`
        text_pairs=contexts,  # type: ignore[arg-type]
        labels=None,
        ids=ids,
        rows=np.arange(table.num_rows, dtype=np.int64),
        groups=None if group_by is None else groups_of(table, group_by, source),
        num_dropped={},
    )
    some = every.take(np.asarray(kept, dtype=np.int64), num_dropped=num_dropped)
    return some if golds is None else replace(some, answers=[read.answers(row) for row in kept])


@dataclass(frozen=True)
class _Read:
    """What a table of questions holds, by row; None for columns that it has not, or that are not asked for."""

    questions: Sequence[str | None]
    contexts: Sequence[str | None]
    ids: Sequence[str] | None
    golds: Sequence[tuple[AnswerSpan, ...] | str | None] | None
    impossible: Sequence[bool | None] | None
    is_long: Sequence[bool]
    may_lack_answers: bool

    def usable(self) -> tuple[list[int], _Findings]:
        """Return the rows that can be used, and what the others lack."""
        found, kept = _Findings(), []
        seen: set[str] = set()
        for row in range(len(self.questions)):
            problem, example = self._problem(row, seen)
            if problem is not None:
                found.add(problem, row, example)
                continue
            if self.ids is not None:
                seen.add(self.ids[row])
            kept.append(row)
        return kept, found

    def answers(self, row: int) -> tuple[AnswerSpan, ...]:
        """Return the gold answers of a row that can be used; none of an unanswerable question."""
        gold = None if self.golds is None else self.golds[row]
        return gold if isinstance(gold, tuple) else ()

    def _problem(self, row: int, seen: Collection[str]) -> tuple[str | None, str]:
        """Return what a row lacks, None for nothing, and an example of it; `seen` are the ids of rows before it."""
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


def answered_only(samples: Samples, missing: Missing, *, source: str) -> Samples:
    """Refuse questions without an answer, or leave them out and count them: for a set that was read before that was so.

    Args:
        samples: Questions with gold answers.
        missing: As for `select_questions`.
        source: Name of the samples in messages.

    Raises:
        DataError: There are such questions (`refuse`), or none is left.
    """
    assert samples.answers is not None
    if all(samples.answers):
        return samples
    found = _Findings()
    for row, gold in zip(samples.rows.tolist(), samples.answers, strict=True):
        if not gold:
            found.add("an answer", row)
    kept = np.flatnonzero([bool(gold) for gold in samples.answers]).astype(np.int64)
    num_dropped = _judge(found, len(samples), len(kept), missing, source)
    return samples.take(kept, num_dropped={**samples.num_dropped, **num_dropped})


def _judge(found: _Findings, num_rows: int, num_kept: int, missing: Missing, source: str) -> dict[str, int]:
    """Return how many rows lack what, where they may be left out."""
    num_dropped = {name: len(rows) for name, rows in found.rows.items() if rows}
    if num_dropped and missing == "refuse":
        raise DataError(
            f"{source}: {sum(num_dropped.values())} of {num_rows} questions cannot be used: {found}. Mend the file, or "
            "leave them out with data.missing: drop",
            code="data.question_unusable",
            source=source,
        )
    if num_kept == 0:
        raise DataError(f"{source}: no question is left: {found}", code="data.no_rows_left", source=source)
    return num_dropped


def _by_row(questions: Sequence[str | None], too_long: TooLong) -> list[bool]:
    present = [row for row, question in enumerate(questions) if question is not None]
    flags = [False] * len(questions)
    for row, flag in zip(present, too_long([questions[row] or "" for row in present]), strict=True):
        flags[row] = flag
    return flags


def _problem(gold: Any, context: str, impossible: bool | None, may_lack_answers: bool) -> tuple[str | None, str]:
    """Return what the answers of a question lack, None for nothing, and an example of it."""
    if gold is None:
        # A file may leave out the answers of a question that it calls unanswerable.
        gold = () if impossible else None
    if gold is None:
        return "answers", ""
    if isinstance(gold, str):
        return "readable answers", gold
    if impossible is not None and impossible == bool(gold):
        return "matching is_impossible", f"{IS_IMPOSSIBLE} is {impossible} with {len(gold)} answers"
    if not gold and not may_lack_answers:
        return "an answer", ""
    for answer in gold:
        if not answer.text.strip() or answer.start < 0 or context[answer.start : answer.end] != answer.text:
            return "matching offset", _misplaced(answer, context)
    return None, ""


def _misplaced(answer: AnswerSpan, context: str) -> str:
    if not answer.text.strip():
        return f"an empty text at {answer.start}"
    stands = context[answer.start : answer.end][:40] if answer.start >= 0 else ""
    there = f"{stands!r} stands" if stands else "the context has ended"
    place = context.find(answer.text)
    elsewhere = f", and it is at {place}" if place >= 0 else ", and it is not in the context"
    return f"{answer.text[:40]!r} at {answer.start}, where {there}{elsewhere}"


def _read_answers(table: pa.Table, columns: Columns) -> list[tuple[AnswerSpan, ...] | str | None]:
    """Return the gold answers of each row; None where there are none, a text that shows what cannot be read."""
    assert columns.label is not None
    values = table.column(columns.label).to_pylist()
    if columns.answer_start is None:
        return [_answers(value) for value in values]
    starts = table.column(columns.answer_start).to_pylist()
    return [_placed(text, start) for text, start in zip(values, starts, strict=True)]


def _placed(text: Any, start: Any) -> tuple[AnswerSpan, ...] | str | None:
    """Return the answers of a row that has texts and places in two columns."""
    if isinstance(text, list) and isinstance(start, list):
        return _answers({"text": text, "answer_start": start})
    if text is None or text == "":
        place = _place(start)
        return () if place is None or place < 0 else f"no text, and a place ({start!r})"
    return _answers({"text": [text], "answer_start": [start]})


def _answers(value: Any) -> tuple[AnswerSpan, ...] | str | None:
    if value is None or value == "":
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return f"{value[:60]!r} is no JSON; of a text alone, data.columns.answer_start must name the place"
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = [value]
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        value = {key: [each.get(key) for each in value] for key in ("text", "answer_start")}
    if not isinstance(value, dict):
        return repr(value)[:60]
    texts, starts = value.get("text"), value.get("answer_start")
    if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
        return f"{repr(value)[:60]} does not have as many `answer_start` as `text`"
    places = [_place(start) for start in starts]
    wrong = [
        f"{text!r} at {start!r}"
        for text, start, place in zip(texts, starts, places, strict=True)
        if place is None or not isinstance(text, str)
    ]
    if wrong:
        return wrong[0][:60]
    return tuple(AnswerSpan(text, place or 0) for text, place in zip(texts, places, strict=True))


def _place(value: Any) -> int | None:
    """Return a whole number that a value is or says."""
    if isinstance(value, bool):
        return None
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    try:
        return int(value)
    except (TypeError, ValueError):
        return None


def _flags(table: pa.Table, source: str) -> list[bool | None]:
    """Return the column that says which questions are unanswerable."""
    values = table.column(IS_IMPOSSIBLE).to_pylist()
    odd = Counter(str(value) for value in values if value is not None and str(value).lower() not in (*_TRUE, *_FALSE))
    if odd:
        raise DataError(
            f"{source}, column {IS_IMPOSSIBLE} holds {odd.most_common(1)[0][0][:40]!r}; expected true or false: it "
            "says which questions have no answer",
            code="data.question_unusable",
            source=source,
        )
    return [None if value is None else str(value).lower() in _TRUE for value in values]
