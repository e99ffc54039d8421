"""The protocol that every parallel strategy meets: seven verbs and one fact.

The engine knows strategies only by this page. It is made so that a pipeline schedule, which owns forward and backward
together, fits as well as data parallelism, where they are apart: `forward_backward` is one verb, takes all
micro-batches of the step, and times what it does through `phases`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, runtime_checkable

from torch import Tensor, nn
from torch.optim import Optimizer

from paratune.batch import Batch
from paratune.config.traits import Traits

ReduceOp = Literal["sum", "max", "min", "concat"]
MakeOptimizer = Callable[[Iterable[tuple[str, nn.Parameter]]], Optimizer]
Phases = Callable[[str], AbstractContextManager[None]]
"""`with phases("forward"): ...` adds the time of the block to that phase of the step; may be entered many times.

`with phases("schedule"): ...` around the passes of a pipeline shows how long it computed nothing between them."""


@dataclass(frozen=True)
class Layout:
    """Which ranks there are and which of them see the same data.

    Ranks that work on one replica of the model (the stages of a pipeline) share a `data_rank`; data is dealt by it.
    """

    rank: int
    world_size: int
    data_rank: int
    data_world_size: int


class State(Protocol):
    """Weights and optimizer states, whole and by name, whatever the sharding; so checkpoints move between strategies.

    Keys are `model/<parameter or buffer name>`, `optimizer/<parameter name>/<state name>`, and `strategy/<name>` for
    what a strategy itself has to remember, such as its loss scale. A run that goes on with another strategy or in
    another precision ignores the names under `strategy/` that it does not have.
    """

    def tensors(self, prefix: str = "") -> Iterator[tuple[str, Tensor | None]]:
        """Yield each key that starts with `prefix`, in the same order on every rank, with the whole tensor on the CPU
        on rank 0 and None elsewhere. Collective: every rank must run through all of it."""
        ...

    def load(self, read: Callable[[str], Tensor], keys: Iterable[str]) -> None:
        """Take over the tensors named by `keys` (some or all of those of `tensors`), each rank what it holds of them.

        Raises:
            KeyError: A key is not known here; not one of `strategy/`.
            ValueError: A shape does not fit.
        """
        ...


class Strategy(Protocol):
    """How one training job is spread over devices. Constructed inside each process, with the process group up.

    What a strategy may have besides: `ScalesLoss`, `WatchesGradients`.
    """

    traits: ClassVar[Traits]
    layout: Layout

    def prepare(self, model: nn.Module, blocks: Sequence[nn.Module], make_optimizer: MakeOptimizer) -> None:
        """Shard, wrap and place the model, then make the optimizer of what this rank holds.

        Args:
            model: A `BatchModel` on the CPU, the same on every rank.
            blocks: Its repeated layers in order, for strategies that cut there.
            make_optimizer: Called with (name, parameter) pairs, after sharding.
        """
        ...

    def forward_backward(self, micro_batches: Sequence[Batch], phases: Phases) -> Tensor:
        """Compute the gradients of one optimizer step.

        Returns:
            This rank's part of the loss, detached, on the device: the sum over all ranks is the loss of the step, each
            sample counted once.

        Memory may run out in here. A strategy for one process (`traits.max_world_size` is 1) is then called again with
        smaller micro-batches, after the gradients of its optimizers were cleared.
        """
        ...

    def optimizer_step(self, max_grad_norm: float | None) -> Tensor:
        """Clip, update the weights and clear the gradients.

        Returns:
            The norm of the whole model's gradient before clipping, the same scalar on every rank, on the device. One
            that is not finite, of a strategy that scales the loss, means that the weights were left as they are.
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
        """Release what the strategy holds; the object is not used afterwards."""
        ...


@runtime_checkable
class ScalesLoss(Protocol):
    """A strategy that can scale the loss, without which it does not train where `Precision.scales_loss`."""

    @property
    def loss_scale(self) -> Tensor | float | None:
        """The scale of the last step, a number or a scalar on the device; None where this run has none.

        With one, gradient norms need not be finite, because such steps are skipped; without, that is an error.
        """
        ...


class Watch(Protocol):
    """Adds up the squared norms of gradients in a block; `gradient_watch.GradientWatch` is one."""

    def __enter__(self) -> Self: ...

    def __exit__(self, kind: Any, error: Any, at: Any, /) -> None: ...

    def squared_norm(self) -> Tensor | None:
        """Return sum |g_i|^2 over micro-batches, a float64 scalar on the device; None where there was no gradient."""
        ...


@runtime_checkable
class WatchesGradients(Protocol):
    """A strategy whose gradients can be seen micro-batch by micro-batch: the gradient noise scale is measured by it."""

    def watch_gradients(self) -> Watch:
        """Return what is entered around one `forward_backward`.

        Raises:
            NotImplementedError: There is none in this run; the text says why.
        """
        ...


def loss_scale_of(strategy: object) -> Tensor | float | None:
    """Return the scale of the last step; None for a strategy that scales nothing, or not in this run."""
    return strategy.loss_scale if isinstance(strategy, ScalesLoss) else None
