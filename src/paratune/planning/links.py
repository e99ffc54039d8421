"""The time of collectives between ranks: rings over the slowest link, or trees, each step with its latency.

No torch. `N` ranks, `n` bytes of the whole tensor.

Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009, section 3;
the same factors are those of the bus bandwidth in nccl-tests, doc/PERFORMANCE.md.
"""

import math
from dataclasses import dataclass
from typing import Literal

from paratune.planning.constants import Constants

TREE_SHARE = 0.9
"""Bandwidth of a tree over that of a ring. Source: NCCL, src/graph/tuning.cc, `ncclTopoTuneModel`."""
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
    call_s: float = 0.0
    """Of each collective, for any ranks and bytes."""
    tree_s: float | None = None
    """Latencies of all steps of a tree, up and down; None where all-reduces use rings only (gloo)."""

    def seconds(self, collective: Collective, num_bytes: float) -> float:
        """Return the seconds of a collective of `num_bytes`, which all ranks together have of a gather's shards.

        An all-reduce takes 2 (N - 1) steps, a gather and a reduce-scatter N - 1. NCCL takes a tree for an all-reduce
        where it is faster: it sends 2 n with `TREE_SHARE` of the bandwidth, in fewer steps.
        """
        if self.num_ranks == 1:
            return 0.0
        steps = {"all_reduce": 2 * (self.num_ranks - 1), "send": 1}.get(collective, self.num_ranks - 1)
        seconds = ring_bytes(collective, num_bytes, self.num_ranks) / self.bytes_per_s + steps * self.latency_s
        if collective == "all_reduce" and self.tree_s is not None:
            seconds = min(seconds, 2 * num_bytes / (TREE_SHARE * self.bytes_per_s) + self.tree_s)
        return self.call_s + seconds

    def broadcasts_s(self, num_bytes: float, num_tensors: int) -> float:
        """Return the seconds of broadcasts, tensor by tensor, whose roots are spread over the ranks.

        All broadcasts run together: each link carries the same bytes as in a gather.
        """
        moved = ring_bytes("broadcast", num_bytes, self.num_ranks)
        steps = num_tensors / self.num_ranks * (self.num_ranks - 1)
        return moved / self.bytes_per_s + steps * self.latency_s + (num_tensors * self.call_s if steps else 0.0)


def ring_bytes(collective: Collective, num_bytes: float, num_ranks: int) -> float:
    """Return the bytes that each rank of N sends, and receives, in a collective over a ring.

    n (`num_bytes`) is the size of the whole tensor, not of a shard. For a broadcast this is the mean over ranks (the
    root receives nothing, the last rank sends nothing); for a send the bytes of the sending rank.
    """
    if num_ranks == 1:
        return 0.0
    share = (num_ranks - 1) / num_ranks
    factors = {"all_reduce": 2 * share, "send": 1.0}
    return num_bytes * factors.get(collective, share)


def link_between(constants: Constants, num_ranks: int, ranks_per_node: int, *, stride: int = 1) -> Link:
    """Return the ring through a group of ranks.

    A ring enters and leaves each machine once, so it uses the whole network of it. `stride` is the distance between the
    ranks of the group: 1 for neighbours. Parallel groups (one for each shard of hybrid sharding) share the network.

    Raises:
        UnknownConstant: The constant of the link is unknown.

    Source: NCCL, src/graph/tuning.cc: steps of a ring between machines have the latency of the network, the others that
        of the links inside a machine. A tree is a chain inside a machine, and a binary tree between machines.
    """
    call_s = constants.value("link.call", 0.0)
    if num_ranks == 1:
        return Link(1, 1.0, 0.0)
    if (num_ranks - 1) * stride < ranks_per_node:
        tree_s = _tree_s(constants, num_ranks, num_ranks)
        latency_s = constants["link.latency"].value
        return Link(num_ranks, constants["link"].value, latency_s, call_s, tree_s)
    beside = min(stride, ranks_per_node)
    rate = constants["network"].value / beside
    if "link" in constants and ranks_per_node > stride:
        rate = min(rate, constants["link"].value)
    between = constants["network.latency"].value
    within, num_within = constants.value("link.latency", between), max(1, ranks_per_node // stride)
    latency_s, tree_s = (between + (num_within - 1) * within) / num_within, _tree_s(constants, num_ranks, num_within)
    return Link(num_ranks, rate, latency_s, call_s=call_s, tree_s=tree_s)


def _tree_s(constants: Constants, num_ranks: int, num_within: int) -> float | None:
    """Return the latencies of an all-reduce by a tree; None where its constants are unknown (gloo)."""
    num_machines = -(-num_ranks // num_within)
    if "link.tree" not in constants or (num_machines > 1 and "network.tree" not in constants):
        return None
    between = math.log2(num_machines) * constants["network.tree"].value if num_machines > 1 else 0.0
    return 2 * ((num_within - 1) * constants["link.tree"].value + between)
