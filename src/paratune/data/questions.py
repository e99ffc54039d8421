"""Turns a table into questions with contexts and gold answers; unusable rows are an error, or dropped and counted.

Imports no torch.
"""

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa

from paratune.config.sections import Columns
from paratune.data.columns import AnswerSpan, IntArray, Missing, Samples, TableReader, column_strings, usable_rows
from paratune.data.encode import BOUNDS, CHAR_END, CHAR_START
from paratune.data.labels import first_rows, whole_number
from paratune.data.token_store import TokenStore
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
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False, "": False}

TooLong = Callable[[Sequence[str]], Sequence[bool]]
"""From questions to a flag for each: whether it is too long for a window."""
_Problem = tuple[str, str] | None
"""What a row lacks, by its key in `PROBLEMS`, and an example of it, or ""."""
_Gold = tuple[AnswerSpan, ...] | str | None
"""Gold answers of a row; None where the value is null, an excerpt as text where it is unreadable."""


def select_questions(reader: TableReader, *, too_long: TooLong | None = None, may_lack_answers: bool = True) -> Samples:
    """Return questions, contexts and gold answers of a table; positions of answers are not checked.

    Gold answers are an object {text: [...], answer_start: [...]}, a list of objects {text, answer_start}, either of
    them as JSON in a text column, or a text with its position in the column `columns.answer_start`. A question without
    answers is unanswerable, which is a problem where `may_lack_answers` is false.

    Returns:
        Questions as `texts`, contexts as `text_pairs`, and `answers`.

    Raises:
        DataError: A column is of the wrong type, rows cannot be used (`refuse`), or no row is left.
    """
    table, columns = reader.table, reader.columns
    assert isinstance(columns.text_pair, str), "positions of answers are in one text"
    questions, contexts = reader.texts("text") or [], reader.texts("text_pair") or []
    ids = None if columns.id is None else column_strings(table, columns.id)
    golds = _read_answers(table, columns) if reader.require_labels else [None] * len(questions)
    flags = _impossible_flags(table, reader.source) if reader.require_labels else [None] * len(questions)
    long = [False] * len(questions) if too_long is None else too_long([question or "" for question in questions])
    problems: list[_Problem] = []
    seen: set[str] = set()
    for row, (question, context) in enumerate(zip(questions, contexts, strict=True)):
        problem: _Problem = None
        if question is None or context is None:
            problem = "question" if question is None else "context", ""
        elif reader.require_labels:
            problem = _answer_problem(golds[row], context, flags[row], may_lack_answers)
            if problem is None and ids is not None and (ids[row] in seen or not ids[row].strip()):
                problem = ("unique id", repr(ids[row])) if ids[row].strip() else ("id", "")
        if problem is None and long[row]:
            problem = "room for the context", f"{(question or '')[:60]!r}..."
        if problem is None and ids is not None:
            seen.add(ids[row])
        problems.append(problem)
    rows, num_dropped = _usable(problems, range(len(problems)), reader.missing, reader.source)
    samples = reader.samples(questions, contexts, rows, num_dropped)
    answers = [gold if isinstance(gold := golds[row], tuple) else () for row in rows]
    return replace(samples, answers=answers) if reader.require_labels else samples


def drop_unanswered(samples: Samples, missing: Missing, *, source: str) -> Samples:
    """Return the questions that have an answer, with the others counted as dropped, or an error (`refuse`).

    For a test set: it is read before train and validation decide whether questions may lack an answer.
    """
    return _dropped(samples, [None if gold else ("an answer", "") for gold in samples.answers or ()], missing, source)


def drop_misplaced(samples: Samples, missing: Missing, *, source: str) -> Samples:
    """Return the questions of a training set whose first answer is at its position, or that have no answer.

    Training learns the position of the first answer; other positions are not used. Errors as in `drop_unanswered`.
    """
    assert samples.answers is not None
    assert samples.text_pairs is not None
    problems: list[_Problem] = [None] * len(samples)
    for index in _misplaced(samples):
        problems[index] = "matching offset", _misplaced_text(samples.answers[index][0], samples.text_pairs[index])
    return _dropped(samples, problems, missing, source)


def _dropped(samples: Samples, problems: Sequence[_Problem], missing: Missing, source: str) -> Samples:
    """Return the samples without a problem; the others are added to those that were dropped before."""
    if not any(problems):
        return samples
    kept, num_dropped = _usable(problems, samples.rows.tolist(), missing, source)
    counts = Counter(samples.num_dropped) + Counter(num_dropped)
    return samples.take(np.asarray(kept, dtype=np.int64), num_dropped=dict(counts))


