"""`evaluate` and `predict` with a model that answers questions."""

import csv
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code
from tiny import tiny_config, tiny_tokenizer
from tiny_questions import squad, tiny_qa_model, write_squad

from paratune.commands.infer import evaluate as run_evaluate
from paratune.commands.infer import predict as run_predict
from paratune.data.read import read_table
from paratune.records.own import TASK_FILE

TASK = {"kind": "qa", "stride": 4, "unanswerable": True, "null_threshold": 0.25}
RECORD: dict[str, Any] = {"task": TASK, "columns": {"text": "question", "text_pair": "context", "label": "answers"}}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("paratune.api.evaluate", "paratune.api.predict"):
        monkeypatch.setattr(f"{module}.set_up_process", lambda: None)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    tiny_qa_model(tiny_config()).save_pretrained(folder)
    tiny_tokenizer(folder)
    columns = {**RECORD["columns"], "id": "id"}
    (folder / TASK_FILE).write_text(json.dumps({**RECORD, "columns": columns, "max_length": 16}))
    return folder


def predict(model: Path, source: Path, output: Path) -> None:
    options = {"batch_size": 4, "device": "cpu", "overwrite": True, "json": True}
    run_predict(str(model), input=str(source), out=output, **options)


def evaluate(model: Path, source: Path, *, as_json: bool) -> None:
    run_evaluate(str(model), data=str(source), batch_size=4, device="cpu", json=as_json)


def test_evaluate_uses_the_threshold_of_the_training(model: Path, tmp_path: Path, capsys: Any):
    evaluate(model, write_squad(tmp_path / "a.json", 15), as_json=True)
    result = json.loads(capsys.readouterr().out)
    assert result["num_samples"] == 15
    assert result["answers"]["null_threshold"] == 0.25
    assert result["answers"]["num_with_answer"] + result["answers"]["num_without_answer"] == 15
    assert set(result["scores"]) >= {"exact", "f1", "has_answer_f1", "no_answer_f1", "best_exact", "best_f1", "loss"}


def test_evaluate_shows_scores_and_thresholds(model: Path, tmp_path: Path, capsys: Any):
    evaluate(model, write_squad(tmp_path / "a.json", 15), as_json=False)
    shown = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert {"exact", "f1", "best_f1", "null_threshold", "best_f1_thresh", "num_with_answer"} <= set(shown)


def test_a_json_file_has_the_answers_by_id(model: Path, tmp_path: Path, capsys: Any):
    source = write_squad(tmp_path / "a.json", 15)
    predict(model, source, tmp_path / "out.json")
    assert json.loads(capsys.readouterr().out)["num_predicted"] == 15
    answers = json.loads((tmp_path / "out.json").read_text())
    predict(model, source, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert answers == {row["id"]: row["prediction"] for row in rows}
    for row in rows:
        assert row["best_answer"] in row["context"]
        assert row["prediction"] == ("" if float(row["null_odds"]) > 0.25 else row["best_answer"])
    # What CSV has no form for stands there as JSON.
    first = squad(15)["data"][0]["paragraphs"][0]["qas"][0]["answers"]
    assert json.loads(rows[0]["answers"])["text"] == [answer["text"] for answer in first]


def test_predict_needs_only_questions_and_contexts(model: Path, tmp_path: Path, capsys: Any):
    source = tmp_path / "in.csv"
    source.write_text("question,context\nfilm was?,the film was one\n,nothing\nfilm was?,the film was one\n")
    predict(model, source, tmp_path / "out.json")
    result = json.loads(capsys.readouterr().out)
    assert result["rows_without_prediction"] == [1]
    assert list(json.loads((tmp_path / "out.json").read_text())) == ["0", "2"]


def test_repeated_ids_are_refused_for_a_json_file(model: Path, tmp_path: Path):
    source = tmp_path / "in.csv"
    source.write_text("id,question,context\na,film was?,the film was one\na,food was?,the food was one\n")
    with raises_code("output.format", "in.csv"):
        predict(model, source, tmp_path / "out.json")
    predict(model, source, tmp_path / "out.csv")
    assert not (tmp_path / "out.json").exists()


def test_a_question_that_is_too_long_is_dropped_or_refused(model: Path, tmp_path: Path, capsys: Any):
    value = squad(5)
    value["data"][0]["paragraphs"][0]["qas"][2]["question"] = "very " * 20
    source = tmp_path / "a.json"
    source.write_text(json.dumps(value))
    with raises_code("data.question_unusable", "1", "data.max_length"):
        evaluate(model, source, as_json=True)
    predict(model, source, tmp_path / "out.json")
    assert json.loads(capsys.readouterr().out)["rows_without_prediction"] == [2]


def test_the_head_of_a_foreign_model_is_used(model: Path, tmp_path: Path, capsys: Any, caplog: Any):
    (model / TASK_FILE).unlink()
    source = write_squad(tmp_path / "a.json", 10)
    with caplog.at_level(logging.INFO):
        evaluate(model, source, as_json=True)
    assert "task.null_threshold is 0" in caplog.text
    result = json.loads(capsys.readouterr().out)
    assert result["scores"]["no_answer_f1"] is not None
    # Not the threshold that is best for this very file.
    assert result["answers"]["null_threshold"] == 0
    predict(model, source, tmp_path / "out.json")
    # By no option may questions lack an answer: the best passage is given.
    assert "" not in json.loads((tmp_path / "out.json").read_text()).values()


@pytest.mark.slow
def test_files_of_either_layout_score_a_model(model: Path, tmp_path: Path, capsys: Any):
    plain, layout = tmp_path / "plain.csv", write_squad(tmp_path / "a.json", 10)
    with plain.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["asked", "passage", "answer", "start"])
        for paragraph in squad(10)["data"][0]["paragraphs"]:
            for qa in paragraph["qas"]:
                gold = qa["answers"][0] if qa["answers"] else {"text": "", "answer_start": ""}
                writer.writerow([qa["question"], paragraph["context"], gold["text"], gold["answer_start"]])
    options: dict[str, Any] = {"batch_size": 4, "device": "cpu", "json": True}

    def scores(source: Path, **named: str) -> Any:
        run_evaluate(str(model), data=str(source), **named, **options)
        return json.loads(capsys.readouterr().out)["scores"]

    trained_on_layout = scores(layout)
    names = {"text": "asked", "text_pair": "passage", "label": "answer", "answer_start": "start"}
    assert scores(plain, **names) == trained_on_layout
    (model / TASK_FILE).write_text(json.dumps({**RECORD, "columns": names, "max_length": 16}))
    assert scores(plain) == scores(layout) == trained_on_layout
    rows = tmp_path / "rows.json"  # not in the layout, and with its answers
    rows.write_text(
        json.dumps(read_table(str(layout)).rename_columns({"question": "asked", "context": "passage"}).to_pylist())
    )
    assert scores(rows, label="answers") == trained_on_layout
    with raises_code("data.column_missing", "absent"):
        scores(layout, label="absent")


def test_columns_that_are_not_needed_may_have_any_name(model: Path, tmp_path: Path):
    source = tmp_path / "in.csv"
    source.write_text("question,context,null_odds\nfilm was?,the film was one,mine\n")
    with raises_code("data.column_twice", "null_odds"):
        predict(model, source, tmp_path / "out.csv")
    (model / TASK_FILE).unlink()  # by no option may questions lack an answer: there are no odds
    predict(model, source, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        assert [row["null_odds"] for row in csv.DictReader(file)] == ["mine"]
