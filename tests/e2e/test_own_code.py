"""Functions next to the configuration file train on two processes, are recorded, and evaluate the saved model."""

import re
from pathlib import Path

import pytest
from harness import Cli

from paratune.errors import EXIT_CONFIG, EXIT_OK
from paratune.records import read_json

pytestmark = pytest.mark.slow
CODE = """
from torch import nn
from torch.nn import functional
from torch.optim import SGD
def scaled(outputs, labels, *, factor):
    return factor * functional.cross_entropy(outputs, labels, reduction="none")
def gap(predictions, labels):
    return abs(predictions.mean() - labels.mean())
def halved(step, num_steps, *, every):
    return 0.5 ** (step // every)
class Mean(nn.Linear):
    def __init__(self, config): super().__init__(config.hidden_size, config.num_labels)
    def forward(self, hidden, attention_mask):
        mask = attention_mask.unsqueeze(-1)
        return super().forward((hidden * mask).sum(1) / mask.sum(1))
class Steps:
    def on_start(self, state): self.steps = []
    def on_step(self, state): self.steps.append(state.step)
    def on_end(self, state): (state.folder / "steps.txt").write_text(f"{self.steps} {sorted(state.scores)[-1]}")
"""
RANKING = """
task: {kind: own, recipe: "my_tasks:WithHiddenWords", scores: [pair_accuracy]}
data: {train: pairs.csv, columns: {text: better, text_pair: worse}}
model: {name: model}
train: {max_steps: 4, learning_rate: 3e-3}
batch: {global: 16}
"""
OPTIONS = [
    "strategy=zero2",
    "train.max_steps=4",
    "train.epochs=null",
    "run.folder=runs/own",
    "model.head={function: 'beside:Mean'}",
    "task.loss={function: 'beside:scaled', options: {factor: 2.0}}",
    "train.optimizer={function: 'beside:SGD', options: {momentum: 0.9}, elementwise: true, state_bytes: 4}",
    "train.schedule={function: 'beside:halved', options: {every: 2}}",
    "evaluate.metrics=[{name: gap_error, higher_is_better: false, function: 'beside:gap'}]",
    "evaluate.best=own_gap_error",
    "run.callbacks=[{function: 'beside:Steps'}]",
]


def test_code_next_to_the_configuration(world: Path, cli: Cli, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings")
    (folder / "beside.py").write_text(CODE)
    text = (world / "c.yaml").read_text().replace("data.csv", str(world / "data.csv"))
    (folder / "c.yaml").write_text(text.replace("name: model", f"name: {world / 'model'}"))
    trained = cli(
        "train",
        str(folder / "c.yaml"),
        "--nproc",
        "2",
        *(argument for option in OPTIONS for argument in ("--set", option)),
    )
    assert trained.code == EXIT_OK, trained.stderr
    record = read_json(next(world.rglob("run.json")))
    own = record["own_code"]["task.loss"]
    assert (own["function"], own["options"], len(own["sha256"])) == ("beside:scaled", {"factor": 2.0}, 64)
    others = ["train.optimizer", "train.schedule", "run.callbacks[0]", "evaluate.metrics.gap_error"]
    assert set(record["own_code"]) == {"model.head", "task.loss", *others}
    run = next(world.rglob("summary.json")).parent
    assert read_json(run / "summary.json")["scores"]["validation"].keys() >= {"own_gap_error", "loss"}
    assert (run / "steps.txt").read_text() == "[1, 2, 3, 4] roc_auc"


ENDS = """
import os, sys
import torch.distributed as dist
from torch.optim import SGD
def leaves(predictions, labels): sys.exit(0)
def on_rank_1(predictions, labels):
    if dist.get_rank() == 1: sys.exit(0)
    return 0.5
class Moves:
    def on_start(self, state): os.chdir("/")
"""


@pytest.mark.parametrize("function", ["leaves", "on_rank_1"])
def test_sys_exit_in_a_metric_ends_all_ranks_with_one_error(world: Path, cli: Cli, function: str):
    (world / "ends.py").write_text(ENDS)
    metric = f"evaluate.metrics=[{{name: m, higher_is_better: true, function: 'ends:{function}'}}]"
    options = ("strategy=ddp", "train.max_steps=4", "train.epochs=null", metric)
    ended = cli("train", "c.yaml", "--nproc", "2", *(word for option in options for word in ("--set", option)))
    assert ended.code == EXIT_CONFIG, ended.stderr
    assert "own_code.raised" in ended.stderr
    assert f"ends:{function} raised SystemExit" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_a_callback_that_changes_the_folder_leaves_the_files_of_the_run_where_they_are(world: Path, cli: Cli):
    (world / "ends.py").write_text(ENDS)
    options = ("run.callbacks=[{function: 'ends:Moves'}]", "run.name=moved", "train.max_steps=4", "train.epochs=null")
    ended = cli("train", "c.yaml", *(word for option in options for word in ("--set", option)))
    assert ended.code == EXIT_OK, ended.stderr
    assert (next(world.rglob("summary.json")).parent / "model" / "model.safetensors").is_file()


def test_a_custom_task_gives_the_same_result_on_two_processes(world: Path, cli: Cli):
    page = (Path(__file__).parents[2] / "docs" / "howto" / "extend.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (world / "my_tasks.py").write_text("\n".join(text for text in blocks if "# my_tasks" in text))
    lines = (world / "data.csv").read_text().splitlines()[1:]
    texts = [line.split(",")[1] for line in lines]
    pairs = [f"{good},{bad}" for bad, good in zip(texts[::2], texts[1::2], strict=True)]
    (world / "pairs.csv").write_text("\n".join(["better,worse", *pairs]))
    (world / "t.yaml").write_text(RANKING)
    certificate = cli("certify", "t.yaml", "--strategies", "ddp", "--steps", "2")
    assert certificate.code == EXIT_OK, certificate.stderr
