"""What strategies that run the whole model in each process share: steps as functions, and access to the states.

Each rank may hold all of a weight, or, under FSDP2, a shard of it (a `DTensor`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW, Optimizer

from paratune.batch import Batch, BatchModel
from paratune.precision import Precision
from paratune.precision.working_weights import WorkingWeights
from paratune.strategies.loss_scale import LossScaler
from paratune.strategies.protocol import Phases

OPTIMIZER_STATES = ("exp_avg", "exp_avg_sq", "step")
"""What AdamW and LAMB keep for each parameter; ranks without them know the names from here."""


def place(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model on `device`, all of it in training mode.

    transformers loads models in eval mode, and a module around one says of itself that it trains: `set_training` would
    believe it, and dropout would be off until the first evaluation.
    """
    return model.to(device).train()


def set_training(model: nn.Module, training: bool) -> None:
    """Switch dropout on or off, if it is not so already: going through all modules costs as much as a small layer."""
    if model.training != training:
        model.train(training)


def using(
    working: WorkingWeights | None, model: nn.Module, batch: Batch, precision: Precision, device: torch.device
) -> AbstractContextManager[None]:
    """Return the context of passes that use the working copies of the weights, where there are some.

    Before the first of them the model runs once, without gradients and dropout, to show what is computed together.
    """
    if working is None:
        return nullcontext()
    if not working.has_looked:
        training = model.training
        set_training(model, False)
        try:
            with torch.no_grad():
                working.look(lambda: forward(model, batch, precision, device))
        finally:
            set_training(model, training)
    return working.use()


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
    working: WorkingWeights | None = None,
) -> Tensor:
    """Run forward and backward of one micro-batch.

    Args:
        runner: What is called: the model, or its wrapper.
        model: Gives the loss.
        batch: The micro-batch.
        phases: Times the two.
        precision: Autocast of the forward pass.
        device: Where it computes.
        gradient_scale: Multiplies the gradients, not the returned loss.
        scaler: Multiplies them once more, by its scale, until `clip_and_step`.
        working: Copies of the weights in the dtype of autocast; without, autocast casts them.

    Returns:
        The batch's part of the step's loss, detached.
    """
    scale = gradient_scale if scaler is None else gradient_scale * scaler.scale
    inner: Any = model  # a module as well
    with using(working, inner, batch, precision, device):
        with phases("forward"):
            loss = model.loss_sum(forward(runner, batch, precision, device), batch) / batch.loss_denominator
        with phases("backward"):
            scaled = loss if scaler is None and gradient_scale == 1.0 else loss * scale
            scaled.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def total(parts: Sequence[Tensor]) -> Tensor:
    """Return the sum of the losses of micro-batches, scalars; nothing is launched for one alone."""
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum()


def clip_and_step(
    optimizer: Optimizer,
    parameters: Iterable[nn.Parameter],
    max_grad_norm: float | None,
    scaler: LossScaler | None = None,
    *,
    norm: Tensor | None = None,
    working: WorkingWeights | None = None,
) -> Tensor:
    """Scale gradients down to `max_grad_norm`, update, clear; return their norm before.

    Args:
        optimizer: Of these parameters.
        parameters: Those that this rank holds, whole or as shards.
        max_grad_norm: None leaves gradients as they are.
        scaler: With whose scale they come. The returned norm is free of it; when that is not finite, weights stay as
            they are: on every rank, because the norm is the same on every rank. A fused optimizer decides that on the
            device; others (LAMB) wait for it.
        norm: Of the whole model's gradient as it comes, where `parameters` are only some of the model's.
        working: Copies of the weights, which have to be made again after this.
    """
    if working is not None:
        working.mark_changed()
    with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
    # Under FSDP2 the norm of sharded gradients is itself a DTensor, which `_gathered` reduces over ranks: every rank
    # has to come here.
    if norm is None:
        norm = _total_norm([p.grad for p in with_gradient if p.grad is not None])
    overflow, divisor = None, None
    if scaler is not None:
        norm, overflow = scaler.unscale(_gathered(norm))
        # Before the update, which changes the scale in place: these gradients came multiplied by the old one.
        divisor = scaler.scale * _clip_divisor(norm, max_grad_norm)
        scaler.update(overflow)
    elif max_grad_norm is not None:
        divisor = _clip_divisor(norm, max_grad_norm)
    _step(optimizer, with_gradient, divisor, overflow)
    optimizer.zero_grad(set_to_none=True)
    return _gathered(norm)


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """As `torch.nn.utils.get_total_norm`, to the bit, without its search for groups where there is one group."""
    kinds = {(type(gradient), gradient.dtype, gradient.device) for gradient in gradients}
    if len(kinds) == 1 and type(gradients[0]) is Tensor:
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
        return norm
    return nn.utils.get_total_norm(gradients)


