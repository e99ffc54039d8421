"""The profile of a micro-batch: weights by block, saved activations, allocations and operations.

The model of the configuration is built on the meta device, with the head of the task, and one forward and backward pass
is traced. `B` rows, `S` padded length, `T` tokens of a packed batch.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import _engine_run_backward, saved_tensors_hooks
from transformers import AttentionInterface

from paratune.batch import Batch
from paratune.config.sections import ModelOptions, Train
from paratune.config.task_sections import EmbeddingTask, Task, class_names
from paratune.models.blocks import checkpoint_blocks, shorten_last_layer
from paratune.models.quantized import QuantizedLinear, quantize_base
from paratune.models.task_model import PackedEntry, TaskModel, find_blocks
from paratune.models.trained_weights import freeze_weights, layer_rate_factors
from paratune.planning.build import build_model, sets_in_order
from paratune.planning.shims import (
    COUNTED,
    CountedDropout,
    Kernels,
    PackedAttention,
)
from paratune.planning.trace import CUDA_ROUNDING, Phase, Saved, Timeline, Trace, on_meta
from paratune.precision import Precision, frozen_linear_weights
from paratune.stages.cut import BlockSpan, CutModel


@dataclass(frozen=True)
class Shape:
    """The shape of a micro-batch."""

    lengths: tuple[int, ...]
    """Tokens of each row."""
    layout: Literal["packed", "padded"] = "padded"
    """Rows joined without padding, or padded to the longest row."""
    labelled_share: float = 0.15
    """Share of the tokens with a label, in a masked LM."""

    @property
    def num_tokens(self) -> int:
        """Tokens that the model computes: T, or B * S."""
        return sum(self.lengths) if self.layout == "packed" else len(self.lengths) * max(self.lengths)


@dataclass(frozen=True)
class Parameter:
    """One weight of the model; tied weights are one parameter."""

    name: str
    shape: tuple[int, ...]
    is_trained: bool = True
    has_gradient: bool = True
    """Whether the loss depends on it; if not, the optimizer has no state for it."""
    block: int | None = None
    """The first block that contains it; None for embeddings and head."""
    rate_factor: float = 1.0
    """Factor of its learning rate (`train.layer_decay`): the optimizer has groups for each."""
    stored_bytes: int | None = None
    """Bytes of an element where it stays in the 16 bits of its file; else it has those of the other weights."""

    @cached_property
    def numel(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True, eq=False)  # compared by identity: caches have parts as keys
class Weights:
    """The parameters of one part of the model."""

    parameters: tuple[Parameter, ...]
    """In the model's order; a tied one belongs to the first part that contains it."""


@dataclass(frozen=True)
class Division:
    """Costs and weights of blocks, which determine the stages and the parameters of each stage; empty if unknown."""

    costs: tuple[int, ...] = ()
    """Floating-point operations of a forward pass, block by block; embeddings with the first, head with the last."""
    used: tuple[frozenset[str], ...] = ()
    """For each block, as a separate stage: names of the parameters on which its output depends."""
    needed: tuple[frozenset[str], ...] = ()
    """For each block: names of the parameters without which it cannot run."""

    def uses(self, spans: Sequence[BlockSpan]) -> frozenset[str]:
        """Return the names of the parameters that stages train."""
        return frozenset().union(*(self.used[block] for span in spans for block in range(span.begin, span.end)))


@dataclass(frozen=True)
class Profile:
    """The result of a trace; it does not include weights, gradients and optimizer states."""

    parameters: tuple[Parameter, ...]
    """In the order of `named_parameters`."""
    num_blocks: int
    """Repeated layers."""
    weight_bytes: int
    """Bytes of an element of the weights in passes, and of their gradients."""
    num_buffer_bytes: int
    saved_bytes: int
    """Activations: bytes that autograd keeps at the end of the forward pass."""
    saved_by_block: tuple[int, ...]
    """The part of these that each block saves."""
    batch_bytes: int
    """The tensors of the micro-batch itself."""
    forward: Phase = field(repr=False)
    backward: Phase = field(repr=False)
    saved_before: int = 0
    """Bytes that autograd keeps of the operations before the first block."""
    hidden_bytes: int = 0
    """Output of a block."""
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    division: Division = Division()
    """The division into pipeline stages; only if it was requested."""

    @cached_property
    def parts(self) -> tuple[Weights, ...]:
        """The repeated layers, in order, and last the rest: embeddings and head."""
        blocks = (*range(self.num_blocks), None)
        return tuple(Weights(tuple(p for p in self.parameters if p.block == block)) for block in blocks)

    @cached_property
    def num_trained(self) -> int:
        return sum(parameter.numel for parameter in self.parameters if parameter.is_trained)

    @cached_property
    def num_parameters(self) -> int:
        return sum(parameter.numel for parameter in self.parameters)


