"""ZeRO-2, ZeRO-3 and hybrid sharding by FSDP2, which moves weights and gradients block by block.

`U` is a unit's padded bytes (a block, or embeddings and head together), `N` the ranks that share states.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from paratune.plan.engines import COMMUNICATION, GATHERED, GRADIENTS, Course, View
from paratune.plan.kinds.plan_functions import PlanFunctions
from paratune.plan.links import Link, link_between
from paratune.plan.profile import Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.sharded import gathered_backward_s, gathered_forward_s, offload_s
from paratune.plan.states import States, padded, shard, shard_size, sharded_numbers_of, whole
from paratune.plan.timeline import Delta
from paratune.plan.traffic import Transfer, unit_gradients, unit_weights
from paratune.plan.work import StepSeconds, Work, alone, factored, hooks_s, optimizer_s


def _states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Each dimension 0 is cut into N chunks, of which the last may be smaller, or empty.

    Weights are padded to equal chunks on all ranks; gradients are parts of the outputs of the reduce-scatters, which
    are padded too; moments are not.

    Source: PyTorch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param.py, `_init_sharded_param`, and
        _fsdp_collectives.py, `foreach_reduce`.
    """
    num_ranks, numbers = shard_size(setup), sharded_numbers_of(profile, setup)
    padded = whole((shard(each, num_ranks) for each in profile.parameters), numbers)
    mine = whole((shard(each, num_ranks, rank % num_ranks) for each in profile.parameters), numbers)
    found = replace(padded, optimizer=mine.optimizer)
    return found.on_host() if setup.traits.states_on == "cpu" else found


@dataclass(frozen=True)
class _Unit:
    """What FSDP2 gathers and reduces at once."""

    gathered: int
    """U."""
    trained: int
    """Of the part of it that has gradients, in the dtype in which these are reduced."""
    gradients: int
    """The same, not padded."""
    parameters: tuple[int, ...]


def _course(view: View) -> Course:
    """ZeRO-2, ZeRO-3, HSDP by FSDP2; forward and backward as the CPU issues them.

    A unit's all-gather has an output, copied into tensors for its weights, and held until the next unit's has come
    (forward), or let go of at once, the next one having been asked for (backward). The input of a reduce-scatter is
    held until the next one.

    Source: PyTorch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, `wait_for_unshard`,
        `_backward_prefetch`, `post_backward`; _fsdp_collectives.py, `foreach_all_gather`, `foreach_reduce`.
    """
    units, root = _units(view)
    deltas = [*_forward(view, units, root), *_backward(view, units, root)]
    always = {}
    if view.accumulates:
        # Whole ones, which are reduced with the last micro-batch alone.
        always[GRADIENTS] = sum(unit.gradients for unit in (*units, root))
        # Those of 16 bits are added to others in fp32 when all of a unit's are there.
        deltas += _until_reduced(view, units, root) if view.setup.keeps_16_bits else view.copied_gradients()
    else:
        deltas += _until_reduced(view, units, root)
    return Course(always, tuple(deltas))


def _until_reduced(view: View, units: list[_Unit], root: _Unit) -> Iterator[Delta]:
    """Yield gradients that stay until their unit's backward pass is done."""
    of_unit = dict.fromkeys(root.parameters, view.end)
    for number, unit in enumerate(units):
        of_unit |= dict.fromkeys(unit.parameters, view.ends.get(number, view.end))
    yield from view.gradients(of_unit)


def _units(view: View) -> tuple[list[_Unit], _Unit]:
    """Return the blocks, and the unit of all that is in none."""
    profile, num_ranks = view.profile, shard_size(view.setup)
    reduced = view.setup.precision.reduce_dtype.itemsize if view.setup.keeps_16_bits else profile.weight_bytes
    numbered = list(enumerate(profile.parameters))

    def unit(block: int | None) -> _Unit:
        mine = [(number, each) for number, each in numbered if each.block == block]
        sizes = {each: profile.weight_bytes * padded(each, num_ranks) for _, each in mine}
        trained = [each for _, each in mine if each.is_trained and each.has_gradient]
        return _Unit(
            sum(sizes.values()),
            sum(sizes[each] for each in trained) // profile.weight_bytes * reduced,
            reduced * sum(each.numel for each in trained),
            tuple(number for number, _ in mine),
        )

    return [unit(number) for number in range(profile.num_blocks)], unit(None)


def _keeps_gathered(view: View) -> bool:
    return not view.setup.traits.gathers_per_micro_step


def _forward(view: View, units: list[_Unit], root: _Unit) -> Iterator[Delta]:
    gathers, last = shard_size(view.setup) > 1, 0
    end = view.profile.timeline.num_forward
    forward_ends = view.profile.timeline.positions("forward_end")
    for start, unit, ends in [(0, root, end), *((view.starts[n], u, forward_ends[n]) for n, u in enumerate(units))]:
        if gathers:
            yield from _asked_for(view, start, unit)
            yield Delta(start, COMMUNICATION, -last)
            last = unit.gathered
        yield Delta(start, GATHERED, unit.gathered)
        if not _keeps_gathered(view):
            yield Delta(ends, GATHERED, -unit.gathered)
    yield Delta(end, COMMUNICATION, -last)


