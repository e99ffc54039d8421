"""Scores by slice: a run records them, and `evaluate --by` computes the same from the run's predictions."""

from pathlib import Path

import pytest
from harness import Cli
from raised import check_shown

from paratune.errors import EXIT_CONFIG, EXIT_DATA, EXIT_OK
from paratune.records import read_json

SLICED = ("--set", "evaluate.slices=[label, length]", "--set", "train={epochs: 1, learning_rate: 3e-3}")


def test_a_run_records_what_evaluate_shows(world: Path, cli: Cli):
    result = cli("train", "c.yaml", *SLICED, "--set", "run.name=a")
    assert result.code == EXIT_OK, result.stderr
    summary = read_json(world / "runs" / "a" / "summary.json")
    slices = summary["slices"]["validation"]
    # A fifth of 200 rows, with equal numbers of both classes.
    assert [(item["value"], item["num_rows"]) for item in slices["label"]] == [("negative", 20), ("positive", 20)]
    assert sum(item["num_rows"] for item in slices["length"]) == 40
    # For classes of equal size, the accuracy is the mean of the recalls.
    recalls = [item["scores"]["recall"]["value"] for item in slices["label"]]
    assert sum(recalls) / 2 == pytest.approx(summary["scores"]["validation"]["accuracy"])
    repeated = cli("evaluate", "runs/a", "--by", "label", "--by", "length", "--json")
    assert repeated.code == EXIT_OK, repeated.stderr
    assert repeated.json["slices"] == summary["slices"]
    # 32 is the default, and has no effect either: no sample passes through the model.
    refused = cli("evaluate", "runs/a", "--by", "label", "--batch-size", "32")
    assert refused.code == EXIT_CONFIG
    check_shown(refused.stderr, "cli.no_effect", "--batch-size")


def test_a_column_with_too_many_values_is_detected_before_training(world: Path, cli: Cli):
    half = ("--set", "data.split.validation=0.5")
    result = cli("train", "c.yaml", "--set", "evaluate.slices=[id]", "--set", "run.name=b", *half)
    assert result.code == EXIT_DATA
    check_shown(result.stderr, "data.too_many_values", "id", "50")
    assert not (world / "runs" / "b").exists()
