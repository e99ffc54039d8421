"""Questions, contexts and gold answers from tables, and errors for unusable rows."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from raised import check_logged, raises_code

from paratune.config.sections import Columns
from paratune.data.columns import AnswerSpan, Samples, TableReader
from paratune.data.questions import drop_misplaced, drop_unanswered, place_answers, select_questions
from paratune.errors import DataError

COLUMNS = Columns(text="question", text_pair="context", label="answers", id="id")
PLACED = Columns(text="question", text_pair="context", label="answer", answer_start="start")
CONTEXT = "O João vive em Évora 😀 desde 1999."


def table(answers: Sequence[Any], **columns: Any) -> pa.Table:
    count = len(answers)
    received = {
        "id": [f"q{number}" for number in range(count)],
        "question": [f"Question {number}?" for number in range(count)],
        "context": [CONTEXT] * count,
        "answers": list(answers),
    }
    return pa.table({**received, **columns})


def select(
    data: pa.Table,
    columns: Columns = COLUMNS,
    missing: Any = "refuse",
    *,
    may_lack_answers: bool = True,
    require_labels: bool = True,
) -> Samples:
    return select_questions(
        TableReader(data, columns, missing, "x.json", require_labels=require_labels),
        too_long=lambda questions: ["long" in question for question in questions],
        may_lack_answers=may_lack_answers,
    )


def error_text(data: pa.Table, columns: Columns = COLUMNS, **options: Any) -> str:
    with pytest.raises(DataError) as caught:
        select(data, columns, **options)
    return str(caught.value)


def gold(text: str, start: Any = None) -> dict[str, list[Any]]:
    return {"text": [text], "answer_start": [CONTEXT.index(text) if start is None else start]}


def test_offsets_count_characters_whatever_their_bytes():
    samples = select(table([gold("Évora"), gold("1999"), {"text": [], "answer_start": []}]))
    assert samples.answers == [(AnswerSpan("Évora", 15),), (AnswerSpan("1999", 29),), ()]
    assert samples.texts == ["Question 0?", "Question 1?", "Question 2?"]
    assert samples.text_pairs == [CONTEXT] * 3
    assert samples.ids == ["q0", "q1", "q2"]


@pytest.mark.parametrize(
    "value",
    [
        {"text": ["João", "O João"], "answer_start": [2, 0]},
        [{"text": "João", "answer_start": 2}, {"text": "O João", "answer_start": 0}],
        '{"text": ["João", "O João"], "answer_start": [2, 0]}',
        {"text": ["João", "O João"], "answer_start": [2.0, 0.0]},
    ],
)
def test_answers_come_in_several_forms(value: Any):
    assert select(table([value])).answers == [(AnswerSpan("João", 2), AnswerSpan("O João", 0))]


def test_the_position_of_an_answer_may_be_in_another_column():
    data = table([None] * 4, answer=["João", "", None, "Évora"], start=["2", "", None, " 15 "])
    assert select(data, PLACED).answers == [(AnswerSpan("João", 2),), (), (), (AnswerSpan("Évora", 15),)]
    data = table([None], answer=[["João", "O"]], start=[[2, 0]])
    assert select(data, PLACED).answers == [(AnswerSpan("João", 2), AnswerSpan("O", 0))]


def test_an_absent_id_column_is_an_error():
    data = table([gold("João")] * 3, id=["a", None, " "])
    assert "2 with no id (data.columns.id: null counts rows instead), rows 1, 2 " in error_text(data)
    assert select(data, missing="drop").num_dropped == {"id": 2}


def test_a_position_without_a_text_is_not_an_unanswerable_question():
    data = table([None] * 5, answer=["João", "", None, "", ""], start=["2", "15", "0", "", "-1"])
    assert "2 with answers without texts and their positions, rows 1, 2 " in error_text(data, PLACED)
    assert "a position ('15')" in error_text(data, PLACED)
    samples = select(data, PLACED, "drop")
    assert samples.answers == [(AnswerSpan("João", 2),), (), ()]
    assert samples.num_dropped == {"readable answers": 2}


def test_an_unanswerable_question_may_lack_its_answers():
    data = table([None, gold("João")], is_impossible=[True, False])
    assert select(data).answers == [(), (AnswerSpan("João", 2),)]
    data = table([None, gold("João")], is_impossible=["True", "false"])
    assert select(data).answers == [(), (AnswerSpan("João", 2),)]


@pytest.mark.parametrize(
    ("answers", "others", "count", "expected"),
    [
        (gold(" ", 1), {}, "matching offset", "an empty text at 1"),
        (None, {}, "answers", "1 with no gold answers, not even an empty list, row 0"),
        ("João", {}, "readable answers", "data.columns.answer_start"),
        ({"text": ["a", "b"], "answer_start": [1]}, {}, "readable answers", "as many `answer_start` as `text`"),
        (gold("a", "x"), {}, "readable answers", "'a' at 'x'"),
        (gold("1999"), {"is_impossible": True}, "matching is_impossible", "is_impossible is True with 1 answers"),
        (gold("1999"), {"context": " "}, "context", "1 with no context, row 0"),
        (gold("1999"), {"question": None}, "question", "1 with no question, row 0"),
        (gold("1999"), {"question": "too long"}, "room for the context", "'too long'"),
    ],
)
def test_an_unusable_row_is_an_error_or_counted(answers: Any, others: dict[str, Any], count: str, expected: str):
    good = {"question": "Who?", "context": CONTEXT, "answers": json.dumps(gold("João")), "is_impossible": False}
    answers = answers if answers is None or isinstance(answers, str) else json.dumps(answers)
    bad = {**good, "answers": answers, "is_impossible": None, **others}
    data = pa.Table.from_pylist([{"id": "bad", **bad}, {"id": "good", **good}])
    message = error_text(data)
    assert expected in message
    assert "1 of 2 questions cannot be used" in message
    assert "data.missing: drop" in message
    samples = select(data, missing="drop")
    assert samples.num_dropped == {count: 1}
    assert samples.ids == ["good"]
    assert samples.rows.tolist() == [1]


def test_repeated_ids_are_an_error():
    data = table([gold("João")] * 3, id=["a", "b", "a"])
    assert "1 with the id of an earlier question, row 2 (counted from 0) (row 2: 'a')" in error_text(data)
    assert select(data, missing="drop").rows.tolist() == [0, 1]


MISPLACED = [
    (gold("João", 3), "row 1: 'João' at 3, where the context has 'oão '; it is at 2"),
    # Counted in UTF-16, where the emoji is two units.
    (gold("1999", 30), "'1999' at 30, where the context has '999.'; it is at 29"),
    (gold("2000", 29), "it is not in the context"),
    (gold("1999", 99), "where the context has ended"),
    (gold("1999", -5), "'1999' at -5"),
    ({"text": [" ", "1999"], "answer_start": [1, 29]}, "an empty text at 1"),
]


@pytest.mark.parametrize(("answers", "expected"), MISPLACED)
def test_a_misplaced_first_answer_is_an_error_or_dropped_where_it_trains(answers: Any, expected: str):
    samples = select(table([None, answers, gold("João")], context=["", CONTEXT, CONTEXT]), missing="drop")
    with raises_code("data.question_unusable", "1 of 2 questions", "data.missing: drop", expected):
        drop_misplaced(samples, "refuse", source="x.json")
    kept = drop_misplaced(samples, "drop", source="x.json")
    assert (kept.ids, kept.rows.tolist()) == (["q2"], [2])
    assert kept.num_dropped == {"context": 1, "matching offset": 1}


def test_at_most_three_examples_are_shown():
    samples = select(table([gold("João", 7)] * 9 + [gold("João")]))
    with raises_code("data.question_unusable", "9 of 10", "rows 0, 1, 2, 3, 4 and 4 more") as raised:
        drop_misplaced(samples, "refuse", source="x.json")
    assert str(raised.value).count("it is at 2") == 3


def test_a_misplaced_answer_behind_the_first_one_is_not_looked_at():
    second = {"text": ["João", "1999", "absent"], "answer_start": [2, 30, 4]}
    samples = select(table([second, gold("1999"), {"text": [], "answer_start": []}]))
    assert drop_misplaced(samples, "refuse", source="x.json") is samples
    assert place_answers(samples, source="x.json") is samples


def test_misplaced_answers_of_an_evaluation_set_are_kept_and_placed(caplog: pytest.LogCaptureFixture):
    answers = [
        {"text": ["João", "1999"], "answer_start": [3, 29]},  # the second is at its position
        {"text": ["e", "1999"], "answer_start": [19, 30]},  # "e" is at 10, 12, 24 and 27
        gold("2000", 29),
        gold("1999"),
    ]
    placed = place_answers(select(table(answers)), source="x.json")
    assert placed.answers == [
        (AnswerSpan("1999", 29), AnswerSpan("João", 3)),
        (AnswerSpan("e", 24), AnswerSpan("1999", 30)),
        (AnswerSpan("2000", -1),),
        (AnswerSpan("1999", 29),),
    ]
    assert placed.num_dropped == {}
    check_logged(caplog, "data.answer_misplaced", "3 of 4", "rows 0, 1, 2", "(1 are not")


def test_a_question_without_an_answer_is_an_error_where_answers_are_required():
    data = table([gold("João"), {"text": [], "answer_start": []}])
    assert "1 with no answer, and task.unanswerable is false" in error_text(data, may_lack_answers=False)


def test_drop_unanswered_raises_or_drops():
    answered = select(table([gold("1999")]))
    assert drop_unanswered(answered, "refuse", source="x.json") is answered
    mixed = select(table([gold("1999"), {"text": [], "answer_start": []}, gold("1999")]))
    with raises_code("data.question_unusable", "x.json: 1 of 3", "row 1"):
        drop_unanswered(mixed, "refuse", source="x.json")
    remaining = drop_unanswered(mixed, "drop", source="x.json")
    assert (remaining.ids, sum(remaining.num_dropped.values())) == (["q0", "q2"], 1)


def test_a_flag_must_be_true_or_false():
    assert "column is_impossible contains 'maybe'" in error_text(table([gold("João")], is_impossible=["maybe"]))


def test_prediction_does_not_read_answers():
    data = table([gold("João", 99)] * 2, id=["same", "same"])
    samples = select(data, missing="drop", require_labels=False)
    assert samples.answers is None
    assert samples.rows.tolist() == [0, 1]


def test_no_question_left_is_an_error():
    assert "1 of 1 questions cannot be used: 1 with no context" in error_text(
        table([None], context=[""]), missing="drop"
    )


def test_a_missing_column_is_reported():
    assert "data.columns.text names question; did you mean questions?" in error_text(
        pa.table({"questions": ["x"], "context": ["y"], "answers": ["z"], "id": ["1"]})
    )
