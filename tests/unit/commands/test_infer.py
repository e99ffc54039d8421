"""`evaluate` and `predict` on a tiny model: early checks, the output, and the prediction of each row."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from raised import raises_code
from tiny import tiny_model
from whole_records import WHOLE_RUN, WHOLE_SUMMARY

import paratune
from paratune.api.predict import _at_rows
from paratune.commands import infer
from paratune.commands.infer import evaluate as run_evaluate
from paratune.commands.infer import predict as run_predict
from paratune.infer.trained import TrainedModel
from paratune.models.save import SentenceModules, write_modules
from paratune.records.own import TASK_FILE
from paratune.records.predictions import write_predictions

NAMES = ["bad", "go\x1b[2Jod"]
RECORD: dict[str, Any] = {
    "task": {"kind": "classification", "labels": {"0": NAMES[0], "1": NAMES[1]}},
    "columns": {"text": "text", "label": "label", "id": "id"},
    "max_length": 16,
    "missing": "drop",
}
ROWS = [("good film", "1"), ("bad film", "0"), ("", "1"), ("ugly", ""), (" ", "")]


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module in ("paratune.api.evaluate", "paratune.api.predict"):
        monkeypatch.setattr(f"{module}.set_up_process", lambda: None)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A model that was trained on files with a column `id`."""
    tiny_model(tmp_path / "model")
    (tmp_path / "model" / TASK_FILE).write_text(json.dumps(RECORD))
    return str(tmp_path / "model")


@pytest.fixture
def nothing_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("it was computed before it was looked at")

    monkeypatch.setattr(TrainedModel, "apply", fail)


def test_a_file_and_many_texts_are_one_screen(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    source, out = write(tmp_path / "in.csv", rows=[("good film", "1")] * 60), tmp_path / "out.csv"
    run_predict(model, input=source, out=out, device="cpu")
    first, second, *_ = lines = capsys.readouterr().out.splitlines()
    assert first == f"60 of 60 rows predicted: {out}"
    assert second.endswith(" 60 (100.0%)")
    assert len(lines) == 2 + 1 + 6 + 1  # these, a space, the table of five rows, and how many are left out
    run_predict(model, input=source, out=out, device="cpu", overwrite=True, all_=True)
    assert len(capsys.readouterr().out.splitlines()) == 2 + 1 + 61
    run_predict(model, text=["good film"] * 60, device="cpu")
    assert len(capsys.readouterr().out.splitlines()) == 40


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([1.0, 2.0, None, 6.0], ["predicted: 1 to 6, mean 3"]),
        (["", "a", "", None], ["predicted: no answer 2 (66.7%), a 1 (33.3%)"]),  # of three with a prediction
        ([*"abcdef"], []),
        ([["a"], []], []),
        ([None], []),
    ],
)
def test_the_predictions_of_a_file_are_counted(values: list[Any], shown: list[str]):
    assert infer._distribution(pa.table({"prediction": values})) == shown


def write(path: Path, header: tuple[str, ...] = ("text", "label"), rows: list[tuple[str, str]] = ROWS) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return str(path)


def evaluate(model: str, data: str, *, as_json: bool = False) -> None:
    run_evaluate(model, data=data, batch_size=2, device="cpu", json=as_json)


def predict(model: str, source: str, output: Path, *, overwrite: bool = False, batch_size: int = 2) -> None:
    run_predict(model, input=source, out=output, batch_size=batch_size, device="cpu", overwrite=overwrite, json=True)