def _asked_for(view: View, position: int, unit: _Unit) -> Iterator[Delta]:
    """Yield the output of an all-gather; shards on the host come to the device for it, others are cast to 16 bits."""
    is_copied = view.states.host_weights or view.setup.keeps_16_bits
    copied = unit.gathered // shard_size(view.setup) if is_copied else 0
    yield Delta(position, COMMUNICATION, unit.gathered + copied)
    yield Delta(position, COMMUNICATION, -copied)


def _backward(view: View, units: list[_Unit], root: _Unit) -> Iterator[Delta]:
    num_ranks, begins = shard_size(view.setup), view.profile.timeline.positions("backward")
    gathers = num_ranks > 1 and not _keeps_gathered(view)
    running = [(begins[n], view.ends[n], units[n]) for n in reversed(range(len(units))) if n in begins]
    start = view.profile.timeline.num_forward
    held = 0
    if gathers:
        yield from _asked_for(view, start, root)
    if not _keeps_gathered(view):
        yield Delta(start, GATHERED, root.gathered)
    if gathers:
        yield Delta(start, COMMUNICATION, -root.gathered)
        yield from _asked_for(view, start, units[-1])
    for at, (begin, end, unit) in enumerate(running):
        if not _keeps_gathered(view):
            yield Delta(begin, GATHERED, unit.gathered)
        if gathers:
            yield Delta(begin, COMMUNICATION, -unit.gathered)
            if at + 1 < len(running):
                yield from _asked_for(view, begin, running[at + 1][2])
        yield from _reduced(view, end, unit, held)
        held = unit.trained
    if gathers and not running:
        yield Delta(view.end, COMMUNICATION, -units[-1].gathered)
    yield from _reduced(view, view.end, root, held)
    yield Delta(view.end, COMMUNICATION, -root.trained)


def _reduced(view: View, position: int, unit: _Unit, held: int) -> Iterator[Delta]:
    """Yield a unit's reduce-scatter; `held` is the input of the one before. Gradients end at the same place."""
    yield Delta(position, GATHERED, -unit.gathered)
    yield Delta(position, COMMUNICATION, unit.trained - held)
    if view.accumulates:
        yield Delta(position, GRADIENTS, -unit.gradients)
    if not view.states.host_gradients:
        yield Delta(position, GRADIENTS, unit.trained // shard_size(view.setup))


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


def _transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    group = shard_size(setup)
    gradients = unit_gradients(profile, setup, group)
    return [
        *(Transfer("all_gather", n, group, forward_gathers(setup)) for n in unit_weights(profile, group)),
        *(Transfer("all_gather", n, group, setup.grad_accum_steps) for n in gathered_again(profile, setup)),
        *(Transfer("reduce_scatter", n, group) for n in gradients),
        *(Transfer("all_reduce", n / group, setup.num_ranks // group) for n in gradients),
    ]


def _seconds(work: Work) -> StepSeconds:
    """ZeRO-2, ZeRO-3 and hybrid sharding by FSDP2: a unit for each block, and one for the rest."""
    setup = work.setup
    group = shard_size(setup)
    link = link_between(work.constants, group, setup.ranks_per_node)
    *gathers, first = (link.all_gather_s(num_bytes) for num_bytes in unit_weights(work.profile, group))
    forward = gathered_forward_s(work, gathers, first)
    reductions = _reductions(work, link, group)
    again = gathered_again(work.profile, setup)
    *backward_gathers, first_again = (link.all_gather_s(num_bytes) if num_bytes else 0.0 for num_bytes in again)
    early = gathered_backward_s(work, backward_gathers, first_again, [0.0] * (len(gathers) + 1))
    last = gathered_backward_s(work, backward_gathers, first_again, reductions)
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
        offload = offload_s(work, group, gathered=gathered, copies_out=1)
        return StepSeconds(whole.forward_s, whole.backward_s, 0.0, exposed, offload_s=offload, **python)
    updating = optimizer_s(work, 1 / group, is_sharded=True)
    return StepSeconds(whole.forward_s, whole.backward_s, updating, exposed, **python)


def _reductions(work: Work, link: Link, group: int) -> list[float]:
    """Return the seconds of reducing the gradients of each block, and of the rest."""
    setup = work.setup
    replicas = setup.num_ranks // group
    between = link_between(work.constants, replicas, setup.ranks_per_node, stride=group)
    return [
        link.reduce_scatter_s(num_bytes) + between.all_reduce_s(num_bytes / group)
        for num_bytes in unit_gradients(work.profile, setup, group)
    ]


FSDP = PlanFunctions(_states, _transfers, _seconds, _course)
