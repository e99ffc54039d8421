"""Measures passes of small models (anchors): the cost of calling an operation, and measured over predicted time.

On CUDA no result has been checked yet: the calls have run only on meta tensors that imitate CUDA tensors.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from paratune.batch import Batch
from paratune.batch.packing import pack
from paratune.config.task_sections import ClassificationTask
from paratune.models.dropout import use_cheap_dropout
from paratune.models.linear import use_onednn
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel
from paratune.planning.clock import REPEATS, Call, CallSeconds, captured, measure_host, measure_wall
from paratune.planning.constants import BoundedConstant, Constants
from paratune.planning.kernels import pass_time
from paratune.planning.profile import Profile, Shape, profile
from paratune.planning.target import MeasuredDevice
from paratune.precision import POLICIES

_TASK = ClassificationTask(kind="classification", labels=["0", "1"])
_BOUNDS_FACTOR = 1.1
"""The bounds of a factor are wider than the measured ratios by this factor."""


@dataclass(frozen=True)
class Anchor:
    """A model and a batch."""

    width: int
    num_blocks: int
    lengths: tuple[int, ...]
    layout: str = "packed"


SMALLEST = Anchor(16, 4, (4, 4), "padded")
"""A model so small that nearly all its time is spent on calling operations."""
ANCHORS = (
    Anchor(128, 2, (128,) * 8),
    Anchor(256, 4, (96, 64, 128, 32) * 4),
    Anchor(384, 3, (256,) * 4),
    Anchor(512, 2, (128,) * 8),
    Anchor(256, 3, (128,) * 8, "padded"),
    Anchor(384, 4, (17,) * 8),
)
"""On a CPU: the last one has few tokens, as short rows have."""
ANCHORS_ON_GPU = (
    Anchor(768, 4, (512,) * 16),
    Anchor(768, 4, (96, 320, 512, 160) * 4),
    Anchor(768, 6, (128,) * 32),
    Anchor(1024, 3, (512,) * 16),
    Anchor(768, 3, (256,) * 16, "padded"),
)
"""Blocks of BERT-base and BERT-large, whose kernels are long enough that the host does not bind every one."""
_PRODUCT_TOKENS, _PRODUCT_WIDTH = 128, 384
"""Of the product that evicts the caches: 3.3 MB."""
_TINY_KERNELS = 256
"""Kernels in one measurement; few enough for the queue of the device."""


def launch_figures(target: MeasuredDevice) -> Iterator[tuple[str, BoundedConstant]]:
    """Yield the host's time for calling an operation, forward and backward, and on CUDA the shortest kernel's time."""
    passes = _make_passes(SMALLEST, target)
    # On a CPU an operation is computed before it returns; here that takes next to nothing.
    timed = measure_host if target.is_cuda else measure_wall
    forward = timed(passes.forward, target.clock, repeats=5)
    backward = timed(passes.both, target.clock, repeats=5).without(forward)
    counted = passes.profile
    for name, measured, phase in (("forward", forward, counted.forward), ("backward", backward, counted.backward)):
        value = measured.fastest_s / phase.num_kernels
        spread = max(1.05, measured.median_s / measured.fastest_s)
        source = f"measured: a pass of {phase.num_kernels} small operations, median {measured.spread:.0%} slower"
        yield f"launch.{name}", BoundedConstant.around(value, 1.3, 1.3 * spread, source)
    if not target.is_cuda:
        yield "launch.evicted", _evicted(passes.model, passes.forward)
    else:
        queued = _tiny_kernel(_tiny_calls(target), target)
        source = f"measured: {_TINY_KERNELS} sums of 32 numbers in a queue, median {queued.spread:.0%} slower"
        yield "kernel", BoundedConstant(queued.fastest_s, queued.fastest_s / 1.3, queued.median_s * 1.3, source)


def _evicted(model: nn.Module, forward: Call) -> BoundedConstant:
    """Return the seconds that a small model's forward pass loses for each product that fills the level 2 cache.

    A product runs after each module without parts; its own time is left out. It is compared with a tiny product.
    """
    spent_s, num_products = 0.0, 0
    operands = torch.randn(1, 1), torch.randn(1, 1)

    def multiply(*_: Any) -> None:
        nonlocal spent_s, num_products
        begin = time.perf_counter()
        with torch.no_grad():
            torch.mm(*operands)
        spent_s, num_products = spent_s + time.perf_counter() - begin, num_products + 1

    def rest_s() -> float:
        nonlocal spent_s, num_products
        spent_s, num_products, begin = 0.0, 0, time.perf_counter()
        forward()
        return time.perf_counter() - begin - spent_s

    hooks = [module.register_forward_hook(multiply) for module in model.modules() if not list(module.children())]
    times = []
    for shapes in (((1, 1), (1, 1)), ((_PRODUCT_TOKENS, _PRODUCT_WIDTH), (_PRODUCT_WIDTH, 4 * _PRODUCT_WIDTH))):
        operands = torch.randn(shapes[0]), torch.randn(shapes[1])
        times.append(CallSeconds.of_times([rest_s() for _ in range(1 + REPEATS)][1:]))
    for hook in hooks:
        hook.remove()
    small, large = times
    value = max(0.0, large.fastest_s - small.fastest_s) / num_products
    slower = max(1.3, large.median_s / large.fastest_s)
    source = f"measured: a small model with {num_products} products between its operations"
    return BoundedConstant.around(value, 1.5, 1.5 * slower, source)


def launch_facts(target: MeasuredDevice) -> dict[str, float]:
    """Return the seconds of launching a tiny kernel on CUDA, measured in three ways.

    Returns:
        `eager_host_s`: the host, for one call of PyTorch; `eager_device_s`: the device, for kernels that wait in its
        queue; `graph_device_s`: the device, for the same kernels in a CUDA graph that is replayed.
    """
    calls = _tiny_calls(target)
    host = measure_host(calls, target.clock)
    return {
        "eager_host_s": host.fastest_s / _TINY_KERNELS,
        "eager_device_s": _tiny_kernel(calls, target).fastest_s,
        "graph_device_s": _tiny_kernel(captured(calls), target).fastest_s,
    }


def _tiny_calls(target: MeasuredDevice) -> Call:
    x = torch.zeros(32, device=target.device)

    def call() -> None:
        for _ in range(_TINY_KERNELS):
            x.add_(1.0)

    return call


def _tiny_kernel(calls: Call, target: MeasuredDevice) -> CallSeconds:
    """Return the device's time for one of `_TINY_KERNELS` kernels."""
    calls()
    return CallSeconds.of_times([target.clock.device_s(calls, 1) / _TINY_KERNELS for _ in range(REPEATS)])


