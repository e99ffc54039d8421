"""Runs out of memory: they continue with smaller micro-batches, with the result of smaller ones from the start.

A hook on the model simulates out of memory; see outside.py.
"""

from pathlib import Path
from signal import SIGTERM
from typing import Any

import pytest
from harness import Cli, python
from hooks import SignalAt
from outcome import outcome

from paratune.errors import EXIT_OK, EXIT_OUT_OF_MEMORY, EXIT_STOPPED
from paratune.records import rank_file, read_events, read_json

pytestmark = pytest.mark.slow  # each test starts several processes

EXACT = ("--set", "precision=fp64", "--set", "evaluate.batch_size=2", "--set", "train.epochs=1")
PLAIN = ("--set", "model.overrides={hidden_dropout_prob: 0.0, attention_probs_dropout_prob: 0.0}")
"""For runs whose first steps had other micro-batches: dropout masks depend on their shape."""


def strategy(name: str, most: int, first: int = 1) -> tuple[str, str]:
    return "--set", f"strategy={{kind: 'outside:{name}', options: {{most: {most}, first: {first}}}}}"


def named(name: str, micro: Any = None) -> tuple[str, ...]:
    size = () if micro is None else ("--set", f"batch.micro_batch_size={micro}")
    return ("--set", f"run.name={name}", *size)


def out_of_memory_events(run: Path) -> list[tuple[Any, ...]]:
    """Return the out-of-memory events of all ranks."""
    events = [event for rank in range(2) for event in read_events(run, rank)]
    keys = ("step", "doing", "rank", "micro_batch_size", "next_micro_batch_size")
    return [tuple(event[key] for key in keys) for event in events if event["event"] == "out_of_memory"]


def joined(text: str) -> str:
    return " ".join(text.split())


def test_one_process_continues_as_with_the_smaller_size_from_the_start(cli: Cli, world: Path):
    result = cli("train", "c.yaml", *EXACT, *strategy("FullAlone", 4), *named("full"))
    assert result.code == EXIT_OK, result.stderr
    assert cli("train", "c.yaml", *EXACT, *named("small", 4)).code == EXIT_OK

    full, small = (outcome(world / "runs" / name) for name in ("full", "small"))
    assert full == small
    assert out_of_memory_events(world / "runs" / "full") == [(1, "training", 0, 16, 8), (1, "training", 0, 8, 4)]
    record = read_json(world / "runs" / "full" / "run.json")
    batch = record["sessions"][0]["batch"]
    assert record["batch"] == batch
    assert (batch["global_batch_size"], batch["micro_batch_size"]) == (16, 16)
    sizes = [(change["step"], change["micro_batch_size"], change["grad_accum_steps"]) for change in batch["changes"]]
    assert sizes == [(1, 8, 2), (1, 4, 4)]
    assert "continuing with 4 x 4, the global batch stays 16" in joined(result.stderr)
    saved = read_json(world / "runs" / "full" / rank_file("out_of_memory", 0))["happenings"]
    assert [item["next_micro_batch_size"] for item in saved] == [8, 4]
    assert saved[0]["memory"]["weights_bytes"] > 0
    assert saved[0]["memory"]["asked_bytes"] == 20 * 2**20


def test_gradients_of_a_failed_pass_are_dropped(cli: Cli, world: Path):
    # Micro-batches of 8, two a step: pass 6, the second one of step 3, runs out of memory after pass 5 has computed
    # gradients. Evaluations use more rows of short texts, but at most 2 with this setting.
    few = ("--set", "evaluate.batch_size=1")
    arguments = (*EXACT, *PLAIN, *few, *strategy("FullAlone", 2, first=6), *named("full", 8))
    assert cli("train", "c.yaml", *arguments).code == EXIT_OK
    assert cli("train", "c.yaml", *EXACT, *PLAIN, *named("small", 2)).code == EXIT_OK

    full, small = (outcome(world / "runs" / name)["steps"] for name in ("full", "small"))
    assert out_of_memory_events(world / "runs" / "full") == [(3, "training", 0, 8, 4), (3, "training", 0, 4, 2)]
    for key in ("loss", "grad_norm"):
        assert [step[key] for step in full] == pytest.approx([step[key] for step in small], rel=1e-9)


