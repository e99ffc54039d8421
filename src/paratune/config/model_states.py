"""Bytes of weights, gradients and optimizer states on a rank, from the traits of a strategy.

Advice and the doctor use them; `planning.kinds` adds padding, alignment and copies.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from paratune.config.traits import Traits


@dataclass(frozen=True)
class NumberBytes:
    """Bytes for one parameter."""

    weight: int
    gradient: int
    optimizer: float
    """Moments, and the fp32 copy of a 16-bit weight; a mean over parameters if it depends on them."""


def adam_bytes(param_bytes: int = 4) -> NumberBytes:
    """Return the bytes for one parameter with two moments, all in the dtype of the weights: 4 bytes, or 8 in fp64."""
    return NumberBytes(param_bytes, param_bytes, 2 * param_bytes)


BLOCK_SIZE = 256
"""Numbers of a moment of adamw_8bit with one scale."""
SMALLEST_8_BITS = 4096
"""With adamw_8bit, parameters with fewer numbers, or with a number that blocks do not divide, have moments of 32
bits."""
PART_NUMBERS_8_BITS = 2**22
"""Most numbers of a parameter that adamw_8bit updates together, so that the memory of an update is bounded."""


def has_8_bits(num_numbers: int) -> bool:
    """Return whether adamw_8bit keeps the moments of a parameter with so many numbers in 8 bits."""
    return num_numbers >= SMALLEST_8_BITS and num_numbers % BLOCK_SIZE == 0


def compact_state_tensors(optimizer: str, shape: Sequence[int], *, param_bytes: int = 4) -> tuple[int, ...] | None:
    """Return the bytes of each state tensor of a parameter, without its step count; None for AdamW.

    adamw_8bit has codes of a byte for each number and scales in float32 for each block, of both moments; adafactor one
    number for each row and each column of a matrix, or one for each number of a vector.

    Args:
        param_bytes: Bytes of one of its numbers.
    """
    numbers = math.prod(shape)
    if optimizer == "adamw_8bit":
        moment = (numbers, 4 * numbers // BLOCK_SIZE) if has_8_bits(numbers) else (param_bytes * numbers,)
        return 2 * moment
    if optimizer == "adafactor":
        sums = (numbers // shape[-1], numbers // shape[-2]) if len(shape) > 1 else (numbers,)
        return tuple(param_bytes * count for count in sums)
    return None


def model_state_bytes(
    num_parameters: int,
    *,
    num_trained: int | None = None,
    shards: Collection[str] = (),
    num_shards: int = 1,
    numbers: NumberBytes | None = None,
) -> int:
    """Return the bytes of weights, gradients and optimizer states on one rank, with equal shards, rounded up.

    Args:
        num_parameters: Of the whole model.
        num_trained: Parameters with gradients and optimizer states; all when None.
        shards: Sharded states, as in `Traits.shards`: any of weights, gradients, optimizer.
        num_shards: Ranks that share one copy, at least 1; see `shard_count`.
        numbers: Bytes for one parameter; `adam_bytes()` when None.

    Returns:
        Bytes without activations, buffers of the model, padding and fragmentation.

    Source: Rajbhandari et al., ZeRO, SC 2020, figure 1.
    """
    numbers = numbers or adam_bytes()
    trained = num_parameters if num_trained is None else num_trained
    whole = {
        "weights": numbers.weight * num_parameters,
        "gradients": numbers.gradient * trained,
        "optimizer": round(numbers.optimizer * trained),
    }
    return sum(-(-size // num_shards) if name in shards else size for name, size in whole.items())


def shard_count(traits: Traits, num_ranks: int, ranks_per_node: int) -> int:
    """Return the number of ranks that share one copy of the sharded states; in a pipeline, the number of its ranks."""
    if traits.cuts_blocks:
        return traits.ranks_per_replica
    return ranks_per_node if traits.shards_within_node else traits.shard_size or num_ranks