def factor_figures(target: MeasuredDevice, constants: Constants) -> Iterator[tuple[str, BoundedConstant]]:
    """Yield measured over predicted time of forward and backward passes, predicted with the other constants."""
    ratios: dict[str, list[float]] = {"forward": [], "backward": []}
    for anchor in ANCHORS_ON_GPU if target.is_cuda else ANCHORS:
        counted, forward, both = _time_passes(anchor, target)
        # The median, because the time of a run is not that of its fastest step.
        median_forward = CallSeconds(forward.median_s, forward.median_s)
        measured = {"forward": median_forward.median_s, "backward": both.without(median_forward).median_s}
        for name, phase in (("forward", counted.forward), ("backward", counted.backward)):
            predicted = pass_time(
                phase.operations, constants, launch=f"launch.{name}", tf32=False, is_cuda=target.is_cuda
            )
            ratios[name].append(measured[name] / predicted.total_s)
    for name, values in ratios.items():
        yield f"factor.{name}", factor_of(values)


def factor_of(ratios: Sequence[float]) -> BoundedConstant:
    """Return the geometric mean of measured over predicted times; its bounds are 10% beyond the ratios."""
    value = math.exp(math.fsum(map(math.log, ratios)) / len(ratios))
    source = f"measured: {len(ratios)} small models, {min(ratios):.2f} to {max(ratios):.2f} of the prediction"
    return BoundedConstant(value, min(ratios) / _BOUNDS_FACTOR, max(ratios) * _BOUNDS_FACTOR, source)


@dataclass(frozen=True)
class _Passes:
    """The passes of an anchor on the device, and their traced profile."""

    profile: Profile
    model: nn.Module
    forward: Call
    both: Call


def _time_passes(anchor: Anchor, target: MeasuredDevice) -> tuple[Profile, CallSeconds, CallSeconds]:
    """Return the profile of an anchor, and the times of its forward pass and of both its passes."""
    passes = _make_passes(anchor, target)
    forward, both = (measure_wall(call, target.clock, repeats=5) for call in (passes.forward, passes.both))
    return passes.profile, forward, both


def _make_passes(anchor: Anchor, target: MeasuredDevice) -> _Passes:
    import transformers

    config = transformers.BertConfig(
        hidden_size=anchor.width,
        num_hidden_layers=anchor.num_blocks,
        num_attention_heads=max(1, anchor.width // 64),
        intermediate_size=4 * anchor.width,
    )
    precision, device = POLICIES[target.precision], target.device
    torch.manual_seed(0)
    model = TaskModel(transformers.AutoModelForSequenceClassification.from_config(config), "classification").train()
    use_cheap_dropout(model)
    if not target.is_cuda:
        use_onednn(model)
    enable_packed_batches(model, device=device, dtype=precision.autocast_dtype)
    model.to(device).train()
    is_packed = anchor.layout == "packed" and model.entry is not None
    # Packed on the host, as the loader does, and then moved with its row offsets.
    batch = (pack(_batch(anchor.lengths)) if is_packed else _batch(anchor.lengths)).to(device)
    shape = Shape(anchor.lengths, layout="packed" if is_packed else "padded")
    entry = model.entry if is_packed else None

    def forward() -> torch.Tensor:
        with precision.autocast(device):
            return model.loss_sum(model(batch), batch)

    def both() -> None:
        model.zero_grad(set_to_none=True)
        torch.autograd.backward(forward())

    traced = profile(config, _TASK, shape, precision, on_cuda=target.is_cuda, entry=entry)
    return _Passes(traced, model, forward, both)


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
