"""The collectives of a step in bytes; the modules of `planning.kinds` list them and compute their times.

Scalars (gradient norms, losses) and an engine's messages about its buckets are not counted. `N` ranks, `m`
micro-batches, `v` stages on a rank.
"""

from dataclasses import dataclass

from paratune.planning.links import Collective, ring_bytes
from paratune.planning.profile import Profile
from paratune.planning.setup import PredictionSetup
from paratune.planning.states import padded_sum


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
        """Bytes that a rank sends in all these calls; for broadcasts with different roots, the mean over ranks."""
        return self.num_calls * ring_bytes(self.collective, self.num_bytes, self.num_ranks)


def unit_weights(profile: Profile, num_shards: int = 1) -> list[int]:
    """Return the bytes of the weights of each block, frozen ones included, and last those of the rest.

    Args:
        profile: Of the model.
        num_shards: Number of equal shards to which FSDP2 pads each weight.
    """
    return [profile.weight_bytes * padded_sum(part, num_shards) for part in (*profile.blocks, profile.rest)]


def unit_gradients(profile: Profile, setup: PredictionSetup, num_shards: int = 1) -> list[int]:
    """Return the bytes of the gradients of each block, and last those of the rest; see `unit_weights`.

    In the dtype in which they are summed over ranks: under FSDP2 fp32, also for weights of 16 bits.
    """
    size = setup.precision.reduce_dtype.itemsize if setup.reduces_in_wider_dtype else profile.weight_bytes
    return [size * padded_sum(part, num_shards, trained=True) for part in (*profile.blocks, profile.rest)]
