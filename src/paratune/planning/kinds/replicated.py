"""Strategies with a whole model on each rank: one process, DDP, and ZeRO-1, which divides the optimizer states."""

from dataclasses import replace

from paratune.base.units import MIB
from paratune.config.strategy_sections import DDPOptions, Zero1Options
from paratune.planning.profile import Profile
from paratune.planning.states import (
    GRADIENTS,
    EngineInputs,
    EngineMemory,
    PredictionSetup,
    States,
    numbers_of,
    optimizer_groups,
    unsharded,
)
from paratune.planning.work import ADAMW_PASSES, PlanFunctions, StepSeconds, Transfer, Work, link_between, ring_bytes


def _states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Gradients are views of DDP's buckets, which include those of unused parameters.

    ZeRO-1 has the moments of a parameter on one rank: the largest parameter first, each on the rank with least states.

    Source: PyTorch 2.13, torch/csrc/distributed/c10d/reducer.cpp, `Reducer::initialize_buckets`;
        torch/distributed/optim/zero_redundancy_optimizer.py, `_partition_parameters`.
    """
    numbers, held, owned = numbers_of(profile, setup), [0] * setup.num_ranks, []
    whole, gradients = unsharded(profile.parameters, numbers), profile.weight_bytes * profile.num_trained
    if "optimizer" not in setup.traits.shards:
        return States(whole.weights, gradients, whole.optimizer)
    for group in optimizer_groups(profile.parameters):
        for parameter in sorted(group, key=lambda parameter: parameter.numel, reverse=True):
            owner = held.index(min(held))
            held[owner] += parameter.numel
            owned += [parameter] if owner == rank else []
    return States(whole.weights, gradients, unsharded(owned, numbers).optimizer)


def _engine_memory(view: EngineInputs) -> EngineMemory:
    """Whole models. One process keeps the first gradients that autograd allocates; DDP copies them into its buckets.

    Micro-batches before the last one, without DDP's hooks, accumulate gradients outside of the buckets: each gradient
    exists twice until it is complete and copied.

    Source: PyTorch 2.13, torch/csrc/distributed/c10d/reducer.cpp, `mark_variable_ready_dense` under
        `gradient_as_bucket_view`.
    """
    is_single = view.setup.traits.max_world_size == 1
    if is_single and not view.accumulates:
        return EngineMemory(deltas=tuple(view.gradients()))
    twice = () if is_single or not view.accumulates else view.copied_gradients(are_earlier=True)
    return EngineMemory({GRADIENTS: view.states.gradients}, (*twice, *view.copied_gradients()))


def ddp_buckets(profile: Profile, setup: PredictionSetup) -> list[tuple[float, int]]:
    """Return the buckets in which DDP reduces gradients, in their order.

    Gradients are computed from the last block to the first, those of embeddings last; the few gradients of the head,
    which are in fact first, count with these. A bucket ends with the tensor that fills it.

    Returns:
        For each bucket the share of the backward pass after which it is complete, and its bytes.

    Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size.
    """
    assert isinstance(setup.strategy, DDPOptions | Zero1Options)
    buckets: list[tuple[float, int]] = []
    filled, ready = 0, 0.0
    *blocks, rest = profile.parts
    # The time of the rest is neglected: blocks take nearly the whole pass.
    parts = [*((block, (number + 1) / len(blocks)) for number, block in enumerate(reversed(blocks))), (rest, 1.0)]
    for part, share in parts:
        for parameter in reversed(part.parameters):
            if not parameter.is_trained:
                continue
            filled, ready = filled + parameter.numel * profile.weight_bytes, share
            if filled >= setup.strategy.bucket_cap_mb * MIB:
                buckets.append((ready, filled))
                filled = 0
    return [*buckets, (ready, filled)] if filled else buckets


def _transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    """Buckets of gradients; ZeRO-1 then broadcasts each updated weight from the rank that has its moments."""
    updated = [parameter for parameter in profile.parameters if parameter.is_trained]
    sent = updated if "optimizer" in setup.traits.shards else []
    return [
        *(Transfer("all_reduce", num_bytes, setup.num_ranks) for _, num_bytes in ddp_buckets(profile, setup)),
        *(Transfer("broadcast", profile.weight_bytes * parameter.numel, setup.num_ranks) for parameter in sent),
    ]


def _ddp_seconds(work: Work) -> StepSeconds:
    setup = work.setup
    # Gradients are divided by the number of ranks and copied into their buckets.
    copied = work.moved_s(2 * work.grads) if setup.num_ranks > 1 else 0.0
    link = link_between(work.constants, setup.num_ranks, setup.ranks_per_node)
    finished = total = 0.0
    for share, num_bytes in ddp_buckets(work.profile, setup):  # one after another
        seconds = link.seconds("all_reduce", num_bytes)
        finished = max(finished, share * work.backward_s) + seconds
        total += seconds
    # The share `overlap` of a collective runs at the same time as computing, if possible; the rest delays the pass.
    overlap = work.constants.value("overlap", 0.0)
    exposed = overlap * max(0.0, finished - work.backward_s) + (1 - overlap) * total
    whole = work.local_step()
    reduced = work.scaled_communication_s(exposed)
    return replace(whole, backward_s=whole.backward_s + copied, communication_s=reduced)


def _zero1_seconds(work: Work) -> StepSeconds:
    setup, profile, ddp = work.setup, work.profile, _ddp_seconds(work)
    sizes = [profile.weight_bytes * parameter.numel for parameter in profile.parameters if parameter.is_trained]
    # Whole tensors are assigned to ranks: one rank has at least the largest tensor.
    share = max(1 / setup.num_ranks, max(sizes) / max(1, work.grads)) if setup.num_ranks > 1 else 1.0
    link = link_between(work.constants, setup.num_ranks, setup.ranks_per_node)
    # Each tensor has its own broadcast, and their roots are spread over the ranks. All broadcasts run together: each
    # link carries the same bytes as in a gather.
    steps = len(sizes) / link.num_ranks * (link.num_ranks - 1)
    sending = ring_bytes("broadcast", sum(sizes), link.num_ranks) / link.bytes_per_s + steps * link.latency_s
    sent = work.scaled_communication_s(sending + (len(sizes) * link.call_s if steps else 0.0))
    # Every rank computes the norm of all gradients.
    updating = work.optimizer_s((1 + (ADAMW_PASSES - 1) * share) / ADAMW_PASSES)
    return replace(ddp, optimizer_s=updating, communication_s=ddp.communication_s + sent)


SINGLE = PlanFunctions(
    states=lambda profile, setup, rank: unsharded(profile.parameters, numbers_of(profile, setup)),
    transfers=lambda profile, setup, rank: [],
    seconds=Work.local_step,
    engine_memory=_engine_memory,
    holds_whole_model=True,
)
DDP = PlanFunctions(_states, _transfers, _ddp_seconds, _engine_memory, holds_whole_model=True)
ZERO1 = PlanFunctions(_states, _transfers, _zero1_seconds, _engine_memory)
