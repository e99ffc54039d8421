"""What travels between ranks, and how long that takes: rings over the slowest link, each step with its latency.

No torch. `N` ranks, `n` bytes of what is reduced or gathered.

Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009, section 3;
the same factors are those of the bus bandwidth in nccl-tests, doc/PERFORMANCE.md.
"""

from dataclasses import dataclass
from typing import Literal

from paratune.plan.constants import Constants

Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send"]


@dataclass(frozen=True)
class Link:
    """The slowest link of a ring."""

    num_ranks: int
    """N."""
    bytes_per_s: float
    """One direction."""
    latency_s: float
    """Of one step of the ring, on average."""
    gather_bytes_per_s: float | None = None
    """The same for gathers, where it is known to be another."""
    scatter_bytes_per_s: float | None = None
    """The same for reduce-scatters."""

    def all_reduce_s(self, num_bytes: float) -> float:
        """Return the seconds of a sum that every rank gets: 2 (N - 1) / N n, in 2 (N - 1) steps."""
        moved = ring_bytes("all_reduce", num_bytes, self.num_ranks)
        return moved / self.bytes_per_s + 2 * (self.num_ranks - 1) * self.latency_s

    def all_gather_s(self, num_bytes: float) -> float:
        """Return the seconds of gathering `num_bytes` of shards, all ranks' together: (N - 1) / N n in N - 1 steps."""
        return self._sharded_s(num_bytes, self.gather_bytes_per_s)

    def reduce_scatter_s(self, num_bytes: float) -> float:
        """Return the seconds of a sum of `num_bytes` of which every rank gets its shard: as `all_gather_s`."""
        return self._sharded_s(num_bytes, self.scatter_bytes_per_s)

    def broadcasts_s(self, num_bytes: float, num_tensors: int) -> float:
        """Return the seconds in which every rank's part of the bytes reaches all others, tensor by tensor.

        All broadcasts are under way together, and their roots are spread: each link carries what it does in a gather.
        """
        moved = ring_bytes("broadcast", num_bytes, self.num_ranks)
        return moved / self.bytes_per_s + num_tensors / self.num_ranks * (self.num_ranks - 1) * self.latency_s

    def send_s(self, num_bytes: float) -> float:
        """Return the seconds from one rank to the next."""
        return 0.0 if self.num_ranks == 1 else num_bytes / self.bytes_per_s + self.latency_s

    def _sharded_s(self, num_bytes: float, bytes_per_s: float | None) -> float:
        moved = ring_bytes("all_gather", num_bytes, self.num_ranks)
        return moved / (bytes_per_s or self.bytes_per_s) + (self.num_ranks - 1) * self.latency_s


def ring_bytes(collective: Collective, num_bytes: float, num_ranks: int) -> float:
    """Return the bytes that each rank sends, and receives, in a collective over a ring.

    Of a broadcast, whose root receives nothing and whose last rank sends nothing, the mean over ranks; of a send the
    bytes of the rank that sends.

    Args:
        collective: What is called.
        num_bytes: n: of the whole, not of a shard.
        num_ranks: N.
    """
    if num_ranks == 1:
        return 0.0
    share = (num_ranks - 1) / num_ranks
    factors = {"all_reduce": 2 * share, "send": 1.0}
    return num_bytes * factors.get(collective, share)


def link_between(constants: Constants, num_ranks: int, ranks_per_node: int, *, stride: int = 1) -> Link:
    """Return the ring through a group of ranks.

    Args:
        constants: Of the machine.
        num_ranks: Of the group.
        ranks_per_node: Of the run. A ring enters a machine once and leaves it once, so it has all of its network.
        stride: Between the ranks of the group: 1 for neighbours. Groups side by side (one for each shard of hybrid
            sharding) share the network.

    Raises:
        UnknownFigure: The machine has no figure for the link that is needed.

    Source: NCCL, src/graph/tuning.cc: of a ring's steps those between machines have the latency of the network, all
        others that of the links within.
    """
    if num_ranks == 1:
        return Link(1, 1.0, 0.0)
    if (num_ranks - 1) * stride < ranks_per_node:
        others = (constants[name].value if name in constants else None for name in ("link.gather", "link.scatter"))
        return Link(num_ranks, constants["link"].value, constants["link.latency"].value, *others)
    beside = min(stride, ranks_per_node)
    rate = constants["network"].value / beside
    if "link" in constants and ranks_per_node > stride:
        rate = min(rate, constants["link"].value)
    between = constants["network.latency"].value
    within, num_within = constants.value("link.latency", between), max(1, ranks_per_node // stride)
    return Link(num_ranks, rate, (between + (num_within - 1) * within) / num_within)
