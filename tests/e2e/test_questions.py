"""A question-answering run: its files, and the same answers from `evaluate` and `predict`."""

import json
from pathlib import Path

import pytest
from harness import Cli
from tiny_questions import squad, write_squad
from transformers import AutoModelForQuestionAnswering

from paratune.errors import EXIT_OK
from paratune.records import read_json

CONFIG = """\
task: {kind: qa, stride: 8}
data: {train: a.json, validation: b.json, test: c.json, predict: {hidden: d.json}, max_length: 24}
model: {name: model}
train: {epochs: 2, learning_rate: 3.0e-3}
batch: {global: 16}
evaluate: {best: loss}
device: cpu
"""


@pytest.fixture
def trained(world: Path, cli: Cli) -> Path:
    for seed, name in enumerate("abcd"):
        write_squad(world / f"{name}.json", 60 if name == "a" else 20, seed=seed)
    unlabelled = squad(20, seed=3)
    for paragraph in unlabelled["data"][0]["paragraphs"]:
        for question in paragraph["qas"]:
            del question["answers"], question["is_impossible"]
    (world / "d.json").write_text(json.dumps(unlabelled))
    (world / "q.yaml").write_text(CONFIG)
    result = cli("train", "q.yaml")
    assert result.code == EXIT_OK, result.stderr
    assert "Traceback" not in result.stderr
    return world / "runs" / "q"


def test_a_run_of_questions(trained: Path, world: Path, cli: Cli):
    task, summary = read_json(trained / "model" / "paratune.json")["task"], read_json(trained / "summary.json")
    threshold = task["null_threshold"]
    assert task["unanswerable"] is True
    assert summary["answers"]["validation"]["null_threshold"] == threshold
    assert summary["answers"]["test"]["null_threshold"] == threshold
    assert summary["scores"]["validation"]["f1"] == pytest.approx(summary["scores"]["validation"]["best_f1"])
    assert set(summary["scores"]) == {"validation", "test"}
    answers = {name: read_json(trained / f"predictions.{name}.json") for name in ("validation", "test", "hidden")}
    odds = read_json(trained / "null_odds_hidden.json")
    assert all((odds[name] > threshold) == (answer == "") for name, answer in answers["hidden"].items())

    # max_length 24 splits contexts of 4 things into windows.
    assert read_json(trained / "run.json")["data"]["train"]["num_samples"] > 60

    result = cli("evaluate", "runs/q", "--data", "c.json", "--json")
    assert result.code == EXIT_OK, result.stderr
    found_values = json.loads(result.stdout)
    assert found_values["scores"] == pytest.approx(summary["scores"]["test"], rel=1e-4)
    assert found_values["answers"] == pytest.approx(summary["answers"]["test"], rel=1e-4)

    result = cli("predict", "runs/q", "--input", "c.json", "--out", "out.json")
    assert result.code == EXIT_OK, result.stderr
    assert read_json(world / "out.json") == answers["test"]

    model, info = AutoModelForQuestionAnswering.from_pretrained(trained / "model", output_loading_info=True)
    assert type(model).__name__ == "BertForQuestionAnswering"
    assert not info["missing_keys"]


def test_data_describes_questions(world: Path, cli: Cli):
    write_squad(world / "a.json", 60)
    files = "validation: b.json, test: c.json, predict: {hidden: d.json}"
    (world / "q.yaml").write_text(CONFIG.replace(files, "split: {validation: 0.25}"))
    result = cli("data", "q.yaml", "--json")
    assert result.code == EXIT_OK, result.stderr
    found_values = json.loads(result.stdout)
    train = found_values["splits"]["train"]
    assert train["num_rows"] == 45
    assert train["num_samples"] > 45
    questions = train["questions"]
    assert questions["share_with_answer"] == pytest.approx(questions["num_with_answer"] / 45)
    assert 0.5 < questions["share_with_answer"] < 0.9
    assert questions["most_windows"] == 2
    assert questions["most_answers"] == 1
    assert any("a context that is also in train" in warning for warning in found_values["warnings"])
