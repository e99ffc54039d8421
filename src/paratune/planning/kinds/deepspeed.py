"""DeepSpeed's own ZeRO, stages 0 to 3."""

from collections.abc import Iterator
from itertools import accumulate, groupby

from paratune.config.strategy_sections import DeepSpeedOptions, Limits, deepspeed_limits, strategy_options
from paratune.planning.profile import Profile
from paratune.planning.states import (
    COMMUNICATION,
    GATHERED,
    GRADIENTS,
    STEP_BYTES,
    EngineInputs,
    EngineMemory,
    PredictionSetup,
    States,
    count,
    numbers_of,
    optimizer_groups,
    unsharded,
)
from paratune.planning.trace import Delta
from paratune.planning.work import PlanFunctions, StepSeconds, Transfer, Work, link_between, unit_gradients

ALIGNMENT = 2
"""DeepSpeed aligns each rank's part to a multiple of so many elements (`nccl_start_alignment_factor`)."""
ALLREDUCE = 500_000_000
"""Elements of the flat copies in which stage 0 sums gradients (`MEMORY_OPT_ALLREDUCE_SIZE`)."""
WAITS = {2: "wait.reduce", 3: "wait.gather"}
"""By stage, the constant for the time that a device waits for each parameter, also where the host is ahead of it."""
DOUBLE_BYTES = 8
"""DeepSpeed computes norms in float64, a tensor at a time."""


