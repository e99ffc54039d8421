"""Feedback on essays: numbers, effects of removal, pages."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from explained import save_tiny
from pyarrow import parquet
from raised import raises_code

from paratune.commands import explain as command
from paratune.explain.rows import CharRange
from paratune.feedback.feedback import (
    EssayFeedback,
    RemovedPart,
    ScoreCalibration,
    calibrate,
    numbers,
    predict_texts,
    removed_parts,
    require_scores,
)
from paratune.feedback.page import ClassFeedback, as_dict, class_document, essay_document
from paratune.infer.trained import NamedColumns, load_trained
from paratune.records import RUN_FILE, predictions_file
from paratune.records.constant import CONSTANT
from paratune.records.own import TASK_FILE
from paratune.records.predictions import NumberScale, prediction_columns
from paratune.reports.document import MarkedText, Remarks

BOTH = ("validation", "test")
ESSAY = "It is good. This film is bad!\nNever again, it was poor."


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "set_up_process", lambda: None)


def save_run(folder: Path, kind: str = "regression", *, rows: int = 40, splits: tuple[str, ...] = BOTH) -> Path:
    """Save a run of an untrained model of pairs, with predictions whose errors are known."""
    save_tiny(folder / "model", kind, is_pair=True)
    files = {"train": str(folder / "train.csv"), "validation": "v.csv"}
    (folder / RUN_FILE).write_text(json.dumps({"config": {"data": files}}))
    rng = np.random.default_rng(0)
    labels = np.arange(rows) % 3
    for split in splits:
        if kind == "ordinal":
            shares = rng.dirichlet(np.ones(3), rows).astype(np.float32)
            names = np.asarray(["low", "middle", "high"])
            columns: dict[str, Any] = {"label": names[labels], "prediction": names[shares.argmax(axis=1)]}
            columns |= {f"score_{at}": shares[:, at] for at in range(3)}
        else:
            columns = {"label": labels.astype(float), "prediction": labels + np.linspace(-1, 1, rows)}
        parquet.write_table(pa.table({"index": np.arange(rows), **columns}), folder / predictions_file(split))
    return folder


def essays(folder: Path, *texts: str) -> str:
    path = folder / "essays.jsonl"
    path.write_text("".join(json.dumps({"text": "prompt", "pair": text}) + "\n" for text in texts))
    return str(path)


def run(folder: Path, data: str, out: Path, **options: Any) -> None:
    command.feedback(str(folder), input=data, out=out, device="cpu", **options)


@pytest.mark.parametrize("kind", ["regression", "ordinal"])
def test_the_effect_of_a_part_is_the_difference_without_it(tmp_path: Path, kind: str):
    trained, split = save_tiny(tmp_path, kind, is_pair=True).read("prompt", pairs=(ESSAY,))
    whole = numbers(trained, trained.apply(split, 4, lambda *_: None).outputs)
    (parts,) = removed_parts(trained, {"text": ["prompt"], "pair": [ESSAY]}, whole, 4, lambda *_: None)
    assert [part.text for part in parts] == ["It is good.", "This film is bad!", "Never again, it was poor."]
    shorter = {"text": ["prompt"], "pair": ["It is good. \nNever again, it was poor."]}
    without = predict_texts(trained, shorter, 4, lambda *_: None)
    assert parts[1].effect == pytest.approx(whole[0] - without[0], abs=1e-5)


def test_an_essay_of_very_many_sentences_is_refused(tmp_path: Path):
    trained, _ = save_tiny(tmp_path, "regression", is_pair=True).read("prompt", pairs=("good",))
    columns = {"text": ["prompt"], "pair": ["It is good. " * 20_000]}
    with raises_code("feedback.text_too_long", num_parts=20_000, num_characters=240_000):
        removed_parts(trained, columns, np.zeros(1), 4, lambda *_: None)


def test_an_essay_of_one_sentence_has_no_parts(tmp_path: Path):
    trained, _ = save_tiny(tmp_path, "regression", is_pair=True).read("prompt", pairs=("good",))
    assert removed_parts(trained, {"text": ["prompt"], "pair": ["good"]}, np.zeros(1), 4, lambda *_: None) == [[]]


def test_of_joined_columns_the_last_one_is_the_essay(tmp_path: Path):
    folder, out, essay = save_run(tmp_path / "run"), tmp_path / "out", "It is. \nA film."
    save_tiny(folder / "model", "regression")
    record = json.loads((folder / "model" / TASK_FILE).read_text())
    record["columns"] = {"text": ["Task", "Question", "Essay"], "label": "label", "separator": " \n"}
    (folder / "model" / TASK_FILE).write_text(json.dumps(record))
    # The second row lacks a text; the question has the separator and two sentences.
    rows = [("one", "Why? \nHow?", essay), ("one", "Why?", ""), ("two", "Good?", "bad")]
    data = tmp_path / "essays.jsonl"
    data.write_text(
        "".join(json.dumps(dict(zip(("Task", "Question", "Essay"), row, strict=True))) + "\n" for row in rows)
    )
    run(folder, str(data), out)
    written = json.loads((out / "report.json").read_text())["essays"]
    assert [found["row"] for found in written] == [0, 2]
    assert [essay[part["start"] : part["end"]] for part in written[0]["parts"]] == ["It is.", "A film."]
    page = (out / "essays" / "row-0.html").read_text()
    assert "one" in page
    assert "Why?" in page
    trained = load_trained(str(folder), NamedColumns(), "cpu")
    scores = [
        predict_texts(trained, {"Task": ["one"], "Question": ["Why? \nHow?"], "Essay": [text]}, 4, lambda *_: None)[0]
        for text in (essay, " \nA film.")
    ]
    assert written[0]["parts"][0]["effect"] == pytest.approx(scores[0] - scores[1], abs=1e-5)


def test_calibration_from_saved_predictions(tmp_path: Path):
    folder = save_run(tmp_path / "run")
    trained = load_trained(str(folder), NamedColumns(), "cpu")
    found = calibrate(trained, "run", level=0.8)
    # Residuals are linspace(-1, 1, 40); rank ceil(41 * 0.8) = 33 of the sorted absolute values, which come in pairs.
    assert found.half == pytest.approx(np.sort(np.abs(np.linspace(-1, 1, 40)))[32])
    assert found.coverage is not None
    assert found.coverage.num_inside in (33, 34)  # the other one of the pair may be a bit larger
    assert found.num_rows == 40


@pytest.mark.parametrize(
    ("value", "half", "limits", "expected"),
    [(8.5, 1.0, (0.0, 9.0), (7.5, 9.0)), (9.8, 0.5, (0.0, 9.0), (9.0, 9.0)), (2.0, 1.0, None, (1.0, 3.0))],
)
def test_intervals_stay_on_the_scale(
    tmp_path: Path, value: float, half: float, limits: tuple[float, float] | None, expected: tuple[float, float]
):
    trained = load_trained(str(save_run(tmp_path / "run")), NamedColumns(), "cpu")
    calibration = replace(calibrate(trained, "run"), half=half, scale=NumberScale(None, limits))
    assert calibration.interval(value) == expected


def test_expected_classes_of_saved_predictions_and_of_outputs_are_the_same(tmp_path: Path):
    folder = save_run(tmp_path / "run", "ordinal")
    trained = load_trained(str(folder), NamedColumns(), "cpu")
    outputs = np.asarray([[1.0, -2.0], [-1.0, 2.0]])
    columns = prediction_columns(outputs, trained.names, is_ordinal=True)
    shares = np.stack([columns[f"score_{at}"] for at in range(3)], axis=1)
    assert numbers(trained, outputs) == pytest.approx(shares @ np.arange(3))
    assert calibrate(trained, "run").text(1.2) == "middle"


@pytest.mark.parametrize("kind", ["regression", "ordinal"])
def test_pages_of_essays_and_of_the_class(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]):
    folder, out = save_run(tmp_path / "run", kind), tmp_path / "out"
    text = ESSAY + " <b>x</b>"
    run(folder, essays(tmp_path, text, "good"), out, coverage=0.8)
    assert str(out / "index.html") in capsys.readouterr().out
    assert {path.name for path in (out / "essays").iterdir()} == {"row-0.html", "row-1.html"}
    assert "<b>x" not in (out / "essays" / "row-0.html").read_text()
    assert 'href="essays/row-0.html"' in (out / "index.html").read_text()
    written = json.loads((out / "report.json").read_text())
    assert [essay["row"] for essay in written["essays"]] == [0, 1]
    first = written["essays"][0]
    assert first["low"] <= first["predicted"] <= first["high"] or kind == "ordinal"
    assert [part["counts"] for part in first["parts"]] == [
        abs(part["effect"]) >= written["smallest_effect"] for part in first["parts"]
    ]


def test_a_run_without_test_set(tmp_path: Path):
    folder = save_run(tmp_path / "run", splits=("validation",))
    run(folder, essays(tmp_path, ESSAY), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (written["coverage"], written["not_better"]) == (None, None)


@pytest.mark.parametrize("kind", ["regression", "ordinal"])
def test_all_essays_of_a_model_that_is_not_better_are_for_a_person(tmp_path: Path, kind: str):
    folder = save_run(tmp_path / "run", kind)
    known = json.loads((folder / "model" / TASK_FILE).read_text())
    worse = {"predicts": "training mean", "split": "test", "metric": "rmse", "model": 1.25, "constant": 1.125}
    (folder / "model" / TASK_FILE).write_text(json.dumps(known | {CONSTANT: worse}))
    run(folder, essays(tmp_path, ESSAY, "good"), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [essay["for_a_person"] for essay in written["essays"]] == [True, True]
    assert written["not_better"] == worse
    for page in ("index.html", "essays/row-0.html"):
        assert "1.1250" in (tmp_path / "out" / page).read_text()


@pytest.mark.parametrize(
    ("deviation", "expected", "shown"), [(0.49, True, "yes"), (0.51, False, "no"), (None, None, "n/a")]
)
def test_an_essay_with_a_wide_interval_is_for_a_person(
    tmp_path: Path, deviation: float | None, expected: bool | None, shown: str
):
    trained = load_trained(str(save_run(tmp_path / "run")), NamedColumns(), "cpu")
    calibration = replace(calibrate(replace(trained, label_deviation=deviation), "run"), half=0.5)
    found = feedback_on(calibration, {"Up.": 0.2, "Down.": -0.1})
    essay = replace(found.essays[0], interval=calibration.interval(1.0))  # 1 wide
    found = replace(found, essays=(essay,))
    assert as_dict(found)["essays"][0]["for_a_person"] is expected
    (table,) = class_document(found).sections[0].tables
    assert table.lines[0][1].text == shown
    assert len(essay_document(found, essay).notices) == bool(expected)


def test_bad_input_is_refused_and_nothing_is_written(tmp_path: Path):
    data, out = essays(tmp_path, ESSAY), tmp_path / "out"
    with raises_code("feedback.no_validation"):
        run(save_run(tmp_path / "a", splits=()), data, out)
    with raises_code("feedback.too_few_rows", num_rows=4):
        run(save_run(tmp_path / "b", rows=4), data, out)
    with raises_code("task.unsupported", kind="classification"):
        run(save_tiny(tmp_path / "c", "classification", is_pair=True).folder, data, out)
    in_windows = save_run(tmp_path / "w")
    record = json.loads((in_windows / "model" / TASK_FILE).read_text())
    record["task"]["windows"] = {}
    (in_windows / "model" / TASK_FILE).write_text(json.dumps(record))
    with raises_code("task.unsupported", kind="regression"):
        run(in_windows, data, out)
    several = save_tiny(tmp_path / "t", "regression", is_pair=True).load()
    several = replace(several, task=several.task.model_copy(update={"targets": ["lexis", "grammar"]}))
    with raises_code("task.unsupported", "t", kind="regression"):
        require_scores(several, "t")
    with raises_code("run.not_found"):
        run(save_tiny(tmp_path / "d", "regression", is_pair=True).folder, data, out)
    damaged = save_run(tmp_path / "e")
    (damaged / predictions_file("validation")).write_bytes(b"x")
    with raises_code("run.damaged"):
        run(damaged, data, out)
    with raises_code("cli.invalid_value"):
        run(damaged, data, out, coverage=1.0)
    assert not out.exists()


def test_the_essays_of_a_split(tmp_path: Path):
    folder = save_run(tmp_path)
    lines = ["text,pair,label", *(f"prompt,essay {'one ' * number}bad,{number % 3}" for number in range(60))]
    (folder / "train.csv").write_text("\n".join(lines) + "\n")
    table = parquet.read_table(folder / predictions_file("test")).slice(0, 2).drop_columns("index")
    parquet.write_table(table.append_column("index", pa.array([7, 3])), folder / predictions_file("test"))
    command.feedback(str(folder), split="test", out=tmp_path / "out", device="cpu")
    pages = [(tmp_path / "out" / "essays" / f"row-{row}.html").read_text() for row in (0, 1)]
    assert [f"essay {'one ' * number}bad" in page for number, page in zip((7, 3), pages, strict=True)] == [True, True]
    with raises_code("run.no_predictions", "dev", split="dev"):
        command.feedback(str(folder), split="dev", out=tmp_path / "out", device="cpu")
    with raises_code("cli.required", "--input", "--split"):
        command.feedback(str(folder), out=tmp_path / "out", device="cpu")


def feedback_on(calibration: ScoreCalibration, effects: dict[str, float]) -> ClassFeedback:
    """Return feedback on one essay whose sentences are words with these effects."""
    text, parts, end = " ".join(effects), [], 0
    for sentence, effect in effects.items():
        place = CharRange(text.index(sentence, end), text.index(sentence, end) + len(sentence))
        parts.append(RemovedPart(place, sentence, effect))
        end = place.end
    essay = EssayFeedback(0, None, None, text, 1.0, (0.0, 2.0), tuple(parts), False)
    return ClassFeedback("run", "x.csv", calibration, (essay,))


def test_an_effect_counts_from_the_smallest_size(tmp_path: Path):
    folder = save_run(tmp_path / "run")
    trained = replace(load_trained(str(folder), NamedColumns(), "cpu"), label_deviation=0.9)
    calibration = calibrate(trained, "run")
    assert calibration.smallest == pytest.approx(0.009)  # 1%
    effects = {"Up.": 0.2, "Unread.": -2.24e-08, "Hardly.": 0.0089, "Some.": 0.0091, "Down.": -0.1}
    found = feedback_on(calibration, effects)
    assert [part.text for part in found.counting(found.essays[0])] == ["Up.", "Some.", "Down."]
    parts = essay_document(found, found.essays[0]).sections[1].parts
    (marked,) = (part for part in parts if isinstance(part, MarkedText))
    assert [word.effect for word in marked.words] == [0.2, None, None, 0.0091, -0.1]
    (quoted,) = (part for part in parts if isinstance(part, Remarks) and isinstance(part.texts[0], tuple))
    assert [text for _, text in quoted.texts] == ["Up.", "Some.", "Down."]
    assert [part["counts"] for part in as_dict(found)["essays"][0]["parts"]] == [True, False, False, True, True]
    # An essay without an effect that counts has no colours, also where one effect is larger than all others.
    found = feedback_on(calibration, {"Up.": 3e-5, "Down.": -1e-6})
    parts = essay_document(found, found.essays[0]).sections[1].parts
    (marked,) = (part for part in parts if isinstance(part, MarkedText))
    assert [word.effect for word in marked.words] == [None, None]
    assert [part for part in parts if isinstance(part, Remarks) and isinstance(part.texts[0], tuple)] == []
