"""A distillation from the command line: a teacher, a student of two layers, and a resume with another teacher."""

import json
from pathlib import Path

import pytest
from harness import Cli
from tiny import tiny_model

CONFIG = """\
task: {kind: classification, labels: [a, b]}
data: {train: d.csv, columns: {text: text, label: label}, split: {test: 0.25}, max_length: 16}
model: {name: base}
train: {max_steps: 4, learning_rate: 1e-3}
batch: {global: 8}
evaluate: {every: never}
checkpoint: {every: steps, steps: 2}
measure: {log_every: 1}
device: cpu
precision: fp32
"""
DISTIL = "distil={teacher: runs/teacher}"


@pytest.mark.slow
def test_a_student_learns_from_a_run(tmp_path: Path):
    tiny_model(tmp_path / "base", num_layers=3)
    arguments = ["the", "film", "is", "good", "bad", "a", "very", "poor", "story", "it", "was", "nice", "food"]
    rows = [f"{arguments[row % 13]} {arguments[row % 7]},{'ab'[row % 2]}" for row in range(40)]
    (tmp_path / "d.csv").write_text("\n".join(["text,label", *rows]))
    (tmp_path / "c.yaml").write_text(CONFIG)
    cli = Cli(tmp_path, {"PARATUNE_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"})
    result = cli("train", "c.yaml", "--set", "run.name=teacher")
    assert result.code == 0, result.stderr
    student = ("train", "c.yaml", "--set", "run.name=student", "--set", "model.keep_layers=[0,1]", "--set", DISTIL)
    result = cli(*student, "--json")
    assert result.code == 0, result.stderr
    run = tmp_path / "runs" / "student"
    record = json.loads((run / "run.json").read_text())
    (teacher,) = record["teachers"]
    assert (teacher["name"], teacher["run_id"]) == ("runs/teacher", "teacher")
    assert json.loads((run / "model" / "config.json").read_text())["num_hidden_layers"] == 2
    lines = [json.loads(line) for line in (run / "events.rank0000.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "step"]
    assert len(losses) == 4
    assert all(0 < loss < 5 for loss in losses)
    assert 0 < result.json["scores"]["test"]["loss"] < 5  # evaluations report only the loss of the task
    assert cli("train", "c.yaml", "--set", "run.name=teacher", "--set", "train.max_steps=3", "--overwrite").code == 0
    (run / "summary.json").unlink()
    result = cli(*student, "--resume")
    assert result.code != 0
    assert "[run.other_configuration]" in result.stderr
