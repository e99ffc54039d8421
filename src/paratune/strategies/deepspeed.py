"""ZeRO by DeepSpeed: stages 0 to 3 of its engine around a plain torch optimizer, with offload to the host's memory.

DeepSpeed is called directly (`deepspeed.initialize`), uses the open process group, and writes no files: weights and
optimizer states are saved and loaded by name, as in every other strategy. Nothing is compiled unless `cpu_adam` is on.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from paratune.batch import Batch
from paratune.config.traits import TRAITS, Traits, strategy_traits
from paratune.precision import Precision, values_of
from paratune.strategies import deepspeed_setup as setup
from paratune.strategies import whole
from paratune.strategies.adam_preconditioner import make_preconditioner
from paratune.strategies.deepspeed_build import make_cpu_adam
from paratune.strategies.deepspeed_scale import EngineScale
from paratune.strategies.deepspeed_state import DeepSpeedState
from paratune.strategies.gradient_watch import GradientWatch
from paratune.strategies.loss_scale import INITIAL_SCALE, UpdateStop, make_scaler, overflow_of, scale_of, spoil_gradient
from paratune.strategies.process_group import reduce_over_ranks
from paratune.strategies.protocol import Layout, MakeOptimizer, Phases, ReduceOp, State


class DeepSpeedStrategy:
    """See `protocol.Strategy`."""

    traits: Traits = TRAITS["deepspeed"]

    def __init__(
        self,
        *,
        device: torch.device,
        precision: Precision,
        rank: int,
        world_size: int,
        stage: int = 2,
        param_dtype: str = "fp32",
        **options: Any,
    ) -> None:
        self.layout = Layout(rank=rank, world_size=world_size, data_rank=rank, data_world_size=world_size)
        self._deepspeed = setup.import_deepspeed(device)
        self._options = setup.Options(stage=stage, param_dtype=param_dtype, **options)
        self.traits = strategy_traits("deepspeed", vars(self._options)) or self.traits
        self._device = device
        self._precision = precision.with_weights(param_dtype)
        self._scaler = None if self._options.keeps_16_bits else make_scaler(precision)
        self._engine_scale: EngineScale | None = None
        self._stop = UpdateStop()
        index = device.index if device.index is not None else rank
        self._local_rank = int(os.environ.get("LOCAL_RANK", index))
        self._until_close = ExitStack()
        self._model: Any
        self._runner: nn.Module
        self._engine: Any

    @property
    def loss_scale(self) -> Tensor | float | None:
        if self._engine_scale is not None:
            return self._engine_scale.last_scale
        if self._options.keeps_16_bits and self._precision.scales_loss:
            return INITIAL_SCALE  # the engine is not made yet
        return None if self._scaler is None else self._scaler.last_scale

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        # DeepSpeed reads LOCAL_RANK several times; a single process may not have it.
        self._until_close.enter_context(setup.environment(LOCAL_RANK=str(self._local_rank)))
        # Stage 3 replaces this function for all models of the process.
        self._until_close.callback(setattr, functional, "linear", functional.linear)
        # DeepSpeed makes its fp32 weights from the 16-bit ones; below they get the loaded fp32 values again.
        named = model.named_parameters() if self._options.keeps_16_bits else ()
        loaded = {f"model/{name}": values_of(p) for name, p in named}
        self._model = model
        if self._options.stage < 3:
            whole.place(model, self._device, self._precision, self.traits)
        self._runner = _UnderAutocast(model, self._precision, self._device)
        optimizer = make_optimizer(model.named_parameters())
        if self._options.cpu_adam:
            optimizer = make_cpu_adam(optimizer, local_rank=self._local_rank)
        self._engine = setup.start_engine(
            self._deepspeed,
            self._runner,
            optimizer,
            setup.engine_config(self._options, blocks, self._precision.param_dtype),
            blocks=blocks,
            precision=self._precision,
        )
        if self._options.keeps_16_bits:
            self.state().load(lambda key: loaded[key](), loaded)
            if self._precision.scales_loss:
                self._engine_scale = EngineScale(self._engine.optimizer)

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        whole.set_training(self._runner, True)
        # DeepSpeed averages gradients over ranks; the step's loss is a sum over them.
        gradient_scale: float | Tensor = float(self.layout.world_size)
        if self._scaler is not None and self._options.stage == 0:
            gradient_scale = gradient_scale * self._scaler.scale
        elif self._scaler is not None:  # the engine multiplies the loss by it, and divides the norm and the gradients
            self._engine.optimizer.override_loss_scale(float(self._scaler.scale))
        parts = []
        for number, batch in enumerate(micro_batches, start=1):
            self._engine.set_gradient_accumulation_boundary(number == len(micro_batches))
            with phases("forward"):
                loss = self._model.loss_sum(self._engine(batch), batch) / batch.loss_denominator
            if self.loss_scale is None:  # stages 1 to 3 skip a step only if its own gradients are not finite
                spoil_gradient(loss, self._stop)
            with phases("backward"):
                self._engine.backward(loss * gradient_scale, scale_wrt_gas=False)
            parts.append(loss.detach())
        return torch.stack(parts).sum()

    def watch_gradients(self) -> GradientWatch:
        scale = scale_of(self._scaler) if self._engine_scale is None else self._engine_scale.scale
        parameters, size = list(self._model.parameters()), self.layout.world_size
        optimizer = self._engine.optimizer if self._options.stage == 0 else None  # else it has shards
        preconditioner = make_preconditioner(optimizer, self._model, parameters, scale=scale, num_copies=size)
        return GradientWatch(parameters, scale=size * scale, preconditioner=preconditioner)

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        if self._options.stage == 0:  # here the engine's optimizer is the plain torch one
            parameters = self._model.parameters()
            return whole.clip_and_step(self._engine.optimizer, parameters, max_grad_norm, self._scaler or self._stop)
        # DeepSpeed reads its configuration only when the engine starts. 0.0 means no clipping.
        self._engine.optimizer.clip_grad = max_grad_norm or 0.0
        if self._engine_scale is not None:
            self._engine_scale.begin()
        self._engine.step()  # changes no weights if the norm is not finite
        if self._engine_scale is not None:
            self._engine_scale.end()
        norm = torch.as_tensor(self._engine.get_global_grad_norm(), device=self._device)
        if self._scaler is not None:
            self._scaler.update(overflow_of(norm))
        elif self._engine_scale is None:
            self._stop.add(norm)
        return norm

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        whole.set_training(self._runner, False)
        outputs: Tensor = self._runner(batch)
        return outputs

    def state(self) -> State:
        if self._options.stage == 0:
            return whole.WholeState(self._model, self._engine.optimizer, rank=self.layout.rank, scaler=self._scaler)
        stage = self._options.stage
        scaler = self._scaler if self._engine_scale is None else self._engine_scale
        return DeepSpeedState(self._model, self._engine, stage=stage, rank=self.layout.rank, scaler=scaler)

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor:
        return reduce_over_ranks(value, op)

    def close(self) -> None:
        self._engine.destroy()
        self._until_close.close()
        del self._engine, self._runner, self._model


class _UnderAutocast(nn.Module):
    """The model with the policy's autocast inside: DeepSpeed's engine switches off an autocast around it."""

    def __init__(self, model: nn.Module, precision: Precision, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self._precision = precision
        self._device = device

    def forward(self, batch: Batch) -> Tensor:
        return whole.forward(self.model, batch, self._precision, self._device)
