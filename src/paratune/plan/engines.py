"""What each strategy's engine takes on a rank besides the states, in the course of a step's last micro-batch.

The last one is the fullest where there are several: gradients of the others are there already. Engines that move
weights and gradients work block by block; `U` is a unit's padded bytes (a block, or embeddings and head together), `N`
the ranks that share states.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paratune.config.strategy_sections import DeepSpeedOptions
from paratune.plan.profile import Parameter, Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.states import States, deepspeed_limits, optimizer_groups, padded, shard_size
from paratune.plan.timeline import Delta, rounded

GRADIENTS, GATHERED, COMMUNICATION = "gradients", "gathered_weights", "communication"
CAST_WEIGHTS = "cast_weights"


@dataclass(frozen=True)
class Course:
    """What an engine takes on the device, by term."""

    always: Mapping[str, int] = field(default_factory=dict)
    """Bytes from the first forward pass to the update."""
    deltas: tuple[Delta, ...] = ()
    """Bytes that come and go in a pass."""
    at_step: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the update takes besides states and gradients."""
    keeps_casts: bool = True
    """Whether autograd keeps the weights that autocast has cast."""


@dataclass(frozen=True)
class View:
    """What engines look at."""

    profile: Profile
    setup: PredictionSetup
    states: States
    """Of the rank."""
    rounding: int
    """Bytes to a multiple of which allocations are rounded."""

    @cached_property
    def starts(self) -> dict[int, int]:
        """Where each block begins in the forward pass."""
        return self.profile.timeline.positions("forward")

    @cached_property
    def ends(self) -> dict[int, int]:
        """Where each block's backward pass is done; blocks that have none are missing."""
        timeline = self.profile.timeline
        begins, inner_end = timeline.positions("backward"), timeline.positions("inner_end")
        return {number: begins.get(number - 1, inner_end.get(0, self.end)) for number in begins}

    @property
    def end(self) -> int:
        """Where the backward pass is done."""
        return len(self.profile.timeline.changes)

    def gradients(self, until: Mapping[int, int] | None = None) -> Iterator[Delta]:
        """Yield the gradients as autograd makes them.

        Args:
            until: Where each parameter's is let go of; all are kept when None.
        """
        timeline = self.profile.timeline
        made = {change: at + 1 for at, change in enumerate(timeline.changes)}
        for number, parameter in timeline.gradients.items():
            size = rounded(timeline.sizes[number], self.rounding)
            yield Delta(made[number], GRADIENTS, size)
            if until is not None:
                yield Delta(until[parameter], GRADIENTS, -size)

    def copied_gradients(self) -> tuple[Delta, ...]:
        """Return gradients that are added to others, or copied, as soon as they are whole."""
        return tuple(self.gradients(self.profile.timeline.positions("gradient")))

    def earlier_gradients(self) -> Iterator[Delta]:
        """Yield the gradients of the micro-batches before, each until the last one's has been added."""
        whole = self.profile.timeline.positions("gradient")
        for number, parameter in self.profile.timeline.gradients.items():
            size = rounded(self.profile.timeline.sizes[number], self.rounding)
            yield Delta(0, GRADIENTS, size)
            yield Delta(whole[parameter], GRADIENTS, -size)

    @property
    def accumulates(self) -> bool:
        return self.setup.grad_accum_steps > 1


def replicated(view: View) -> Course:
    """Whole models. One process leaves its first gradients where autograd makes them; DDP copies them into its buckets.

    The micro-batches before the last one, which DDP does not look at, leave their gradients beside the buckets: until
    each has been added to and copied there are two of it.

    Source: PyTorch 2.13, torch/csrc/distributed/c10d/reducer.cpp, `mark_variable_ready_dense` under
        `gradient_as_bucket_view`.
    """
    is_single = view.setup.traits.max_world_size == 1
    copies = {CAST_WEIGHTS: view.profile.working_bytes}
    if is_single and not view.accumulates:
        return Course(copies, tuple(view.gradients()))
    twice = () if is_single or not view.accumulates else tuple(view.earlier_gradients())
    return Course({**copies, GRADIENTS: view.states.gradients}, (*twice, *view.copied_gradients()))


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


