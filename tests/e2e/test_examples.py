"""The examples of `configs/finetune` whose data come with paratune: each is trained and evaluated, and predicts."""

import json
from pathlib import Path

import pytest
from harness import Cli
from tiny_entities import LABELS, tagged_sentences, write_conll

from paratune.errors import EXIT_OK
from paratune.records import read_json

CONFIGS = Path(__file__).parents[2] / "configs" / "finetune"
pytestmark = pytest.mark.slow


def test_named_entities(world: Path, cli: Cli):
    (world / "data" / "ner").mkdir(parents=True)
    for seed, (name, count) in enumerate({"train": 160, "validation": 40, "test": 40}.items()):
        write_conll(world / "data" / "ner" / f"{name}.conll", count, seed=seed)
    few = ("model.name=model", "data.max_length=64", "train.learning_rate=5e-3", "batch.global=8")
    # Without dropout, one and two processes give the same result.
    no_dropout = "model.overrides={hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}"
    options = [word for setting in (*few, no_dropout, f"task.labels={LABELS}") for word in ("--set", setting)]
    result = cli("train", CONFIGS / "ner.yaml", *options)
    assert result.code == EXIT_OK, result.stderr
    run = world / "runs" / "ner"
    summary = read_json(run / "summary.json")
    scores = summary["scores"]["test"]
    assert scores["f1"] > 0.8
    assert summary["entities"]["test"]["PER"]["support"] == 40
    assert read_json(run / "run.json")["batch"]["layout"] == "packed"

    repeated = cli("evaluate", "runs/ner", "--data", "data/ner/test.conll", "--json")
    assert repeated.code == EXIT_OK, repeated.stderr
    assert json.loads(repeated.stdout)["scores"] == pytest.approx(scores, rel=1e-4)

    words = [" ".join(word for word, _ in sentence) for sentence in tagged_sentences(5, seed=9)]
    (world / "new.conll").write_text("\n\n".join(text.replace(" ", "\n") for text in words))
    predicted = cli("predict", "runs/ner", "--input", "new.conll", "--out", "tags.jsonl")
    assert predicted.code == EXIT_OK, predicted.stderr
    rows = [json.loads(line) for line in (world / "tags.jsonl").read_text().splitlines()]
    assert [len(row["prediction"]) for row in rows] == [len(text.split()) for text in words]

    two = cli("train", CONFIGS / "ner.yaml", *options, "--set", "strategy=ddp", "--set", "run.name=two", "--nproc", 2)
    assert two.code == EXIT_OK, two.stderr
    same = cli("compare", "runs/ner", "runs/two", "--json")
    assert same.code == EXIT_OK, same.stderr
    assert read_json(world / "runs" / "two" / "summary.json")["scores"]["test"]["loss"] == pytest.approx(
        scores["loss"], rel=1e-3
    )
    report = cli("report", "runs/ner", "--out", "page")
    assert report.code == EXIT_OK, report.stderr


def test_class_weights(world: Path, cli: Cli):
    few = (
        "--set",
        "data.max_rows.train=400",
        "--set",
        "model.name=model",
        "--set",
        "data.max_length=64",
        "--set",
        "train.learning_rate=1e-3",
    )
    result = cli("train", CONFIGS / "class_weights.yaml", *few)
    assert result.code == EXIT_OK, result.stderr
    run = world / "runs" / "class_weights"
    summary = read_json(run / "summary.json")
    assert summary["scores"]["validation"]["average_precision"] > 0.4
    weights = read_json(run / "model" / "paratune.json")["task"]["class_weights"]
    counts = read_json(run / "run.json")["data"]["train"]["num_rows"]
    assert counts == pytest.approx(
        sum(counts / 2 / weight for weight in weights)
    )  # rows / (2 w) are the rows of a class
    assert summary["baseline"]["scores"]["validation"]["loss"] is None
