"""Only `strategy.kind` changes, and the run stays the same: losses, result folder, checkpoints, an interruption."""

import importlib.util
import shutil
from pathlib import Path

import pytest
from harness import Cli, python
from outcome import outcome, steps_of
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from paratune.errors import EXIT_OK
from paratune.records import read_events, read_json

pytestmark = pytest.mark.slow  # each test starts several processes

STEADY = ("--set", "evaluate={every: steps, steps: 10, best: loss}", "--set", "checkpoint.keep=9")
PLAIN = ("--set", "model.overrides={hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}")
HAVE_DEEPSPEED = importlib.util.find_spec("deepspeed") is not None
SLOW = [
    pytest.param("zero1", marks=pytest.mark.slow),
    pytest.param("zero3", marks=pytest.mark.slow),
    pytest.param(
        "deepspeed",
        marks=[pytest.mark.slow, pytest.mark.skipif(not HAVE_DEEPSPEED, reason="the extra deepspeed is not installed")],
    ),
]
KINDS = ["pipeline", *SLOW]


def train(world: Path, kind: str, *more: str) -> Path:
    completed = python(
        *("-m", "paratune", "train", "c.yaml", "--nproc", "2", "--set", f"strategy={{kind: {kind}}}", *STEADY, *more),
        cwd=world,
        environment={"PARATUNE_CACHE": str(world / "cache")},
    )
    assert completed.code == EXIT_OK, completed.stderr
    return world / "runs" / "c"


@pytest.mark.parametrize("kind", KINDS)
def test_the_strategy_does_not_change_the_result(world: Path, cli: Cli, kind: str):
    alone = cli("train", "c.yaml", "--set", "run.name=alone", *STEADY, *PLAIN)
    assert alone.code == EXIT_OK, alone.stderr
    run, reference = train(world, kind, *PLAIN), world / "runs" / "alone"

    losses = [event["loss"] for event in steps_of(reference)]
    assert [event["loss"] for event in steps_of(run)] == pytest.approx(losses, abs=1e-5)
    scores, expected = (read_json(folder / "summary.json")["scores"]["validation"] for folder in (run, reference))
    assert scores["loss"] == pytest.approx(expected["loss"], abs=1e-4)
    weights, expected_weights = (load_file(folder / "model" / "model.safetensors") for folder in (run, reference))
    assert {name: value.shape for name, value in weights.items()} == {
        name: v.shape for name, v in expected_weights.items()
    }
    _, info = AutoModelForSequenceClassification.from_pretrained(run / "model", output_loading_info=True)
    assert not any(info.values()), info
    if kind == "pipeline":
        check_bubble(run)


RESUMED = [
    ("pipeline", "auto"),
    *(pytest.param(*param.values, "auto", marks=param.marks) for param in SLOW),
    ("pipeline", "true"),
    ("zero3", "true"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "sharded"), RESUMED)
def test_a_resumed_run_equals_an_uninterrupted_one(world: Path, kind: str, sharded: str):
    form = ("--set", f"checkpoint.sharded={sharded}")
    run = train(world, kind, *form)
    undisturbed = outcome(run)
    names = {path.name.split(".")[1] for path in (run / "checkpoints" / "step_000016").glob("tensors.*")}
    assert names == ({"rank0000", "rank0001"} if sharded == "true" else {"00000"})
    for later in (20, 24, 28, 30):  # as if the run had been killed after step 19
        shutil.rmtree(run / "checkpoints" / f"step_{later:06d}")
    for left in ("model", "summary.json"):
        shutil.rmtree(run / left) if (run / left).is_dir() else (run / left).unlink()
    train(world, kind, *form, "--resume")

    assert read_json(run / "summary.json")["num_interruptions"] == 1
    assert outcome(run) == undisturbed


def check_bubble(run: Path) -> None:
    for rank in (0, 1):
        for event in read_events(run, rank):
            if event["event"] == "step":
                busy = event["phases_ms"]["forward"] + event["phases_ms"]["backward"]
                assert 0 < event["bubble_ms"] < event["schedule_ms"] < event["wall_ms"]
                assert busy + event["bubble_ms"] >= event["schedule_ms"] - 0.01
    pipeline = read_json(run / "summary.json")["pipeline"]
    assert 0 < pipeline["bubble_share"] < 1
    # 16 samples in 8 micro-batches, four times the number of stages: 1 of 9.
    assert pipeline["ideal_bubble_share"] == pytest.approx(1 / 9)