def _states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Stages 1 and 2: a flat tensor for each group; a rank has all weights, and the states of its N-th part.

    These are a copy of the part, its moments and its gradients. Gradients are kept whole for all parameters that
    overlap the part, with zeros as padding. With the optimizer on the host, the host has the flat gradients of the
    part, a buffer for the largest gradient, whole gradients of the parameters that overlap the part if stage 2
    accumulates, and a buffer for updated weights.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `__init__`, `get_flat_partition`,
        `initialize_optimizer_states`, `async_accumulate_grad_in_cpu_via_gpu`.
    """
    strategy, size, num_ranks = setup.strategy, profile.weight_bytes, setup.num_ranks
    assert isinstance(strategy, DeepSpeedOptions)
    if strategy.stage == 0:
        return unsharded(profile.parameters, numbers_of(profile, setup))
    if strategy.stage == 3:
        return _states_3(profile, setup, strategy)
    frozen = sum(parameter.numel for parameter in profile.parameters if not parameter.is_trained)
    weights, part, gradients, filled, num_groups = frozen, 0, 0, 0, 0
    for group in optimizer_groups(profile.parameters, with_unused=True):
        alignment = ALIGNMENT * num_ranks
        aligned = -(-count(group) // alignment) * alignment
        weights, part, num_groups = weights + aligned, part + aligned // num_ranks, num_groups + 1
        begin, end, at = rank * aligned // num_ranks, (rank + 1) * aligned // num_ranks, 0
        for parameter in group:
            if at < end and at + parameter.numel > begin:
                gradients += parameter.numel
            at += parameter.numel
        filled += max(0, end - max(at, begin))
    gradients += filled
    states = States(size * weights, size * gradients, 3 * setup.state_bytes * part + STEP_BYTES * num_groups)
    if not strategy.offload_optimizer:
        return states
    largest = max((parameter.numel for parameter in profile.parameters if parameter.is_trained), default=0)
    accumulated = gradients - filled if strategy.stage == 2 and setup.grad_accum_steps > 1 else 0
    host_gradients = setup.state_bytes * part + size * (largest + accumulated)
    return States(states.weights, 0, 0, size * part, host_gradients, states.optimizer)


def _states_3(profile: Profile, setup: PredictionSetup, strategy: DeepSpeedOptions) -> States:
    """Each parameter is flat in N equal parts; small ones are in addition whole.

    There is an additional copy of the trained parts, although they are already fp32: the test that would avoid it
    compares a `torch.device` with a string. With the optimizer on the host gradients exist twice, from the backward
    pass and for the update.

    Source: DeepSpeed 0.19.8, runtime/zero/partition_parameters.py, `partition_numel`; stage3.py,
        `_create_fp32_partitions`, `grad_partitions_flat_buffer`, `initialize_optimizer_states`; parameter_offload.py,
        `mark_persistent_parameters`.
    """
    size, num_ranks = profile.weight_bytes, setup.num_ranks
    parts = {parameter: -(-parameter.numel // num_ranks) for parameter in profile.parameters}
    trained = sum(part for parameter, part in parts.items() if parameter.is_trained)
    num_groups = len(list(optimizer_groups(profile.parameters, with_unused=True)))
    weights, gradients = size * sum(parts.values()), size * trained
    optimizer = 3 * setup.state_bytes * trained + STEP_BYTES * num_groups
    on_host = weights if strategy.offload_parameters else 0
    on_device = weights - on_host + _persistent_bytes(profile, strategy, num_ranks)
    if strategy.offload_optimizer:
        return States(on_device, 0, 0, on_host, gradients + setup.state_bytes * trained, optimizer)
    return States(on_device, gradients, optimizer, on_host)


def _limits(profile: Profile, strategy: DeepSpeedOptions) -> Limits:
    """Return the bucket sizes and thresholds of DeepSpeed, as `strategies.deepspeed_setup` sets them."""
    largest = max((count(block.parameters) for block in profile.parts[:-1]), default=0)
    return deepspeed_limits(strategy_options(strategy), element_size=profile.weight_bytes, largest_block=largest)


def _engine_memory(view: EngineInputs) -> EngineMemory:
    """Stage 0 is like a single process; then gradients are summed in flat copies.

    Source: DeepSpeed 0.19.8, runtime/engine.py, `allreduce_no_retain`.
    """
    strategy = view.setup.strategy
    assert isinstance(strategy, DeepSpeedOptions)
    size = view.profile.weight_bytes
    bucket = size * _limits(view.profile, strategy).reduce_bucket_size
    # The update copies gradients flat; those of 16 bits have a copy in fp32 too.
    flat_bytes = size + (view.setup.state_bytes if view.setup.keeps_16_bits else 0)
    if strategy.stage == 3:
        return _engine_memory_3(view, strategy, bucket, flat_bytes)
    if strategy.stage:
        return _engine_memory_1_2(view, strategy, bucket, flat_bytes)
    sent = min(view.states.gradients, ALLREDUCE * size)
    at_step = {COMMUNICATION: sent} if view.setup.num_ranks > 1 else {}
    if view.accumulates:
        return EngineMemory({GRADIENTS: view.states.gradients}, view.copied_gradients(), at_step)
    return EngineMemory({}, tuple(view.gradients()), at_step)


def _engine_memory_1_2(view: EngineInputs, strategy: DeepSpeedOptions, bucket: int, flat_bytes: int) -> EngineMemory:
    """Gradients are copied into a bucket; when it is full, a copy of its content is sent.

    Stage 1 keeps all gradients until the last micro-batch is done; stage 2 reduces each as soon as it is complete, and
    adds those of this rank's part to the earlier ones. The update copies the part of one group flat; the norm takes one
    gradient at a time in float64.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `setup_buckets`, `copy_grads_in_partition`,
        `get_grad_norm_direct`, `step`.
    """
    profile, size = view.profile, view.profile.weight_bytes
    groups = list(optimizer_groups(profile.parameters, with_unused=True))
    trained = size * sum(map(count, groups))
    own_gradients = view.states.gradients
    deltas = [Delta(profile.timeline.num_forward, COMMUNICATION, bucket)]
    if strategy.stage == 1:
        always = {GRADIENTS: trained} if view.accumulates else {}
        deltas += view.copied_gradients() if view.accumulates else view.gradients()
        deltas += [*_sent_copy(view.end, min(bucket, trained)), Delta(view.end, GRADIENTS, own_gradients)]
    else:
        always = {GRADIENTS: own_gradients} if view.accumulates else {}
        full = _bucket_flushes(view, bucket)
        deltas += [*view.copied_gradients(), Delta(min(full), GRADIENTS, own_gradients)]
        deltas += [delta for position, held in full.items() for delta in _sent_copy(position, held)]
    part = max((count(group) // view.setup.num_ranks for group in groups), default=0)
    largest = max((parameter.numel for group in groups for parameter in group), default=0)
    at_step = {COMMUNICATION: max(flat_bytes * part, DOUBLE_BYTES * largest)}
    if strategy.offload_optimizer:
        # One gradient at a time is copied to the host, and used for the norm; updated weights are copied back.
        always = {**always, COMMUNICATION: size * largest}
        deltas += _sent_copy(view.end, DOUBLE_BYTES * largest)
        at_step = {COMMUNICATION: size * part}
    return EngineMemory(always, tuple(deltas), at_step)


def _bucket_flushes(view: EngineInputs, bucket: int) -> dict[int, int]:
    """Return the positions in the backward pass at which DeepSpeed's bucket is sent, and the bytes in it."""
    timeline, bytes_by_position, held = view.profile.timeline, {}, 0
    for mark in timeline.marks:
        if mark.kind != "gradient":
            continue
        size = view.profile.weight_bytes * view.profile.parameters[mark.number].numel
        if held and held + size > bucket:
            bytes_by_position[mark.position], held = held, 0
        held += size
    return {**bytes_by_position, view.end: held}


