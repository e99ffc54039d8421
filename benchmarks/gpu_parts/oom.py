"""Out of memory in a training: micro-batches are halved, and the global batch stays the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from paratune.models.task_model import TaskModel
from paratune.records import read_events, read_json

from .setting import Check, Figures, Setting, hold
from .texts import CASES, of_setting, write_config, write_model
from .training import free, losses_of, train_here

LIMIT_BYTES = 6 * 2**30


def checks(setting: Setting) -> Iterator[Check]:
    """Yield the training that runs out of memory."""
    yield Check("halved micro-batches", partial(halving, setting))


def halving(setting: Setting) -> Figures:
    """Train without dropout with too little memory, and again with the resulting sizes."""
    case = of_setting(CASES[1], setting)
    write_model(setting, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    path = write_config(case, setting, "halved", num_rows=4 * case.batch_size, num_steps=4, measure={"probe": True})
    with _little_memory(setting):
        train_here(path)
    run = setting.folder / "runs" / "halved"
    steps = [event for event in read_events(run) if event["event"] == "step"]
    sizes = [event["num_micro_batches"] for event in steps if event.get("num_micro_batches")]
    losses = losses_of(run)
    peak = torch.cuda.max_memory_allocated() if setting.on_gpu else None
    free()
    whole = write_config(case, setting, "whole", num_rows=4 * case.batch_size, num_steps=4, measure={"probe": True})
    train_here(whole)
    expected = losses_of(setting.folder / "runs" / "whole")
    figures: dict[str, Any] = {
        "batch": read_json(run / "run.json")["batch"]["micro_batch_size"],
        "micro_batches": sizes or None,
        "samples_of_steps": sorted({event["num_samples"] for event in steps}),
        "peak_bytes": peak,
        "loss_difference": max(abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=True)),
        "events": sorted({event["event"] for event in read_events(run)} - {"step", "sample", "sampler"}),
    }
    hold("out_of_memory" in figures["events"], "memory did not run out", figures)
    hold(figures["samples_of_steps"] == [case.batch_size], "the global batch changed", figures)
    return hold(figures["loss_difference"] <= 0.02, "losses differ from those of whole micro-batches", figures)


@contextmanager
def _little_memory(setting: Setting) -> Iterator[None]:
    """Limit PyTorch to little GPU memory; on a CPU, raise out of memory in the forward pass of many rows."""
    if setting.on_gpu:
        total = torch.cuda.get_device_properties(setting.device).total_memory
        torch.cuda.set_per_process_memory_fraction(LIMIT_BYTES / total)
        try:
            yield
        finally:
            torch.cuda.set_per_process_memory_fraction(1.0)
        return
    forward = TaskModel.forward

    def limited(self: TaskModel, batch: Any) -> torch.Tensor:
        if batch.num_samples > 3:
            raise torch.OutOfMemoryError("simulated: more than 3 rows")
        return forward(self, batch)

    TaskModel.forward = limited  # type: ignore[method-assign]
    try:
        yield
    finally:
        TaskModel.forward = forward  # type: ignore[method-assign]
