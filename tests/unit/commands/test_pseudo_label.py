"""`pseudo-label` on tiny models: the file that a training reads, the record, and refused options."""

import csv
import hashlib
import json

import pytest
from raised import check_logged, raises_code
from tiny import tiny_model

from paratune.commands import pseudo_label as command
from paratune.commands.pseudo_label import pseudo_label
from paratune.data.read import read_table
from paratune.infer import pseudo
from paratune.records.own import TASK_FILE

RECORD = {
    "task": {"kind": "classification", "labels": {"neg": "bad", "pos": "good"}},
    "columns": {"text": "review", "label": "sentiment", "id": "uid"},
    "max_length": 16,
}


@pytest.fixture(autouse=True)
def _quiet(monkeypatch, tmp_path):
    monkeypatch.setattr(command, "set_up_process", lambda: None)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))


def model(folder, **changes):
    tiny_model(folder)
    (folder / TASK_FILE).write_text(json.dumps(RECORD | changes))
    return str(folder)


@pytest.fixture
def texts(tmp_path):
    rows = [("good film", "u0"), ("bad film", "u1"), ("", "u2"), ("good  film", "u3"), ("ugly", "u4")]
    with (tmp_path / "texts.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("review", "uid"), *rows])
    return str(tmp_path / "texts.csv")


def label(targets, texts, output, threshold=0.5001, **options):
    defaults = {"max_per_class": None, "limit": None, "overwrite": False}
    return pseudo_label(
        *targets,
        input=texts,
        out=output,
        threshold=threshold,
        batch_size=2,
        device="cpu",
        json=True,
        **defaults | options,
    )


def test_the_output_is_what_a_training_reads_and_the_record_counts_every_row(tmp_path, texts, capsys):
    output = tmp_path / "made.csv"
    label([model(tmp_path / "a")], texts, output)
    made = read_table(str(output))
    assert made.column_names == ["review", "uid", "sentiment", "pseudo", "confidence", "source_row"]
    assert made["source_row"].to_pylist() == ["0", "1", "4"]
    assert made["uid"].to_pylist() == ["u0", "u1", "u4"]
    assert set(made["sentiment"].to_pylist()) <= {"neg", "pos"}
    assert set(made["pseudo"].to_pylist()) == {"true"}
    record = json.loads((tmp_path / "made.csv.record.json").read_text())
    printed = json.loads(capsys.readouterr().out.splitlines()[-1])
    printed.pop("warnings", None)  # there where an earlier test has set up the log
    assert printed == record
    assert record["num_rows"] == {"without_text": 1, "repeated": 1, "kept": 3}
    assert sum(record["num_rows"].values()) == record["input"]["num_rows"] == 5
    assert record["output"]["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()
    assert sum(record["classes"].values()) == 3
    assert "not a run" in record["overlap_unknown"][str(tmp_path / "a")]["train"]


def test_a_class_without_kept_rows_gives_a_warning(tmp_path, texts, caplog):
    label([model(tmp_path / "a")], texts, tmp_path / "made.csv", limit=1)
    check_logged(caplog, "pseudo_label.class_empty", "texts.csv")


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        ({"threshold": 0.4}, ("cli.invalid_value", "0", "5", "2", "1")),
        ({"threshold": 1.5}, ("cli.invalid_value", "1")),
        ({"threshold": 0.0}, ("cli.invalid_value", "--threshold", "0")),
        ({"limit": 0}, ("cli.invalid_value", "--limit", "0", "1")),
        ({"max_per_class": 0}, ("cli.invalid_value", "--max-per-class", "0", "1")),
    ],
)
def test_invalid_thresholds_are_refused(tmp_path, texts, options, refused):
    with raises_code(*refused):
        label([model(tmp_path / "a")], texts, tmp_path / "made.csv", **options)


def test_models_with_different_tasks_are_refused(tmp_path, texts):
    first = model(tmp_path / "a")
    other = model(tmp_path / "b", task={"kind": "classification", "labels": ["no", "yes"]})
    with raises_code("pseudo_label.models_differ", "classification", "yes"):
        label([first, other], texts, tmp_path / "made.csv")
    with raises_code("cli.conflict"):
        label([first, f"{first}/"], texts, tmp_path / "made.csv")
    sets = model(tmp_path / "c", task={"kind": "multi_label", "labels": ["no", "yes"], "separator": ";"})
    with raises_code("task.unsupported", "multi_label", "classification"):
        label([sets], texts, tmp_path / "made.csv")


@pytest.mark.parametrize(
    ("columns", "refused"),
    [
        ({"id": "confidence"}, ("data.column_twice",)),
        ({"label": "spread"}, ("data.column_twice",)),
        ({"id": "sentiment"}, ("data.column_twice", "sentiment")),
    ],
)
def test_columns_that_would_be_overwritten_are_refused(tmp_path, columns, refused):
    (tmp_path / "texts.csv").write_text("review,confidence,sentiment\ngood film,1,2\n")
    named = model(tmp_path / "a", columns=RECORD["columns"] | columns)
    with raises_code(*refused):
        label([named], str(tmp_path / "texts.csv"), tmp_path / "made.csv")
    assert not list(tmp_path.glob("made*"))


def test_columns_that_any_run_kept_together_are_kept(tmp_path, monkeypatch):
    (tmp_path / "texts.csv").write_text("review,author,day\ngood film,x,1\n")
    groups = iter(["author", "day"])
    monkeypatch.setattr(pseudo, "read_group_by", lambda _: next(groups))
    models = [model(tmp_path / name) for name in "ab"]
    label(models, str(tmp_path / "texts.csv"), tmp_path / "made.csv")
    assert read_table(str(tmp_path / "made.csv")).column_names[:4] == ["review", "author", "day", "sentiment"]


def test_an_error_in_the_record_leaves_no_output(tmp_path, texts, monkeypatch):
    def fail(*_):
        raise OSError("no")

    monkeypatch.setattr("paratune.infer.pseudo._output_table", fail)
    with pytest.raises(OSError, match="no"):
        label([model(tmp_path / "a")], texts, tmp_path / "made.csv")
    assert not list(tmp_path.glob("made*"))


def test_without_confident_rows_nothing_is_written(tmp_path, texts):
    with raises_code("data.empty", "--threshold", "1", "0", "3"):
        label([model(tmp_path / "a")], texts, tmp_path / "made.csv", threshold=1.0)
    assert not list(tmp_path.glob("made*"))


def test_one_regression_model_is_refused_and_two_give_a_number_on_the_scale(tmp_path, texts):
    task = {"kind": "regression", "round_to": 0.5, "range": [0.0, 9.0]}
    models = [tmp_path / "a", tmp_path / "b"]
    for folder in models:
        tiny_model(folder, num_labels=1)
        (folder / TASK_FILE).write_text(json.dumps(RECORD | {"task": task}))
    with raises_code("task.unsupported"):
        label([str(models[0])], texts, tmp_path / "made.jsonl")
    with raises_code("cli.no_effect", "--max-per-class", "2"):
        label([str(entry) for entry in models], texts, tmp_path / "made.jsonl", max_per_class=2)
    label([str(entry) for entry in models], texts, tmp_path / "made.jsonl", threshold=9.0)
    for row in read_table(str(tmp_path / "made.jsonl")).to_pylist():
        assert row["sentiment"] == min(9, max(0, int(row["prediction"] * 2 + 0.5) / 2))
        assert row["spread"] >= 0