def profile(
    hf_config: Any,
    task: Task,
    shape: Shape,
    precision: Precision,
    *,
    on_cuda: bool = True,
    entry: PackedEntry | None = None,
    activation_checkpointing: int | None = None,
    train: Train | None = None,
    model_options: ModelOptions | None = None,
    attention: str | None = None,
    with_division: bool = False,
    stored_dtype: torch.dtype | None = None,
) -> Profile:
    """Trace one forward and backward pass of a micro-batch.

    Args:
        hf_config: The model's own configuration; it is not changed.
        task: Decides the head and the loss.
        shape: Rows of the micro-batch.
        precision: Dtype of the weights, and of autocast.
        on_cuda: Count the tensors that kernels of CUDA keep, rounded as by its allocator; else those that a CPU keeps.
        entry: How packed rows enter the model; needed where `shape.layout` is packed.
        model_options: Section of the configuration, with an adapter, an own head or an own class.
        activation_checkpointing: As `train.activation_checkpointing`.
        train: Section with the weights that are frozen and the learning rates of layers; None trains all at one rate.
        attention: transformers' name of it, such as eager or sdpa; the model's own choice when not given.
        with_division: Add the division into pipeline stages.
        stored_dtype: Dtype of the model's file in which the strategy leaves frozen weights of linear layers.

    Raises:
        Exception: The model cannot run on the meta device.
    """

    def run() -> Profile:
        trace = Trace(CUDA_ROUNDING if on_cuda else 1)
        model = build_model(hf_config, task, precision, attention, model_options)
        factors: dict[str, float] = {}
        if train is not None:
            freeze_weights(model, train)
            factors = layer_rate_factors(model, train.layer_decay)
        if model_options is not None and model_options.quantize_base is not None:
            quantize_base(model.hf, model_options.quantize_base)
        for module in model.modules():
            if isinstance(module, QuantizedLinear):
                module.planned_dtype = precision.compute_dtype
        for weight in frozen_linear_weights(model) if stored_dtype is not None else ():
            weight.data = weight.data.to(stored_dtype)
        if activation_checkpointing is not None:
            checkpoint_blocks(find_blocks(model), activation_checkpointing)
        model.entry, model.head_takes_labelled = entry, model.head_reads == "labelled"
        batch = _batch(model, task, shape)
        known_tensors = [*model.parameters(), *model.buffers()]
        for tensor in known_tensors:
            trace.hold(tensor, is_base=True)
        if not on_cuda:
            for module in model.modules():
                if type(module) is nn.Dropout:
                    module.__class__ = CountedDropout
                    module.count = trace.count  # type: ignore[assignment]
        attend = PackedAttention(shape.lengths, trace.count, on_cuda)
        if entry is not None and entry.shortens and activation_checkpointing is None:
            shorten_last_layer(find_blocks(model)[-1], attend.first)
        # Each layer calls its own `counted_attention`, so that models in other threads are not affected.
        AttentionInterface.register(
            COUNTED, lambda module, *args, **options: module.counted_attention(module, *args, **options)
        )
        for module in model.hf.modules():
            module.counted_attention = attend
        model.packed_attention = COUNTED
        with sets_in_order(model), Kernels(on_cuda=on_cuda, autocast=precision.autocast_dtype) as kernels:
            return _trace_passes(model, batch, known_tensors, trace, kernels, factors)

    def divide() -> Division:
        # Another model: blocks run one by one. Whether the stages together give the output of the whole model is not
        # checked: this needs values.
        model = build_model(hf_config, task, precision, attention, model_options)
        with Kernels(on_cuda=False):
            costs, used, needed = CutModel(model, find_blocks(model)).analyse_blocks()
        return Division(tuple(costs), tuple(map(frozenset, used)), tuple(map(frozenset, needed)))

    traced = on_meta(run)
    return replace(traced, division=on_meta(divide)) if with_division else traced


