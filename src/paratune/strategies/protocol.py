"""The protocol that every parallel strategy implements: seven methods, and the traits.

The engine uses strategies only through this protocol. `forward_backward` is one method that takes all micro-batches of
a step, because the schedule of a pipeline interleaves forward and backward passes. It measures them with `phases`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from paratune.base.piece import Piece
from paratune.batch import Batch
from paratune.config.traits import Traits
from paratune.errors import LaunchError

T = TypeVar("T")
ReduceOp = Literal["sum", "max", "min", "concat"]
MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
Read = Callable[..., Tensor]
"""`read(key)` returns a stored tensor, whole and on the CPU; `read(key, piece)` only these elements of it, flat.

It raises a ValueError if the tensor has another shape than `piece`; scalars are whole in any case."""
Phases = Callable[[str], AbstractContextManager[None]]
"""`with phases("forward"): ...` adds the time of the block to this phase of the step; a phase may be entered often.

`with phases("schedule"): ...` around all passes of a pipeline measures the time between them, the bubble."""


@dataclass(frozen=True)
class Layout:
    """The position of a rank among all ranks and among the shares of the data.

    Ranks that work on one replica of the model (the stages of a pipeline) have the same `data_rank` and so the same
    samples.
    """

    rank: int
    world_size: int
    data_rank: int
    data_world_size: int


class State(Protocol):
    """Weights and optimizer states as whole tensors with names, for checkpoints that every strategy can load.

    Keys are `model/<parameter or buffer name>`, `optimizer/<parameter name>/<state name>`, and `strategy/<name>` for
    the strategy's own state, such as its loss scale. A run that is resumed with another strategy or precision ignores
    unknown names under `strategy/`.
    """

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor | None]]:
        """Yield the keys that start with `prefix`, in the same order on every rank, each with the whole tensor on the
        CPU on rank 0, and None on other ranks. Collective: every rank must iterate to the end."""
        ...

    def load(self, read: Read, keys: Iterable[str]) -> None:
        """Load the tensors of `keys`, some or all keys of `tensors`; each rank keeps its own shards.

        Raises:
            KeyError: A key outside `strategy/` is unknown.
            ValueError: A tensor has the wrong shape.
        """
        ...


@runtime_checkable
class ShardedState(State, Protocol):
    """A state whose ranks can write a checkpoint together; that of a strategy with `traits.writes_shards`."""

    def pieces(self, prefix: str = "") -> Iterator[tuple[str, Piece, Tensor]]:
        """Yield the elements that this rank writes: key, place and values, flat, on any device.

        The keys are those of `tensors`. All ranks together yield each element once, and a rank yields a key at most
        once. It may be called when the other ranks do not call it.
        """
        ...


class Strategy(Protocol):
    """How the processes of a run share states and work. Each process makes one after it opened the process group.

    Optional capabilities: `ScalesLoss`, `WatchesGradients`, `ShardedState`.
    """

    traits: ClassVar[Traits]
    layout: Layout

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        """Shard, wrap and move the model to the device, then make the optimizer of this rank's parameters.

        Args:
            model: A `BatchModel` on the CPU, the same on every rank.
            blocks: Its repeated layers in order, for strategies that shard or divide the model by blocks.
            make_optimizer: Called with (name, parameter) pairs, after sharding.
        """
        ...

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        """Compute the gradients of one optimizer step.

        Returns:
            This rank's part of the loss, detached, on the device. The sum over all ranks is the loss of the step, in
            which each sample counts once.

        If memory runs out here, a strategy for one process (`traits.max_world_size` is 1) is called again with smaller
        micro-batches, after its gradients were cleared.
        """
        ...

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        """Clip, update the weights and clear the gradients.

        Returns:
            The norm of the whole model's gradient before clipping, the same scalar on every rank, on the device. If it
            is not finite, nothing has changed and, unless the strategy scales the loss, no later call changes anything:
            the engine reads the norm some steps later, and ends the run.
        """
        ...

    def predict(self, batch: Batch) -> Tensor:
        """Return the outputs of the model in eval mode without gradients, on the device. Collective."""
        ...

    def state(self) -> State:
        """Return access to weights and optimizer states."""
        ...

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor:
        """Combine a CPU tensor over all ranks; every rank gets the result. Collective.

        `concat` joins along the first dimension in rank order; the first dimension may differ between ranks.
        """
        ...

    def close(self) -> None:
        """Release all memory and process groups of the strategy, which is not used afterwards."""
        ...


@runtime_checkable
class ScalesLoss(Protocol):
    """A strategy that can scale the loss; where `Precision.scales_loss` is true, training needs it."""

    @property
    def loss_scale(self) -> Tensor | float | None:
        """The scale of the last step, a number or a scalar on the device; None if this run does not scale the loss.

        With a scale, steps whose gradient norm is not finite are skipped; without, such a norm is an error.
        """
        ...


@dataclass(frozen=True)
class UnavailableEstimate:
    """Why a measurement is not available."""

    code: str
    reason: str


class Watch(Protocol):
    """Adds up the squared norms of gradients in a block; `gradient_watch.GradientWatch` is one."""

    @property
    def why_not_preconditioned(self) -> UnavailableEstimate | None:
        """The reason why `preconditioned_squared_norms` is always None; None if there is no such reason."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: Any, error: Any, at: Any, /) -> None: ...

    def squared_norm(self) -> Tensor | None:
        """Return sum |g_i|^2 over micro-batches, a float64 scalar on the device; None without a gradient."""
        ...

    def preconditioned_squared_norms(self) -> tuple[Tensor, Tensor] | None:
        """Return sum |P g_i|^2, and this rank's part of |P g|^2, with AdamW's P; None where P is unknown.

        Called after `forward_backward` and before `optimizer_step`. Both are float64 scalars on the device; sums over
        ranks are those of the whole model.
        """
        ...