def _step(
    optimizer: Optimizer, parameters: Sequence[nn.Parameter], divisor: Tensor | None, overflow: Tensor | None
) -> None:
    """Update with gradients divided by `divisor`, a scalar; leave weights as they are where `overflow` is 1."""
    fused = _fused_adamw(optimizer)
    if fused is None and overflow is not None and bool(overflow):
        return
    if divisor is not None and (fused is not optimizer or not _divides_gradients(parameters)):
        _divide_gradients(parameters, divisor)
        divisor = None
    if fused is None:
        optimizer.step()
    else:
        _step_fused(optimizer, fused, divisor, overflow)


def _fused_adamw(optimizer: Optimizer) -> AdamW | None:
    """Return the optimizer, or the one that ZeroRedundancyOptimizer wraps, if it is PyTorch's fused AdamW."""
    inner = getattr(optimizer, "optim", optimizer)
    # Not isinstance: a subclass may have a `step` of its own, which would ignore `grad_scale` and `found_inf`.
    return inner if type(inner) is AdamW and inner.defaults.get("fused") else None


def _divides_gradients(parameters: Sequence[nn.Parameter]) -> bool:
    """Say whether fused AdamW can scale these gradients while it reads them.

    Its scale is a float32, which in float64 would be too coarse.
    """
    return not any(isinstance(each, DTensor) or each.dtype == torch.float64 for each in parameters)


def _step_fused(optimizer: Optimizer, fused: AdamW, divisor: Tensor | None, overflow: Tensor | None) -> None:
    """Update; the kernel divides gradients in the pass over them that it makes anyhow, and skips an overflow.

    Source: the attributes by which `torch.amp.GradScaler` hands fused optimizers its scale and what it has found.
    """
    # They may not stay on the optimizer: the next step may have neither a scale nor a limit of the norm.
    given: Any = fused
    given.grad_scale, given.found_inf = None if divisor is None else divisor.detach().float(), overflow
    try:
        optimizer.step()
    finally:
        del given.grad_scale, given.found_inf


def _clip_divisor(norm: Tensor, max_grad_norm: float | None) -> Tensor:
    """Return what gradients of this norm are divided by, so that theirs is at most `max_grad_norm`; at least 1.

    Source: `torch.nn.utils.clip_grads_with_norm_`, whose factor is 1 over this.
    """
    if max_grad_norm is None:
        return torch.ones_like(norm)
    return torch.clamp((norm + 1e-6) / max_grad_norm, min=1.0)


@torch.no_grad()
def _divide_gradients(parameters: Iterable[nn.Parameter], divisor: Tensor) -> None:
    torch._foreach_div_([parameter.grad for parameter in parameters if parameter.grad is not None], divisor)


