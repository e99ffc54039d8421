"""The time of strategies that shard weights: FSDP2 and DeepSpeed, with offload.

Each of the `L` blocks is a unit that is gathered and reduced separately; the rest (embeddings and head) is one more.
"""

import math
from collections.abc import Sequence

from paratune.planning.work import Work, update_passes


def gathered_forward_s(work: Work, gathers: Sequence[float], first: float) -> float:
    """Return the seconds that gathering adds to a forward pass: a block is gathered while the previous one computes.

    The gathers of the rest (embeddings) and of the first block overlap nothing.

    Source: PyTorch, docs of torch.distributed.fsdp.fully_shard: implicit prefetching in forward.
    """
    block_s = work.forward_s / max(1, len(gathers))
    overlapped = [*gathers[1:], 0.0] if gathers else []
    hidden = first + sum(gathers[:1]) + math.fsum(max(0.0, seconds - block_s) for seconds in overlapped)
    return work.overlap * hidden + (1 - work.overlap) * (first + math.fsum(gathers))


def gathered_backward_s(work: Work, gathers: Sequence[float], first: float, reductions: Sequence[float]) -> float:
    """Return the seconds that gathers and reduce-scatters add to a backward pass.

    While a block computes, the next one is gathered and the gradients of the previous one are reduced, over one link.
    The gathers of the rest and of the last block, before all others, and the reduce-scatters of the first block and of
    the rest, at the end, overlap nothing.
    """
    block_s = work.backward_s / max(1, len(gathers))
    gather_order = [*reversed(gathers)]
    reduce_order = [*reversed(reductions[:-1])]
    overlapped = (
        [a + b for a, b in zip([*gather_order[1:], 0.0], [0.0, *reduce_order[:-1]], strict=True)]
        if gather_order
        else []
    )
    ends = first + sum(gather_order[:1]) + sum(reduce_order[-1:]) + reductions[-1]
    hidden = ends + math.fsum(max(0.0, seconds - block_s) for seconds in overlapped)
    total = first + math.fsum(gather_order) + math.fsum(reductions)
    return work.overlap * hidden + (1 - work.overlap) * total


def offload_s(work: Work, group: int, *, gathered: int, copies_out: int) -> float:
    """Return the seconds of copies between host and device, and of the update on the host.

    Copies overlap nothing: the collective or the update that needs a copy waits for it.

    Args:
        work: The work of the step.
        group: Ranks that share the states.
        gathered: Bytes of the weights whose shards are copied to the devices in a step, of all ranks together.
        copies_out: How often gradients are copied to the host in a step.
    """
    constants, ranks = work.constants, work.setup.ranks_per_node
    # States on the host are fp32.
    wider = work.setup.state_bytes / work.profile.weight_bytes if work.setup.reduces_in_wider_dtype else 1.0
    crossing = (wider * gathered + copies_out * work.grads) / group / constants["host_link"].value
    # The ranks of a machine share its memory.
    updating = update_passes(work.setup) * work.updated / group * ranks / constants["adamw.host"].value
    return crossing + updating * constants.value("factor.optimizer", 1.0)