@runtime_checkable
class WatchesGradients(Protocol):
    """A strategy that can measure the gradient of each micro-batch, from which the noise scale is computed."""

    def watch_gradients(self) -> Watch:
        """Return a context manager for one `forward_backward`.

        Raises:
            NotImplementedError: This run cannot measure them; the message has the reason.
        """
        ...


def loss_scale_of(strategy: object) -> Tensor | float | None:
    """Return the loss scale of the last step; None if the strategy does not scale the loss in this run."""
    return strategy.loss_scale if isinstance(strategy, ScalesLoss) else None


def raise_on_all_ranks(reduce: Callable[[Tensor, ReduceOp], Tensor], error: Exception | None, other: Exception) -> None:
    """Raise `error` on the rank where it happened, and `other` on all other ranks if any rank has an error. Collective.

    Without this, the other ranks would continue and wait in their next collective for a rank that has ended.
    """
    failed = reduce(torch.tensor([float(error is not None)]), "max")
    if error is not None:
        raise error
    if float(failed):
        raise other


def gather_texts(reduce: Callable[[Tensor, ReduceOp], Tensor], text: str) -> list[str]:
    """Return the texts of all ranks, in rank order, on every rank. Collective."""
    content = text.encode()
    ends = reduce(torch.tensor([len(content)]), "concat").cumsum(0).tolist()
    joined = reduce(torch.from_numpy(np.frombuffer(content, np.uint8).copy()), "concat").numpy().tobytes()
    return [joined[begin:end].decode() for begin, end in pairwise([0, *ends])]


def on_rank_0(rank: int, reduce: Callable[[Tensor, ReduceOp], Tensor], act: Callable[[], T]) -> T | None:
    """Call `act` on rank 0 while the others wait; when it fails, every rank raises. Collective."""
    result, error = None, None
    if rank == 0:
        try:
            result = act()
        except Exception as problem:
            error = problem
    message = "rank 0 could not use the run folder; its message has the reason"
    raise_on_all_ranks(reduce, error, LaunchError(message, code="launch.rank_0_failed"))
    return result
