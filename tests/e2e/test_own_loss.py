"""A loss beside the configuration file trains on two processes, is recorded, and evaluates the saved model."""

from pathlib import Path

import pytest
from harness import Cli

from paratune.errors import EXIT_OK
from paratune.records import read_json

pytestmark = pytest.mark.slow
CODE = """
from torch.nn import functional
def scaled(outputs, labels, *, factor):
    return factor * functional.cross_entropy(outputs, labels, reduction="none")
"""
LOSS = "task.loss={function: 'beside:scaled', options: {factor: 2.0}}"


def test_a_loss_beside_the_configuration(world: Path, cli: Cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    (folder / "beside.py").write_text(CODE)
    text = (world / "c.yaml").read_text().replace("data.csv", str(world / "data.csv"))
    (folder / "c.yaml").write_text(text.replace("name: model", f"name: {world / 'model'}"))
    common = ("--set", "train.max_steps=4", "--set", "train.epochs=null", "--set", "run.folder=runs/own")
    trained = cli("train", str(folder / "c.yaml"), "--nproc", "2", "--set", "strategy=ddp", *common, "--set", LOSS)
    assert trained.code == EXIT_OK, trained.stderr
    record = read_json(next(world.rglob("run.json")))
    own = record["own_code"]["task.loss"]
    assert (own["function"], own["options"], len(own["sha256"])) == ("beside:scaled", {"factor": 2.0}, 64)