def test_dropped_rows_are_shown_by_reason(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    # No column id either: that of the training names rows in its record, and is nothing to ask of other files.
    evaluate(model, write(tmp_path / "data.csv"))
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["samples", "2"] in lines
    assert [line for line in lines if line[:2] == ["left", "out"]] == [
        ["left", "out", "2", "without", "text"],
        ["left", "out", "1", "without", "label"],
    ]


@pytest.fixture
def unnamed(tmp_path: Path) -> str:
    """A model of Trainer without names of labels, and without a record of paratune."""
    tiny_model(tmp_path / "unnamed")
    return str(tmp_path / "unnamed")


def scores_of(model: str, data: str, capsys: pytest.CaptureFixture[str], *labels: str) -> dict[str, Any]:
    named = {"text": "text", "label": "label"}
    run_evaluate(model, data=data, labels=labels, device="cpu", json=True, **named)
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_ids_stand_for_labels_without_names(unnamed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    texts = ["good film", "bad film", "ugly book"]
    forms = {"ids": "010", "names": ["LABEL_0", "LABEL_1", "LABEL_0"], "words": ["ham", "spam", "ham"]}
    files = {
        name: write(tmp_path / f"{name}.csv", rows=list(zip(texts, of, strict=True))) for name, of in forms.items()
    }
    expected = scores_of(unnamed, files["names"], capsys)
    assert expected["labels"] == ["LABEL_0", "LABEL_1"]
    assert scores_of(unnamed, files["ids"], capsys)["confusion"] == expected["confusion"]
    mapped = scores_of(unnamed, files["words"], capsys, "ham=LABEL_0", "spam=LABEL_1")
    assert (mapped["scores"], mapped["labels"]) == (expected["scores"], expected["labels"])
    # The other way round: ids are not those of the model.
    turned = scores_of(unnamed, files["ids"], capsys, "0=LABEL_1", "1=LABEL_0")
    assert turned["confusion"] == expected["confusion"][::-1]
    # With one id for another label, that of the other is unknown; no value stands for all other values.
    for form, label, unseen in (("ids", "0=LABEL_1", "'1'"), ("words", "=LABEL_0", "'ham'")):
        with raises_code("data.label_unseen", unseen):
            scores_of(unnamed, files[form], capsys, label)
    with raises_code("data.label_unseen", "'ham'", "--labels VALUE=LABEL") as caught:
        run_evaluate(unnamed, data=files["words"], text="text", label="label", device="cpu")
    assert "Add them to task.labels" not in str(caught.value)


@pytest.mark.parametrize(
    ("labels", "code"),
    [
        (["spam"], "cli.invalid_value"),
        (["spam="], "cli.invalid_value"),
        (["spam=LABEL_7"], "cli.invalid_value"),
        (["LABEL_0=LABEL_1"], "cli.invalid_value"),  # no value is left for LABEL_0
        (["1=LABEL_0", "1=LABEL_1"], "cli.conflict"),
    ],
)
def test_labels_that_the_model_does_not_have(unnamed: str, tmp_path: Path, labels: list[str], code: str):
    with raises_code(code, "--labels"):
        run_evaluate(unnamed, data=write(tmp_path / "d.csv"), labels=labels, text="text", label="label", device="cpu")


def test_labels_from_python_are_a_mapping(unnamed: str, tmp_path: Path):
    with raises_code("cli.invalid_value", option="--labels"):
        paratune.evaluate(unnamed, write(tmp_path / "d.csv"), text="text", label="label", labels=["LABEL_0"])


def test_labels_without_a_file_have_no_effect(model: str):
    with raises_code("cli.no_effect", "--labels"):
        run_evaluate(model, by=["label"], labels=["a=b"])


def test_the_loss_of_vectors_on_the_scale_of_the_file_is_unknown(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    tiny_model(tmp_path / "vectors")
    write_modules(tmp_path / "vectors", SentenceModules("mean", True, 16), width=32)
    rows = [("good film,good book", 1), ("bad film,food", 2), ("it is,the story", 5)]
    (tmp_path / "pairs.csv").write_text("a,b,score\n" + "".join(f"{pair},{score}\n" for pair, score in rows))
    named = {"text": "a", "text_pair": "b", "label": "score"}
    run_evaluate(str(tmp_path / "vectors"), data=str(tmp_path / "pairs.csv"), device="cpu", json=True, **named)
    scores = json.loads(capsys.readouterr().out)["scores"]
    assert (scores["loss"], scores["spearman"] is None) == (None, False)


def test_pseudo_labels_are_not_scored(model: str, tmp_path: Path, nothing_computed: None):
    with (tmp_path / "made.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label", "pseudo"), ("a", "1", "false"), ("b", "0", "true")])
    with raises_code("data.pseudo_labels", "made.csv", "--data", "row 1"):
        evaluate(model, str(tmp_path / "made.csv"))


def test_no_line_without_dropped_rows(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    evaluate(model, write(tmp_path / "data.csv", rows=ROWS[:2]))
    assert "left out" not in capsys.readouterr().out


def test_class_names_are_escaped_in_the_terminal(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    evaluate(model, write(tmp_path / "data.csv"))
    shown = capsys.readouterr().out
    assert r"go\x1b[2Jod" in shown
    assert "\x1b[2J" not in shown


@pytest.mark.parametrize(("num_classes", "shown"), [(2, True), (3, False)])
def test_f1_is_shown_once(num_classes: int, shown: bool, capsys: pytest.CaptureFixture[str]):
    labels = [f"c{number}" for number in range(num_classes)]
    infer.show(
        {
            "num_samples": 1,
            "num_dropped": {},
            "scores": {"f1": 0.5, "f1_macro": 0.5},
            "labels": labels,
            "confusion": [[0] * num_classes] * num_classes,
        }
    )
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:3]]
    assert names == (["f1", "f1_macro"] if shown else ["f1_macro", "rows:"])


def test_a_score_that_is_not_known_is_null(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("paratune.tasks.sequence.classification_scores", lambda *_: {"f1": float("nan")})
    evaluate(model, write(tmp_path / "data.csv"), as_json=True)
    text = capsys.readouterr().out
    assert json.loads(text)["scores"]["f1"] is None
    assert "NaN" not in text


def test_predict_needs_no_id_and_reads_the_file_once(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from paratune.data import read

    read_file, sources = read._read_file, []

    def count(path: Path, *how: Any) -> Any:
        sources.append(path.name)
        return read_file(path, *how)

    monkeypatch.setattr(read, "_read_file", count)
    output = tmp_path / "out.csv"
    predict(model, write(tmp_path / "in.csv"), output)
    message = {"output": str(output), "num_rows": 5, "num_predicted": 3, "share_unknown_tokens": 0.0}
    message |= {"rows_without_prediction": [2, 4]}
    assert json.loads(capsys.readouterr().out) == message
    assert sources == ["in.csv"]
    with output.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["prediction"] == "" for row in rows] == [False, False, True, False, True]
    assert list(rows[0]) == ["row", "text", "label", "prediction", "score_bad", f"score_{NAMES[1]}"]
    assert [row["row"] for row in rows] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("name", ["id", "row"])
def test_rows_with_an_id_are_not_numbered(model: str, tmp_path: Path, name: str):
    source = write(tmp_path / "in.csv", ("text", name), [("good", "seven"), ("bad", "eight")])
    predict(model, source, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0])[:3] == ["text", name, "prediction"]
    assert [row[name] for row in rows] == ["seven", "eight"]


def test_rows_without_a_text_are_named(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    def say(rows: list[tuple[str, str]]) -> list[str]:
        source, output = write(tmp_path / "in.csv", rows=rows), tmp_path / "out.csv"
        run_predict(model, input=source, out=output, batch_size=2, device="cpu", overwrite=True)
        return [line for line in capsys.readouterr().out.splitlines() if " without a t" in line]

    assert say(ROWS) == ["2 without a text and without a prediction: rows 2, 4 (counted from 0)"]
    assert say(ROWS[:2]) == []
    many = say([*ROWS[:1], *[(" ", "")] * 7])
    assert many == ["7 without a text and without a prediction: rows 1, 2, 3, 4, 5 and 2 more (counted from 0)"]


@pytest.mark.parametrize("taken", ["prediction", "score_bad"])
@pytest.mark.usefixtures("nothing_computed")
def test_a_column_name_clash_is_found_before_predicting(model: str, tmp_path: Path, taken: str):
    source = write(tmp_path / "in.csv", ("text", taken))
    with raises_code("data.column_twice", "in.csv", taken):
        predict(model, source, tmp_path / "out.csv")


@pytest.mark.usefixtures("nothing_computed")
def test_an_unwritable_output_is_found_before_predicting(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    source = write(tmp_path / "in.csv")
    (tmp_path / "folder.csv").mkdir()
    with raises_code("output.not_writable", "folder.csv"):
        predict(model, source, tmp_path / "folder.csv", overwrite=True)
    with raises_code("output.not_writable", option="--out"):
        predict(model, source, tmp_path / "nowhere" / "out.csv")
    with raises_code("cli.invalid_value", "--batch-size", "0", "1"):
        predict(model, source, tmp_path / "out.csv", batch_size=0)

    def read_only(**_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", read_only)
    with raises_code("output.not_writable", "out.csv"):
        predict(model, source, tmp_path / "out.csv")


def test_the_check_of_the_output_leaves_no_file(tmp_path: Path):
    infer.check_output(tmp_path / "out.csv", overwrite=False)
    assert list(tmp_path.iterdir()) == []


def _predict(output: Path, *, overwrite: bool = False) -> None:
    run_predict("no-model", input="no-file", out=output, batch_size=8, device="cpu", overwrite=overwrite)


def test_an_invalid_output_is_refused_before_the_model_is_loaded(tmp_path: Path):
    taken = tmp_path / "taken.csv"
    taken.write_text("mine")
    with raises_code("output.format", "out.txt: its"):
        _predict(tmp_path / "out.txt")
    with raises_code("output.exists", "taken.csv", "--out", "--overwrite"):
        _predict(taken)
    with raises_code("output.not_writable", option="--out"):
        _predict(tmp_path / "nowhere" / "out.csv")
    # With --overwrite it reads the input next, which is missing.
    with raises_code("data.not_found"):
        _predict(taken, overwrite=True)
    assert taken.read_text() == "mine"


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_at_least_one_sample(size: int):
    with raises_code("cli.invalid_value", option="--batch-size", value=size):
        run_evaluate("no-model", data="no-file", batch_size=size, device="cpu")


def test_predictions_are_in_the_rows_of_their_texts():
    placed = _at_rows(np.array([0.5, 0.25], dtype=np.float32), np.array([3, 1]), 4)
    assert placed.to_pylist() == [None, 0.25, None, 0.5]
    assert _at_rows(["b", "a"], np.array([1, 0]), 2).to_pylist() == ["a", "b"]


def sliced(model: str, data: str | None, *by: str, as_json: bool = True) -> None:
    options: dict[str, Any] = {} if data is None else {"batch_size": 2, "device": "cpu"}
    run_evaluate(model, data=data, json=as_json, by=by, **options)


def test_scores_by_slice(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    rows = [("good film", "1"), ("bad film", "0"), ("", "1"), ("a film that goes on and on", "1")]
    data = write(
        tmp_path / "data.csv",
        ("text", "label", "topic"),
        [(*row, topic) for row, topic in zip(rows, "xyzx", strict=True)],
    )
    sliced(model, data, "topic", "label", "length", "topic")
    result = json.loads(capsys.readouterr().out)["slices"]
    # Of the rows that were kept: z stands beside no text.
    counts = {name: [(item["value"], item["num_rows"]) for item in slices] for name, slices in result.items()}
    assert counts["topic"] == [("x", 2), ("y", 1)]
    assert counts["label"] == [(NAMES[0], 1), (NAMES[1], 2)]
    assert sum(count for _, count in counts["length"]) == 3
    assert all(set(item["scores"]) == {"recall"} for item in result["label"])
    sliced(model, data, "label", as_json=False)
    shown = capsys.readouterr().out
    assert "\x1b[2J" not in shown
    assert "[n/a]" in shown  # a bracket is no markup


def test_slices_are_checked_before_the_forward_pass(model: str, tmp_path: Path, nothing_computed: None):
    data = write(tmp_path / "data.csv")
    with raises_code("data.column_missing", "topic", "text", name="topic"):
        sliced(model, data, "topic")
    with raises_code("cli.required", "--data", option="--data"):
        sliced(model, None)
    with raises_code("run.not_found", "--data", target=model):
        sliced(model, None, "topic")


def test_slices_of_saved_predictions(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    (tmp_path / "model").rename(run.with_name("moved"))
    run.mkdir()
    run.with_name("moved").rename(run / "model")
    data = write(
        tmp_path / "test.csv", ("text", "label", "topic"), [("a b", "1", "x"), ("c", "0", "y"), ("d", "1", "x")]
    )
    config = {"task": RECORD["task"], "data": {"train": "gone.csv", "test": data}}
    (run / "run.json").write_text(
        json.dumps({**WHOLE_RUN, "config": config, "task": {"kind": "classification", "labels": NAMES}})
    )
    (run / "summary.json").write_text(json.dumps({**WHOLE_SUMMARY, "scores": {"test": {"accuracy": 0.5}}}))
    columns = {"label": [NAMES[0], NAMES[1]], "prediction": [NAMES[0], NAMES[0]]}
    write_predictions(run, "test", rows=np.asarray([1, 2]), ids=None, columns=columns)
    sliced(str(run), None, "topic", "length")
    result = json.loads(capsys.readouterr().out)["slices"]["test"]
    assert [(item["value"], item["scores"]["accuracy"]["value"]) for item in result["topic"]] == [
        ("x", 0.0),
        ("y", 1.0),
    ]
    assert [item["num_rows"] for item in result["length"]] == [2]  # both have one token and the special ones
    write(tmp_path / "test.csv", ("text", "label", "topic"), [("a b", "1", "x")])
    with raises_code("run.damaged", "test.csv", source=data, split="test"):
        sliced(str(run), None, "topic")


@pytest.mark.parametrize(
    ("by", "options", "refused"),
    [
        ("label", {"batch_size": 64}, "--batch-size"),
        ("length", {"batch_size": 64}, "--batch-size"),
        ("label", {"device": "cpu"}, "--device"),
        ("label", {"text_pair": "b"}, "--text-pair"),
    ],
)
def test_options_of_a_forward_pass_are_refused_for_saved_predictions(by: str, options: dict[str, Any], refused: str):
    with raises_code("cli.no_effect", refused, option=refused):
        run_evaluate("runs/a", json=True, by=[by], **options)


PAIR = RECORD | {"columns": {"text": "question", "text_pair": "passage", "label": "label"}}


@pytest.mark.parametrize(
    ("record", "columns"),
    [(RECORD, ["text"]), (RECORD | {"columns": {}}, ["text"]), (PAIR, ["question", "passage"])],
    ids=["recorded", "of another program", "pairs"],
)
def test_typed_texts_have_a_prediction_each(
    model: str, record: dict[str, Any], columns: list[str], capsys: pytest.CaptureFixture[str]
):
    (Path(model) / TASK_FILE).write_text(json.dumps(record))
    pairs = ["so good", "so bad"] if len(columns) == 2 else []
    run_predict(model, text=["good film", "bad film"], text_pair=pairs, device="cpu", json=True)
    rows = json.loads(capsys.readouterr().out)["predictions"]
    assert [row[columns[0]] for row in rows] == ["good film", "bad film"]
    assert {row["prediction"] for row in rows} <= {*NAMES}
    run_predict(model, text=["good film", "bad film"], text_pair=pairs, device="cpu")
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[: len(columns) + 1] == [*columns, "prediction"]
    assert [line.split()[:2] for line in lines] == [["good", "film"], ["bad", "film"]]


@pytest.mark.parametrize(
    ("record", "options", "code"),
    [
        (RECORD, {}, "cli.required"),
        (RECORD, {"input": "a.csv"}, "cli.required"),
        (RECORD, {"text": ["a"], "overwrite": True}, "cli.required"),
        (RECORD, {"input": "a.csv", "out": Path("b.csv"), "text": ["a", "b"]}, "cli.conflict"),
        (RECORD, {"text": ["a"], "text_pair": ["b"]}, "data.column_missing"),
        (PAIR, {"text": ["a"]}, "data.column_missing"),
        (PAIR, {"text": ["a", "b"], "text_pair": ["c"]}, "data.column_missing"),
    ],
)
def test_texts_that_do_not_fit_are_refused(model: str, record: dict[str, Any], options: dict[str, Any], code: str):
    (Path(model) / TASK_FILE).write_text(json.dumps(record))
    with raises_code(code):
        run_predict(model, device="cpu", **options)


@pytest.mark.parametrize(
    ("columns", "names", "shown"),
    [
        (
            {"prediction": ["a"], "score_a": [0.75], "score_b": [0.25]},
            [],
            ["prediction", "a", "b", "a", "0.75", "0.25"],
        ),
        ({"prediction": [["O", "B-PER"]]}, [], ["prediction", "O", "B-PER"]),
        ({"embedding": [[0.5, -0.25]]}, ["prediction"], ["embedding", "0.5", "-0.25"]),  # of a single text
        ({"prediction": [None], "scores": [[[0.5], [0.25]]]}, [], ["prediction", "scores", "n/a", "0.5", "0.25"]),
    ],
)
def test_predictions_of_every_task_are_a_table(
    columns: dict[str, list[Any]], names: list[str], shown: list[str], capsys: pytest.CaptureFixture[str]
):
    trained = SimpleNamespace(recipe=SimpleNamespace(prediction_names=lambda: [*names, *columns]))
    infer.print_screen(
        infer._shown_predictions(pa.table({"row": [0], "text": ["word"], **columns}), trained), all_=False
    )
    words = capsys.readouterr().out.replace("0000", "").replace("00", "").split()
    words.remove("word")
    assert words == ["text", *shown]
