"""What one micro-batch makes of a device: weights by block, what is kept for the backward pass, peaks and operations.

The model of the configuration is built on the meta device, with the head of the task and no data behind it, and one
forward and backward pass of it is traced. `B` rows, `S` padded length, `T` tokens of a packed batch.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paratune.batch import Batch
from paratune.config.task_sections import Task, class_names
from paratune.models.activation_checkpointing import checkpoint_blocks
from paratune.models.attention.register import NAME as PACKED
from paratune.models.residual import fuse_residuals
from paratune.models.task_model import PackedEntry, TaskModel, find_blocks, freeze_encoder
from paratune.plan.build import build_model
from paratune.plan.cpu_shims import PackedAttentionOnCpu, count_cheap_dropout, count_first_tokens
from paratune.plan.division import Division, divide
from paratune.plan.meta import on_meta
from paratune.plan.shims import Kernels, PackedAttention
from paratune.plan.timeline import Timeline
from paratune.plan.trace import CUDA_ROUNDING, Phase, Saved, Trace
from paratune.precision import Precision
from paratune.precision.working_weights import WorkingWeights, make_working_weights


@dataclass(frozen=True)
class Shape:
    """Of a micro-batch."""

    lengths: tuple[int, ...]
    """Tokens of each row."""
    layout: Literal["packed", "padded"] = "padded"
    """Rows one behind the other, or each as long as the longest."""
    labelled_share: float = 0.15
    """Tokens whose head is computed, of a masked LM."""

    @property
    def num_tokens(self) -> int:
        """That the model computes: T, or B * S."""
        return sum(self.lengths) if self.layout == "packed" else len(self.lengths) * max(self.lengths)


@dataclass(frozen=True)
class Parameter:
    """One weight of the model, a tied one once."""

    name: str
    shape: tuple[int, ...]
    is_trained: bool = True
    has_gradient: bool = True
    """Whether the loss depends on it; without, no optimizer keeps anything for it."""
    block: int | None = None
    """The first block that has it; None of embeddings and head."""

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)

    @cached_property
    def decays(self) -> bool:
        """Whether it is in the first group of the optimizer: `engine.optim` has those with weight decay there."""
        return len(self.shape) > 1 and not self.name.endswith(".bias")


@dataclass(frozen=True)
class Weights:
    """The parameters of one part of the model."""

    parameters: tuple[Parameter, ...]
    """In the model's order, each tied one in the first part that has it."""

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of each parameter, frozen ones included."""
        return tuple(each.numel for each in self.parameters)

    @cached_property
    def num_trained(self) -> int:
        """Numbers that are trained."""
        return sum(each.numel for each in self.parameters if each.is_trained)

    @cached_property
    def num_frozen(self) -> int:
        return sum(each.numel for each in self.parameters if not each.is_trained)


@dataclass(frozen=True)
class Profile:
    """What was counted; bytes of weights, gradients and states of the optimizer are in none of these figures."""

    parameters: tuple[Parameter, ...]
    """In the order of `named_parameters`."""
    num_blocks: int
    """Repeated layers."""
    weight_bytes: int
    """Of one parameter's number, as passes read it and as gradients come."""
    num_buffer_bytes: int
    saved_bytes: int
    """What autograd keeps at the end of the forward pass: the activations."""
    saved_by_block: tuple[int, ...]
    """The part of it that each block keeps."""
    batch_bytes: int
    """The tensors of the micro-batch itself."""
    forward: Phase = field(repr=False)
    backward: Phase = field(repr=False)
    saved_before: int = 0
    """What autograd keeps of what is computed before the first block."""
    hidden_bytes: int = 0
    """What a block hands on to the next."""
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    working_bytes: int = 0
    """Bytes of the permanent copies of weights in the dtype of autocast (`paratune.precision.working_weights`)."""
    why_approximate: str | None = None
    """Why this is a formula's and not a trace's: what the model says when it runs on the meta device."""
    division: Division | None = None
    """How a pipeline would cut the model; only where it was asked for."""

    @property
    def is_approximate(self) -> bool:
        return self.why_approximate is not None

    @cached_property
    def blocks(self) -> tuple[Weights, ...]:
        """The repeated layers, in order."""
        return tuple(self._of(number) for number in range(self.num_blocks))

    @cached_property
    def rest(self) -> Weights:
        """Embeddings and head."""
        return self._of(None)

    @cached_property
    def num_trained(self) -> int:
        return sum(each.numel for each in self.parameters if each.is_trained)

    @cached_property
    def num_parameters(self) -> int:
        return sum(each.numel for each in self.parameters)

    def _of(self, block: int | None) -> Weights:
        return Weights(tuple(each for each in self.parameters if each.block == block))


