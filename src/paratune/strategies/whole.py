"""Functions shared by strategies that run the whole model in each process: steps, and access to the states.

A rank has the whole of each weight or, with FSDP2, a shard of it (a `DTensor`).
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import AdamW, Optimizer

from paratune.base.piece import Piece
from paratune.batch import Batch, BatchModel
from paratune.config.traits import Traits
from paratune.precision import Precision, changed, frozen_linear_weights, values_of
from paratune.strategies.loss_scale import LossScaler, UpdateStop, spoil_gradient
from paratune.strategies.protocol import Phases, Read

OPTIMIZER_STATES = ("exp_avg", "exp_avg_sq", "step")
"""The states of AdamW for each parameter; ranks without these states need their names too."""
READ_ON_HOST = ("cpu",)
"""Types of devices on which the host reads whether to update: there it never waits, and that is the fastest."""


def place(
    model: nn.Module, device: torch.device, precision: Precision | None = None, traits: Traits | None = None
) -> nn.Module:
    """Move the model to `device`, set all its modules to training mode, and return it.

    With the policy and the traits, weights also change to the dtype of training. transformers loads models in eval
    mode, and a wrapper around such a model starts in training mode. `set_training` looks only at the wrapper, so that
    dropout would be off until the first evaluation.
    """
    if precision is not None and traits is not None:
        cast_weights(model, precision, traits, device)
    return model.to(device).train()


def cast_weights(module: nn.Module, precision: Precision, traits: Traits, device: torch.device | None = None) -> None:
    """Change weights in place, one by one, from the dtype of their file to that of training; also move to a device."""
    for tensor, dtype in training_dtypes(module, precision, traits):
        values, is_new = values_of(tensor), vars(tensor).pop("draw", None) is not None
        if is_new or dtype != tensor.dtype or (device is not None and device != tensor.device):
            tensor.data = values().to(device or tensor.device, dtype)


def training_dtypes(module: nn.Module, precision: Precision, traits: Traits) -> list[tuple[Tensor, torch.dtype]]:
    """Return the parameters and buffers of a module, each with its dtype during training.

    It is the policy's, but frozen weights of linear layers are held in the dtype of autocast if their file has them so,
    or with `rounds_base`: autocast computes with a copy in this dtype in any case, and the results have the same bits.
    """
    autocast = precision.autocast_dtype
    frozen = frozen_linear_weights(module) if traits.holds_16_bits and autocast is not None else set()
    held = {weight for weight in frozen if weight.dtype == autocast or precision.rounds_base}
    dtypes = []
    for tensor in (*module.parameters(), *module.buffers()):
        dtype = tensor.dtype if not tensor.is_floating_point() else precision.param_dtype
        dtypes.append((tensor, autocast if autocast is not None and tensor in held else dtype))
    return dtypes


@contextmanager
def blocks_without_memory(
    model: nn.Module, blocks: Sequence[nn.Module], precision: Precision, traits: Traits
) -> Iterator[Callable[..., AbstractContextManager[None]]]:
    """In the block, the weights of blocks are zeros without memory, and all others changed by `cast_weights`.

    It returns a function: in the block of `values(module, device)` the module of the model has its values.
    """
    own: dict[Tensor, Callable[[], Tensor]] = {w: values_of(w) for block in blocks for w in block.parameters()}
    dtypes = dict(training_dtypes(model, precision, traits))
    for tensor in dtypes.keys() - own.keys():
        tensor.data = tensor.data.to(dtypes[tensor])

    def values(block: nn.Module, device: torch.device | None = None) -> AbstractContextManager[None]:
        return changed(block.parameters(), lambda weight: own[weight]().to(device or "cpu", dtypes[weight]))

    with changed(own, lambda weight: torch.zeros((), dtype=dtypes[weight]).expand(weight.shape)):
        yield values
    own.clear()  # `values` may live longer than weights that are not needed


def set_training(model: nn.Module, training: bool) -> None:
    """Switch dropout on or off, unless it is so already: visiting all modules costs as much as a small layer."""
    if model.training != training:
        model.train(training)


def forward(model: nn.Module, batch: Batch, precision: Precision, device: torch.device) -> Tensor:
    """Return the outputs of `model` under the policy's autocast."""
    with precision.autocast(device):
        outputs: Tensor = model(batch)
    return outputs


