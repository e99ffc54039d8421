"""ZeRO-1 with PyTorch's ZeroRedundancyOptimizer on DDP: a rank keeps the optimizer states of a part of the weights."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from paratune.batch import Batch
from paratune.config.traits import TRAITS, Traits
from paratune.precision import Precision
from paratune.strategies import whole
from paratune.strategies.ddp import DDPStrategy
from paratune.strategies.gradient_watch import GradientWatch
from paratune.strategies.loss_scale import LossScaler
from paratune.strategies.protocol import MakeOptimizer, Phases, ReduceOp

if TYPE_CHECKING:
    from torch.distributed.optim import ZeroRedundancyOptimizer


class Zero1Strategy:
    """DDP with a sharded optimizer. See `protocol.Strategy`."""

    traits: ClassVar[Traits] = TRAITS["zero1"]

    def __init__(
        self,
        *,
        device: torch.device,
        precision: Precision,
        rank: int,
        world_size: int,
        bucket_cap_mb: float = 25.0,
        find_unused_parameters: bool = False,
    ) -> None:
        self._ddp = DDPStrategy(
            device=device,
            precision=precision,
            rank=rank,
            world_size=world_size,
            bucket_cap_mb=bucket_cap_mb,
            find_unused_parameters=find_unused_parameters,
        )
        self.layout = self._ddp.layout
        self._model: nn.Module
        self._optimizer: ZeroRedundancyOptimizer

    @property
    def loss_scale(self) -> Tensor | None:
        return self._ddp.loss_scale

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        def make_sharded(named_parameters: Iterable[tuple[str, nn.Parameter]]) -> Optimizer:
            self._optimizer = _shard(make_optimizer(named_parameters))
            return self._optimizer

        self._model = model
        self._ddp.prepare(model, blocks, make_sharded)

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        return self._ddp.forward_backward(micro_batches, phases)

    def watch_gradients(self) -> GradientWatch:
        return self._ddp.watch_gradients(has_whole_states=False)

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        return self._ddp.optimizer_step(max_grad_norm)

    def predict(self, batch: Batch) -> Tensor:
        return self._ddp.predict(batch)

    def state(self) -> "Zero1State":
        return Zero1State(self._model, self._optimizer, rank=self.layout.rank, scaler=self._ddp.scaler)

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor:
        return self._ddp.reduce(value, op)

    def close(self) -> None:
        self._ddp.close()
        del self._model, self._optimizer


class Zero1State:
    """Weights, which every rank has, and optimizer states, each from the rank that has it (see `protocol.State`)."""

    def __init__(
        self, model: nn.Module, optimizer: "ZeroRedundancyOptimizer", *, rank: int, scaler: LossScaler | None = None
    ) -> None:
        self._rank = rank
        self._parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        self._local = optimizer.optim
        self._weights = whole.WholeState(model, self._local, rank=rank, scaler=scaler)

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor | None]]:
        yield from (item for item in self._weights.tensors(prefix) if not item[0].startswith("optimizer/"))
        # Sends and receives are matched by their order, so every rank runs this loop over the states of all ranks.
        owners = self._owners()
        for name, parameter in self._parameters.items():
            for state_name in whole.OPTIMIZER_STATES:
                key = f"optimizer/{name}/{state_name}"
                if owners[name] >= 0 and key.startswith(prefix):
                    yield key, self._send_to_rank_0(parameter, state_name, owners[name])

    def load(self, read: Callable[[str], Tensor], keys: Iterable[str]) -> None:
        mine = {id(parameter) for group in self._local.param_groups for parameter in group["params"]}
        wanted = []
        for key in keys:
            name = key.removeprefix("optimizer/").rpartition("/")[0]
            if not key.startswith("optimizer/") or id(self._parameters[name]) in mine:
                wanted.append(key)
        self._weights.load(read, wanted)

    def _owners(self) -> dict[str, int]:
        """Return the rank that has the states of each parameter; -1 before the first step."""
        owned = [self._rank if p in self._local.state else -1 for p in self._parameters.values()]
        owners = torch.tensor(owned)
        # At most one rank has a value other than -1.
        dist.all_reduce(owners, op=dist.ReduceOp.MAX)
        return dict(zip(self._parameters, owners.tolist(), strict=True))

    def _send_to_rank_0(self, parameter: nn.Parameter, name: str, owner: int) -> Tensor | None:
        is_scalar = name == "step"
        return whole.send_to_rank_0(
            self._local.state[parameter][name] if self._rank == owner else None,
            owner=owner,
            rank=self._rank,
            shape=torch.Size() if is_scalar else parameter.shape,
            dtype=torch.float32 if is_scalar else parameter.dtype,
            device=parameter.device,
        )


def _shard(optimizer: Optimizer) -> "ZeroRedundancyOptimizer":
    """Return ZeRO-1 with the parameter groups and settings of an optimizer of all parameters.

    Both optimizers share the group dictionaries, so a new learning rate in one is also set in the other.
    """
    with warnings.catch_warnings():
        # Its package compiles functional optimizers with torch.jit, which torch deprecates.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.distributed.optim import ZeroRedundancyOptimizer
    # `defaults` also has settings of AdamW's base class (decoupled_weight_decay), which AdamW itself does not accept.
    known = inspect.signature(type(optimizer)).parameters
    defaults = {key: value for key, value in optimizer.defaults.items() if key in known}
    return ZeroRedundancyOptimizer(optimizer.param_groups, optimizer_class=type(optimizer), **defaults)