def test_a_resumed_run_keeps_the_reduced_size(cli: Cli, world: Path):
    arguments = (*EXACT, *strategy("FullAlone", 4), *named("full"))
    stop = SignalAt(SIGTERM, "paratune.engine.recorder:Recorder.step", call=5)
    assert cli("train", "c.yaml", *arguments, hook=stop).code == EXIT_STOPPED
    assert cli("train", "c.yaml", *arguments, "--resume").code == EXIT_OK
    assert cli("train", "c.yaml", *EXACT, *named("small", 4)).code == EXIT_OK

    run = world / "runs" / "full"
    assert outcome(run) == outcome(world / "runs" / "small")
    assert len(out_of_memory_events(run)) == 2  # both in the first session
    second = read_json(run / "run.json")["sessions"][1]["batch"]
    assert (second["micro_batch_size"], second["changes"]) == (4, [])
    assert "memory ran out with 8" in second["reason"]


def test_at_size_one_the_error_shows_the_use_of_memory(cli: Cli, world: Path):
    result = cli("train", "c.yaml", *EXACT, *strategy("FullAlone", 0), *named("full", 2))
    assert result.code == EXIT_OUT_OF_MEMORY
    output = joined(result.stderr)
    assert "out of memory on rank 0, step 1, micro-batches of 1 (20,971,520 more bytes were requested)" in output
    for owner in ("weights", "gradients 0 B", "optimizer states 0 B", "activations and buffers"):
        assert owner in output
    assert "1. train.activation_checkpointing: 1 (saves up to" in output
    assert "Traceback" not in output
    saved = read_json(world / "runs" / "full" / rank_file("out_of_memory", 0))["happenings"]
    assert [item["next_micro_batch_size"] for item in saved] == [1, None]


def test_an_evaluation_that_does_not_fit_names_its_own_batch_size(cli: Cli, world: Path):
    more = ("--set", "evaluate.batch_size=16")
    result = cli("train", "c.yaml", *EXACT, *more, *strategy("FullAlone", 8), *named("full", 8))
    assert result.code == EXIT_OUT_OF_MEMORY
    output = joined(result.stderr)
    assert "out of memory on rank 0, evaluating" in output
    assert "evaluate.batch_size: 8 instead of 16" in output


def test_out_of_memory_in_a_collective_names_the_line(cli: Cli, world: Path):
    # As under torchrun, nothing restarts the run. One process is enough, and fast.
    (world / "c.yaml").write_text((world / "c.yaml").read_text().replace("{global: 16}", "{per_device: 16}"))
    arguments = (*EXACT, *strategy("FullDDP", 4), *named("full"))
    result = cli("train", "c.yaml", *arguments)
    assert result.code == EXIT_OUT_OF_MEMORY
    output = joined(result.stderr)
    assert "Set batch.per_device: 8 (c.yaml:8) and batch.grad_accum_steps: 2 (default)" in output
    assert "restart all processes with --resume" in output
    # With and without these settings, the resumed run uses the smaller size; 8 is also too large, and 4 fits.
    assert cli("train", "c.yaml", *arguments, "--resume").code == EXIT_OUT_OF_MEMORY
    assert cli("train", "c.yaml", *arguments, "--resume").code == EXIT_OK
    run = world / "runs" / "full"
    assert read_json(run / "run.json")["batch"]["micro_batch_size"] == 4
    saved = read_json(run / rank_file("out_of_memory", 0))["happenings"]
    assert [(item["micro_batch_size"], item["next_micro_batch_size"]) for item in saved] == [(16, 8), (8, 4)]