def forward_backward_one(
    runner: nn.Module,
    model: BatchModel,
    batch: Batch,
    phases: Phases,
    *,
    precision: Precision,
    device: torch.device,
    gradient_scale: float = 1.0,
    scaler: LossScaler | None = None,
) -> Tensor:
    """Run forward and backward of one micro-batch.

    Args:
        runner: The module to call: the model or its wrapper.
        gradient_scale: A factor of the gradients, but not of the returned loss.
        scaler: Its scale is a further factor of the gradients, until `clip_and_step`.

    Returns:
        The batch's part of the step's loss, detached.
    """
    scale = gradient_scale if scaler is None else gradient_scale * scaler.scale
    with phases("forward"):
        loss = model.loss_sum(forward(runner, batch, precision, device), batch) / batch.loss_denominator
    if scaler is None:
        spoil_gradient(loss)
    with phases("backward"):
        scaled = loss if scaler is None and gradient_scale == 1.0 else loss * scale
        scaled.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def total(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of the losses of micro-batches, scalars; for a single loss without a kernel launch."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum()


def clip_and_step(
    optimizer: Optimizer,
    parameters: Iterable[nn.Parameter],
    max_grad_norm: float | None,
    guard: LossScaler | UpdateStop,
    *,
    norm: Tensor | None = None,
) -> Tensor:
    """Clip gradients to `max_grad_norm`, update the weights, clear the gradients; return the norm before clipping.

    Args:
        max_grad_norm: None leaves gradients as they are.
        guard: If the norm is not finite, no rank changes its weights, as the norm is the same on every rank: in this
            step or, after a norm in an `UpdateStop`, in all later ones. Gradients are multiplied by the scale of a
            `LossScaler`; the returned norm is not. Fused AdamW decides on the device, as does `AdamW8bit` without a
            scale; for other optimizers the host waits for a GPU.
        norm: The norm of the whole model's gradient, still scaled, if `parameters` are only a part of the model's.
    """
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    # With FSDP2 the norm of sharded gradients is itself a DTensor, which `_gather` reduces over ranks: every rank must
    # run this line.
    if norm is None:
        norm = _gather(_total_norm([p.grad for p in with_gradient if p.grad is not None]))
    divisor = None
    if isinstance(guard, LossScaler):
        norm, overflow = guard.unscale(norm)
        # Before `update`, which changes the scale in place: these gradients were multiplied by the old scale.
        divisor = guard.scale * _clip_divisor(norm, max_grad_norm)
        guard.update(overflow)
    else:
        overflow = guard.add(norm)
        if max_grad_norm is not None:
            divisor = _clip_divisor(norm, max_grad_norm)
    _step(optimizer, with_gradient, divisor, overflow, is_last=isinstance(guard, UpdateStop))
    optimizer.zero_grad(set_to_none=True)
    return norm


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the same bits as `torch.nn.utils.get_total_norm`, without its grouping if there is only one group."""
    kinds = {(type(gradient), gradient.dtype, gradient.device) for gradient in gradients}
    if len(kinds) == 1 and type(gradients[0]) is Tensor:
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return norm
    return nn.utils.get_total_norm(gradients)


def _step(
    optimizer: Optimizer,
    parameters: Sequence[nn.Parameter],
    divisor: Tensor | None,
    overflow: Tensor,
    *,
    is_last: bool,
) -> None:
    """Update with gradients divided by `divisor`, a scalar; do not change the weights if `overflow` is 1.

    `is_last`: no update follows one that changes nothing.
    """
    fused = _fused_adamw(optimizer)
    # `AdamW8bit` counts its steps on the host, also those that change nothing.
    deciding = optimizer if fused is None and is_last and hasattr(type(optimizer), "found_inf") else fused
    is_read = deciding is None or overflow.device.type in READ_ON_HOST
    if is_read and bool(overflow):
        return
    # Fused AdamW divides in its kernel, but by a float32, which is not exact enough for float64, and not for shards.
    if divisor is not None and (
        fused is not optimizer or any(isinstance(p, DTensor) or p.dtype == torch.float64 for p in parameters)
    ):
        with torch.no_grad():
            torch._foreach_div_([parameter.grad for parameter in parameters if parameter.grad is not None], divisor)
        divisor = None
    if deciding is None:
        optimizer.step()
    else:
        _step_deciding(optimizer, deciding, divisor, None if is_read else overflow)


def _fused_adamw(optimizer: Optimizer) -> AdamW | None:
    """Return the optimizer, or the one that ZeroRedundancyOptimizer wraps, if it is PyTorch's fused AdamW."""
    inner = getattr(optimizer, "optim", optimizer)
    # Not isinstance: the `step` of a subclass may ignore `grad_scale` and `found_inf`.
    return inner if type(inner) is AdamW and inner.defaults.get("fused") else None


def _step_deciding(optimizer: Optimizer, deciding: Optimizer, divisor: Tensor | None, overflow: Tensor | None) -> None:
    """Update; a fused kernel divides the gradients in the same pass, and nothing changes after an overflow.

    Source: `torch.amp.GradScaler` sets the same attributes on fused optimizers.
    """
    with_scale: Any = deciding
    with_scale.grad_scale, with_scale.found_inf = None if divisor is None else divisor.detach().float(), overflow
    try:
        optimizer.step()
    finally:  # the next step may have neither a scale nor a limit of the norm
        del with_scale.grad_scale, with_scale.found_inf


def _clip_divisor(norm: Tensor, max_grad_norm: float | None) -> Tensor:
    """Return the divisor, at least 1, that reduces gradients of this norm to `max_grad_norm`.

    Source: `torch.nn.utils.clip_grads_with_norm_`, whose factor is the inverse.
    """
    if max_grad_norm is None:
        return torch.ones_like(norm)
    return torch.clamp((norm + 1e-6) / max_grad_norm, min=1.0)


def _gather(tensor: Tensor) -> Tensor:
    """Return the whole of a sharded tensor on every rank; other tensors unchanged."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _piece(shard: Any) -> Piece:
    """Return the rows of a `DTensor` that this rank holds: FSDP2 divides the first dimension as `torch.chunk` does."""
    dim = next(number for number, placement in enumerate(shard.placements) if placement.is_shard())
    rows, row_numel = shard.shape[0], math.prod(shard.shape[1:])
    num_rows = -(-rows // shard.device_mesh.size(dim))
    first = min(shard.device_mesh.get_local_rank(dim) * num_rows, rows)
    piece = Piece(tuple(shard.shape), first * row_numel, min(first + num_rows, rows) * row_numel)
    assert shard.to_local().numel() == piece.end - piece.begin
    return piece


def _writes(tensor: Tensor, *, is_first: bool) -> bool:
    """Return whether this rank writes what it holds of a tensor: of equal copies, that of the first rank."""
    if not isinstance(tensor, DTensor):
        return is_first
    replicated = (number for number, placement in enumerate(tensor.placements) if placement.is_replicate())
    return all(tensor.device_mesh.get_local_rank(number) == 0 for number in replicated)


def send_to_rank_0(
    value: Tensor | None,
    *,
    owner: int,
    rank: int,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | None:
    """Send the tensor of rank `owner` to rank 0, which gets it on the CPU; other ranks get None.

    Only these two ranks communicate.
    """
    if rank == owner:
        assert value is not None
        value = torch.as_tensor(value).detach()
        if owner == 0:
            return value.cpu()
        # The device chooses NCCL or gloo, the same on both ranks; AdamW keeps its step count on the CPU.
        dist.send(value.to(device).contiguous(), dst=0)
        return None
    if rank != 0:
        return None
    buffer = torch.empty(shape, dtype=dtype, device=device)
    dist.recv(buffer, src=owner)
    return buffer.cpu()


class WholeState:
    """Weights and optimizer states; a sharded tensor is gathered when it is read (see `protocol.State`)."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, rank: int, scaler: LossScaler | None = None) -> None:
        self._optimizer = optimizer
        self._scaler = scaler
        self._is_first = rank == 0
        self._parameters = dict(model.named_parameters())  # a tied parameter appears once
        persistent = model.state_dict(keep_vars=True)
        self.buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
        self._weights: dict[str, Tensor] = {**self._parameters, **self.buffers}

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor | None]]:
        for key, tensor in self.local():
            if key.startswith(prefix):
                whole = _gather(tensor.detach())
                yield key, whole.cpu() if self._is_first else None

    def pieces(self, prefix: str = "") -> Iterator[tuple[str, Piece, Tensor]]:
        for key, tensor in self.local():
            if key.startswith(prefix) and _writes(tensor, is_first=self._is_first):
                piece = _piece(tensor) if isinstance(tensor, DTensor) else Piece.whole(tensor.shape)
                values: Any = tensor.detach()
                if piece.end > piece.begin:
                    yield key, piece, (values.to_local() if isinstance(tensor, DTensor) else values).flatten()

    def load(self, read: Read, keys: Iterable[str]) -> None:
        for key in keys:
            kind, _, rest = key.partition("/")
            if kind == "model":
                self._copy(key, self._weights[rest], read)
            elif kind == "optimizer":
                name, _, state_name = rest.rpartition("/")
                self._load_optimizer_state(key, self._parameters[name], state_name, read)
            elif kind == "strategy":
                # An unknown name belongs to another strategy or precision.
                if self._scaler is not None:
                    self._scaler.load(rest, read(key))
            else:
                raise KeyError(key)

    def local(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all keys with the tensors of this rank, whole or sharded."""
        for name, tensor in self._weights.items():
            yield f"model/{name}", tensor
        for name, parameter in self._parameters.items():
            for state_name, value in self._optimizer.state.get(parameter, {}).items():
                yield f"optimizer/{name}/{state_name}", torch.as_tensor(value)
        for name, value in self._scaler.state().items() if self._scaler is not None else ():
            yield f"strategy/{name}", value

    def _load_optimizer_state(self, key: str, parameter: nn.Parameter, name: str, read: Read) -> None:
        is_shard = isinstance(parameter, DTensor)
        value = read(key, _piece(parameter)) if is_shard else read(key)
        if value.ndim > 0 and not is_shard and value.shape != parameter.shape:
            if not isinstance(self._optimizer, AdamW):
                # Of an optimizer such as Adafactor, whose states have other shapes.
                self._optimizer.state[parameter][name] = value.to(parameter.device, copy=True)
                return
            raise ValueError(f"{key} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}")
        # The moments get the parameter's dtype, as a run may be resumed in another precision. The step count of
        # AdamW(fused), a scalar, stays float32.
        dtype = parameter.dtype if value.ndim > 0 and value.is_floating_point() else value.dtype
        if value.ndim == 0 or not is_shard:
            self._optimizer.state[parameter][name] = value.to(parameter.device, dtype, copy=True)
            return
        # On the parameter's device, which is not that of the mesh if parameters are offloaded to the host.
        state = torch.empty_like(parameter.detach(), dtype=dtype)
        self._optimizer.state[parameter][name] = state
        _copy_local(state, value)

    @staticmethod
    def _copy(key: str, target: Tensor, read: Read) -> None:
        if isinstance(target, DTensor):
            _copy_local(target, read(key, _piece(target)))
            return
        value = read(key)
        if value.shape != target.shape:
            raise ValueError(f"{key} has shape {tuple(value.shape)}, the model {tuple(target.shape)}")
        with torch.no_grad():
            target.copy_(value)


@torch.no_grad()
def _copy_local(shard: Any, values: Tensor) -> None:
    """Copy values, flat, into this rank's shard, a `DTensor`. Every rank reads its own, so nothing is sent."""
    local = shard.to_local()
    local.copy_(values.view_as(local))
