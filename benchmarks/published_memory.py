"""The memory of a published cell, planned as its source's engine and for what its source measured."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from paratune.base.units import MIB
from paratune.planning.allocator import reserve
from paratune.planning.engines import EngineInputs
from paratune.planning.enumerate import JobOption
from paratune.planning.job import PlannedJob
from paratune.planning.kinds import states_of_rank
from paratune.planning.memory import CONTEXT_BYTES, MAX_FRAGMENTED, step_allocations
from paratune.planning.profiles import Profiles
from paratune.planning.trace import CUDA_ROUNDING

WORKSPACE_BYTES = {True: 4096 * 8 * 1024, False: 2 * 4096 * 1024 + 8 * 16 * 1024}
"""cuBLAS's workspace of a thread on Hopper, and on older devices: `parseChosenWorkspaceSize` of PyTorch."""


def planned_memory(job: PlannedJob, option: JobOption, cell: Mapping[str, Any]) -> tuple[int, int]:
    """Return the planned memory of a cell as its source defines it, and its upper bound.

    The cell's `measures` is device (the default), reserved or allocated; a device has a context too, that of the source
    (`context_mib`) where it was measured.
    """
    # Other engines have no permanent copies of weights in 16 bits: autocast makes them in each pass.
    setup = replace(option.setup, traits=replace(option.setup.traits, keeps_working_weights=False))
    setup = job.passes(setup, option.layout)
    with softmax_keeps_input() if cell.get("softmax_keeps_input") else nullcontext():
        profile = Profiles(job, is_cuda=True).of(job.largest_shape(setup, option.layout), setup)
    view = EngineInputs(profile, setup, states_of_rank(profile, setup, 0), CUDA_ROUNDING)
    step = replace(
        step_allocations(view),
        update=_update_bytes(cell.get("update", "fused"), view),
        workspace=WORKSPACE_BYTES[cell["device"].startswith("h100")],
        keeps_gradients=cell.get("keeps_gradients", False),
    )
    allocator = reserve(step)
    states = view.states.weights + view.states.gradients + view.states.optimizer
    transient = max(0, allocator.most_allocated - states)
    most = max(allocator.reserved, allocator.most_allocated + round(MAX_FRAGMENTED * transient))
    measures = cell.get("measures", "device")
    if measures == "allocated":
        return allocator.most_allocated, allocator.most_allocated
    if measures == "reserved":
        return allocator.reserved, most
    context = cell["context_mib"] * MIB if "context_mib" in cell else CONTEXT_BYTES
    return allocator.reserved + context, most + context


def _update_bytes(kind: str, view: EngineInputs) -> list[int]:
    """Return the temporary memory of AdamW: fused needs none.

    foreach: the square roots of all second moments of a group at the same time. for-loop: that of one weight, while
    the one before it still exists. Source: PyTorch, torch/optim/adamw.py; transformers 4.31, optimization.py.
    """
    sizes = [
        view.profile.weight_bytes * parameter.numel
        for parameter in view.profile.parameters
        if parameter.is_trained and parameter.has_gradient
    ]
    largest = max(pairwise(sizes), key=sum)
    return {"fused": [], "foreach": sizes, "for-loop": list(largest)}[kind]


class _KeepInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, input: Tensor) -> Tensor:
        ctx.save_for_backward(input)
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


@contextmanager
def softmax_keeps_input() -> Iterator[None]:
    """Let softmax save its input for the backward pass, as PyTorch before 1.11 does (pytorch/pytorch#65242).

    Under autocast that input is the copy of the attention scores in float32.
    """
    functional = torch.nn.functional
    softmax = functional.softmax

    def keeping(input: Tensor, *args: Any, **options: Any) -> Tensor:
        input = input.float()
        out: Tensor = _KeepInput.apply(softmax(input, *args, **options), input)  # type: ignore[no-untyped-call]
        return out

    functional.softmax = keeping
    try:
        yield
    finally:
        functional.softmax = softmax
