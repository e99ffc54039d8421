"""The time of strategies that shard weights: FSDP2's and DeepSpeed's, with what they keep on the host.

`L` blocks, each a unit that is gathered and reduced by itself, and one more for the rest (embeddings and head).
"""

import math
from collections.abc import Sequence

from paratune.plan.work import Work, update_passes


def gathered_forward_s(work: Work, gathers: Sequence[float], first: float) -> float:
    """Return what gathering adds to a forward pass: a block's weights come while the block before computes.

    Those of the rest (embeddings) and of the first block have nothing to run beside.

    Source: PyTorch, docs of torch.distributed.fsdp.fully_shard: implicit prefetching in forward.
    """
    each = work.forward_s / max(1, len(gathers))
    beside = [*gathers[1:], 0.0] if gathers else []
    hidden = first + sum(gathers[:1]) + math.fsum(max(0.0, seconds - each) for seconds in beside)
    return work.overlap * hidden + (1 - work.overlap) * (first + math.fsum(gathers))


def gathered_backward_s(work: Work, gathers: Sequence[float], first: float, reductions: Sequence[float]) -> float:
    """Return what gathering again and reduce-scatters add to a backward pass.

    While a block computes, the weights of the one before it come and the gradients of the one behind it go, over one
    link. Ahead of all, the rest and the last block come; at the end, the first block and the rest go.
    """
    each = work.backward_s / max(1, len(gathers))
    come = [*reversed(gathers)]
    go = [*reversed(reductions[:-1])]
    beside = [a + b for a, b in zip([*come[1:], 0.0], [0.0, *go[:-1]], strict=True)] if come else []
    ends = first + sum(come[:1]) + sum(go[-1:]) + reductions[-1]
    hidden = ends + math.fsum(max(0.0, seconds - each) for seconds in beside)
    total = first + math.fsum(come) + math.fsum(reductions)
    return work.overlap * hidden + (1 - work.overlap) * total


def offload_s(work: Work, group: int, *, gathered: int, copies_out: int) -> float:
    """Return the seconds of shards that cross between host and device, and of the update on the host.

    Copies are not hidden: each is waited for before the collective, or the update, that needs it.

    Args:
        work: Of the step.
        group: Ranks that share the states.
        gathered: Bytes of all weights whose shards are copied to the devices in a step, all ranks' together.
        copies_out: Times that gradients are copied to the host.
    """
    constants, ranks = work.constants, work.setup.ranks_per_node
    # What lies on the host is fp32.
    wider = work.setup.state_bytes / work.profile.weight_bytes if work.setup.reduces_wider else 1.0
    crossing = (wider * gathered + copies_out * work.grads) / group / constants["host_link"].value
    # The ranks of a machine share its memory.
    updating = update_passes(work.setup) * work.updated / group * ranks / constants["adamw.host"].value
    return crossing + updating * constants.value("factor.optimizer", 1.0)
