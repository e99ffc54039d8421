"""Measures the network between nodes: all-reduces over all ranks of a job on several nodes.

The processes are started by torchrun, whose variables give the rendezvous. It has not been run on CUDA (NCCL).
"""

from datetime import timedelta

import torch
import torch.distributed as dist

from paratune.planning.clock import CallSeconds, HostCallClock
from paratune.planning.constants import BoundedConstant
from paratune.planning.probe_links import REPEATS, measure_fixed

TIMEOUT_S = 1800
"""Longest wait of the other ranks while rank 0 measures its node."""
SMALL, LARGE_ON_CPU, LARGE_ON_GPU = 1 << 8, 1 << 22, 1 << 26
"""Elements in float32: 1 KiB, which measures latency, 16 MiB on a CPU and 256 MiB on a GPU."""


def measure_network(device: torch.device, ranks_per_node: int, within_s: float) -> dict[str, BoundedConstant]:
    """Return the constants of the network, measured by all ranks together. Collective.

    `within_s` are the seconds of a step between two devices of a node; unused if a node has one rank.

    Raises:
        RuntimeError: The ranks could not connect.
    """
    on_cuda = device.type == "cuda"
    if on_cuda:
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=TIMEOUT_S)
    dist.init_process_group("nccl" if on_cuda else "gloo", timeout=timeout, device_id=device if on_cuda else None)
    try:
        num_large = LARGE_ON_GPU if on_cuda else LARGE_ON_CPU
        small, large = (_measure_all_reduce(torch.ones(size, device=device)) for size in (SMALL, num_large))
        return network_constants(small, large, 4 * num_large, dist.get_world_size(), ranks_per_node, within_s=within_s)
    finally:
        dist.destroy_process_group()


def _measure_all_reduce(tensor: torch.Tensor) -> CallSeconds:
    """Time an all-reduce from barrier to completion."""

    def call() -> None:
        dist.all_reduce(tensor)
        if tensor.is_cuda:
            torch.cuda.synchronize()

    # The clock of the host must not start before the GPU has finished the barrier.
    return measure_fixed(call, 1, HostCallClock(), torch.cuda.synchronize if tensor.is_cuda else None)


def network_constants(
    small: CallSeconds, large: CallSeconds, num_bytes: int, num_ranks: int, ranks_per_node: int, *, within_s: float
) -> dict[str, BoundedConstant]:
    """Return the constants of the network from the times of two all-reduces.

    A ring of N ranks has 2 (N - 1) steps and moves 2 (N - 1) / N n bytes over its slowest link. Of r ranks on a node,
    one step in r goes through the network, as in `links.link_between`.

    Args:
        small: Time of an all-reduce that only latency determines.
        large: Time of an all-reduce of n bytes.
        num_bytes: n.
        num_ranks: N, at least 2.
        ranks_per_node: r.
        within_s: Seconds of a step between two devices of a node; unused if r is 1.
    """
    steps = 2 * (num_ranks - 1)
    seconds = max(large.fastest_s - small.fastest_s, 0.1 * large.fastest_s)
    rate = steps / num_ranks * num_bytes / seconds
    step_s = small.fastest_s / steps
    latency = max(0.1 * step_s, ranks_per_node * step_s - (ranks_per_node - 1) * within_s)
    spread, small_spread = (max(1.2, 1 + measured.spread) for measured in (large, small))
    by = f"by {num_ranks} ranks on {num_ranks // ranks_per_node} nodes, fastest of {REPEATS}"
    source = f"measured: all-reduce of {num_bytes >> 20} MiB {by}"
    small_source = f"measured: all-reduce of 1 KiB {by}"
    return {
        "network": BoundedConstant.around(rate, spread, 1.2, source),
        "network.latency": BoundedConstant.around(latency, 1.5, 1.5 * small_spread, small_source),
    }
