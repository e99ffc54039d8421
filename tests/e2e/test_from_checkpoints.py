"""`paratune train --from-checkpoints`: a task is trained from the checkpoints of a pre-training."""

import json
from pathlib import Path

import pytest
from harness import Cli
from raised import check_shown
from safetensors.torch import load_file

from paratune.errors import EXIT_CHECKPOINT, EXIT_CONFIG, EXIT_OK
from paratune.records import read_json

PRETRAINING = """\
task: {kind: mlm, windows: separate, mask_probability: 0.3}
data: {train: "dat?.csv", columns: {text: text}, split: {validation: 0.2}}
model: {name: model, from_scratch: true}
train: {max_steps: 6, learning_rate: 3e-3}
batch: {global: 16}
checkpoint: {every: steps, steps: 2, keep: 5}
"""


@pytest.mark.slow
def test_a_task_is_trained_from_checkpoints_of_a_pretraining(world: Path, cli: Cli):
    (world / "pre.yaml").write_text(PRETRAINING)
    assert cli("train", "pre.yaml").code == EXIT_OK
    task = ("train", "c.yaml", "--max-steps", "2", "--set", "checkpoint={every: epoch}")
    command = (*task, "--from-checkpoints", "runs/pre", "--every", "4")
    result = cli(*command, "--json")
    assert result.code == EXIT_OK, result.stderr
    made = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(about["step"], about["folder"]) for about in made] == [
        (2, "runs/c-pre-step_000002"),
        (6, "runs/c-pre-step_000006"),
    ]
    for about in made:
        record = read_json(world / about["folder"] / "run.json")
        assert about["scores"] == read_json(world / about["folder"] / "summary.json")["scores"]
        assert record["config"]["model"]["name"] == f"runs/.c-pre-step_00000{about['step']}"
    assert not list((world / "runs").glob(".c-*"))
    # Two steps of a small learning rate change the last weights of the pre-training little.
    weights, trained = (
        load_file(world / "runs" / run / "model" / "model.safetensors") for run in ("pre", "c-pre-step_000006")
    )
    name = "bert.encoder.layer.0.output.dense.weight"
    assert (weights[name] - trained[name]).abs().max() < 0.01 < weights[name].abs().max()

    again = cli(*command)
    assert (again.code, again.stdout) == (EXIT_OK, "")
    for words, code, expected in (
        ((*task, "--every", "4"), EXIT_CONFIG, "cli.no_effect"),
        ((*command[:-1], "0"), EXIT_CONFIG, "cli.invalid_value"),
        ((*command, "--overwrite"), EXIT_CONFIG, "cli.conflict"),
        ((*task, "--from-checkpoints", "runs/none"), EXIT_CHECKPOINT, "run.not_found"),
    ):
        result = cli(*words)
        assert result.code == code, result.stderr
        check_shown(result.stderr, expected)