@pytest.mark.slow
def test_several_processes_restart_with_half_the_size(cli: Cli, world: Path):
    train = ("-m", "paratune", "train", "c.yaml", "--nproc", "2", *EXACT, *PLAIN)
    environment = {"PARATUNE_CACHE": str(world / "cache")}
    # The last rank runs out of memory in step 6; the newest checkpoint is from step 4.
    full = python(*train, *strategy("FullDDP", 4, first=6), *named("full"), cwd=world, environment=environment)
    assert full.code == EXIT_OK, full.stderr
    assert "micro-batches of at most 4" in full.stderr
    assert cli("train", "c.yaml", *EXACT, *PLAIN, *named("small")).code == EXIT_OK

    run = world / "runs" / "full"
    steps, small = (outcome(world / "runs" / name)["steps"] for name in ("full", "small"))
    assert [step["step"] for step in steps] == [step["step"] for step in small]
    assert [step["loss"] for step in steps] == pytest.approx([step["loss"] for step in small], rel=1e-9)
    assert out_of_memory_events(run) == [(6, "training", 1, 8, 4)]
    sessions = read_json(run / "run.json")["sessions"]
    assert [(item["step"], item["batch"]["micro_batch_size"]) for item in sessions] == [(0, 8), (4, 4)]


@pytest.mark.parametrize(
    ("processes", "name", "kind", "facts"),
    [(1, "FullAlone", "single", 4), pytest.param(2, "FullDDP", "ddp", 2, marks=pytest.mark.slow)],
)
def test_auto_finds_the_largest_common_size_and_leaves_no_files(
    processes: int, name: str, kind: str, facts: int, cli: Cli, world: Path
):
    def train(*arguments: str) -> None:
        command = ("train", "c.yaml", *EXACT, *arguments)
        environment = {"PARATUNE_CACHE": str(world / "cache")}
        new = ("-m", "paratune", *command, "--nproc", str(processes))
        result = cli(*command) if processes == 1 else python(*new, cwd=world, environment=environment)
        assert result.code == EXIT_OK, result.stderr

    train(*strategy(name, 2 * facts - 1), *named("auto", "auto"))
    train("--set", f"strategy={kind}", *named("small", facts))
    # Dropout is on: weights, optimizer states and random numbers are those of a run without trial steps.
    assert outcome(world / "runs" / "auto") == outcome(world / "runs" / "small")
    batch = read_json(world / "runs" / "auto" / "run.json")["batch"]
    sizes = (batch["global_batch_size"], batch["micro_batch_size"], batch["grad_accum_steps"])
    assert sizes == (16, facts, 16 // processes // facts)
    assert batch["reason"].startswith(f"auto: {facts} fits (")
    assert f"{2 * facts} does not: it ran out of memory" in batch["reason"]
    assert out_of_memory_events(world / "runs" / "auto") == []


@pytest.mark.slow
def test_out_of_memory_in_a_shared_probe_restarts_with_less(cli: Cli, world: Path):
    train = ("-m", "paratune", "train", "c.yaml", "--nproc", "2", "--overwrite", "--set", "train.max_steps=4")
    length = ("--set", "train.epochs=null", "--set", "evaluate.batch_size=2")
    environment = {"PARATUNE_CACHE": str(world / "cache")}
    full = strategy("FullZero3", 3)
    result = python(*train, *length, *full, *named("auto", "auto"), cwd=world, environment=environment)
    assert result.code == EXIT_OK, result.stderr
    output = joined(result.stderr)
    assert "out of memory while trying 4 samples on rank 1, where the other ranks wait for it" in output
    assert "micro-batches of at most 2" in output
    batch = read_json(world / "runs" / "auto" / "run.json")["batch"]
    assert batch["micro_batch_size"] == 2
    assert batch["reason"].endswith("larger ones were not tried (memory ran out with more than 2)")
