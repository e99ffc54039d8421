"""One process on one device: the reference with which all other strategies are compared."""

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paratune.batch import Batch
from paratune.config.traits import TRAITS, Traits
from paratune.precision import Precision
from paratune.strategies import whole
from paratune.strategies.adam_preconditioner import make_preconditioner
from paratune.strategies.gradient_watch import GradientWatch
from paratune.strategies.loss_scale import UpdateStop, make_scaler, scale_of
from paratune.strategies.protocol import Layout, MakeOptimizer, Phases, ReduceOp


class SingleStrategy:
    """See `protocol.Strategy`."""

    traits: ClassVar[Traits] = TRAITS["single"]

    def __init__(self, *, device: torch.device, precision: Precision, rank: int, world_size: int) -> None:
        self.layout = Layout(rank=rank, world_size=world_size, data_rank=rank, data_world_size=world_size)
        self._device = device
        self._precision = precision
        self._scaler = make_scaler(precision)
        self._stop = UpdateStop()
        self._model: Any
        self._optimizer: Optimizer

    @property
    def loss_scale(self) -> Tensor | None:
        return None if self._scaler is None else self._scaler.last_scale

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        self._model = whole.place(model, self._device, self._precision, self.traits)
        self._parameters = list(model.parameters())  # walking through all modules in each step costs more than clipping
        self._optimizer = make_optimizer(model.named_parameters())

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        whole.set_training(self._model, True)
        parts = [
            whole.forward_backward_one(
                self._model,
                self._model,
                batch,
                phases,
                precision=self._precision,
                device=self._device,
                scaler=self._scaler,
            )
            for batch in micro_batches
        ]
        return whole.total(parts)

    def watch_gradients(self) -> GradientWatch:
        scale = scale_of(self._scaler)
        preconditioner = make_preconditioner(self._optimizer, self._model, self._parameters, scale=scale)
        return GradientWatch(self._parameters, scale=scale, preconditioner=preconditioner)

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        return whole.clip_and_step(self._optimizer, self._parameters, max_grad_norm, self._scaler or self._stop)

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        whole.set_training(self._model, False)
        return whole.forward(self._model, batch, self._precision, self._device)

    def state(self) -> whole.WholeState:
        return whole.WholeState(self._model, self._optimizer, rank=self.layout.rank, scaler=self._scaler)

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor:
        return value

    def close(self) -> None:
        del self._model, self._parameters, self._optimizer
