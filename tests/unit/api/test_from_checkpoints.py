"""Runs from the checkpoints of another run: which steps, with which weights, and what a second call does."""

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from raised import raises_code
from safetensors.torch import load_file
from tiny import tiny_masked_lm
from transformers import AutoModelForMaskedLM

from paratune import checkpoint
from paratune.api.train import train_from_checkpoints
from paratune.config.load import load_values
from paratune.records import write_json

BASE: dict[str, Any] = {
    "data": {"train": "a.csv", "columns": {"text": "text"}},
    "train": {"epochs": 1},
    "batch": {"global": 8},
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return an unfinished run of a masked LM with checkpoints of steps 10, 20, 30 and 40."""
    tiny_masked_lm(tmp_path / "arch")
    values = {**BASE, "task": {"kind": "mlm"}, "model": {"name": str(tmp_path / "arch"), "from_scratch": True}}
    (tmp_path / "pre").mkdir()
    write_json(tmp_path / "pre" / "run.json", {"config": load_values({**values, "run": {"name": "pre"}}).values})
    for step in (10, 20, 30, 40):
        save(tmp_path / "pre", step)
    return tmp_path / "pre"


def save(source: Path, step: int) -> None:
    state = {**tiny_masked_lm(seed=step).state_dict(), "optimizer": torch.zeros(1)}
    names = [(key if key == "optimizer" else f"model/hf.{key}", value.clone()) for key, value in state.items()]
    checkpoint.save(checkpoint.step_folder(source / "checkpoints", step), names, {}, step=step, is_writer=True)


def steps(
    source: Path, patch: pytest.MonkeyPatch, every: int = 1, act: Any = None, model: dict[str, Any] | None = None
) -> list[int]:
    """Return the steps from which runs are trained by a function that makes their folders, in place of a training."""
    task = {"kind": "classification", "labels": ["a", "b"]}
    columns = {"columns": {"text": "text", "label": "label"}}
    run = {"name": "down", "folder": str(source.parent / "runs")}
    loaded = load_values(
        {**BASE, "data": {**BASE["data"], **columns}, "task": task, "model": {"name": "m", **(model or {})}, "run": run}
    )

    def train(_: Any, overrides: dict[str, str], *, run_name: str, resume: bool, **how: Any) -> None:
        step, model = int(run_name.removeprefix("down-pre-step_")), Path(overrides["model.name"])
        assert how == {"nproc": 2, "run_code": False}
        assert resume == (model.parent / run_name).exists()
        (model.parent / run_name).mkdir(exist_ok=True)
        weights = AutoModelForMaskedLM.from_pretrained(model).state_dict()
        for key, value in tiny_masked_lm(seed=step).state_dict().items():
            assert torch.equal(weights[key], value), key
        assert "optimizer" not in load_file(model / "model.safetensors")
        if act is not None:
            act(step)

    patch.setattr("paratune.api.train.train", train)
    return [step for step, _ in train_from_checkpoints(loaded, source, every=every, nproc=2, run_code=False)]


@pytest.mark.parametrize(("every", "expected"), [(1, [10, 20, 30, 40]), (15, [10, 30]), (20, [10, 30]), (100, [10])])
def test_checkpoints_are_used_that_are_far_enough_apart(
    source: Path, monkeypatch: pytest.MonkeyPatch, every: int, expected: list[int]
):
    write_json(source / "summary.json", {})
    assert steps(source, monkeypatch, every) == expected
    assert sorted(path.name for path in (source.parent / "runs").iterdir()) == [
        f"down-pre-step_{step:06d}" for step in expected
    ]
    assert steps(source, monkeypatch, every) == []  # all are there


def test_a_run_in_progress_is_followed_until_it_is_finished(source: Path, monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        if seconds == 0:
            return
        slept.append(seconds)
        save(source, 40 + 10 * len(slept))
        if len(slept) == 2:
            write_json(source / "summary.json", {})

    monkeypatch.setattr("paratune.api.train.time", SimpleNamespace(sleep=sleep, time=time.time))
    assert steps(source, monkeypatch, 20) == [10, 30, 50]
    assert len(slept) == 2


def test_checkpoints_that_the_run_deletes_are_left_out(source: Path, monkeypatch: pytest.MonkeyPatch):
    write_json(source / "summary.json", {})

    def prune(step: int) -> None:
        shutil.rmtree(checkpoint.step_folder(source / "checkpoints", 20), ignore_errors=True)
        # Its other files are deleted later.
        (checkpoint.step_folder(source / "checkpoints", 30) / checkpoint.MANIFEST).unlink(missing_ok=True)

    assert steps(source, monkeypatch, act=prune) == [10, 40]


def test_an_interrupted_run_is_resumed_from_its_model(source: Path, monkeypatch: pytest.MonkeyPatch):
    write_json(source / "summary.json", {})

    def stop(step: int) -> None:
        if step == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        steps(source, monkeypatch, act=stop)
    shutil.rmtree(checkpoint.step_folder(source / "checkpoints", 20))
    assert steps(source, monkeypatch) == [20, 30, 40]


def test_a_folder_without_a_run_and_a_damaged_checkpoint_are_errors(source: Path, monkeypatch: pytest.MonkeyPatch):
    with raises_code("run.not_found", "none"):
        steps(source.with_name("none"), monkeypatch)
    (checkpoint.step_folder(source / "checkpoints", 10) / "tensors.00000.safetensors").write_bytes(b"")
    with raises_code("checkpoint.damaged", "tensors.00000.safetensors"):
        steps(source, monkeypatch)


def test_a_run_that_died_is_not_waited_for(source: Path, monkeypatch: pytest.MonkeyPatch):
    for path in source.iterdir():
        os.utime(path, (0, 0))
    with raises_code("run.not_finished", path=source):
        steps(source, monkeypatch, 20)


def test_runs_of_another_source_are_not_taken_for_these(source: Path, monkeypatch: pytest.MonkeyPatch):
    write_json(source / "summary.json", {})
    other = source.parent / "runs" / "down-other-step_000040"
    other.mkdir(parents=True)
    assert steps(source, monkeypatch, 20) == [10, 30]


@pytest.mark.parametrize(
    ("key", "model"),
    [
        ("model.from_scratch", {"from_scratch": True}),
        ("model.adapter.save", {"adapter": {"kind": "lora", "save": "adapter"}}),
    ],
)
def test_models_that_need_the_folder_later_or_not_at_all_are_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch, key: str, model: dict[str, Any]
):
    with raises_code("cli.conflict", key=key):
        steps(source, monkeypatch, model=model)
