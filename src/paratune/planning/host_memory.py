"""The memory that the processes of a node need on its host, besides that of the devices: an interval. No torch."""

from dataclasses import dataclass

from paratune.base.units import GIB
from paratune.planning.setup import PredictionSetup

_PROCESS_BYTES = (0.25 * GIB, 4 * GIB)
"""Resident memory of a process without weights: torch and transformers have 245 MiB on a CPU (measured, torch 2.13);
with CUDA, NCCL, pinned buffers and workers of the loader 4 GiB are assumed."""
_LOADED_BYTES = 4
"""Weights are loaded in float32, whatever the precision of the training."""


@dataclass(frozen=True)
class HostMemory:
    """Bytes that all processes of a node need together, at their peak."""

    low: int
    """Weights are loaded from a mapped file that the processes share."""
    high: int
    """Every process has a copy of the weights, which exists as long as the offloaded states."""

    def fit(self, total_bytes: int | None) -> str:
        """Return "yes", "tight" (the upper bound does not fit), "no" or "unknown" for the memory of a node."""
        if total_bytes is None:
            return "unknown"
        return "no" if self.low > total_bytes else "tight" if self.high > total_bytes else "yes"


def host_memory(num_parameters: int, setup: PredictionSetup, states_bytes: int) -> HostMemory:
    """Return the host memory of a node whose devices have their own memory.

    Args:
        num_parameters: Of the whole model, which every process loads.
        setup: Strategy, precision, ranks and micro-batches of the job.
        states_bytes: States that a rank keeps on the host.
    """
    ranks, weights = setup.ranks_per_node, _LOADED_BYTES * num_parameters
    low, high = (ranks * size for size in _PROCESS_BYTES)
    return HostMemory(
        low=round(low + max(weights, ranks * states_bytes)), high=round(high + ranks * (weights + states_bytes))
    )