def profile(
    hf_config: Any,
    task: Task,
    shape: Shape,
    precision: Precision,
    *,
    on_cuda: bool = True,
    entry: PackedEntry | None = None,
    activation_checkpointing: int | None = None,
    frozen_encoder: bool = False,
    attention: str | None = None,
    with_working_weights: bool = False,
    with_division: bool = False,
) -> Profile:
    """Trace one forward and backward pass of a micro-batch.

    Args:
        hf_config: The model's own configuration; it is not changed.
        task: Decides the head and the loss.
        shape: Rows of the micro-batch.
        precision: Dtype of the weights, and of autocast.
        on_cuda: Count what the kernels of CUDA keep, rounded as its allocator does; else what a CPU keeps.
        entry: How packed rows enter the model; needed where `shape.layout` is packed.
        activation_checkpointing: As `train.activation_checkpointing`.
        frozen_encoder: As `train.freeze_encoder`.
        attention: transformers' name of it, such as eager or sdpa; the model's own choice when not given.
        with_working_weights: Under autocast, compute with copies of the weights that are made once per step.
        with_division: Find out how a pipeline would cut the model too.

    Raises:
        Exception: Whatever a model raises that cannot run on the meta device.
    """
    kernels = partial(Kernels, on_cuda=on_cuda, autocast=precision.autocast_dtype)
    attention_of = PackedAttention if on_cuda else PackedAttentionOnCpu

    def run() -> Profile:
        trace = Trace(CUDA_ROUNDING if on_cuda else 1)
        model = build_model(hf_config, task, precision, attention)
        if frozen_encoder:
            freeze_encoder(model)
        if activation_checkpointing is not None:
            checkpoint_blocks(find_blocks(model), activation_checkpointing)
        model.entry, model.head_takes_labelled = entry, model.head_reads == "labelled"
        batch = _batch(model, task, shape)
        held = [*model.parameters(), *model.buffers()]
        for tensor in held:
            trace.hold(tensor, is_base=True)
        if on_cuda:
            fuse_residuals(model)
        else:
            count_cheap_dropout(model, trace.count)
        attend = attention_of(shape.lengths, trace.count)
        if entry is not None and entry.shortens and activation_checkpointing is None:
            count_first_tokens(find_blocks(model)[-1], attend.first)
        working = make_working_weights(model, find_blocks(model), precision) if with_working_weights else None
        with _packed_by(attend):
            if working is None:
                with kernels() as calls:
                    return _traced(model, batch, held, trace, calls)
            with kernels():
                copies = _settled(working, model, batch)
            for tensor in copies:
                trace.hold(tensor, is_base=True)
            with kernels() as calls, working.use():
                found = _traced(model, batch, [*held, *copies], trace, calls)
            return replace(found, working_bytes=working.num_bytes)

    found = on_meta(run)
    return replace(found, division=divide(hf_config, task, precision, attention)) if with_division else found


@torch.no_grad()
def _settled(working: WorkingWeights, model: TaskModel, batch: Batch) -> list[Tensor]:
    """Run the model once for the copies to be as they are from the second micro-batch of a training on; return them."""
    working.look(lambda: model(batch))
    working.settle(lambda layer: True)
    working.refresh()
    return working.tensors


def _traced(model: TaskModel, batch: Batch, held: Sequence[Tensor], trace: Trace, kernels: Kernels) -> Profile:
    blocks = find_blocks(model)
    tensors = [each for each in vars(batch).values() if isinstance(each, Tensor)]
    saved = Saved(iter([*held, *tensors]))
    parameters = list(model.parameters())
    for number, parameter in enumerate(parameters):
        if parameter.requires_grad:
            whole: Any = parameter.register_post_accumulate_grad_hook  # untyped in PyTorch 2.13
            whole(lambda _, at=number: trace.mark("gradient", at))
    marks = _Marks(blocks, saved, trace)
    with trace, saved.watching():
        with trace.recording() as forward:
            for tensor in tensors:
                trace.hold(tensor, is_base=True)
            loss = model.loss_sum(model(batch), batch) / batch.loss_denominator
        casts = trace.numbers(kernels.casts)
        num_forward = trace.num_changes
        kernels.clear()
        marks.remove()
        num_saved = saved.num_bytes
        saved.forget()
        with trace.recording() as backward:
            # Not loss.backward(), which takes modes of functions such as `kernels` off: what activation checkpointing
            # computes again inside would not be what was computed before.
            options = {"allow_unreachable": True, "accumulate_grad": True}
            _engine_run_backward((loss,), (torch.ones_like(loss),), False, False, (), **options)
    with_gradient = {number: each.grad for number, each in enumerate(parameters) if each.grad is not None}
    gradients = dict(zip(trace.numbers(with_gradient.values()), with_gradient, strict=True))
    return Profile(
        parameters=parameters_of(model, blocks, [parameters[number] for number in with_gradient]),
        num_blocks=len(blocks),
        weight_bytes=parameters[0].element_size(),
        num_buffer_bytes=sum(each.untyped_storage().nbytes() for each in model.buffers()),
        saved_bytes=num_saved,
        saved_by_block=tuple(marks.saved),
        batch_bytes=sum(each.untyped_storage().nbytes() for each in tensors),
        forward=forward,
        backward=backward,
        saved_before=marks.before,
        hidden_bytes=marks.hidden_bytes,
        timeline=trace.timeline(num_forward, gradients, casts),
    )


