"""Data parallelism with PyTorch's DistributedDataParallel: a whole model in each process, gradients all-reduced.

ZeRO-1 is the same with an optimizer whose states are sharded (`zero1.py`).
"""

import inspect
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from paratune.batch import Batch
from paratune.config.traits import TRAITS, Traits
from paratune.errors import ConfigError
from paratune.precision import Precision
from paratune.strategies import whole
from paratune.strategies.adam_preconditioner import make_preconditioner
from paratune.strategies.gradient_watch import GradientWatch
from paratune.strategies.loss_scale import UpdateStop, make_scaler, scale_of
from paratune.strategies.process_group import reduce_over_ranks
from paratune.strategies.protocol import Layout, MakeOptimizer, Phases, ReduceOp, State
from paratune.strategies.zero1 import Zero1State, shard_optimizer


class DDPStrategy:
    """See `protocol.Strategy`. With `shards_states`, the optimizer states are sharded over all ranks (ZeRO-1)."""

    traits: Traits = TRAITS["ddp"]

    def __init__(
        self,
        *,
        device: torch.device,
        precision: Precision,
        rank: int,
        world_size: int,
        bucket_cap_mb: float = 25.0,
        find_unused_parameters: bool = False,
        shards_states: bool = False,
    ) -> None:
        self.layout = Layout(rank=rank, world_size=world_size, data_rank=rank, data_world_size=world_size)
        self._device = device
        self._precision = precision
        self._scaler = make_scaler(precision)
        self._stop = UpdateStop()
        self._bucket_cap_mb = bucket_cap_mb
        self._find_unused_parameters = find_unused_parameters
        self._shards_states = shards_states
        if shards_states:
            self.traits = TRAITS["zero1"]
        self._model: Any
        self._ddp: DistributedDataParallel
        self._optimizer: Optimizer

    @property
    def loss_scale(self) -> Tensor | None:
        return None if self._scaler is None else self._scaler.last_scale

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        self._model = whole.place(model, self._device, self._precision, self.traits)
        self._ddp = DistributedDataParallel(
            self._model,
            bucket_cap_mb=self._bucket_cap_mb,
            find_unused_parameters=self._find_unused_parameters,
            gradient_as_bucket_view=True,
            **_buffer_options(model),
        )
        self._parameters = list(model.parameters())
        self._optimizer = make_optimizer(model.named_parameters())
        if self._shards_states:
            self._optimizer = shard_optimizer(self._optimizer)

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        whole.set_training(self._model, True)
        *early, last = micro_batches
        try:
            # Gradients are all-reduced once, with the last micro-batch.
            with self._ddp.no_sync() if early else nullcontext():
                parts = [self._forward_backward_one(batch, phases) for batch in early]
            return whole.total([*parts, self._forward_backward_one(last, phases)])
        except RuntimeError as error:
            # This error of PyTorch has no class or code that identifies it.
            if "Expected to have finished reduction" not in str(error):
                raise
            raise ConfigError(
                "strategy.find_unused_parameters: false, but this model has parameters that get no gradient; "
                "set strategy.find_unused_parameters: true",
                code="strategy.unused_parameters",
                key="strategy.find_unused_parameters",
            ) from error

    def watch_gradients(self) -> GradientWatch:
        scale, size = scale_of(self._scaler), self.layout.world_size
        optimizer = None if self._shards_states else self._optimizer
        preconditioner = make_preconditioner(optimizer, self._model, self._parameters, scale=scale, num_copies=size)
        return GradientWatch(self._parameters, scale=size * scale, preconditioner=preconditioner)

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        return whole.clip_and_step(self._optimizer, self._parameters, max_grad_norm, self._scaler or self._stop)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        # Not through DDP, whose forward would broadcast buffers: predictions need no synchronisation.
        whole.set_training(self._model, False)
        return whole.forward(self._model, batch, self._precision, self._device)

    def state(self) -> State:
        if self._shards_states:
            return Zero1State(self._model, self._optimizer, rank=self.layout.rank, scaler=self._scaler)
        return whole.WholeState(self._model, self._optimizer, rank=self.layout.rank, scaler=self._scaler)

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor:
        return reduce_over_ranks(value, op)

    def close(self) -> None:
        del self._ddp, self._model, self._parameters, self._optimizer

    def _forward_backward_one(self, batch: Batch, phases: Phases) -> Tensor:
        return whole.forward_backward_one(
            self._ddp,
            self._model,
            batch,
            phases,
            precision=self._precision,
            device=self._device,
            # DDP averages gradients over ranks, but the step's loss is a sum over ranks.
            gradient_scale=self.layout.world_size,
            scaler=self._scaler,
        )


class Zero1Kind:
    """Makes the strategy of ZeRO-1 when called, as a call of the class does for other kinds."""

    traits = TRAITS["zero1"]

    __signature__ = inspect.signature(partial(DDPStrategy, shards_states=True))
    """The arguments that `training.prepare.check_options` allows."""

    def __call__(self, **arguments: Any) -> DDPStrategy:
        return DDPStrategy(**arguments, shards_states=True)


ZERO1 = Zero1Kind()


def _buffer_options(model: nn.Module) -> dict[str, Any]:
    """Return the option with which DDP does not broadcast buffers before each forward, if no buffer can change.

    The broadcast would make every micro-step wait for rank 0, within the forward phase. Constant buffers (positions,
    frequencies) are not in the state dict. A buffer in the state dict, such as a running mean, may change: DDP then
    keeps it the same on all ranks.
    """
    persistent = model.state_dict()
    if any(name in persistent for name, _ in model.named_buffers()):
        return {}
    new_name = "forward_sync_buffers"  # since PyTorch 2.13, which warns about the old name
    has_new_name = new_name in inspect.signature(DistributedDataParallel).parameters
    return {new_name if has_new_name else "broadcast_buffers": False}
