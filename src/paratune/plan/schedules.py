"""What a strategy makes of the time of a step: where its collectives run beside computing, and what is left of them.

One function a strategy; those of FSDP2 and DeepSpeed are in `plan.sharded`. `N` ranks, `n` bytes, `p` stages, `m`
micro-batches, `v` stages on a rank.
"""

import math
from collections.abc import Callable

from paratune.base.units import MIB
from paratune.config.strategy_sections import (
    DDPOptions,
    DeepSpeedOptions,
    HSDPOptions,
    PipelineOptions,
    SingleOptions,
    Zero1Options,
    Zero2Options,
    Zero3Options,
)
from paratune.plan.constants import UnknownFigure
from paratune.plan.links import link_between
from paratune.plan.sharded import deepspeed, fsdp
from paratune.plan.traffic import ddp_buckets, hidden_messages, shared_gradients, stage_gradients, trained_tensors
from paratune.plan.work import (
    StepSeconds,
    Work,
    accumulated_s,
    alone,
    exposed_s,
    factored,
    optimizer_s,
    update_passes,
)


def spread(work: Work) -> StepSeconds:
    """Return what the strategy of the setup makes of the step.

    Raises:
        UnknownFigure: The machine has no figure for a link that is needed, or the strategy is one of the user's own.
    """
    strategy = work.setup.strategy
    by_kind: dict[type, Callable[[Work], StepSeconds]] = {
        SingleOptions: alone,
        DDPOptions: _ddp,
        Zero1Options: _zero1,
        Zero2Options: fsdp,
        Zero3Options: fsdp,
        HSDPOptions: fsdp,
        PipelineOptions: _pipeline,
        DeepSpeedOptions: deepspeed,
    }
    if type(strategy) not in by_kind:
        raise UnknownFigure(f"strategy {strategy.kind}")
    return by_kind[type(strategy)](work)


def _reduced_s(work: Work, cap_mb: float) -> float:
    """Return what DDP's all-reduce leaves exposed, of the last micro-batch."""
    setup = work.setup
    link = link_between(work.constants, setup.num_ranks, setup.ranks_per_node)
    buckets = ddp_buckets(work.blocks, work.rest, work.profile.weight_bytes, cap_mb * MIB)
    passes = [(share * work.backward_s, link.all_reduce_s(num_bytes)) for share, num_bytes in buckets]
    return factored(work, exposed_s(passes, work.backward_s, work.overlap))


def _ddp(work: Work) -> StepSeconds:
    assert isinstance(work.setup.strategy, DDPOptions)
    whole = alone(work)
    # Gradients are divided by the number of ranks and copied into their buckets.
    copied = work.moved_s(2 * work.grads) if work.setup.num_ranks > 1 else 0.0
    reduced = _reduced_s(work, work.setup.strategy.bucket_cap_mb)
    return StepSeconds(whole.forward_s, whole.backward_s + copied, whole.optimizer_s, reduced)


def _zero1(work: Work) -> StepSeconds:
    strategy, setup = work.setup.strategy, work.setup
    assert isinstance(strategy, Zero1Options)
    whole = alone(work)
    copied = work.moved_s(2 * work.grads) if setup.num_ranks > 1 else 0.0
    sizes = trained_tensors(work.profile)
    # Whole tensors are dealt out: no rank has less than the largest.
    share = max(1 / setup.num_ranks, max(sizes) / max(1, work.grads)) if setup.num_ranks > 1 else 1.0
    link = link_between(work.constants, setup.num_ranks, setup.ranks_per_node)
    sent = factored(work, link.broadcasts_s(sum(sizes), len(sizes)))
    reduced = _reduced_s(work, strategy.bucket_cap_mb)
    # The norm is that of all gradients, on every rank.
    passes = update_passes(setup)
    updating = optimizer_s(work, (1 + (passes - 1) * share) / passes)
    return StepSeconds(whole.forward_s, whole.backward_s + copied, updating, reduced + sent)


def _pipeline(work: Work) -> StepSeconds:
    """Stages on ranks, micro-batches through them; replicas of the pipeline sum their gradients behind it all."""
    setup = work.setup
    p = setup.traits.ranks_per_replica
    m = setup.grad_accum_steps
    computing, states = _fullest_rank(work)
    ideal = m * (work.forward_s + work.backward_s) / p
    # The slowest rank sets the pace: blocks are not divided.
    bubble = ideal * computing * p / (1 - (setup.traits.ideal_bubble_share(m) or 0.0)) - ideal
    neighbours = link_between(work.constants, p, setup.ranks_per_node)
    send = neighbours.send_s(work.profile.hidden_bytes)
    # Filling and draining nothing runs beside; else each micro-batch is sent on and its gradient back, for each stage.
    sending = 2 * (p - 1) * send + (1 - work.overlap) * hidden_messages(setup) * send
    replicas = link_between(work.constants, setup.num_ranks // p, setup.ranks_per_node, stride=p)
    ends = link_between(work.constants, 2, setup.ranks_per_node, stride=p - 1)
    reducing = replicas.all_reduce_s(work.grads * states) + neighbours.all_reduce_s(8)
    reducing += ends.all_reduce_s(sum(shared_gradients(work.profile, setup).values()))
    return StepSeconds(
        forward_s=m * work.forward_s / p,
        backward_s=(m * work.backward_s + accumulated_s(work)) / p,
        optimizer_s=optimizer_s(work, states),
        communication_s=factored(work, sending + reducing),
        bubble_s=bubble * work.constants.value("factor.pipeline", 1.0),
    )


def _fullest_rank(work: Work) -> tuple[float, float]:
    """Return the shares of the whole model's operations, and of its trained weights, of the ranks that have most."""
    strategy, traits, division = work.setup.strategy, work.setup.traits, work.profile.division
    p, v = traits.ranks_per_replica, traits.stages_per_rank
    if division is None:
        return math.ceil(len(work.blocks) / (p * v)) * v / len(work.blocks), 1 / p
    assert isinstance(strategy, PipelineOptions)
    ranks = [division.of_rank(place, strategy, traits) for place in range(p)]
    costs = [sum(sum(division.costs[span.begin : span.end]) for span in spans) for spans in ranks]
    trained = max(stage_gradients(work.profile, work.setup, place) for place in range(p))
    return max(costs) / sum(costs), trained / max(1, work.grads)
