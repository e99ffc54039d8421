"""SQuAD's layout as a table, and errors for wrong parts."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from paratune.data.read import read_table
from paratune.errors import DataError

QUESTION = {"id": "q1", "question": "Who?", "answers": [{"text": "Ana", "answer_start": 0}], "is_impossible": False}
UNANSWERABLE = {
    "id": 2,
    "question": "When?",
    "answers": [],
    "is_impossible": True,
    "plausible_answers": [{"text": "x"}],
}
V1 = {"id": "q3", "question": "Onde?", "answers": [{"text": "São", "answer_start": 5}]}
UNKNOWN = {"id": "q4", "question": "Why?"}


def article(*questions: Any, context: str = "Ana e São.") -> dict[str, Any]:
    return {"title": "T", "paragraphs": [{"context": context, "qas": list(questions)}]}


def read(tmp_path: Path, value: Any, name: str = "x.json", indent: int | None = None) -> Any:
    raw = (value if isinstance(value, str) else json.dumps(value, indent=indent, ensure_ascii=False)).encode()
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    return read_table(str(tmp_path / name))


def error_text(tmp_path: Path, value: Any) -> str:
    with pytest.raises(DataError) as caught:
        read(tmp_path, value)
    return str(caught.value).replace(f"{tmp_path}/", "")


@pytest.mark.parametrize(("name", "indent"), [("x.json", None), ("x.json", 2), ("x.json.gz", 1)])
def test_each_question_is_a_row(tmp_path: Path, name: str, indent: int | None):
    value = {"version": "v2.0", "data": [article(QUESTION, UNANSWERABLE), article(V1, UNKNOWN)]}
    rows = read(tmp_path, value, name, indent).to_pylist()
    assert [row["id"] for row in rows] == ["q1", "2", "q3", "q4"]
    assert [row["answers"] for row in rows] == [
        {"text": ["Ana"], "answer_start": [0]},
        {"text": [], "answer_start": []},
        {"text": ["São"], "answer_start": [5]},
        None,
    ]
    assert [row["is_impossible"] for row in rows] == [False, True, None, None]
    assert {row["context"] for row in rows} == {"Ana e São."}
    assert {row["title"] for row in rows} == {"T"}


def test_a_list_of_rows_may_be_the_value_of_data(tmp_path: Path):
    rows = read(tmp_path, {"version": "0.1", "data": [{"id": "1", "question": "Who?"}]}).to_pylist()
    assert rows == [{"id": "1", "question": "Who?"}]


def test_the_answer_of_an_api_is_the_list_of_its_rows(tmp_path: Path):
    answer = {"status": "ok", "data": [{"text": "a"}, {"text": "b"}], "meta": {"page": 1}, "next": None}
    assert read(tmp_path, answer).to_pylist() == [{"text": "a"}, {"text": "b"}]
    assert read(tmp_path, answer | {"tags": ["x"]}).num_rows == 1


def test_one_object_per_line_is_one_row(tmp_path: Path):
    assert read(tmp_path, '{"data": [1], "text": "x"}\n{"text": "y"}\n').num_rows == 2
    assert read(tmp_path, '{"data": [1], "text": "x"}').column_names == ["data", "text"]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (article(QUESTION | {"question": None}), "data[0].paragraphs[0].qas[0].question is None; expected str"),
        (article({"question": "Who?"}), "data[0].paragraphs[0].qas[0].id is absent; expected str or int"),
        (article("Who?"), "data[0].paragraphs[0].qas[0] is 'Who?', not an object with 'id'"),
        (article(QUESTION | {"is_impossible": "no"}), "qas[0].is_impossible is 'no'; expected bool"),
        (article(QUESTION | {"answers": [{"text": "Ana"}]}), "qas[0].answers[0].answer_start is absent; expected int"),
        (article(QUESTION | {"answers": {"text": "Ana"}}), "qas[0].answers is {'text': 'Ana'}; expected list"),
        ({"paragraphs": {}}, "data[0].paragraphs is {}; expected list"),
        (article(), "x.json has SQuAD's layout"),
    ],
)
def test_problems_are_reported_with_their_place(tmp_path: Path, value: Any, expected: str):
    assert expected in error_text(tmp_path, {"data": [value]})


def test_an_incomplete_file_is_reported_as_damaged(tmp_path: Path):
    text = json.dumps({"data": [article(QUESTION)]}, indent=1)
    message = error_text(tmp_path, text[:-20])
    assert "x.json, line 2" in message
    assert "SQuAD's layout" in message


def test_half_a_surrogate_pair_is_an_error(tmp_path: Path):
    assert "half of a surrogate pair" in error_text(
        tmp_path, '{"data": [{"paragraphs": [{"context": "\\ud83d", "qas": [{"id": "1", "question": "x"}]}]}]}'
    )
