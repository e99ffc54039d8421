"""ZeRO-1 with PyTorch's ZeroRedundancyOptimizer: a rank keeps the optimizer states of a part of the weights."""

import inspect
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from paratune.strategies import whole
from paratune.strategies.loss_scale import LossScaler
from paratune.strategies.protocol import Read


class Zero1State:
    """Weights, which every rank has, and optimizer states, each from the rank that has it (see `protocol.State`)."""

    def __init__(self, model: nn.Module, optimizer: Any, *, rank: int, scaler: LossScaler | None = None) -> None:
        """Give access to the states of `optimizer`, the result of `shard_optimizer`."""
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

    def load(self, read: Read, keys: Iterable[str]) -> None:
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


def shard_optimizer(optimizer: Optimizer) -> Optimizer:
    """Return a `ZeroRedundancyOptimizer` with the parameter groups and settings of an optimizer of all parameters.

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
