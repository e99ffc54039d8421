"""A loss next to the configuration file: `evaluate` finds it later, and a run is not resumed with a changed file."""

from pathlib import Path

import pytest
from harness import Cli
from raised import check_shown

from paratune.errors import EXIT_CHECKPOINT, EXIT_OK
from paratune.records import read_json

CODE = """
from torch.nn import functional
def scaled(outputs, labels, *, factor):
    return factor * functional.cross_entropy(outputs, labels, reduction="none")
"""
LOSS = "task.loss={function: 'beside_config:scaled', options: {factor: 2.0}}"


@pytest.mark.slow
def test_evaluate_finds_the_loss_and_a_changed_loss_prevents_a_resume(world: Path, cli: Cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    (folder / "beside_config.py").write_text(CODE)
    text = (world / "c.yaml").read_text().replace("data.csv", str(world / "data.csv"))
    (folder / "c.yaml").write_text(text.replace("name: model", f"name: {world / 'model'}"))
    options = ("--set", "train.max_steps=4", "--set", "train.epochs=null", "--set", LOSS)
    trained = cli("train", str(folder / "c.yaml"), *options, "--set", "run.folder=runs/own")
    assert trained.code == EXIT_OK, trained.stderr
    run = next(world.rglob("run.json")).parent
    assert read_json(run / "run.json")["config_file"] == str(folder / "c.yaml")
    scored = cli("evaluate", str(run), "--data", str(world / "data.csv"), "--json")
    assert scored.code == EXIT_OK, scored.stderr
    assert scored.json["scores"]["loss"] > 0

    (run / "summary.json").unlink()
    (folder / "beside_config.py").write_text(CODE.replace("return factor", "return 2 * factor"))
    resumed = cli("train", str(folder / "c.yaml"), *options, "--set", "run.folder=runs/own", "--resume")
    assert resumed.code == EXIT_CHECKPOINT
    check_shown(resumed.stderr, "run.other_configuration", "task.loss", "beside_config:scaled")