def _usable(
    problems: Sequence[_Problem], rows: Sequence[int], missing: Missing, source: str
) -> tuple[list[int], dict[str, int]]:
    """Return the indices of usable questions, and the number of other questions by problem; see `usable_rows`."""

    def describe(problem: str, of_problem: list[int]) -> str:
        pairs = zip(rows, problems, strict=True)
        examples = [f"row {row}: {found[1]}" for row, found in pairs if found and found[1] and found[0] == problem]
        shown = "; ".join(examples[:3])
        return f"{len(of_problem)} with {PROBLEMS[problem]}, {first_rows(of_problem)}{f' ({shown})' if shown else ''}"

    keys = [problem and problem[0] for problem in problems]
    rule = f"{len(keys) - keys.count(None)} of {len(keys)} questions cannot be used"
    return usable_rows(keys, rows, describe, missing, source, rule=rule, code="data.question_unusable")


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
        *(source, len(misplaced), len(samples), first_rows(samples.rows[misplaced].tolist()), num_absent),
        extra=coded("data.answer_misplaced", source=source, count=len(misplaced)),
    )
    return replace(samples, answers=answers)


def _misplaced(samples: Samples) -> list[int]:
    """Return the indices of the questions whose first answer is not at its position."""
    assert samples.text_pairs is not None
    pairs = zip(samples.answers or (), samples.text_pairs, strict=True)
    return [index for index, (gold, context) in enumerate(pairs) if gold and not _is_placed(gold[0], context)]


def answer_tokens(store: TokenStore, answers: Sequence[tuple[AnswerSpan, ...]]) -> IntArray:
    """Return the first and the last token of the first gold answer of each window, (N, 2), int64.

    Where a question has no answer, or the window does not contain the whole answer, both are the token for "no answer".
    `store` has the windows of the questions; `answers` are the gold answers of each question.
    """
    null, begin, end = (np.asarray(column, dtype=np.int64) for column in store.row_values[BOUNDS].T)
    positions = np.stack([null, null], axis=1)
    examples, offsets = store.examples.tolist(), store.offsets
    for window, example in enumerate(examples):
        if not answers[example]:
            continue
        given = answers[example][0]
        answer = AnswerSpan(given.text.strip(), given.start + len(given.text) - len(given.text.lstrip()))
        encoding = slice(offsets[window] + begin[window], offsets[window] + end[window])
        starts, ends = store.token_values[CHAR_START][encoding], store.token_values[CHAR_END][encoding]
        if starts[0] <= answer.start and answer.end <= ends[-1]:
            first = int(np.searchsorted(ends, answer.start, side="right"))
            last = int(np.searchsorted(starts, answer.end, side="left")) - 1
            if first <= last:
                positions[window] = begin[window] + first, begin[window] + last
    return positions


def count_unreachable_answers(store: TokenStore, positions: IntArray, answers: Sequence[tuple[AnswerSpan, ...]]) -> int:
    """Return how many questions have an answer that no window contains whole: training counts them as unanswerable."""
    is_reached = np.zeros(len(answers), dtype=np.bool_)
    in_window = positions[:, 0] != store.row_values[BOUNDS][:, 0]
    is_reached[store.examples[in_window]] = True
    return sum(bool(gold) and not reached for gold, reached in zip(answers, is_reached.tolist(), strict=True))


def _answer_problem(gold: _Gold, context: str, is_impossible: bool | None, may_lack_answers: bool) -> _Problem:
    if gold is None and not is_impossible:  # a file may have null answers for questions that it marks as impossible
        return "answers", ""
    if isinstance(gold, str):
        return "readable answers", gold
    if is_impossible is not None and is_impossible == bool(gold):
        return "matching is_impossible", f"{IS_IMPOSSIBLE} is {is_impossible} with {len(gold or ())} answers"
    if not gold:
        return None if may_lack_answers else ("an answer", "")
    if not any(answer.text.strip() for answer in gold):
        return "matching offset", _misplaced_text(gold[0], context)
    return None


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


def _read_answers(table: pa.Table, columns: Columns) -> list[_Gold]:
    assert isinstance(columns.label, str)
    values = table.column(columns.label).to_pylist()
    if columns.answer_start is None:
        return [_answers(value) for value in values]
    read: list[_Gold] = []
    for text, start in zip(values, table.column(columns.answer_start).to_pylist(), strict=True):
        if isinstance(text, list) and isinstance(start, list):
            read.append(_answers({"text": text, "answer_start": start}))
        elif text is None or text == "":
            position = whole_number(start)
            read.append(() if position is None or position < 0 else f"no text, but a position ({start!r})")
        else:
            read.append(_answers({"text": [text], "answer_start": [start]}))
    return read


def _answers(value: Any) -> _Gold:
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
        position = whole_number(start)
        if position is None or not isinstance(text, str):
            return f"{text!r} at {start!r}"[:60]
        spans.append(AnswerSpan(text, position))
    return tuple(spans)


def _impossible_flags(table: pa.Table, source: str) -> list[bool | None]:
    """Return the values of the column `is_impossible`; None where it is absent or null."""
    if IS_IMPOSSIBLE not in table.column_names:
        return [None] * table.num_rows
    values = table.column(IS_IMPOSSIBLE).to_pylist()
    texts = [None if value is None else str(value).lower() for value in values]
    if odd := [text for text in texts if text is not None and text not in _FLAGS]:
        message = (
            f"{source}, column {IS_IMPOSSIBLE} contains {odd[0][:40]!r}; expected true or false: it marks questions "
        )
        raise DataError(f"{message}without an answer", code="data.question_unusable", source=source)
    return [None if text is None else _FLAGS[text] for text in texts]