def _trace_passes(
    model: TaskModel,
    batch: Batch,
    known_tensors: Sequence[Tensor],
    trace: Trace,
    kernels: Kernels,
    factors: Mapping[str, float],
) -> Profile:
    blocks = find_blocks(model)
    tensors = [tensor for tensor in vars(batch).values() if isinstance(tensor, Tensor)]
    saved = Saved([*known_tensors, *tensors])
    parameters = list(model.parameters())
    for number, parameter in enumerate(parameters):
        if parameter.requires_grad:
            whole: Any = parameter.register_post_accumulate_grad_hook  # untyped in PyTorch 2.13
            whole(lambda _, at=number: trace.mark("gradient", at))
    marks = _Marks(blocks, saved, trace)
    marks.watch_weights(model, parameters)
    with trace, saved_tensors_hooks(saved.pack, lambda tensor: tensor):
        with trace.recording() as forward:
            for tensor in tensors:
                trace.hold(tensor, is_base=True)
            loss = model.loss_sum(model(batch), batch) / batch.loss_denominator
        casts = trace.numbers(cast for _, cast in kernels.cast_weights.values())
        num_forward = len(trace.changes)
        kernels.cast_weights.clear()
        kernels.keeps_casts = False
        for hook in marks.hooks:
            hook.remove()
        num_saved = saved.num_bytes
        saved.storages.clear()  # the count stays
        with trace.recording() as backward:
            # Not loss.backward(), which disables function modes such as `kernels`: activation checkpointing would
            # recompute other operations than those of the forward pass.
            options = {"allow_unreachable": True, "accumulate_grad": True}
            _engine_run_backward((loss,), (torch.ones_like(loss),), False, False, (), **options)
    with_gradient = {
        number: parameter.grad for number, parameter in enumerate(parameters) if parameter.grad is not None
    }
    gradients = dict(zip(trace.numbers(with_gradient.values()), with_gradient, strict=True))
    return Profile(
        parameters=parameters_of(model, blocks, [parameters[number] for number in with_gradient], factors),
        num_blocks=len(blocks),
        weight_bytes=max(parameter.element_size() for parameter in parameters),
        num_buffer_bytes=sum(buffer.untyped_storage().nbytes() for buffer in model.buffers()),
        saved_bytes=num_saved,
        saved_by_block=tuple(marks.saved),
        batch_bytes=sum(tensor.untyped_storage().nbytes() for tensor in tensors),
        forward=forward,
        backward=backward,
        saved_before=marks.before,
        hidden_bytes=marks.hidden_bytes,
        timeline=Timeline(
            tuple(trace.sizes), tuple(trace.changes), tuple(trace.marks), num_forward, gradients, frozenset(casts)
        ),
    )


