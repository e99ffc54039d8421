"""ZeRO-2, ZeRO-3 and hybrid sharding with PyTorch's FSDP2: the weights of a block are gathered when it runs.

One class a kind. They differ in two constants: whether a block's weights are dropped between forward and backward, and
over which ranks they are sharded.
"""

import os
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.optim import Optimizer

from paratune.base.units import parse_count
from paratune.batch import Batch
from paratune.config.feasibility.rules import world_size_reasons
from paratune.config.feasibility.target import Ranks
from paratune.config.feasibility.words import refuse
from paratune.config.traits import TRAITS, Traits, traits_of
from paratune.precision import Precision
from paratune.strategies import whole
from paratune.strategies.gradient_watch import UnshardedWatch
from paratune.strategies.loss_scale import make_scaler, scale_of
from paratune.strategies.process_group import reduce_over_ranks
from paratune.strategies.protocol import Layout, MakeOptimizer, Phases, ReduceOp


class Zero3Strategy:
    """Weights, gradients and optimizer states sharded over all ranks. See `protocol.Strategy`."""

    traits: ClassVar[Traits] = TRAITS["zero3"]
    reshard_after_forward: ClassVar[bool] = True

    def __init__(
        self,
        *,
        device: torch.device,
        precision: Precision,
        rank: int,
        world_size: int,
        cpu_offload: bool = False,
        param_dtype: str = "fp32",
    ) -> None:
        self.layout = Layout(rank=rank, world_size=world_size, data_rank=rank, data_world_size=world_size)
        self._device = device
        self._precision = precision.with_weights(param_dtype)
        self._cpu_offload = cpu_offload
        self._scaler = make_scaler(precision)
        self._model: Any
        self._optimizer: Optimizer

    @property
    def loss_scale(self) -> Tensor | None:
        return None if self._scaler is None else self._scaler.last_scale

    def mesh(self) -> DeviceMesh:
        """Return the ranks over which weights are sharded (last dimension) and replicated (first of two)."""
        return init_device_mesh(self._device.type, (self.layout.world_size,))

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        # To be offloaded, the model stays on the host; fully_shard brings one unit at a time to the device and back.
        self._model = model.train() if self._cpu_offload else whole.place(model, self._device)
        options: dict[str, Any] = {
            "mesh": self.mesh(),
            "reshard_after_forward": self.reshard_after_forward,
            # Without `strategy.param_dtype` autocast does the rest, operation by operation as in every other strategy.
            # With it whole blocks compute in 16 bits, norms and softmax too, which is another experiment; losses are
            # float32 anyhow (`models.objectives`), and so are shards and what is summed over ranks and micro-batches.
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=self._precision.pass_dtype, reduce_dtype=self._precision.reduce_dtype
            ),
        }
        if self._cpu_offload:
            options["offload_policy"] = CPUOffloadPolicy()
        # From the inside out: a unit takes the parameters that no unit inside it has taken.
        for block in blocks:
            fully_shard(block, **options)
        # What is in no block - embeddings and head - is one more unit.
        fully_shard(self._model, **options)
        # Only now: fully_shard has replaced the parameters by DTensors, which an earlier optimizer would not hold.
        self._optimizer = make_optimizer(model.named_parameters())

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        whole.set_training(self._model, True)
        parts = []
        for number, batch in enumerate(micro_batches, start=1):
            is_last = number == len(micro_batches)
            # Gradients are reduced once, with the last micro-batch; until then each rank adds up whole ones.
            self._model.set_requires_gradient_sync(is_last)
            # ZeRO-2 needs the same weights for the next one.
            self._model.set_reshard_after_backward(is_last or self.reshard_after_forward)
            parts.append(self._forward_backward_one(batch, phases))
        return torch.stack(parts).sum()

    def watch_gradients(self) -> UnshardedWatch:
        return UnshardedWatch(self._model, scale=self.layout.world_size * scale_of(self._scaler))

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        norm = whole.clip_and_step(self._optimizer, self._model.parameters(), max_grad_norm, self._scaler)
        return norm.to(self._device)  # of offloaded gradients it was computed on the host

    @torch.no_grad()
    def predict(self, batch: Batch) -> Tensor:
        whole.set_training(self._model, False)
        return whole.forward(self._model, batch, self._precision, self._device)

    def state(self) -> whole.WholeState:
        # After a forward pass without a backward pass (an evaluation) ZeRO-2 still has gathered weights in the place of
        # its shards, which alone are what optimizer states belong to, and what is there to be written to.
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


class Zero2Strategy(Zero3Strategy):
    """As ZeRO-3, but weights stay gathered from the first forward to the last backward pass of a step."""

    traits: ClassVar[Traits] = TRAITS["zero2"]
    reshard_after_forward: ClassVar[bool] = False


class HSDPStrategy(Zero3Strategy):
    """ZeRO-3 within groups of `shard_size` ranks, and data parallelism between the groups."""

    traits: ClassVar[Traits] = TRAITS["hsdp"]

    def __init__(
        self,
        *,
        device: torch.device,
        precision: Precision,
        rank: int,
        world_size: int,
        shard_size: int | None = None,
        cpu_offload: bool = False,
        param_dtype: str = "fp32",
    ) -> None:
        super().__init__(
            device=device,
            precision=precision,
            rank=rank,
            world_size=world_size,
            cpu_offload=cpu_offload,
            param_dtype=param_dtype,
        )
        self._shard_size = shard_size or parse_count(os.environ.get("LOCAL_WORLD_SIZE")) or world_size
        # Where the machines have unequal numbers of processes, which only these know.
        traits = traits_of("hsdp", {"shard_size": self._shard_size})
        assert traits is not None
        refuse(world_size_reasons(traits, Ranks(world_size, None)))

    def mesh(self) -> DeviceMesh:
        shape = (self.layout.world_size // self._shard_size, self._shard_size)
        return init_device_mesh(self._device.type, shape, mesh_dim_names=("replicate", "shard"))
