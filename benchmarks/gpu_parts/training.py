"""Trainings of the GPU checks: whole ones in this process, commands in separate processes, and single steps."""

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paratune.batch import Batch
from paratune.config.sections import Train
from paratune.engine.optim import OptimizerFactory
from paratune.models.dropout import use_cheap_dropout
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel, find_blocks
from paratune.precision import POLICIES, Precision
from paratune.strategies.single import SingleStrategy

from .setting import Setting
from .texts import bert_config

OnStep = Callable[[int], None]


def precision_of(setting: Setting) -> Precision:
    """Return bf16 on a GPU, fp32 on a CPU."""
    return POLICIES["bf16" if setting.on_gpu else "fp32"]


def train_here(config: Path, *overrides: str, on_step: OnStep | None = None) -> dict[str, Any]:
    """Train a configuration in this process as `paratune train` does; return its summary.

    Args:
        config: Configuration file.
        overrides: Arguments of `--set`.
        on_step: Called with the number of each step, from 1, when the host has finished it.
    """
    from paratune.config.load import load_config
    from paratune.engine.recorder import Recorder
    from paratune.training.run import train

    recorded = Recorder.step

    def step(self: Recorder, **values: Any) -> None:
        recorded(self, **values)
        if on_step is not None:
            on_step(values["step"])

    Recorder.step = step  # type: ignore[method-assign]
    try:
        return train(load_config(config, list(overrides)), mode="overwrite")
    finally:
        Recorder.step = recorded  # type: ignore[method-assign]


def command(*words: str) -> list[str]:
    """Return the command line of `paratune WORDS` with this interpreter."""
    return [sys.executable, "-P", "-m", "paratune", *words]


def run_command(*words: str, timeout_s: float) -> dict[str, Any]:
    """Run `paratune WORDS --json` and return its JSON, with its exit code as `exit_code`.

    Raises:
        RuntimeError: It printed no JSON; the message contains the last lines of its log.
        subprocess.TimeoutExpired: It took longer.
    """
    completed = subprocess.run(
        command(*words, "--json"), capture_output=True, text=True, timeout=max(1.0, timeout_s), env=environment()
    )
    with contextlib.suppress(json.JSONDecodeError):
        return {**json.loads(completed.stdout), "exit_code": completed.returncode}
    lines = (completed.stderr or completed.stdout).strip().splitlines()[-8:]
    raise RuntimeError(f"paratune {words[0]} exited with {completed.returncode}: " + " | ".join(lines))


def environment() -> dict[str, str]:
    """Return the environment of a command, which can import the modules of this process."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@contextmanager
def repeatable(seed: int = 0) -> Iterator[None]:
    """Draw the same random numbers in this block each time."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    with torch.random.fork_rng(devices):
        torch.manual_seed(seed)
        yield


def make_model(setting: Setting, precision: Precision, **changes: Any) -> TaskModel:
    """Return a BERT for classification on the host as a training prepares it, with the same weights each time.

    Raises:
        RuntimeError: The model does not support packed rows.
    """
    from transformers import AutoModelForSequenceClassification

    with repeatable():
        model = TaskModel(
            AutoModelForSequenceClassification.from_config(bert_config(setting, **changes)), "classification"
        )
    use_cheap_dropout(model)
    enable_packed_batches(model, device=setting.device, dtype=precision.autocast_dtype)
    if model.entry is None:
        raise RuntimeError(f"packed rows are refused: {model.why_padded}")
    return model


class Steps:
    """A BERT for classification on the device that runs optimizer steps of given batches, without a training loop."""

    def __init__(
        self,
        setting: Setting,
        *,
        precision: Precision | None = None,
        make: Callable[[], Any] | None = None,
        **changes: Any,
    ) -> None:
        """Make the model.

        Args:
            setting: Device and sizes.
            precision: By default the setting's precision.
            make: Makes the strategy; by default `SingleStrategy`.
            **changes: Changes of the model's configuration.
        """
        self.setting = setting
        self.precision = precision or precision_of(setting)
        self.model = make_model(setting, self.precision, **changes)
        self.vocab_size: int = self.model.hf.config.vocab_size
        self.entry = self.model.entry
        self.optimizer = OptimizerFactory(Train(max_steps=1000, learning_rate=1e-5, schedule="constant"), 1000)
        device = setting.device
        self.strategy: Any = (
            make() if make else SingleStrategy(device=device, precision=self.precision, rank=0, world_size=1)
        )
        self.strategy.prepare(self.model, find_blocks(self.model), self.optimizer)

    def __call__(self, batch: Batch, *, seed: int | None = None) -> Tensor:
        """Run a step of one micro-batch and return its loss without waiting for it."""
        if seed is not None:
            torch.manual_seed(seed)
        loss: Tensor = self.strategy.forward_backward([batch], lambda _phase: nullcontext())
        self.optimizer.set_learning_rate(0)
        self.strategy.optimizer_step(1.0)
        return loss


def free(*things: Any) -> None:
    """Free memory of the device that is no longer used."""
    import gc

    del things
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return condition()


def losses_of(run: Path) -> list[float]:
    """Return the loss of each step of a run, for a step that was run twice, the later loss."""
    from paratune.records import read_events

    by_step = {event["step"]: event["loss"] for event in read_events(run) if event["event"] == "step"}
    return [by_step[step] for step in sorted(by_step)]


def first_difference(a: Sequence[float], b: Sequence[float]) -> int | None:
    """Return the first step, from 1, at which two runs differ; None if they do not."""
    if len(a) != len(b):
        return min(len(a), len(b)) + 1
    return next((step for step, (x, y) in enumerate(zip(a, b, strict=True), start=1) if x != y), None)
