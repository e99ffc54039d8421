"""The time of strategies that shard weights: FSDP2's and DeepSpeed's, with what they keep on the host.

`L` blocks, each a unit that is gathered and reduced by itself, and one more for the rest (embeddings and head).
"""

import math
from collections.abc import Sequence
from typing import Any

from paratune.config.strategy_sections import DeepSpeedOptions
from paratune.plan.links import Link, link_between
from paratune.plan.states import shard_size
from paratune.plan.traffic import (
    forward_gathers,
    gathered_again,
    gathered_bytes,
    reductions_per_step,
    stage_3_weights,
    unit_gradients,
    unit_weights,
)
from paratune.plan.work import StepSeconds, Work, alone, factored, hooks_s, optimizer_s, update_passes


def fsdp(work: Work) -> StepSeconds:
    """ZeRO-2, ZeRO-3 and hybrid sharding by FSDP2: a unit for each block, and one for the rest."""
    setup = work.setup
    group = shard_size(setup)
    link = link_between(work.constants, group, setup.ranks_per_node)
    *gathers, first = (link.all_gather_s(num_bytes) for num_bytes in unit_weights(work.profile, group))
    forward = _gathered_forward_s(work, gathers, first)
    reductions = _reductions(work, link, group)
    again = gathered_again(work.profile, setup)
    *backward_gathers, first_again = (link.all_gather_s(num_bytes) if num_bytes else 0.0 for num_bytes in again)
    early = _backward_s(work, backward_gathers, first_again, [0.0] * (len(gathers) + 1))
    last = _backward_s(work, backward_gathers, first_again, reductions)
    waiting = forward_gathers(setup) * forward + (setup.grad_accum_steps - 1) * early + last
    weights, gathered = sum(unit_weights(work.profile, group)), gathered_bytes(work.profile, setup)
    copied = work.moved_s(2 * weights) * gathered / weights
    copied += work.moved_s(2 * work.grads)
    if setup.keeps_16_bits:  # each rank casts its shards before they are gathered: 4 bytes read, 2 written
        numbers = work.profile.num_parameters / group
        copied += work.moved_s(6 * numbers) * gathered / weights
    held_up, hidden = hooks_s(work, "hooks.unit", len(work.blocks) + 1)
    hooks = factored(work, held_up)
    python: dict[str, Any] = {"python_s": {"communication_exposed": hooks}, "hidden_s": hidden}
    whole = alone(work)
    exposed = factored(work, waiting + copied + link.all_reduce_s(8)) + hooks
    if setup.traits.states_on == "cpu":
        offload = _offload_s(work, group, gathered=gathered, copies_out=1)
        return StepSeconds(whole.forward_s, whole.backward_s, 0.0, exposed, offload_s=offload, **python)
    updating = optimizer_s(work, 1 / group, is_sharded=True)
    return StepSeconds(whole.forward_s, whole.backward_s, updating, exposed, **python)


def _gathered_forward_s(work: Work, gathers: Sequence[float], first: float) -> float:
    """Return what gathering adds to a forward pass: a block's weights come while the block before computes.

    Those of the rest (embeddings) and of the first block have nothing to run beside.

    Source: PyTorch, docs of torch.distributed.fsdp.fully_shard: implicit prefetching in forward.
    """
    each = work.forward_s / max(1, len(gathers))
    beside = [*gathers[1:], 0.0] if gathers else []
    hidden = first + sum(gathers[:1]) + math.fsum(max(0.0, seconds - each) for seconds in beside)
    return work.overlap * hidden + (1 - work.overlap) * (first + math.fsum(gathers))


def _backward_s(work: Work, gathers: Sequence[float], first: float, reductions: Sequence[float]) -> float:
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


def _reductions(work: Work, link: Link, group: int) -> list[float]:
    """Return the seconds of reducing the gradients of each block, and of the rest."""
    setup = work.setup
    replicas = setup.num_ranks // group
    between = link_between(work.constants, replicas, setup.ranks_per_node, stride=group)
    return [
        link.reduce_scatter_s(num_bytes) + between.all_reduce_s(num_bytes / group)
        for num_bytes in unit_gradients(work.profile, setup, group)
    ]


def _offload_s(work: Work, group: int, *, gathered: int, copies_out: int) -> float:
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


def deepspeed(work: Work) -> StepSeconds:
    """DeepSpeed's own ZeRO; stages below 3 wait for their collectives (`overlap_comm` is off there by default).

    Stages 1 and 2 sum whole buckets on all ranks, of which each keeps its part. Gradients are copied into a bucket, and
    flat out of it; weights that stage 3 gathers, out of their flat parts.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `allreduce_and_scatter` (`use_multi_rank_bucket_allreduce`
        is on by default); stage3.py, `__add_grad_to_ipg_bucket`; partition_parameters.py, `AllGatherCoalescedHandle`.
    """
    setup, strategy = work.setup, work.setup.strategy
    assert isinstance(strategy, DeepSpeedOptions)
    ranks, steps = setup.num_ranks, setup.grad_accum_steps
    link = link_between(work.constants, ranks, setup.ranks_per_node)
    whole = alone(work)
    times = reductions_per_step(setup)
    copied = times * work.moved_s(4 * work.grads) if ranks > 1 or strategy.stage else 0.0
    if strategy.stage == 3:
        copied += 2 * steps * work.moved_s(2 * work.weights)
        units, persistent = stage_3_weights(work.profile, strategy)
        *gathers, first = (link.all_gather_s(num_bytes) for num_bytes in units)
        reductions = [link.reduce_scatter_s(num_bytes) for num_bytes in unit_gradients(work.profile, setup)]
        waiting = link.all_gather_s(persistent)
        waiting += steps * (_gathered_forward_s(work, gathers, first) + _backward_s(work, gathers, first, reductions))
    else:
        waiting = times * link.all_reduce_s(work.grads)
        waiting += link.all_gather_s(work.grads) if strategy.stage else 0.0
    name = "hooks.gather" if strategy.stage == 3 else "hooks.tensor"
    hooks, hidden = hooks_s(work, name, work.num_tensors) if strategy.stage else (0.0, 0.0)
    backward = whole.backward_s + copied + hooks
    python: dict[str, Any] = {"python_s": {"backward": hooks}, "hidden_s": hidden}
    share = 1 / ranks if strategy.stage else 1.0
    exposed = factored(work, waiting)
    if setup.traits.states_on == "cpu":
        copies_in = 2 * steps if strategy.offload_parameters else 1
        offload = _offload_s(work, ranks, gathered=copies_in * work.weights, copies_out=_times_out(strategy, steps))
        return StepSeconds(whole.forward_s, backward, 0.0, exposed, offload_s=offload, **python)
    updating = optimizer_s(work, share) + _cast_s(work, share)
    return StepSeconds(whole.forward_s, backward, updating, exposed, **python)


def _cast_s(work: Work, share: float) -> float:
    """Return the seconds in which an update casts gradients of 16 bits to fp32, and new weights back to 16 bits.

    Gradients are copied flat first: 2 + 2 bytes a number, then 2 + 4; the weights take 4 + 2.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `step`; stage3.py, `_prepare_fp32_grad_for_sub_group`.
    """
    return work.moved_s(16 * share * work.profile.num_trained) if work.setup.keeps_16_bits else 0.0


def _times_out(strategy: DeepSpeedOptions, steps: int) -> int:
    """Return how often gradients go to the host in a step: with each micro-batch that reduces them."""
    return steps if strategy.stage >= 2 else 1