class _Marks:
    """Records the saved bytes of each block, and the positions at which it begins and ends."""

    def __init__(self, blocks: Sequence[nn.Module], saved: Saved, trace: Trace) -> None:
        self.saved = [0] * len(blocks)
        self.before = 0
        """Saved before the first block."""
        self.hidden_bytes = 0
        """Bytes of the output of a block."""
        self._saved, self._trace = saved, trace
        self._entered = 0
        self.hooks: list[Any] = []
        for number, block in enumerate(blocks):
            enter, leave = partial(self._enter, number), partial(self._leave, number)
            self.hooks += [
                block.register_forward_pre_hook(enter, with_kwargs=True),
                block.register_forward_hook(leave),
            ]

    def watch_weights(self, model: nn.Module, parameters: Sequence[nn.Parameter]) -> None:
        """Mark where modules begin to use their own weights, in both passes."""
        numbers = {id(parameter): number for number, parameter in enumerate(parameters)}
        for module in model.modules():
            for parameter in module.parameters(recurse=False):
                mark_use = partial(self._trace.mark, "use", numbers[id(parameter)])
                mark_backward = partial(self._mark_at_gradient, kind="use", number=numbers[id(parameter)])
                enter, leave = lambda *_, mark=mark_use: mark(), lambda *args, mark=mark_backward: mark(args[-1])
                self.hooks += [module.register_forward_pre_hook(enter), module.register_forward_hook(leave)]

    def _enter(self, number: int, _block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._entered = self._saved.num_bytes
        self._trace.mark("forward", number)
        received = args[0] if args else kwargs.get("hidden_states")
        if number == 0:
            self.before = self._saved.num_bytes
            self._mark_at_gradient(received, "inner_end", 0)

    def _leave(self, number: int, _block: nn.Module, _args: Any, output: Any) -> None:
        self.saved[number] += self._saved.num_bytes - self._entered
        self._trace.mark("forward_end", number)
        hidden = output[0] if isinstance(output, tuple | list) else output
        self.hidden_bytes = hidden.numel() * hidden.element_size()
        self._mark_at_gradient(hidden, "backward", number)

    def _mark_at_gradient(self, hidden: Any, kind: str, number: int) -> None:
        if isinstance(hidden, Tensor) and hidden.requires_grad:
            register: Any = hidden.register_hook  # untyped in PyTorch 2.13
            register(lambda _: self._trace.mark(kind, number))


def _batch(model: TaskModel, task: Task, shape: Shape) -> Batch:
    """Return a batch of the shape on the meta device; in an embedding 2 rows, or 3 of triplets, are a sample."""
    rows, longest, is_packed = len(shape.lengths), max(shape.lengths), shape.layout == "packed"
    row_size = 0
    if isinstance(task, EmbeddingTask):
        row_size = 3 if task.loss == "triplet" else 2
    samples = max(1, rows // max(1, row_size))
    tokens = (shape.num_tokens,) if is_packed else (rows, longest)
    labels: Tensor | None = torch.zeros(rows, dtype=torch.float32 if task.kind == "regression" else torch.long)
    places = None
    if model.head_reads == "labelled":
        labels = torch.zeros(tokens, dtype=torch.long)
        places = torch.zeros(max(1, round(shape.labelled_share * sum(shape.lengths))), dtype=torch.long)
    elif task.kind == "multi_label":
        labels = torch.zeros(rows, len(class_names(task)))
    elif task.kind == "qa":
        labels = torch.zeros(rows, 2, dtype=torch.long)
    elif isinstance(task, EmbeddingTask):
        has_number = task.loss in ("cosine_similarity", "contrastive")
        labels = torch.zeros(samples) if has_number else torch.zeros(samples, row_size, dtype=torch.long)
    # Without padding, models use no mask; they would see this in the values, which do not exist here.
    is_masked = not is_packed and len(set(shape.lengths)) > 1
    has_types = getattr(model.hf.config, "type_vocab_size", 0) > 1
    return Batch(
        input_ids=torch.zeros(tokens, dtype=torch.long),
        row_weight=torch.ones(samples),
        index=torch.zeros(samples, dtype=torch.long),
        num_samples=samples,
        num_tokens=sum(shape.lengths),
        num_padded_tokens=shape.num_tokens,
        loss_denominator=float(samples),
        attention_mask=torch.ones(tokens, dtype=torch.long) if is_masked else None,
        token_type_ids=torch.zeros(tokens, dtype=torch.long) if has_types else None,
        position_ids=torch.zeros(tokens, dtype=torch.long) if is_packed else None,
        cu_seqlens=torch.zeros(rows + 1, dtype=torch.int32) if is_packed else None,
        slots=torch.zeros(tokens, dtype=torch.long) if is_packed else None,
        max_seqlen=longest,
        labels=labels,
        label_places=places,
        row_bounds=torch.zeros(rows, 3, dtype=torch.long) if task.kind == "qa" else None,
        sample_offsets=torch.zeros(samples + 1, dtype=torch.long) if row_size else None,
        row_size=row_size,
    )


def parameters_of(
    model: nn.Module,
    blocks: Sequence[nn.Module],
    with_gradient: Collection[nn.Parameter],
    rate_factors: Mapping[str, float],
) -> tuple[Parameter, ...]:
    """Describe the parameters of a model; one that several blocks share belongs to the first of them.

    The loss depends on those in `with_gradient`; factors of the learning rate are by name, 1 where none is given.
    """
    reached_ids = set(map(id, with_gradient))
    largest = max((parameter.element_size() for parameter in model.parameters()), default=0)
    block_of: dict[int, int] = {}
    for number, block in enumerate(blocks):
        for parameter in block.parameters():
            block_of.setdefault(id(parameter), number)
    return tuple(
        Parameter(
            name,
            tuple(parameter.shape),
            parameter.requires_grad,
            id(parameter) in reached_ids,
            block_of.get(id(parameter)),
            rate_factors.get(name, 1.0),
            None if parameter.element_size() == largest else parameter.element_size(),
        )
        for name, parameter in model.named_parameters()
    )
