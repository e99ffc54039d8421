"""ZeRO-2, ZeRO-3 and hybrid sharding by FSDP2, which gathers weights and reduces gradients unit by unit.

A unit is a block, or embeddings and head together. `U` are its padded bytes, `N` the ranks that share states.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from paratune.planning.profile import Profile
from paratune.planning.states import (
    COMMUNICATION,
    GATHERED,
    GRADIENTS,
    EngineInputs,
    EngineMemory,
    PredictionSetup,
    States,
    numbers_of,
    padded,
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
    states = replace(padded, optimizer=of_rank.optimizer)
    return states.on_host() if setup.traits.states_on == "cpu" else states


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
    units, root = _units(view)
    deltas = [*_forward(view, units, root), *_backward(view, units, root)]
    always = {}
    if view.accumulates:
        # Unsharded gradients, which are reduced only in the last micro-batch.
        always[GRADIENTS] = sum(unit.gradients for unit in (*units, root))
        # Gradients of 16 bits are added to those in fp32 when all gradients of the unit are complete.
        deltas += _until_reduced(view, units, root) if view.setup.keeps_16_bits else view.copied_gradients()
    else:
        deltas += _until_reduced(view, units, root)
    return EngineMemory(always, tuple(deltas))


def _until_reduced(view: EngineInputs, units: list[_Unit], root: _Unit) -> Iterator[Delta]:
    """Yield gradients that exist until the backward pass of their unit ends."""
    of_unit = dict.fromkeys(root.parameters, view.end)
    for number, unit in enumerate(units):
        of_unit |= dict.fromkeys(unit.parameters, view.ends.get(number, view.end))
    yield from view.gradients(of_unit)


def _units(view: EngineInputs) -> tuple[list[_Unit], _Unit]:
    """Return the units of the blocks, and the unit of all other parameters."""
    profile, num_ranks = view.profile, shard_size(view.setup)
    reduced = view.setup.precision.reduce_dtype.itemsize if view.setup.keeps_16_bits else profile.weight_bytes
    numbered = list(enumerate(profile.parameters))

    def unit(block: int | None) -> _Unit:
        in_unit = [(number, parameter) for number, parameter in numbered if parameter.block == block]
        sizes = {parameter: profile.weight_bytes * padded(parameter, num_ranks) for _, parameter in in_unit}
        trained = [parameter for _, parameter in in_unit if parameter.is_trained and parameter.has_gradient]
        return _Unit(
            sum(sizes.values()),
            sum(sizes[parameter] for parameter in trained) // profile.weight_bytes * reduced,
            reduced * sum(parameter.numel for parameter in trained),
            tuple(number for number, _ in in_unit),
        )

    return [unit(number) for number in range(profile.num_blocks)], unit(None)


def _keeps_gathered(view: EngineInputs) -> bool:
    return not view.setup.traits.gathers_per_micro_step


def _forward(view: EngineInputs, units: list[_Unit], root: _Unit) -> Iterator[Delta]:
    gathers, last = shard_size(view.setup) > 1, 0
    end = view.profile.timeline.num_forward
    forward_ends = view.profile.timeline.positions("forward_end")
    for start, unit, ends in [(0, root, end), *((view.starts[n], u, forward_ends[n]) for n, u in enumerate(units))]:
        if gathers:
            yield from _all_gather(view, start, unit)
            yield Delta(start, COMMUNICATION, -last)
            last = unit.gathered
        yield Delta(start, GATHERED, unit.gathered)
        if not _keeps_gathered(view):
            yield Delta(ends, GATHERED, -unit.gathered)
    yield Delta(end, COMMUNICATION, -last)


def _all_gather(view: EngineInputs, position: int, unit: _Unit) -> Iterator[Delta]:
    """Yield the memory of an all-gather: its output, and copies of shards that are on the host or cast to 16 bits."""
    is_copied = view.states.host_weights or view.setup.keeps_16_bits
    copied = unit.gathered // shard_size(view.setup) if is_copied else 0
    yield Delta(position, COMMUNICATION, unit.gathered + copied)
    yield Delta(position, COMMUNICATION, -copied)


def _backward(view: EngineInputs, units: list[_Unit], root: _Unit) -> Iterator[Delta]:
    num_ranks, begins = shard_size(view.setup), view.profile.timeline.positions("backward")
    gathers = num_ranks > 1 and not _keeps_gathered(view)
    running = [(begins[n], view.ends[n], units[n]) for n in reversed(range(len(units))) if n in begins]
    start = view.profile.timeline.num_forward
    held = 0
    if gathers:
        yield from _all_gather(view, start, root)
    if not _keeps_gathered(view):
        yield Delta(start, GATHERED, root.gathered)
    if gathers:
        yield Delta(start, COMMUNICATION, -root.gathered)
        yield from _all_gather(view, start, units[-1])
    for at, (begin, end, unit) in enumerate(running):
        if not _keeps_gathered(view):
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
    if view.accumulates:
        yield Delta(position, GRADIENTS, -unit.gradients)
    if not view.states.host_gradients:
        yield Delta(position, GRADIENTS, unit.trained // shard_size(view.setup))


def backward_gathers(profile: Profile, setup: PredictionSetup) -> list[int]:
    """Return the bytes of each unit's weights that a backward pass gathers under FSDP2, or 0.

    Blocks of a frozen encoder have no backward pass; nevertheless FSDP2 prefetches the last one of them.
    """
    weights = unit_weights(profile, shard_size(setup))
    if not setup.traits.gathers_per_micro_step:
        return [0] * len(weights)
    last = profile.num_blocks - 1
    runs = [part.num_trained > 0 or number == last for number, part in enumerate(profile.blocks)]
    return [size if is_gathered else 0 for size, is_gathered in zip(weights, [*runs, True], strict=True)]


def forward_gathers(setup: PredictionSetup) -> int:
    """Return how often the forward passes of a step gather each weight: once where it is kept for all micro-batches."""
    return setup.grad_accum_steps if setup.traits.gathers_per_micro_step else 1


def _transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    group = shard_size(setup)
    gradients = unit_gradients(profile, setup, group)
    return [
        *(Transfer("all_gather", n, group, forward_gathers(setup)) for n in unit_weights(profile, group)),
        *(Transfer("all_gather", n, group, setup.grad_accum_steps) for n in backward_gathers(profile, setup)),
        *(Transfer("reduce_scatter", n, group) for n in gradients),
        *(Transfer("all_reduce", n / group, setup.num_ranks // group) for n in gradients),
    ]


def _seconds(work: Work) -> StepSeconds:
    """ZeRO-2, ZeRO-3 and hybrid sharding by FSDP2: a unit for each block, and one for the rest."""
    setup = work.setup
    group = shard_size(setup)
    link = link_between(work.constants, group, setup.ranks_per_node)
    *gathers, first = (link.seconds("all_gather", num_bytes) for num_bytes in unit_weights(work.profile, group))
    forward = work.gathered_forward_s(gathers, first)
    between = link_between(work.constants, setup.num_ranks // group, setup.ranks_per_node, stride=group)
    reductions = [
        link.seconds("reduce_scatter", num_bytes) + between.seconds("all_reduce", num_bytes / group)
        for num_bytes in unit_gradients(work.profile, setup, group)
    ]
    gathered_again = backward_gathers(work.profile, setup)
    *gathers_again, first_again = (
        link.seconds("all_gather", num_bytes) if num_bytes else 0.0 for num_bytes in gathered_again
    )
    early = work.gathered_backward_s(gathers_again, first_again, [0.0] * (len(gathers) + 1))
    last = work.gathered_backward_s(gathers_again, first_again, reductions)
    waiting = forward_gathers(setup) * forward + (setup.grad_accum_steps - 1) * early + last
    weights = sum(unit_weights(work.profile, group))
    gathered = forward_gathers(setup) * weights + setup.grad_accum_steps * sum(gathered_again)
    copied = work.moved_s(2 * weights) * gathered / weights
    copied += work.moved_s(2 * work.grads)
    if setup.keeps_16_bits:  # each rank casts its shards before they are gathered: 4 bytes read, 2 written
        numbers = work.profile.num_parameters / group
        copied += work.moved_s(6 * numbers) * gathered / weights
    hooks, hidden = work.engine_python_s("hooks.unit", len(work.profile.blocks) + 1)
    unsharded = work.local_step()
    exposed = work.scaled_communication_s(waiting + copied + link.seconds("all_reduce", 8))
    exposed += work.scaled_communication_s(hooks)
    is_offloaded = setup.traits.states_on == "cpu"
    return StepSeconds(
        unsharded.forward_s,
        unsharded.backward_s,
        0.0 if is_offloaded else work.optimizer_s(1 / group, is_sharded=True),
        exposed,
        offload_s=work.offload_s(group, gathered=gathered, copies_out=1) if is_offloaded else 0.0,
        hidden_s=hidden,
    )


FSDP = PlanFunctions(_states, _transfers, _seconds, _engine_memory)
