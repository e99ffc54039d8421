"""ZeRO-2, ZeRO-3 and hybrid sharding by FSDP2, which gathers weights and reduces gradients unit by unit.

A unit is a block, or embeddings and head together. `U` are its padded bytes, `N` the ranks that share states.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from paratune.planning.profile import Profile
from paratune.planning.states import (
    COMMUNICATION,
    GATHERED,
    GRADIENTS,
    EngineInputs,
    EngineMemory,
    PredictionSetup,
    States,
    count,
    numbers_of,
    shard,
    shard_size,
    unsharded,
)
from paratune.planning.trace import Delta
from paratune.planning.work import (
    PlanFunctions,
    StepSeconds,
    Transfer,
    Work,
    link_between,
    unit_gradients,
    unit_weights,
)


def _states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Dimension 0 of each parameter is divided into N chunks; the last ones may be smaller or empty.

    Weights are padded to equal chunks on all ranks, and so are gradients, as outputs of padded reduce-scatters; moments
    are not padded.

    Source: PyTorch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`, and
        _fsdp_collectives.py, `foreach_reduce`.
    """
    num_ranks, numbers = shard_size(setup), numbers_of(profile, setup, are_sharded=True)
    padded = unsharded((shard(parameter, num_ranks) for parameter in profile.parameters), numbers)
    of_rank = unsharded((shard(parameter, num_ranks, rank % num_ranks) for parameter in profile.parameters), numbers)
    weights, gradients, optimizer = padded.weights, padded.gradients, of_rank.optimizer
    if setup.traits.states_on == "cpu":
        return States(host_weights=weights, host_gradients=gradients, host_optimizer=optimizer)
    return States(weights, gradients, optimizer)


@dataclass(frozen=True)
class _Unit:
    """Weights that FSDP2 gathers and reduces together."""

    gathered: int
    """U."""
    trained: int
    """Padded bytes of its gradients, in the dtype of the reduction."""
    gradients: int
    """The same without padding."""
    parameters: tuple[int, ...]


def _engine_memory(view: EngineInputs) -> EngineMemory:
    """ZeRO-2, ZeRO-3, HSDP by FSDP2; forward and backward in the order in which the CPU issues them.

    The output of an all-gather is copied into the weights of the unit. It is kept until the next all-gather has
    finished (forward), or freed at once after the next all-gather was started (backward). The input of a reduce-scatter
    is kept until the next one.

    Source: PyTorch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, `wait_for_unshard`,
        `_backward_prefetch`, `post_backward`; _fsdp_collectives.py, `foreach_all_gather`, `foreach_reduce`.
    """
    *units, root = _units(view)
    timeline, num_shards, last = view.profile.timeline, shard_size(view.setup), 0
    starts, forward_ends, end = timeline.positions("forward"), timeline.positions("forward_end"), timeline.num_forward
    deltas: list[Delta] = []
    for start, unit, ends in [(0, root, end), *((starts[n], u, forward_ends[n]) for n, u in enumerate(units))]:
        if num_shards > 1:
            deltas += [*_all_gather(view, start, unit), Delta(start, COMMUNICATION, -last)]
            last = unit.gathered
        deltas.append(Delta(start, GATHERED, unit.gathered))
        if view.setup.traits.gathers_per_micro_step:  # else gathered weights are kept for the backward pass
            deltas.append(Delta(ends, GATHERED, -unit.gathered))
    deltas += [Delta(end, COMMUNICATION, -last), *_backward(view, units, root)]
    # Of earlier micro-batches: whole gradients, which only the last one reduces, or shards.
    sums_whole = view.setup.num_reductions < view.setup.grad_accum_steps
    earlier = sum(unit.gradients for unit in (*units, root)) if sums_whole else view.states.gradients
    always = {GRADIENTS: earlier} if view.accumulates else {}
    if sums_whole and not view.setup.keeps_16_bits:
        return EngineMemory(always, (*deltas, *view.copied_gradients()))
    # Gradients exist until the backward pass of their unit ends; those of 16 bits are added to those in fp32 when all
    # gradients of the unit are complete.
    until = dict.fromkeys(root.parameters, view.end)
    for number, unit in enumerate(units):
        until |= dict.fromkeys(unit.parameters, view.ends.get(number, view.end))
    return EngineMemory(always, (*deltas, *view.gradients(until)))


