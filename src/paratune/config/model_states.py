"""Bytes of weights, gradients and optimizer states on a rank, from what the traits of a strategy say.

The one count that advice, the doctor, and plans for strategies from outside make; `plan.kinds` refines it by what each
engine pads, aligns and copies.
"""

from collections.abc import Collection
from dataclasses import dataclass

from paratune.config.traits import Traits


@dataclass(frozen=True)
class NumberBytes:
    """Bytes of one number of each kind."""

    weight: int
    gradient: int
    optimizer: int
    """Of all that the optimizer keeps for it: moments, and a copy of a weight of fewer bits."""

    @property
    def total(self) -> int:
        return self.weight + self.gradient + self.optimizer


MIXED_ADAM = NumberBytes(weight=2, gradient=2, optimizer=12)
"""Weights and gradients in 16 bits; the fp32 copy and both moments of Adam (K = 12 in the paper on ZeRO)."""


@dataclass(frozen=True)
class StateBytes:
    """On one rank."""

    weights: int
    gradients: int
    optimizer: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimizer


def adam_bytes(param_bytes: int = 4) -> NumberBytes:
    """Return the sizes where everything is in the dtype of the weights, with two moments: 4 bytes, or 8 in fp64."""
    return NumberBytes(param_bytes, param_bytes, 2 * param_bytes)


def model_state_bytes(
    num_parameters: int,
    *,
    num_trained: int | None = None,
    shards: Collection[str] = (),
    num_shards: int = 1,
    numbers: NumberBytes | None = None,
) -> StateBytes:
    """Return what one rank holds where what is sharded is divided evenly, rounded up.

    Args:
        num_parameters: Of the whole model.
        num_trained: Those that have gradients and optimizer states; all of them when None.
        shards: What each rank holds only a part of, as `Traits.shards`: any of weights, gradients, optimizer.
        num_shards: Ranks that share one copy, at least 1; see `shard_count`.
        numbers: Bytes of each number; `adam_bytes()` when None.

    Returns:
        Bytes without activations, buffers of the model, padding and fragments.

    Source: Rajbhandari et al., ZeRO, SC 2020, figure 1.
    """
    numbers = numbers or adam_bytes()
    trained = num_parameters if num_trained is None else num_trained
    whole = {
        "weights": numbers.weight * num_parameters,
        "gradients": numbers.gradient * trained,
        "optimizer": numbers.optimizer * trained,
    }
    return StateBytes(**{name: -(-size // num_shards) if name in shards else size for name, size in whole.items()})


def shard_count(traits: Traits, num_ranks: int, ranks_per_node: int) -> int:
    """Return the ranks that share one copy of what a strategy shards; those of a pipeline hold a stage each.

    Args:
        traits: Of the strategy, under its options.
        num_ranks: Of the run.
        ranks_per_node: On one machine.
    """
    if traits.cuts_blocks:
        return traits.ranks_per_replica
    return ranks_per_node if traits.shards_within_node else traits.shard_size or num_ranks