def _sent_copy(position: int, num_bytes: int) -> Iterator[Delta]:
    yield Delta(position, COMMUNICATION, num_bytes)
    yield Delta(position, COMMUNICATION, -num_bytes)


def _engine_memory_3(view: EngineInputs, strategy: DeepSpeedOptions, bucket: int, flat_bytes: int) -> EngineMemory:
    """Gathered weights; a bucket of gradients, and a copy of it when it is full.

    The update copies the parts of one group flat; the norm takes one part at a time in float64.

    Source: DeepSpeed 0.19.8, runtime/zero/stage3.py, `__add_grad_to_ipg_bucket`, `__reduce_and_partition_ipg_grads`,
        `_prepare_fp32_grad_for_sub_group`.
    """
    always = {COMMUNICATION: bucket, GRADIENTS: view.states.gradients}
    sent = [delta for position, held in _bucket_flushes(view, bucket).items() for delta in _sent_copy(position, held)]
    parameters, num_ranks = view.profile.parameters, view.setup.num_ranks
    largest = max((parameter.numel for parameter in parameters if parameter.is_trained), default=0)
    groups = optimizer_groups(parameters, with_unused=True)
    part = max((sum(-(-parameter.numel // num_ranks) for parameter in group) for group in groups), default=0)
    flat = 0 if strategy.offload_optimizer else flat_bytes * part
    norm = DOUBLE_BYTES * -(-largest // num_ranks)
    if strategy.offload_optimizer:
        sent += _sent_copy(view.end, norm)
    # Small weights, which are whole during passes, are not whole during the update.
    at_step = {COMMUNICATION: max(0, max(flat, norm) - _persistent_bytes(view.profile, strategy, num_ranks))}
    deltas = (*_gathered(view, strategy), *view.copied_gradients(), *sent)
    return EngineMemory(always, deltas, at_step, keeps_casts=False)


def _persistent_bytes(profile: Profile, strategy: DeepSpeedOptions, num_ranks: int) -> int:
    """Return the bytes of the weights that stage 3 keeps whole in addition to their parts."""
    if num_ranks == 1 and not strategy.offload_parameters:
        return 0
    threshold = _limits(profile, strategy).param_persistence_threshold
    sizes = (parameter.numel for parameter in profile.parameters)
    return profile.weight_bytes * sum(-(-size // num_ranks) * num_ranks for size in sizes if size <= threshold)


def _gathered(view: EngineInputs, strategy: DeepSpeedOptions) -> list[Delta]:
    """Return gathered weights. One rank gathers none: its weights are views of its parts, or copies of offloaded ones.

    DeepSpeed remembers which weights it releases where, from the first pass whose order it knows: that of the second
    step or, with accumulation, of the first step, before which small weights are not gathered yet.

    Source: DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py, `__params_to_release` and its `lru_cache`,
        `reset_step`; partition_parameters.py, `NoGatherCoalescedHandle`.
    """
    if view.setup.num_ranks == 1 and not strategy.offload_parameters:
        return []
    limits = _limits(view.profile, strategy)
    threshold = limits.param_persistence_threshold
    small = {number for number, weight in enumerate(view.profile.parameters) if weight.numel <= threshold}
    released = _coordinate(view, limits, small, set())[1] if view.accumulates else None
    return _coordinate(view, limits, small, {*small}, released)[0]


def _coordinate(
    view: EngineInputs, limits: Limits, small: set[int], live: set[int], released: set[int] | None = None
) -> tuple[list[Delta], set[int], list[tuple[int, int]]]:
    """Return the memory of what DeepSpeed gathers in both passes, and after which uses it releases a weight.

    With each use of a weight it gathers the next weights of both passes, until `max_live_parameters` are there, and
    skips those that are there already. It releases a weight after a use, unless it has skipped a later use, or the next
    use is within `max_reuse_distance`. So a model below `max_live_parameters` stays gathered as a whole. Weights that
    are gathered together are copied out of the output of their collective, which is freed with the first use of the
    last of them. Weights in `small` are never released, those in `live` are gathered before; `released` are the uses
    after which weights are released, where they are known.

    Source: DeepSpeed 0.19.8, runtime/zero/partitioned_param_coordinator.py, `_fetch_sub_module_impl`,
        `__params_to_release`; partition_parameters.py, `AllGatherCoalescedHandle`.
    """
    profile, num_ranks, deltas = view.profile, view.setup.num_ranks, list[Delta]()
    numel = [parameter.numel for parameter in profile.parameters]
    num_bytes = [profile.weight_bytes * num_ranks * -(-size // num_ranks) for size in numel]
    uses = [(mark.position, mark.number) for mark in profile.timeline.marks if mark.kind == "use"]
    traversed = [0, *accumulate(numel[number] for _, number in uses)]
    is_reused, next_use = [False] * len(uses), dict[int, int]()
    for at, (_, number) in reversed([*enumerate(uses)]):
        later = next_use.get(number)
        is_reused[at] = later is not None and traversed[later] - traversed[at + 1] < limits.max_reuse_distance
        next_use[number] = at
    num_live, queue, not_kept = sum(numel[number] for number in live - small), 0, set[int]()
    gathered: list[tuple[int, int]] = []
    passed: dict[int, int] = {}  # by weight, its last use that has left the queue
    copied: dict[int, int] = {}  # by the first weight of a collective, the bytes of its output
    freed: dict[int, int] = {}  # by the last one
    modules = [(position, [*group]) for position, group in groupby(range(len(uses)), lambda at: uses[at][0])]
    modules.insert(0, (0, []))  # the model itself, which begins before its modules
    ends = [*(position for position, _ in modules[1:]), view.end]
    for (position, module), end in zip(modules, ends, strict=True):
        for at in module:
            number = uses[at][1]
            if number not in live:
                live.add(number)
                gathered.append((position, number))
                num_live += numel[number]
                deltas.append(Delta(position, GATHERED, num_bytes[number]))
            deltas.append(Delta(position, GATHERED, copied.pop(number, 0)))
            deltas.append(Delta(position, COMMUNICATION, -freed.pop(number, 0)))
            queue, passed[number] = max(queue, at + 1), max(passed.get(number, 0), at)
        most, ahead, num_ahead = min(limits.max_live_parameters - num_live, limits.prefetch_bucket_size), list[int](), 0
        while queue < len(uses) and num_ahead < most:
            number = uses[queue][1]
            passed[number] = queue
            queue += 1
            if number not in live:
                live.add(number)
                ahead.append(number)
                gathered.append((position, number))
                num_ahead += numel[number]
        num_live += num_ahead
        is_joined, output = len(ahead) > 1 and num_ranks > 1, sum(num_bytes[number] for number in ahead)
        deltas.append(Delta(position, COMMUNICATION if is_joined else GATHERED, output))
        if is_joined:
            copied[ahead[0]] = freed[ahead[-1]] = output
        for at in module:
            number = uses[at][1]
            is_kept = passed[number] > at or is_reused[at] if released is None else at not in released
            if number not in small and not is_kept and number in live:
                not_kept.add(at)
                live.remove(number)
                num_live -= numel[number]
                deltas.append(Delta(end, GATHERED, -num_bytes[number]))
    return deltas, not_kept, gathered


def _gathers(profile: Profile, setup: PredictionSetup) -> tuple[list[list[int]], list[list[int]]]:
    """Return the bytes of each unit that stage 3 gathers in each forward, and in each backward pass of a step.

    The last unit is the rest. Below `max_live_parameters` a micro-batch gathers each weight once, for both passes.
    """
    strategy = setup.strategy
    assert isinstance(strategy, DeepSpeedOptions)
    forward, backward = list[list[int]](), list[list[int]]()
    if setup.num_ranks == 1 and not strategy.offload_parameters:
        return forward, backward
    limits, view = _limits(profile, strategy), EngineInputs(profile, setup, States(), 1)
    threshold, blocks = limits.param_persistence_threshold, profile.num_blocks
    small = {number for number, weight in enumerate(profile.parameters) if weight.numel <= threshold}
    released = _coordinate(view, limits, small, set())[1] if view.accumulates else None
    live = {*small}
    for _ in range(min(2, setup.grad_accum_steps)):
        passes = [0] * (blocks + 1), [0] * (blocks + 1)
        for position, number in _coordinate(view, limits, small, live, released)[2]:
            weight = profile.parameters[number]
            unit = blocks if weight.block is None else weight.block
            passes[position >= profile.timeline.num_forward][unit] += profile.weight_bytes * weight.numel
        forward.append(passes[0])
        backward.append(passes[1])
    # All later micro-batches gather what the second one gathers.
    more = setup.grad_accum_steps - len(forward)
    return forward + more * forward[-1:], backward + more * backward[-1:]


def _transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    """Stages 1 and 2 sum whole buckets on all ranks; stage 3 gathers weights that are not there.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `allreduce_and_scatter`; stage3.py, `_post_step`.
    """
    strategy = setup.strategy
    assert isinstance(strategy, DeepSpeedOptions)
    ranks, times = setup.num_ranks, setup.num_reductions
    if strategy.stage == 3:
        forward, backward = _gathers(profile, setup)
        return [
            *(Transfer("all_gather", n, ranks) for units in (*forward, *backward) for n in units if n),
            Transfer("all_gather", _persistent_bytes(profile, strategy, ranks), ranks),
            *(Transfer("reduce_scatter", num_bytes, ranks, times) for num_bytes in unit_gradients(profile, setup)),
        ]
    gradients = sum(unit_gradients(profile, setup))
    sent = [Transfer("all_gather", gradients, ranks)] if strategy.stage else []
    return [Transfer("all_reduce", gradients, ranks, times), *sent]


def _seconds(work: Work) -> StepSeconds:
    """DeepSpeed's own ZeRO; stages below 3 wait for their collectives (`overlap_comm` is off there by default).

    Stages 1 and 2 sum whole buckets on all ranks, and each rank keeps its part. Gradients are copied into the bucket
    and out of it; weights that stage 3 gathers are copied out of flat parts.

    Source: DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py, `allreduce_and_scatter` (`use_multi_rank_bucket_allreduce`
        is on by default); stage3.py, `__add_grad_to_ipg_bucket`; partition_parameters.py, `AllGatherCoalescedHandle`.
    """
    setup, strategy = work.setup, work.setup.strategy
    assert isinstance(strategy, DeepSpeedOptions)
    ranks, steps = setup.num_ranks, setup.grad_accum_steps
    weights, num_tensors = work.profile.weight_bytes * work.profile.num_parameters, len(work.profile.parameters)
    link = link_between(work.constants, ranks, setup.ranks_per_node)
    whole = work.local_step()
    times = setup.num_reductions
    copied = times * work.moved_s(4 * work.grads) if ranks > 1 or strategy.stage else 0.0
    if strategy.stage == 3:
        passes = _gathers(work.profile, setup)
        copied += work.moved_s(2 * sum(sum(units) for each in passes for units in each))
        *reduced, last = (link.seconds("reduce_scatter", n) for n in unit_gradients(work.profile, setup))
        waiting = link.seconds("all_gather", _persistent_bytes(work.profile, strategy, ranks))
        for forward, backward in zip(*passes, strict=True):
            *gathers, first = (link.seconds("all_gather", n) if n else 0.0 for n in forward)
            waiting += work.gathering_s(work.forward_s, gathers, first)
            *gathers, first = (link.seconds("all_gather", n) if n else 0.0 for n in backward)
            waiting += work.gathering_s(work.backward_s, gathers[::-1], first, reduced[::-1], last)
    else:
        waiting = times * link.seconds("all_reduce", work.grads)
        waiting += link.seconds("all_gather", work.grads) if strategy.stage else 0.0
    name = "hooks.gather" if strategy.stage == 3 else "hooks.tensor"
    hooks, hidden = work.engine_python_s(name, num_tensors) if strategy.stage else (0.0, 0.0)
    if (wait := WAITS.get(strategy.stage)) is not None:
        hooks += steps * num_tensors * work.constants.value(wait, 0.0)
    backward_s = whole.backward_s + copied + hooks
    share = 1 / ranks if strategy.stage else 1.0
    exposed = work.scaled_communication_s(waiting)
    if setup.traits.states_on == "cpu":
        copies_in = 2 * steps if strategy.offload_parameters else 1
        copies_out = steps if strategy.stage >= 2 else 1  # after each micro-batch in which gradients are reduced
        offload = work.offload_s(ranks, gathered=copies_in * weights, copies_out=copies_out)
        return StepSeconds(whole.forward_s, backward_s, 0.0, exposed, offload_s=offload, hidden_s=hidden)
    updating = work.optimizer_s(share)
    if setup.keeps_16_bits:
        # Gradients are copied flat, 2 + 2 bytes a number, and cast to fp32, 2 + 4; new weights are cast back, 4 + 2.
        # Source: stage_1_and_2.py, `step`; stage3.py, `_prepare_fp32_grad_for_sub_group`.
        updating += work.moved_s(16 * share * work.profile.num_trained)
    return StepSeconds(whole.forward_s, backward_s, updating, exposed, hidden_s=hidden)


DEEPSPEED = PlanFunctions(_states, _transfers, _seconds, _engine_memory)