def _gathered(tensor: Tensor) -> Tensor:
    """Return a sharded tensor whole, on every rank; others as they are."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _sharded_like(value: Tensor, target: Tensor) -> Tensor:
    """Return `value`, which every rank has whole, on the device of `target` and sharded as it is."""
    value = value.to(target.device)
    if not isinstance(target, DTensor):
        return value
    # Every rank reads the checkpoint itself, so nothing has to be sent. What is distributed lies on the mesh's device;
    # with parameters offloaded to the host that is not the target's.
    sharded = distribute_tensor(value, target.device_mesh, target.placements, src_data_rank=None)
    return sharded.to(target.device)


def brought_to_rank_0(
    value: Tensor | None,
    *,
    owner: int,
    rank: int,
    shape: torch.Size,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor | None:
    """Return on rank 0, on the CPU, the tensor that `owner` has; None elsewhere. Ranks but these two do nothing."""
    if rank == owner:
        assert value is not None
        value = torch.as_tensor(value).detach()
        if owner == 0:
            return value.cpu()
        # The device decides between NCCL and gloo, and AdamW keeps its step count on the CPU: both ends have to agree.
        dist.send(value.to(device).contiguous(), dst=0)
        return None
    if rank != 0:
        return None
    buffer = torch.empty(shape, dtype=dtype, device=device)
    dist.recv(buffer, src=owner)
    return buffer.cpu()


class WholeState:
    """Weights and optimizer states, each one whole when it is asked for (see `protocol.State`)."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, *, rank: int, scaler: LossScaler | None = None) -> None:
        self._optimizer = optimizer
        self._scaler = scaler
        self._is_first = rank == 0
        self._parameters = dict(model.named_parameters())  # a tied one appears once
        persistent = model.state_dict(keep_vars=True)
        self.buffers = {name: buffer for name, buffer in model.named_buffers() if name in persistent}
        self._weights: dict[str, Tensor] = {**self._parameters, **self.buffers}

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor | None]]:
        for key, tensor in self._all():
            if key.startswith(prefix):
                whole = _gathered(tensor.detach())
                yield key, whole.cpu() if self._is_first else None

    def load(self, read: Callable[[str], Tensor], keys: Iterable[str]) -> None:
        for key in keys:
            kind, _, rest = key.partition("/")
            if kind == "model":
                self._copy(key, self._weights[rest], read(key))
            elif kind == "optimizer":
                name, _, state_name = rest.rpartition("/")
                self._load_optimizer_state(key, self._parameters[name], state_name, read(key))
            elif kind == "strategy":
                # What is not known here was another strategy's or another precision's, and means nothing to this one.
                if self._scaler is not None:
                    self._scaler.load(rest, read(key))
            else:
                raise KeyError(key)

    def _all(self) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in self._weights.items():
            yield f"model/{name}", tensor
        for name, parameter in self._parameters.items():
            for state_name, value in self._optimizer.state.get(parameter, {}).items():
                yield f"optimizer/{name}/{state_name}", torch.as_tensor(value)
        for name, value in self._scaler.state().items() if self._scaler is not None else ():
            yield f"strategy/{name}", value

    def _load_optimizer_state(self, key: str, parameter: nn.Parameter, name: str, value: Tensor) -> None:
        if value.ndim > 0 and value.shape != parameter.shape:
            raise ValueError(f"{key} has shape {tuple(value.shape)}, the parameter {tuple(parameter.shape)}")
        # The moments have the parameter's dtype (a run may go on in another precision); AdamW(fused) keeps its step
        # count, a scalar, beside them as float32.
        dtype = parameter.dtype if value.ndim > 0 and value.is_floating_point() else value.dtype
        value = value.to(dtype=dtype, copy=True)
        whole = value.ndim == 0
        self._optimizer.state[parameter][name] = (
            value.to(parameter.device) if whole else _sharded_like(value, parameter)
        )

    @staticmethod
    def _copy(key: str, target: Tensor, value: Tensor) -> None:
        if value.shape != target.shape:
            raise ValueError(f"{key} has shape {tuple(value.shape)}, the model {tuple(target.shape)}")
        with torch.no_grad():
            target.copy_(_sharded_like(value.to(target.dtype), target))