def _units(view: EngineInputs) -> Iterator[_Unit]:
    """Yield the units of the blocks, and last the unit of all other parameters."""
    profile, num_ranks = view.profile, shard_size(view.setup)
    reduced = view.setup.precision.reduce_dtype.itemsize
    gathered = unit_weights(profile, num_ranks)
    for block, num_bytes in zip((*range(profile.num_blocks), None), gathered, strict=True):
        numbers = [number for number, parameter in enumerate(profile.parameters) if parameter.block == block]
        parameters = [profile.parameters[number] for number in numbers]
        trained = [parameter for parameter in parameters if parameter.is_trained and parameter.has_gradient]
        padded = num_ranks * count(shard(parameter, num_ranks) for parameter in trained)
        yield _Unit(num_bytes, reduced * padded, reduced * count(trained), tuple(numbers))


def _all_gather(view: EngineInputs, position: int, unit: _Unit) -> Iterator[Delta]:
    """Yield the memory of an all-gather: its output, and copies of shards that are on the host or cast to 16 bits."""
    is_copied = view.states.host_weights or view.setup.keeps_16_bits
    copied = unit.gathered // shard_size(view.setup) if is_copied else 0
    yield Delta(position, COMMUNICATION, unit.gathered + copied)
    yield Delta(position, COMMUNICATION, -copied)


def _backward(view: EngineInputs, units: list[_Unit], root: _Unit) -> Iterator[Delta]:
    begins, gathers_again = view.profile.timeline.positions("backward"), view.setup.traits.gathers_per_micro_step > 0
    gathers = gathers_again and shard_size(view.setup) > 1
    running = [(begins[n], view.ends[n], units[n]) for n in reversed(range(len(units))) if n in begins]
    start = view.profile.timeline.num_forward
    held = 0
    if gathers:
        yield from _all_gather(view, start, root)
    if gathers_again:
        yield Delta(start, GATHERED, root.gathered)
    if gathers:
        yield Delta(start, COMMUNICATION, -root.gathered)
        yield from _all_gather(view, start, units[-1])
    for at, (begin, end, unit) in enumerate(running):
        if gathers_again:
            yield Delta(begin, GATHERED, unit.gathered)
        if gathers:
            yield Delta(begin, COMMUNICATION, -unit.gathered)
            if at + 1 < len(running):
                yield from _all_gather(view, begin, running[at + 1][2])
        yield from _reduce_scatter(view, end, unit, held)
        held = unit.trained
    if gathers and not running:  # the blocks are frozen; FSDP2 has nevertheless prefetched the last one
        yield Delta(view.end, COMMUNICATION, -units[-1].gathered)
    yield from _reduce_scatter(view, view.end, root, held)
    yield Delta(view.end, COMMUNICATION, -root.trained)


