"""Scores by slice: a run records them, and `evaluate --by` finds the same in the predictions that the run kept."""

from pathlib import Path

import pytest
from harness import Cli
from raised import check_shown

from paratune.errors import EXIT_DATA, EXIT_OK
from paratune.records import read_json

SLICED = ("--set", "evaluate.slices=[label, length]", "--set", "train={epochs: 1, learning_rate: 3e-3}")


def test_a_run_records_what_evaluate_shows(world: Path, cli: Cli):
    done = cli("train", "c.yaml", *SLICED, "--set", "run.name=a")
    assert done.code == EXIT_OK, done.stderr
    summary = read_json(world / "runs" / "a" / "summary.json")
    result = summary["slices"]["validation"]
    # 200 rows, a fifth of them, as many of each class.
    assert [(item["value"], item["num_rows"]) for item in result["label"]] == [("negative", 20), ("positive", 20)]
    assert sum(item["num_rows"] for item in result["length"]) == 40
    # Of classes of one size, the accuracy is the mean of the recalls.
    recalls = [item["scores"]["recall"]["value"] for item in result["label"]]
    assert sum(recalls) / 2 == pytest.approx(summary["scores"]["validation"]["accuracy"])
    again = cli("evaluate", "runs/a", "--by", "label", "--by", "length", "--json")
    assert again.code == EXIT_OK, again.stderr
    assert again.json["slices"] == summary["slices"]


def test_a_column_with_too_many_values_is_found_before_training(world: Path, cli: Cli):
    half = ("--set", "data.split.validation=0.5")
    done = cli("train", "c.yaml", "--set", "evaluate.slices=[score]", "--set", "run.name=b", *half)
    assert done.code == EXIT_DATA
    check_shown(done.stderr, "data.slices_too_many", "score", "50")
    assert not (world / "runs" / "b").exists()
