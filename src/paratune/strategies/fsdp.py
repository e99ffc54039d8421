"""ZeRO-2, ZeRO-3 and hybrid sharding with PyTorch's FSDP2: the weights of a block are gathered when it runs.

The kinds differ in two settings: whether the weights of a block are released between forward and backward, and among
which ranks they are sharded.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer

from paratune.base.units import parse_count
from paratune.batch import Batch
from paratune.config.feasibility import Ranks, world_size_reasons
from paratune.config.problems import refuse
from paratune.config.traits import TRAITS, Traits, strategy_traits
from paratune.errors import ConfigError
from paratune.precision import Precision
from paratune.strategies import whole
from paratune.strategies.gradient_watch import GradientWatch
from paratune.strategies.loss_scale import UpdateStop, make_scaler, scale_of
from paratune.strategies.process_group import reduce_over_ranks
from paratune.strategies.protocol import Layout, MakeOptimizer, Phases, ReduceOp


@dataclass(frozen=True)
class FSDPKind:
    """The settings of a kind; a call makes the strategy, as a call of the class does for other kinds."""

    traits: Traits
    reshard_after_forward: bool = True
    """False keeps weights gathered from the first forward to the last backward pass of a step."""
    has_groups: bool = False
    """Whether weights are sharded within groups of `shard_size` ranks, with data parallelism between the groups."""

    def __call__(self, **arguments: Any) -> "FSDPStrategy":
        return FSDPStrategy(self, **arguments)


ZERO2 = FSDPKind(TRAITS["zero2"], reshard_after_forward=False)
ZERO3 = FSDPKind(TRAITS["zero3"])
HSDP = FSDPKind(TRAITS["hsdp"], has_groups=True)


class FSDPStrategy:
    """See `protocol.Strategy`. A group has `shard_size` ranks: by default all processes of a machine."""

    def __init__(
        self,
        kind: FSDPKind,
        *,
        device: torch.device,
        precision: Precision,
        rank: int,
        world_size: int,
        shard_size: int | None = None,
        cpu_offload: bool = False,
        param_dtype: str = "fp32",
        reduce_each_micro_step: bool = False,
    ) -> None:
        self.traits = kind.traits
        self.layout = Layout(rank=rank, world_size=world_size, data_rank=rank, data_world_size=world_size)
        self._kind = kind
        self._mesh_shape: tuple[int, ...] = (world_size,)
        if kind.has_groups:
            shard_size = shard_size or parse_count(os.environ.get("LOCAL_WORLD_SIZE")) or world_size
            # Machines may have unequal numbers of processes, which only the environment of the processes shows.
            traits = strategy_traits(kind.traits.kind, {"shard_size": shard_size})
            assert traits is not None
            refuse(world_size_reasons(traits, Ranks(world_size, None)))
            self._mesh_shape = (world_size // shard_size, shard_size)
        self._device = device
        self._precision = precision.with_weights(param_dtype)
        self._cpu_offload = cpu_offload
        self._reduces_each = reduce_each_micro_step
        self._scaler = make_scaler(precision)
        self._stop = UpdateStop()
        self._model: Any
        self._optimizer: Optimizer

    @property
    def loss_scale(self) -> Tensor | None:
        return None if self._scaler is None else self._scaler.last_scale

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        self._model = model.train()
        # FSDP2 replicates weights over the first of two dimensions, and shards them over the last.
        dimensions = ("replicate", "shard") if self._kind.has_groups else None
        options: dict[str, Any] = {
            "mesh": init_device_mesh(self._device.type, self._mesh_shape, mesh_dim_names=dimensions),
            "reshard_after_forward": self._kind.reshard_after_forward,
            # Without `strategy.param_dtype` autocast chooses the dtype of each operation, as in every other strategy.
            # With it whole blocks compute in 16 bits, norms and softmax too: another experiment. Losses
            # (`models.objectives`), shards, and sums over ranks and micro-batches are float32 in both cases.
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=self._precision.pass_dtype, reduce_dtype=self._precision.reduce_dtype
            ),
        }
        if self._cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy()
        # Blocks first: the unit of the model gets the parameters that are in no block, embeddings and head. The model
        # is on the host: each unit is moved to the device whole, and only its shard stays there.
        for unit in (*blocks, self._model):
            whole.cast_weights(unit, self._precision, self.traits)
            try:
                fully_shard(unit, **options)
            except RuntimeError as error:
                # PyTorch 2.11 makes trained parameters of all shards (https://github.com/pytorch/pytorch/pull/177948).
                if all(parameter.is_floating_point() for parameter in unit.parameters()):
                    raise
                raise ConfigError(
                    f"model.quantize_base: PyTorch {torch.__version__} cannot shard integers ({error}); use a newer "
                    "version, or strategy.kind: ddp or single",
                    code="strategy.excluded",
                    key="model.quantize_base",
                ) from error
        # After fully_shard, which replaces the parameters by DTensors.
        self._optimizer = make_optimizer(model.named_parameters())

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        whole.set_training(self._model, True)
        parts = []
        for number, batch in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            # Without the option each rank sums whole gradients until the last micro-batch. With it, each micro-batch is
            # reduced to shards; groups of HSDP sum their shards, and are reduced with each other only once.
            self._model.set_requires_gradient_sync(is_last or self._reduces_each)
            self._model.set_requires_all_reduce(is_last)
            # ZeRO-2 uses the gathered weights for the next micro-batch too.
            self._model.set_reshard_after_backward(is_last or self._kind.reshard_after_forward)
            parts.append(self._forward_backward_one(batch, phases))
        return torch.stack(parts).sum()

    def watch_gradients(self) -> GradientWatch:
        units = [module for module in self._model.modules() if isinstance(module, FSDPModule)]
        return GradientWatch((), scale=self.layout.world_size * scale_of(self._scaler), gathering=units)

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        norm = whole.clip_and_step(self._optimizer, self._model.parameters(), max_grad_norm, self._scaler or self._stop)
        return norm.to(self._device)  # with offload it is on the host

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        whole.set_training(self._model, False)
        return whole.forward(self._model, batch, self._precision, self._device)

    def state(self) -> whole.WholeState:
        # After an evaluation, which has no backward pass, ZeRO-2 still has gathered weights. Optimizer states belong to
        # the shards, and checkpoints are read into the shards.
        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
        return whole.WholeState(self._model, self._optimizer, rank=self.layout.rank, scaler=self._scaler)

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor:
        return reduce_over_ranks(value, op)

    def close(self) -> None:
        del self._model, self._optimizer

    def _forward_backward_one(self, batch: Batch, phases: Phases) -> Tensor:
        return whole.forward_backward_one(
            self._model,
            self._model,
            batch,
            phases,
            precision=self._precision,
            device=self._device,
            # FSDP2 averages gradients over ranks, as DDP does.
            gradient_scale=self.layout.world_size,
            scaler=self._scaler,
        )
