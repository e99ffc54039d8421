"""Collectives in bytes; `plan.kinds` lists those of a step, and computes their times.

Single numbers (gradient norms, losses) and what an engine exchanges about its buckets are left out. `N` ranks, `m`
micro-batches, `v` stages on a rank.
"""

from dataclasses import dataclass

from paratune.plan.links import Collective, ring_bytes
from paratune.plan.profile import Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.states import padded


@dataclass(frozen=True)
class Transfer:
    """Equal calls of one collective in a step."""

    collective: Collective
    num_bytes: float
    """Of the whole tensor of one call, not of a shard."""
    num_ranks: int
    """Of the group."""
    num_calls: int = 1

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in all these calls; of broadcasts, whose roots differ, the mean over ranks."""
        return self.num_calls * ring_bytes(self.collective, self.num_bytes, self.num_ranks)


def unit_weights(profile: Profile, num_shards: int = 1) -> list[int]:
    """Return the bytes of the weights of each block, frozen ones included, and last those of the rest.

    Args:
        profile: Of the model.
        num_shards: Equal parts to which FSDP2 pads each weight.
    """
    parts = (*profile.blocks, profile.rest)
    return [profile.weight_bytes * sum(padded(each, num_shards) for each in part.parameters) for part in parts]


def unit_gradients(profile: Profile, setup: PredictionSetup, num_shards: int = 1) -> list[int]:
    """Return the bytes of the gradients of each block, and last those of the rest; see `unit_weights`.

    They are those of gradients as they are summed over ranks: under FSDP2 in fp32, also of weights of 16 bits.
    """
    size = setup.precision.reduce_dtype.itemsize if setup.reduces_wider else profile.weight_bytes
    parts = (*profile.blocks, profile.rest)
    trained = [[each for each in part.parameters if each.is_trained] for part in parts]
    return [size * sum(padded(each, num_shards) for each in part) for part in trained]