def _reduce_scatter(view: EngineInputs, position: int, unit: _Unit, held: int) -> Iterator[Delta]:
    """Yield the memory of a unit's reduce-scatter, which frees weights and gradients; `held` is the previous input."""
    yield Delta(position, GATHERED, -unit.gathered)
    yield Delta(position, COMMUNICATION, unit.trained - held)
    if view.setup.num_reductions < view.setup.grad_accum_steps:
        yield Delta(position, GRADIENTS, -unit.gradients)
    yield Delta(position, GRADIENTS, unit.trained // shard_size(view.setup))
    if view.states.host_gradients or view.setup.num_reductions > 1:  # it is copied to the host, or added to a shard
        yield Delta(position, GRADIENTS, -(unit.trained // shard_size(view.setup)))


def _gathers(profile: Profile, setup: PredictionSetup) -> tuple[int, list[int]]:
    """Return how often the forward passes of a step gather each weight, and the bytes that a backward pass gathers.

    The bytes are those of each unit, 0 where weights are kept for all micro-batches. Blocks of a frozen encoder have no
    backward pass; nevertheless FSDP2 prefetches the last one of them.
    """
    weights = unit_weights(profile, shard_size(setup))
    if not setup.traits.gathers_per_micro_step:
        return 1, [0] * len(weights)
    last = profile.num_blocks - 1
    return setup.grad_accum_steps, [
        size if number >= last or any(parameter.is_trained for parameter in part.parameters) else 0
        for number, (size, part) in enumerate(zip(weights, profile.parts, strict=True))
    ]


def _transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    group = shard_size(setup)
    times, gathered_again = _gathers(profile, setup)
    gradients = unit_gradients(profile, setup, group)
    return [
        *(Transfer("all_gather", n, group, times) for n in unit_weights(profile, group)),
        *(Transfer("all_gather", n, group, setup.grad_accum_steps) for n in gathered_again),
        *(Transfer("reduce_scatter", n, group, setup.num_reductions) for n in gradients),
        *(Transfer("all_reduce", n / group, setup.num_ranks // group) for n in gradients),
    ]


def _seconds(work: Work) -> StepSeconds:
    """ZeRO-2, ZeRO-3 and hybrid sharding by FSDP2: a unit for each block, and one for the rest."""
    setup = work.setup
    group = shard_size(setup)
    link = link_between(work.constants, group, setup.ranks_per_node)
    *gathers, first = (link.seconds("all_gather", num_bytes) for num_bytes in unit_weights(work.profile, group))
    forward = work.gathering_s(work.forward_s, gathers, first)
    between = link_between(work.constants, setup.num_ranks // group, setup.ranks_per_node, stride=group)
    gradients, num_reductions = unit_gradients(work.profile, setup, group), setup.num_reductions
    *scattered, scattered_last = (link.seconds("reduce_scatter", num_bytes) for num_bytes in gradients)
    *summed, summed_last = (between.seconds("all_reduce", num_bytes / group) for num_bytes in gradients)
    times, gathered_again = _gathers(work.profile, setup)
    *gathers_again, first_again = (
        link.seconds("all_gather", num_bytes) if num_bytes else 0.0 for num_bytes in gathered_again
    )
    backward = work.backward_s, gathers_again[::-1], first_again
    # Only the last micro-batch of a step is reduced between groups, and by default within a group.
    early = work.gathering_s(*backward, *((scattered[::-1], scattered_last) if num_reductions > 1 else ()))
    reductions = [sum(pair) for pair in zip(scattered, summed, strict=True)]
    reducing = work.gathering_s(*backward, reductions[::-1], scattered_last + summed_last)
    waiting = times * forward + (setup.grad_accum_steps - 1) * early + reducing
    weights = sum(unit_weights(work.profile, group))
    gathered = times * weights + setup.grad_accum_steps * sum(gathered_again)
    copied = work.moved_s(2 * weights) * gathered / weights
    copied += num_reductions * work.moved_s(2 * work.grads)
    if setup.keeps_16_bits:  # each rank casts its shards before they are gathered: 4 bytes read, 2 written
        numbers = work.profile.num_parameters / group
        copied += work.moved_s(6 * numbers) * gathered / weights
    hooks, hidden = work.engine_python_s("hooks.unit", work.profile.num_blocks + 1)
    unsharded = work.local_step()
    summing_less = work.accumulated_s * (1 - 1 / group) if num_reductions > 1 else 0.0  # shards instead of the whole
    exposed = work.scaled_communication_s(waiting + copied + link.seconds("all_reduce", 8))
    exposed += work.scaled_communication_s(hooks)
    is_offloaded = setup.traits.states_on == "cpu"
    return StepSeconds(
        unsharded.forward_s,
        unsharded.backward_s - summing_less,
        0.0 if is_offloaded else work.optimizer_s(1 / group, is_sharded=True),
        exposed,
        offload_s=work.offload_s(group, gathered=gathered, copies_out=num_reductions) if is_offloaded else 0.0,
        hidden_s=hidden,
    )


FSDP = PlanFunctions(_states, _transfers, _seconds, _engine_memory)