def fsdp(view: View) -> Course:
    """ZeRO-2, ZeRO-3, HSDP by FSDP2; forward and backward as the CPU issues them.

    A unit's all-gather has an output, copied into tensors for its weights, and held until the next unit's has come
    (forward), or let go of at once, the next one having been asked for (backward). The input of a reduce-scatter is
    held until the next one.

    Source: PyTorch 2.13, torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py, `wait_for_unshard`,
        `_backward_prefetch`, `post_backward`; _fsdp_collectives.py, `foreach_all_gather`, `foreach_reduce`.
    """
    units, root = _units(view)
    deltas = [*_fsdp_forward(view, units, root), *_fsdp_backward(view, units, root)]
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


def _fsdp_forward(view: View, units: list[_Unit], root: _Unit) -> Iterator[Delta]:
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


def _fsdp_backward(view: View, units: list[_Unit], root: _Unit) -> Iterator[Delta]:
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


DEEPSPEED_ALLREDUCE = 500_000_000
"""Numbers of the flat copies in which stage 0 sums gradients (`MEMORY_OPT_ALLREDUCE_SIZE`)."""
DOUBLE_BYTES = 8
"""DeepSpeed computes norms in float64, a tensor at a time."""


def deepspeed(view: View) -> Course:
    strategy = view.setup.strategy
    assert isinstance(strategy, DeepSpeedOptions)
    if strategy.stage == 0:
        return _deepspeed_0(view)
    bucket = view.profile.weight_bytes * deepspeed_limits(view.profile, strategy).reduce_bucket_size
    return _deepspeed_3(view, strategy, bucket) if strategy.stage == 3 else _deepspeed_1_2(view, strategy, bucket)


def _deepspeed_0(view: View) -> Course:
    """As one process; then gradients travel in flat copies.

    Source: DeepSpeed 0.19.8, runtime/engine.py, `allreduce_no_retain`.
    """
    sent = min(view.states.gradients, DEEPSPEED_ALLREDUCE * view.profile.weight_bytes)
    at_step = {COMMUNICATION: sent} if view.setup.num_ranks > 1 else {}
    if view.accumulates:
        return Course({GRADIENTS: view.states.gradients}, view.copied_gradients(), at_step)
    return Course({}, tuple(view.gradients()), at_step)


