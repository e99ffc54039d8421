"""Every architecture that supports packed rows: packed on the device compared with padded in float64 on the host."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paratune.batch import Batch
from paratune.batch.packing import pack, round_up
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel

from .setting import Check, Figures, Setting, hold, largest_difference

TESTS = Path(__file__).parents[2] / "tests"
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))
LENGTHS = [1, 200, 30, 2, 67]
TOLERANCE = {None: 1e-3, torch.bfloat16: 6e-2, torch.float16: 4e-2}
"""Allowed difference as a share of a tensor's largest number, by the dtype of autocast. Two layers of width 32 on
a CPU differ by at most 3% in bf16 and 1.4% in fp16; wrong rows, positions or dtypes give 30% and more."""


def checks(setting: Setting) -> Iterator[Check]:
    """Yield a check for each architecture and head, in float32 and, for the first head, under autocast."""
    from architectures import PAIRS

    pairs = [pair for pair in PAIRS if not setting.tiny or pair[0] in ("bert", "modernbert-mean", "deberta-v3")]
    for name, kind in pairs:
        yield Check(f"{name}, {kind}", partial(compare, setting, name, kind, None), "Packed in float32")
    for name, kind in pairs:
        if kind == "classification":
            run = partial(compare, setting, name, kind, torch.bfloat16)
            yield Check(f"{name}, bf16", run, "Packed under autocast")


def compare(
    setting: Setting,
    name: str,
    kind: str,
    dtype: torch.dtype | None,
    *,
    watch: AbstractContextManager[Any] | None = None,
) -> Figures:
    """Compare loss, outputs and all gradients of one step without dropout.

    Args:
        setting: Device and sizes.
        name: Architecture.
        kind: classification, mlm or qa.
        dtype: Dtype of autocast; None computes in float32.
        watch: Context manager around the step on the device.

    Raises:
        Wrong: They differ by more than `TOLERANCE`.
    """
    from architectures import CONFIGS, model_of, rows

    config = CONFIGS[name]()
    exact = model_of(config, kind, torch.float64).eval()
    batch = rows(LENGTHS, kind, pad=exact.hf.config.pad_token_id or 0)
    if kind == "qa":
        batch = replace(batch, row_bounds=torch.tensor([[0, 0, length] for length in LENGTHS]))
    enable_packed_batches(exact, packs=False)
    expected = _step(exact, batch)
    ours = model_of(config, kind).eval()
    enable_packed_batches(ours, device=setting.device, dtype=dtype)
    why_padded = ours.why_padded
    packed = round_up(pack(batch)) if ours.entry is not None else batch
    ours.to(setting.device)
    on = torch.autocast(setting.device.type, dtype=dtype) if dtype else nullcontext()
    with watch or nullcontext():
        tensors = _step(ours, packed.to(setting.device), on, num_rows=len(LENGTHS))
    figures = {
        "layout": "packed" if ours.entry is not None else f"padded: {why_padded}",
        "difference": largest_difference(tensors, expected),
        "allowed": TOLERANCE[dtype],
        "num_tensors": len(tensors),
    }
    return hold(figures["difference"] <= figures["allowed"], "differs from padded float64 on the host", figures)


def _step(
    model: TaskModel, batch: Batch, on: AbstractContextManager[Any] | None = None, *, num_rows: int | None = None
) -> list[Tensor]:
    """Return the loss, the outputs if they are per row, and all gradients."""
    with on or nullcontext():
        outputs = model(batch)
        loss = model.loss_sum(outputs, batch) / batch.loss_count
    loss.backward()
    row_values = [outputs.detach()[:num_rows]] if model.head_reads == "rows" else []
    return [loss.detach(), *row_values, *(x.grad for x in model.parameters() if x.grad is not None)]
