"""The memory of a published cell, planned for its source's engine and its source's definition of memory."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.autograd.graph import _engine_run_backward

from paratune.base.units import MIB
from paratune.models.known import known_config
from paratune.planning.allocator import StepAllocations, reserve
from paratune.planning.enumerate import JobOption
from paratune.planning.job import PlannedJob
from paratune.planning.kinds import states_of_rank
from paratune.planning.memory import CONTEXT_BYTES, MAX_FRAGMENTED, step_allocations
from paratune.planning.predict import Profiles
from paratune.planning.shims import Kernels
from paratune.planning.states import EngineInputs
from paratune.planning.trace import CUDA_ROUNDING, Timeline, Trace, on_meta

WORKSPACE_BYTES = {True: 4096 * 8 * 1024, False: 2 * 4096 * 1024 + 8 * 16 * 1024}
"""cuBLAS's workspace per thread on Hopper, and on older devices: `parseChosenWorkspaceSize` of PyTorch."""


def planned_memory(job: PlannedJob, option: JobOption, cell: Mapping[str, Any]) -> tuple[int, int]:
    """Return the planned memory of a cell as its source defines it, and its upper bound.

    The cell's `measures` is device (the default), reserved or allocated; device includes a context, that of the source
    (`context_mib`) if it was measured.
    """
    setup = job.passes(option.setup, option.layout)
    with softmax_keeps_input() if cell.get("softmax_keeps_input") else nullcontext():
        profile = Profiles(job, is_cuda=True).of(job.shape(setup, option.layout, largest=True), setup)
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


def passes_memory(cell: Mapping[str, Any]) -> tuple[int, int]:
    """Return the planned memory of forward and backward passes alone, and its upper bound.

    As in transformers' comparison of attentions, weights and gradients have 16 bits, and there is no autocast,
    optimizer or loss: the scores of all tokens are summed. In the forward pass the scores of the pass before still
    exist. The gradient of the sum is one number for all scores, which a matrix product copies into a whole matrix.
    """
    timeline, weights = on_meta(lambda: _trace_passes(cell))
    step = StepAllocations(
        timeline, weights, batch=[8 * cell["micro_batch"] * cell["length"]], workspace=WORKSPACE_BYTES[False]
    )
    allocated = reserve(step).most_allocated
    return allocated, allocated


def _trace_passes(cell: Mapping[str, Any]) -> tuple[Timeline, list[int]]:
    config, attention = known_config(cell["model"]), cell.get("attention", "eager")
    model = transformers.AutoModelForMaskedLM.from_config(config, attn_implementation=attention).half().train()
    ids = torch.zeros(cell["micro_batch"], cell["length"], dtype=torch.long)
    trace, parameters = Trace(CUDA_ROUNDING), list(model.parameters())
    for tensor in (*parameters, *model.buffers(), ids):
        trace.hold(tensor, is_base=True)
    for number, parameter in enumerate(parameters):
        parameter.register_post_accumulate_grad_hook(lambda _, at=number: trace.mark("gradient", at))
    with Kernels(on_cuda=True), trace:
        scores = model(input_ids=ids).logits
        total, num_forward = scores.sum(), len(trace.changes)
        options = {"allow_unreachable": True, "accumulate_grad": True}
        _engine_run_backward((total,), (torch.ones_like(total),), False, False, (), **options)
    reached = {number: parameter.grad for number, parameter in enumerate(parameters) if parameter.grad is not None}
    gradients = dict(zip(trace.numbers(reached.values()), reached, strict=True))
    timeline = Timeline(tuple(trace.sizes), tuple(trace.changes), tuple(trace.marks), num_forward, gradients)
    sizes = [tensor.numel() * tensor.element_size() for tensor in (*parameters, *model.buffers())]
    return _with_scores(timeline, scores.numel() * scores.element_size()), sizes


def _with_scores(timeline: Timeline, size: int) -> Timeline:
    """Return a timeline with the previous pass's scores during the forward pass, and then the copied gradient.

    The copy exists until the gradient of the first weight is complete, which is that of the last layer.
    """
    before, copy = len(timeline.sizes), len(timeline.sizes) + 1
    forward, first = timeline.num_forward, min(timeline.positions("gradient").values())
    changes = timeline.changes
    return Timeline(
        (*timeline.sizes, size, size),
        (before, *changes[:forward], ~before, copy, *changes[forward:first], ~copy, *changes[first:]),
        tuple(
            mark._replace(position=mark.position + 1 + 2 * (mark.position >= forward) + (mark.position > first))
            for mark in timeline.marks
        ),
        forward + 1,
        timeline.gradients,
    )
