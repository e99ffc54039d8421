"""What a strategy sends in one optimizer step, in bytes: `plan.schedules` and `plan.sharded` make times of it.

Single numbers (gradient norms, losses) and what an engine exchanges about its buckets are left out. `N` ranks, `m`
micro-batches, `v` stages on a rank.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paratune.base.units import MIB
from paratune.config.strategy_sections import DDPOptions, DeepSpeedOptions, PipelineOptions, Zero1Options
from paratune.plan.links import Collective, ring_bytes
from paratune.plan.profile import Profile, Weights
from paratune.plan.setup import PredictionSetup
from paratune.plan.states import deepspeed_limits, padded, shard_size, stage_parameters


@dataclass(frozen=True)
class Transfer:
    """Equal calls of one collective in a step."""

    collective: Collective
    num_bytes: float
    """Of the whole tensor of one call, not of a shard."""
    num_ranks: int
    """Of the group."""
    num_calls: int = 1

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in all these calls; of broadcasts, whose roots differ, the mean over ranks."""
        return self.num_calls * ring_bytes(self.collective, self.num_bytes, self.num_ranks)


def step_transfers(profile: Profile, setup: PredictionSetup, rank: int = 0) -> list[Transfer]:
    """Return the collectives of one rank in one optimizer step.

    Args:
        profile: Of one micro-batch of the setup; of a pipeline with its division.
        setup: The way of running the job.
        rank: From 0; the ranks of a pipeline differ.

    Raises:
        KeyError: The strategy is one of the user's own.
    """
    transfers = _BY_KIND[setup.strategy.kind](profile, setup, rank)
    return [each for each in transfers if each.num_ranks > 1 and each.num_bytes > 0]


def unit_weights(profile: Profile, num_shards: int = 1) -> list[int]:
    """Return the bytes of the weights of each block, frozen ones included, and last those of the rest.

    Args:
        profile: Of the model.
        num_shards: Equal parts to which FSDP2 pads each weight.
    """
    parts = (*profile.blocks, profile.rest)
    return [profile.weight_bytes * sum(padded(each, num_shards) for each in part.parameters) for part in parts]


def unit_gradients(profile: Profile, setup: PredictionSetup, num_shards: int = 1) -> list[int]:
    """Return the bytes of the gradients of each block, and last those of the rest; see `unit_weights`.

    They are those of gradients as they are summed over ranks: under FSDP2 in fp32, also of weights of 16 bits.
    """
    size = setup.precision.reduce_dtype.itemsize if setup.reduces_wider else profile.weight_bytes
    parts = (*profile.blocks, profile.rest)
    trained = [[each for each in part.parameters if each.is_trained] for part in parts]
    return [size * sum(padded(each, num_shards) for each in part) for part in trained]


def gathered_again(profile: Profile, setup: PredictionSetup) -> list[int]:
    """Return the bytes of each unit's weights that a backward pass gathers under FSDP2, 0 of what it does not gather.

    Blocks of a frozen encoder have no backward pass; of these FSDP2 gathers the last one all the same, before it is
    known.
    """
    weights = unit_weights(profile, shard_size(setup))
    if not setup.traits.gathers_per_micro_step:
        return [0] * len(weights)
    last = profile.num_blocks - 1
    runs = [part.num_trained > 0 or number == last for number, part in enumerate(profile.blocks)]
    return [size if is_gathered else 0 for size, is_gathered in zip(weights, [*runs, True], strict=True)]


def gathered_bytes(profile: Profile, setup: PredictionSetup) -> int:
    """Return the bytes of all weights that FSDP2 gathers in a step, forward and backward."""
    weights = sum(unit_weights(profile, shard_size(setup)))
    return forward_gathers(setup) * weights + setup.grad_accum_steps * sum(gathered_again(profile, setup))


def forward_gathers(setup: PredictionSetup) -> int:
    """Return how often the forward passes of a step gather each weight: once where it is kept for all micro-batches."""
    return setup.grad_accum_steps if setup.traits.gathers_per_micro_step else 1


def trained_tensors(profile: Profile) -> list[int]:
    """Return the bytes of each trained parameter, block by block."""
    parts = (*profile.blocks, profile.rest)
    return [profile.weight_bytes * each.numel for part in parts for each in part.parameters if each.is_trained]


def ddp_buckets(
    blocks: Sequence[Weights], rest: Weights, weight_bytes: int, cap_bytes: float
) -> list[tuple[float, int]]:
    """Return the buckets in which DDP reduces gradients, in their order.

    Gradients come from the last block to the first, those of embeddings last (the head's, which come first, are few and
    counted with them). A bucket is closed by the tensor with which it is full.

    Returns:
        For each: the share of the backward pass after which it is complete, and its bytes.

    Source: PyTorch, torch/csrc/distributed/c10d/reducer.cpp, compute_bucket_assignment_by_size.
    """
    buckets: list[tuple[float, int]] = []
    filled, ready = 0, 0.0
    # The rest has a part of the pass as well; blocks are nearly all of it.
    parts = [*((block, (number + 1) / len(blocks)) for number, block in enumerate(reversed(blocks))), (rest, 1.0)]
    for part, share in parts:
        for parameter in reversed(part.parameters):
            if not parameter.is_trained:
                continue
            filled, ready = filled + parameter.numel * weight_bytes, share
            if filled >= cap_bytes:
                buckets.append((ready, filled))
                filled = 0
    return [*buckets, (ready, filled)] if filled else buckets


def reductions_per_step(setup: PredictionSetup) -> int:
    """Return how often a step reduces each gradient."""
    return setup.grad_accum_steps if setup.traits.reduces_each_micro_step else 1


