"""Real passes of small models against what the figures of their kernels foretell: what calling operations costs here,
and what the prediction leaves out.

On CUDA it has not been tried: no accelerator was at hand.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from paratune.batch import Batch
from paratune.config.task_sections import ClassificationTask
from paratune.models.dropout import use_cheap_dropout
from paratune.models.linear import use_onednn
from paratune.models.packed import find_entry
from paratune.models.task_model import TaskModel
from paratune.packing import pack
from paratune.plan.constants import Constant, Constants
from paratune.plan.kernels import pass_time
from paratune.plan.probes import Measured, measure
from paratune.plan.profile import Profile, Shape, profile
from paratune.precision import POLICIES

_TASK = ClassificationTask(kind="classification", labels=["0", "1"])
_WIDER = 1.1
"""Bounds go so much beyond the models that were tried."""


@dataclass(frozen=True)
class Anchor:
    """A model and a batch."""

    width: int
    num_blocks: int
    lengths: tuple[int, ...]
    layout: str = "packed"


SMALLEST = Anchor(16, 4, (4, 4), "padded")
"""Of which hardly anything takes time but calling operations."""
ANCHORS = (
    Anchor(128, 2, (128,) * 8),
    Anchor(256, 4, (96, 64, 128, 32) * 4),
    Anchor(384, 3, (256,) * 4),
    Anchor(512, 2, (128,) * 8),
    Anchor(256, 3, (128,) * 8, "padded"),
)


def launch_figures(device: torch.device) -> Iterator[tuple[str, Constant]]:
    """Yield what calling an operation costs, forward and backward."""
    found, forward, both = _tried(SMALLEST, device)
    backward = both.without(forward)
    for name, measured, phase in (("forward", forward, found.forward), ("backward", backward, found.backward)):
        value = measured.fastest_s / phase.num_kernels
        spread = max(1.05, measured.median_s / measured.fastest_s)
        source = f"measured: a pass of {phase.num_kernels} small operations, median {measured.spread:.0%} slower"
        yield f"launch.{name}", Constant(value, value / 1.3, value * 1.3 * spread, source)


def factor_figures(device: torch.device, constants: Constants) -> Iterator[tuple[str, Constant]]:
    """Yield measured over predicted time of forward and backward passes.

    Args:
        device: What is measured.
        constants: All other figures of it, measured before.
    """
    ratios: dict[str, list[float]] = {"forward": [], "backward": []}
    for anchor in ANCHORS:
        found, forward, both = _tried(anchor, device)
        # The median: a run is not the fastest of its steps.
        usual = Measured(forward.median_s, forward.median_s)
        measured = {"forward": usual.median_s, "backward": both.without(usual).median_s}
        for name, phase in (("forward", found.forward), ("backward", found.backward)):
            predicted = pass_time(
                phase.operations, constants, launch=f"launch.{name}", tf32=False, is_cuda=device.type == "cuda"
            )
            ratios[name].append(measured[name] / predicted.total_s)
    for name, each in ratios.items():
        yield f"factor.{name}", factor_of(each)


def factor_of(ratios: Sequence[float]) -> Constant:
    """Return the geometric mean of measured over predicted times, with bounds somewhat beyond the ratios themselves."""
    value = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    source = f"measured: {len(ratios)} small models, {min(ratios):.2f} to {max(ratios):.2f} of the prediction"
    return Constant(value, min(ratios) / _WIDER, max(ratios) * _WIDER, source)


def _tried(anchor: Anchor, device: torch.device) -> tuple[Profile, Measured, Measured]:
    """Return the profile of an anchor, its forward pass, and both its passes."""
    import transformers

    config = _config(anchor)
    precision = POLICIES["fp32"]
    torch.manual_seed(0)
    model = TaskModel(transformers.AutoModelForSequenceClassification.from_config(config), "classification").train()
    on_cuda = device.type == "cuda"
    use_cheap_dropout(model)
    if not on_cuda:
        use_onednn(model)
    find_entry(model, device=device)
    model.to(device).train()
    batch = _batch(anchor.lengths).to(device)
    is_packed = anchor.layout == "packed" and model.entry is not None
    if is_packed:
        batch = pack(batch)
    shape = Shape(anchor.lengths, layout="packed" if is_packed else "padded")
    found = profile(config, _TASK, shape, precision, on_cuda=on_cuda, entry=model.entry if is_packed else None)

    def forward() -> torch.Tensor:
        return model.loss_sum(model(batch), batch)

    def both() -> None:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward(forward())

    return found, measure(forward, device, repeats=5), measure(both, device, repeats=5)


def _config(anchor: Anchor) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(
        "bert",
        hidden_size=anchor.width,
        num_hidden_layers=anchor.num_blocks,
        num_attention_heads=max(1, anchor.width // 64),
        intermediate_size=4 * anchor.width,
        vocab_size=30_522,
        pad_token_id=0,
    )


def _batch(lengths: Sequence[int]) -> Batch:
    longest, rows = max(lengths), len(lengths)
    mask_BS = (torch.arange(longest) < torch.tensor(lengths)[:, None]).long()
    return Batch(
        input_ids=torch.where(mask_BS > 0, torch.randint(5, 30_000, (rows, longest)), 0),
        row_weight=torch.ones(rows),
        index=torch.arange(rows),
        num_samples=rows,
        num_tokens=sum(lengths),
        num_padded_tokens=rows * longest,
        loss_denominator=float(rows),
        attention_mask=mask_BS,
        token_type_ids=torch.zeros_like(mask_BS),
        max_seqlen=longest,
        labels=torch.zeros(rows, dtype=torch.long),
    )