class _Marks:
    """Notes how much each block has added to what is saved, and when each begins and ends."""

    def __init__(self, blocks: Sequence[nn.Module], saved: Saved, trace: Trace) -> None:
        self.saved = [0] * len(blocks)
        self.before = 0
        """Saved before the first block."""
        self.hidden_bytes = 0
        """Of what a block hands on."""
        self._saved, self._trace = saved, trace
        self._entered = 0
        self._hooks: list[Any] = []
        for number, block in enumerate(blocks):
            enter, leave = partial(self._enter, number), partial(self._leave, number)
            self._hooks += [
                block.register_forward_pre_hook(enter, with_kwargs=True),
                block.register_forward_hook(leave),
            ]

    def _enter(self, number: int, _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._entered = self._saved.num_bytes
        self._trace.mark("forward", number)
        received = args[0] if args else kwargs.get("hidden_states")
        if number == 0:
            self.before = self._saved.num_bytes
            self._when_its_gradient_is_there(received, "inner_end", 0)

    def _leave(self, number: int, _block: nn.Module, _args: Any, output: Any) -> None:
        self.saved[number] += self._saved.num_bytes - self._entered
        self._trace.mark("forward_end", number)
        hidden = output[0] if isinstance(output, tuple | list) else output
        self.hidden_bytes = hidden.numel() * hidden.element_size()
        self._when_its_gradient_is_there(hidden, "backward", number)

    def _when_its_gradient_is_there(self, hidden: Any, kind: str, number: int) -> None:
        if isinstance(hidden, Tensor) and hidden.requires_grad:
            register: Any = hidden.register_hook  # untyped in PyTorch 2.13
            register(lambda _: self._trace.mark(kind, number))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _batch(model: TaskModel, task: Task, shape: Shape) -> Batch:
    """Return a batch of the shape, on the meta device: nothing is known of it but how large it is."""
    rows, longest, is_packed = len(shape.lengths), max(shape.lengths), shape.layout == "packed"
    tokens = (shape.num_tokens,) if is_packed else (rows, longest)
    labels: Tensor | None = torch.zeros(rows, dtype=torch.float32 if task.kind == "regression" else torch.long)
    places = None
    if task.kind == "mlm":
        labels = torch.zeros(tokens, dtype=torch.long)
        places = torch.zeros(max(1, round(shape.labelled_share * sum(shape.lengths))), dtype=torch.long)
    elif task.kind == "multi_label":
        labels = torch.zeros(rows, len(class_names(task)))
    elif task.kind == "qa":
        labels = torch.zeros(rows, 2, dtype=torch.long)
    # Where nothing is padded, models see that in the values, which there are none of here, and use no mask.
    is_masked = not is_packed and len(set(shape.lengths)) > 1
    has_types = getattr(model.hf.config, "type_vocab_size", 0) > 1
    return Batch(
        input_ids=torch.zeros(tokens, dtype=torch.long),
        row_weight=torch.ones(rows),
        index=torch.zeros(rows, dtype=torch.long),
        num_samples=rows,
        num_tokens=sum(shape.lengths),
        num_padded_tokens=shape.num_tokens,
        loss_denominator=float(rows),
        attention_mask=torch.ones(tokens, dtype=torch.long) if is_masked else None,
        token_type_ids=torch.zeros(tokens, dtype=torch.long) if has_types else None,
        position_ids=torch.zeros(tokens, dtype=torch.long) if is_packed else None,
        cu_seqlens=torch.zeros(rows + 1, dtype=torch.int32) if is_packed else None,
        slots=torch.zeros(tokens, dtype=torch.long) if is_packed else None,
        max_seqlen=longest,
        labels=labels,
        label_places=places,
        row_bounds=torch.zeros(rows, 3, dtype=torch.long) if task.kind == "qa" else None,
    )


def parameters_of(
    model: nn.Module, blocks: Sequence[nn.Module], with_gradient: Collection[nn.Parameter]
) -> tuple[Parameter, ...]:
    """Describe the parameters of a model; one that several blocks share is of the first.

    Args:
        model: Whose `named_parameters` are described.
        blocks: Its repeated layers.
        with_gradient: Parameters on which the loss depends.
    """
    reached = set(map(id, with_gradient))
    block_of: dict[int, int] = {}
    for number, block in enumerate(blocks):
        for parameter in block.parameters():
            block_of.setdefault(id(parameter), number)
    return tuple(
        Parameter(name, tuple(each.shape), each.requires_grad, id(each) in reached, block_of.get(id(each)))
        for name, each in model.named_parameters()
    )


@contextmanager
def _packed_by(attention: PackedAttention | PackedAttentionOnCpu) -> Iterator[None]:
    """Let packed rows keep what the device's kernels keep."""
    before = ALL_ATTENTION_FUNCTIONS.get(PACKED)
    ALL_ATTENTION_FUNCTIONS.register(PACKED, attention)
    try:
        yield
    finally:
        if before is not None:
            ALL_ATTENTION_FUNCTIONS.register(PACKED, before)