def stage_3_weights(profile: Profile, strategy: DeepSpeedOptions) -> tuple[list[int], int]:
    """Return what DeepSpeed's stage 3 gathers.

    Returns:
        Bytes of each unit's weights that are gathered for a pass, the rest last: for each one, though it keeps up to
        two blocks from one pass to the next. And of those that stay, and are gathered once, after the update.
    """
    threshold, units = deepspeed_limits(profile, strategy).param_persistence_threshold, []
    for part in (*profile.blocks, profile.rest):
        units.append(profile.weight_bytes * sum(each.numel for each in part.parameters if each.numel > threshold))
    return units, profile.weight_bytes * profile.num_parameters - sum(units)


def hidden_messages(setup: PredictionSetup) -> int:
    """Return how often a rank in the middle of a pipeline sends hidden states or their gradients: 2 m v."""
    return 2 * setup.grad_accum_steps * setup.traits.stages_per_rank


def stage_gradients(profile: Profile, setup: PredictionSetup, rank: int) -> float:
    """Return the bytes of the gradients that a rank of a pipeline has; an even share where no division is known."""
    if profile.division is None:
        return profile.weight_bytes * profile.num_trained / setup.traits.ranks_per_replica
    _, trained = stage_parameters(profile, setup, rank)
    return profile.weight_bytes * sum(each.numel for each in trained if each.is_trained)


def shared_gradients(profile: Profile, setup: PredictionSetup) -> dict[tuple[int, ...], int]:
    """Return the bytes of gradients that places of a pipeline sum because they share weights, such as tied ones.

    Returns:
        By the places, from 0, that share them.
    """
    strategy, traits, division = setup.strategy, setup.traits, profile.division
    if division is None:
        return {}
    assert isinstance(strategy, PipelineOptions)
    users: dict[str, list[int]] = defaultdict(list)
    for place in range(traits.ranks_per_replica):
        for name in division.uses(division.of_rank(place, strategy, traits)):
            users[name].append(place)
    shared: dict[tuple[int, ...], int] = defaultdict(int)
    for each in profile.parameters:
        places = tuple(users.get(each.name, ()))
        if len(places) > 1 and each.is_trained:
            shared[places] += profile.weight_bytes * each.numel
    return dict(shared)


def _reduced_in_buckets(profile: Profile, setup: PredictionSetup, cap_mb: float) -> list[Transfer]:
    buckets = ddp_buckets(profile.blocks, profile.rest, profile.weight_bytes, cap_mb * MIB)
    return [Transfer("all_reduce", num_bytes, setup.num_ranks) for _, num_bytes in buckets]


def _ddp(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    assert isinstance(setup.strategy, DDPOptions)
    return _reduced_in_buckets(profile, setup, setup.strategy.bucket_cap_mb)


def _zero1(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    assert isinstance(setup.strategy, Zero1Options)
    sent = [Transfer("broadcast", num_bytes, setup.num_ranks) for num_bytes in trained_tensors(profile)]
    return [*_reduced_in_buckets(profile, setup, setup.strategy.bucket_cap_mb), *sent]


def _fsdp(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    group = shard_size(setup)
    gradients = unit_gradients(profile, setup, group)
    return [
        *(Transfer("all_gather", n, group, forward_gathers(setup)) for n in unit_weights(profile, group)),
        *(Transfer("all_gather", n, group, setup.grad_accum_steps) for n in gathered_again(profile, setup)),
        *(Transfer("reduce_scatter", n, group) for n in gradients),
        *(Transfer("all_reduce", n / group, setup.num_ranks // group) for n in gradients),
    ]


def _pipeline(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    width, num_micro_batches = setup.traits.ranks_per_replica, setup.grad_accum_steps
    place = rank % width
    # The first stage sends no gradient on, the last one no hidden states.
    num_ends = (place == 0) + (place == width - 1)
    num_messages = hidden_messages(setup) - num_ends * num_micro_batches
    shared = shared_gradients(profile, setup)
    return [
        Transfer("send", profile.hidden_bytes, 2, num_messages),
        *(Transfer("all_reduce", num_bytes, len(places)) for places, num_bytes in shared.items() if place in places),
        Transfer("all_reduce", stage_gradients(profile, setup, place), setup.num_ranks // width),
    ]


def _deepspeed(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    """Stages 1 and 2 sum whole buckets on all ranks; stage 3 gathers most weights for each pass.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `allreduce_and_scatter`; stage3.py, `_post_step`.
    """
    strategy = setup.strategy
    assert isinstance(strategy, DeepSpeedOptions)
    ranks, times = setup.num_ranks, reductions_per_step(setup)
    if strategy.stage == 3:
        gathers = setup.traits.gathers_per_micro_step * setup.grad_accum_steps
        units, persistent = stage_3_weights(profile, strategy)
        return [
            *(Transfer("all_gather", num_bytes, ranks, gathers) for num_bytes in units),
            Transfer("all_gather", persistent, ranks),
            *(Transfer("reduce_scatter", num_bytes, ranks, times) for num_bytes in unit_gradients(profile, setup)),
        ]
    gradients = sum(unit_gradients(profile, setup))
    sent = [Transfer("all_gather", gradients, ranks)] if strategy.stage else []
    return [Transfer("all_reduce", gradients, ranks, times), *sent]


_BY_KIND: dict[str, Callable[[Profile, PredictionSetup, int], list[Transfer]]] = {
    "single": lambda profile, setup, rank: [],
    "ddp": _ddp,
    "zero1": _zero1,
    **dict.fromkeys(("zero2", "zero3", "hsdp"), _fsdp),
    "pipeline": _pipeline,
    "deepspeed": _deepspeed,
}