def _deepspeed_1_2(view: View, strategy: DeepSpeedOptions, bucket: int) -> Course:
    """A bucket that gradients are copied into, and, when it is full, a copy of what it holds that is sent.

    Stage 1 keeps all gradients until the last micro-batch is done; stage 2 reduces them as they come, and adds those of
    this rank's part to the ones before. The update copies the part of one group flat; the norm takes one gradient at a
    time in float64.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `setup_buckets`, `copy_grads_in_partition`,
        `get_grad_norm_direct`, `step`.
    """
    profile, size = view.profile, view.profile.weight_bytes
    groups = [[each.numel for each in group] for group in optimizer_groups(profile.parameters, with_unused=True)]
    trained = size * sum(map(sum, groups))
    mine = view.states.gradients
    deltas = [Delta(profile.timeline.num_forward, COMMUNICATION, bucket)]
    if strategy.stage == 1:
        always = {GRADIENTS: trained} if view.accumulates else {}
        deltas += view.copied_gradients() if view.accumulates else view.gradients()
        deltas += [*_sent(view.end, min(bucket, trained)), Delta(view.end, GRADIENTS, mine)]
    else:
        always = {GRADIENTS: mine} if view.accumulates else {}
        full = _full(view, bucket)
        deltas += [*view.copied_gradients(), Delta(min(full), GRADIENTS, mine)]
        deltas += [delta for position, held in full.items() for delta in _sent(position, held)]
    part = max((sum(group) // view.setup.num_ranks for group in groups), default=0)
    largest = max((max(group) for group in groups), default=0)
    at_step = {COMMUNICATION: max(_flat_gradients(view, part), DOUBLE_BYTES * largest)}
    if strategy.offload_optimizer:
        # One gradient at a time on its way to the host, and for the norm; updated weights on their way back.
        always = {**always, COMMUNICATION: size * largest}
        deltas += _sent(view.end, DOUBLE_BYTES * largest)
        at_step = {COMMUNICATION: size * part}
    return Course(always, tuple(deltas), at_step)


def _flat_gradients(view: View, num_numbers: int) -> int:
    """Return the bytes of flat gradients in the update; of those of 16 bits there is a copy in fp32."""
    size = view.profile.weight_bytes
    return num_numbers * (size + view.setup.state_bytes if view.setup.keeps_16_bits else size)


def _full(view: View, bucket: int) -> dict[int, int]:
    """Return where DeepSpeed's bucket is emptied, in the course of the backward pass, and the bytes that it holds."""
    timeline, found, held = view.profile.timeline, {}, 0
    for mark in timeline.marks:
        if mark.kind != "gradient":
            continue
        size = view.profile.weight_bytes * view.profile.parameters[mark.number].numel
        if held and held + size > bucket:
            found[mark.position], held = held, 0
        held += size
    return {**found, view.end: held}


def _sent(position: int, num_bytes: int) -> Iterator[Delta]:
    yield Delta(position, COMMUNICATION, num_bytes)
    yield Delta(position, COMMUNICATION, -num_bytes)


def _deepspeed_3(view: View, strategy: DeepSpeedOptions, bucket: int) -> Course:
    """Gathered weights, until the update; a bucket of gradients, and a copy of it when it is full.

    The update copies the parts of one group flat; the norm takes one part at a time in float64.

    Source: DeepSpeed 0.19.8, runtime/zero/stage3.py, `__add_grad_to_ipg_bucket`, `__reduce_and_partition_ipg_grads`,
        `_prepare_fp32_grad_for_sub_group`.
    """
    always = {COMMUNICATION: bucket, GRADIENTS: view.states.gradients}
    sent = [delta for position, held in _full(view, bucket).items() for delta in _sent(position, held)]
    parameters, num_ranks = view.profile.parameters, view.setup.num_ranks
    largest = max((each.numel for each in parameters if each.is_trained), default=0)
    groups = optimizer_groups(parameters, with_unused=True)
    part = max((sum(-(-each.numel // num_ranks) for each in group) for group in groups), default=0)
    flat = 0 if strategy.offload_optimizer else _flat_gradients(view, part)
    norm = DOUBLE_BYTES * -(-largest // num_ranks)
    if strategy.offload_optimizer:
        sent += _sent(view.end, norm)
    # Small weights, which are whole all along, are not while the update runs.
    at_step = {COMMUNICATION: max(0, max(flat, norm) - _persistent_bytes(view, strategy))}
    deltas = (*_gathered_by_deepspeed(view, strategy), *view.copied_gradients(), *sent)
    return Course(always, deltas, at_step, keeps_casts=False)


def _persistent_bytes(view: View, strategy: DeepSpeedOptions) -> int:
    """Return what weights take that stage 3 keeps whole beside their parts."""
    threshold = deepspeed_limits(view.profile, strategy).param_persistence_threshold
    num_ranks, sizes = view.setup.num_ranks, (each.numel for each in view.profile.parameters)
    return view.profile.weight_bytes * sum(-(-size // num_ranks) * num_ranks for size in sizes if size <= threshold)


def _gathered_by_deepspeed(view: View, strategy: DeepSpeedOptions) -> Iterator[Delta]:
    """Yield two blocks of weights, or the one largest weight outside, or all that are needed again before long.

    A weight stays gathered that is needed again within `max_reuse_distance`: those of the last half of so many numbers,
    which the backward pass begins with. Then several are gathered ahead at once, and copied out of one output.

    Source: DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py, `__params_to_release`, `fetch_sub_module`;
        partition_parameters.py, `AllGatherCoalescedHandle`.
    """
    profile, size = view.profile, view.profile.weight_bytes
    limits = deepspeed_limits(profile, strategy)

    def gathered(parameters: tuple[Parameter, ...]) -> int:
        return size * sum(each.numel for each in parameters if each.numel > limits.param_persistence_threshold)

    blocks = max((gathered(block.parameters) for block in profile.blocks), default=0)
    outside = max((gathered((each,)) for each in profile.rest.parameters), default=0)
    everything, fewest = gathered(profile.parameters), max(2 * blocks, outside)
    kept = min(everything, size * (limits.max_reuse_distance // 2))
    num_bytes = max(fewest, kept)
    yield Delta(0, GATHERED, num_bytes)
    yield Delta(view.end, GATHERED, -num_bytes)
    if kept > fewest:
        ahead = min(everything, size * min(limits.prefetch_bucket_size, limits.max_live_parameters))
        yield Delta(0, COMMUNICATION, ahead)
        yield Delta(profile.timeline.num_forward, COMMUNICATION, -ahead)


ENGINES: dict[str, Callable[[View], Course]] = {
    **dict.fromkeys(("single", "ddp", "zero1"), replicated),
    **dict.fromkeys(("zero2", "zero3", "hsdp"), fsdp),
    "deepspeed": deepspeed,
}
"""By kind; a pipeline has a page of its own."""
