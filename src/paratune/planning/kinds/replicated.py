"""Strategies with a whole model on each rank: one process, DDP, and ZeRO-1, which divides the optimizer states."""

from collections.abc import Iterable
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
from paratune.planning.work import ADAMW_PASSES, PlanFunctions, StepSeconds, Transfer, Work, link_between


def whole_states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    return unsharded(profile.parameters, numbers_of(profile, setup))


def _ddp_states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Gradients are views of DDP's buckets, which include those of unused parameters.

    Source: PyTorch 2.13, torch/csrc/distributed/c10d/reducer.cpp, `Reducer::initialize_buckets`.
    """
    states, size = unsharded(profile.parameters, numbers_of(profile, setup)), profile.weight_bytes
    return States(states.weights, size * profile.num_trained, states.optimizer)


def _zero1_states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """The states of a parameter are on one rank: the largest parameter first, each on the rank with least states.

    Source: PyTorch 2.13, torch/distributed/optim/zero_redundancy_optimizer.py, `_partition_parameters`.
    """
    numbers, held, owned = numbers_of(profile, setup), [0] * setup.num_ranks, []
    for group in optimizer_groups(profile.parameters):
        for parameter in sorted(group, key=lambda parameter: parameter.numel, reverse=True):
            owner = held.index(min(held))
            held[owner] += parameter.numel
            owned += [parameter] if owner == rank else []
    of_ddp = _ddp_states(profile, setup, rank)
    return States(of_ddp.weights, of_ddp.gradients, unsharded(owned, numbers).optimizer)


def replicated(view: EngineInputs) -> EngineMemory:
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


def _ddp_transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    return [Transfer("all_reduce", num_bytes, setup.num_ranks) for _, num_bytes in ddp_buckets(profile, setup)]


def _zero1_transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    trained = [parameter for parameter in profile.parameters if parameter.is_trained]
    sent = [Transfer("broadcast", profile.weight_bytes * parameter.numel, setup.num_ranks) for parameter in trained]
    return [*_ddp_transfers(profile, setup, rank), *sent]


def exposed_s(passes: Iterable[tuple[float, float]], end_s: float, overlap: float) -> float:
    """Return the seconds by which collectives delay a pass.

    Args:
        passes: The earliest start and the duration of each collective; they run one after another.
        end_s: Seconds of the pass without collectives.
        overlap: Share of a collective that overlaps computing if possible; the rest delays computing.
    """
    finished = total = 0.0
    for ready, seconds in passes:
        finished = max(finished, ready) + seconds
        total += seconds
    hidden = max(0.0, finished - end_s)
    return overlap * hidden + (1 - overlap) * total


def _ddp_seconds(work: Work) -> StepSeconds:
    setup = work.setup
    # Gradients are divided by the number of ranks and copied into their buckets.
    copied = work.moved_s(2 * work.grads) if setup.num_ranks > 1 else 0.0
    link = link_between(work.constants, setup.num_ranks, setup.ranks_per_node)
    passes = [
        (share * work.backward_s, link.seconds("all_reduce", size)) for share, size in ddp_buckets(work.profile, setup)
    ]
    reduced = work.scaled_communication_s(exposed_s(passes, work.backward_s, work.constants.value("overlap", 0.0)))
    unsharded = work.local_step()
    return replace(unsharded, backward_s=unsharded.backward_s + copied, communication_s=reduced)


def _zero1_seconds(work: Work) -> StepSeconds:
    setup, profile, ddp = work.setup, work.profile, _ddp_seconds(work)
    sizes = [profile.weight_bytes * parameter.numel for parameter in profile.parameters if parameter.is_trained]
    # Whole tensors are assigned to ranks: one rank has at least the largest tensor.
    share = max(1 / setup.num_ranks, max(sizes) / max(1, work.grads)) if setup.num_ranks > 1 else 1.0
    link = link_between(work.constants, setup.num_ranks, setup.ranks_per_node)
    sent = work.scaled_communication_s(link.broadcasts_s(sum(sizes), len(sizes)))
    # Every rank computes the norm of all gradients.
    updating = work.optimizer_s((1 + (ADAMW_PASSES - 1) * share) / ADAMW_PASSES)
    return replace(ddp, optimizer_s=updating, communication_s=ddp.communication_s + sent)


SINGLE = PlanFunctions(
    whole_states, lambda profile, setup, rank: [], Work.local_step, replicated, holds_whole_model=True
)

DDP = PlanFunctions(_ddp_states, _ddp_transfers, _ddp_seconds, replicated, holds_whole_model=True)

ZERO1 = PlanFunctions(_zero1_states, _zero1_transfers, _zero1_seconds, replicated)
