"""Pipeline parallelism: each rank has one or more stages.

`p` stages, `m` micro-batches, `v` stages on a rank.
"""

from collections import defaultdict

from paratune.base.units import MIB
from paratune.config.feasibility import stage_reasons
from paratune.config.problems import refuse
from paratune.config.strategy_sections import PipelineOptions
from paratune.config.traits import Traits
from paratune.planning.profile import Parameter, Profile
from paratune.planning.states import (
    COMMUNICATION,
    GRADIENTS,
    EngineInputs,
    PredictionSetup,
    States,
    count,
    numbers_of,
    unsharded,
)
from paratune.planning.work import PlanFunctions, StepSeconds, Transfer, Work, link_between
from paratune.stages.balance import balance_blocks, spans_of_sizes
from paratune.stages.cut import BlockSpan

BUCKET_BYTES = 25 * MIB
"""Size of the messages in which replicas sum gradients; the same constant as in `strategies.pipeline.strategy`."""


def _states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    held, trained = stage_parameters(profile, setup, rank)
    states, numbers = unsharded(trained, numbers_of(profile, setup)), numbers_of(profile, setup)
    return States(numbers.weight * count(held), states.gradients, states.optimizer)


def stages_of_rank(profile: Profile, setup: PredictionSetup, place: int) -> list[BlockSpan]:
    """Return the blocks of each stage of a rank: every p-th stage, beginning with number `place`.

    For `balance: measured` the counted operations replace measured times.

    Raises:
        ConfigError: The model has fewer blocks than stages.
    """
    strategy, costs, v = setup.strategy, profile.division.costs, setup.traits.stages_per_rank
    assert isinstance(strategy, PipelineOptions)
    refuse(stage_reasons(strategy.stages, v, strategy.balance, len(costs)))
    if isinstance(strategy.balance, list):
        return spans_of_sizes(strategy.balance)[place :: strategy.stages]
    return (balance_blocks([float(cost) for cost in costs], strategy.stages * v) or [])[place :: strategy.stages]


def stage_parameters(profile: Profile, setup: PredictionSetup, rank: int) -> tuple[list[Parameter], list[Parameter]]:
    """Return the parameters in the memory of a rank of a pipeline, and those among them that it trains.

    Parameters that no stage uses belong to the last stage.
    """
    division, p = profile.division, setup.traits.ranks_per_replica
    spans = stages_of_rank(profile, setup, rank % p)
    used, anywhere = division.uses(spans), frozenset().union(*division.used)
    is_last = rank % p == p - 1
    trained = [
        parameter
        for parameter in profile.parameters
        if parameter.name in used or (is_last and parameter.name not in anywhere)
    ]
    names = used.union((parameter.name for parameter in trained), *(division.needed[span.begin] for span in spans))
    held = [parameter for parameter in profile.parameters if parameter.name in names]
    return held, trained


def stage_gradients(profile: Profile, setup: PredictionSetup, rank: int) -> int:
    """Return the bytes of the gradients of a rank."""
    _, trained = stage_parameters(profile, setup, rank)
    return profile.weight_bytes * count(parameter for parameter in trained if parameter.is_trained)


def shared_gradients(profile: Profile, setup: PredictionSetup) -> dict[tuple[int, ...], int]:
    """Return the bytes of gradients that ranks of a pipeline sum because they share weights, such as tied ones.

    Returns:
        Bytes by the positions in the pipeline, from 0, of the ranks that share them.
    """
    users: dict[str, list[int]] = defaultdict(list)
    for place in range(setup.traits.ranks_per_replica):
        for name in profile.division.uses(stages_of_rank(profile, setup, place)):
            users[name].append(place)
    shared: dict[tuple[int, ...], int] = defaultdict(int)
    for parameter in profile.parameters:
        places = tuple(users.get(parameter.name, ()))
        if len(places) > 1 and parameter.is_trained:
            shared[places] += profile.weight_bytes * parameter.numel
    return dict(shared)


def _transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    width, num_micro_batches = setup.traits.ranks_per_replica, setup.grad_accum_steps
    place = rank % width
    # The first stage sends no gradients, the last one no hidden states.
    num_ends = (place == 0) + (place == width - 1)
    num_messages = (2 * setup.traits.stages_per_rank - num_ends) * num_micro_batches
    shared = shared_gradients(profile, setup)
    return [
        Transfer("send", profile.hidden_bytes, 2, num_messages),
        *(Transfer("all_reduce", num_bytes, len(places)) for places, num_bytes in shared.items() if place in places),
        Transfer("all_reduce", stage_gradients(profile, setup, place), setup.num_ranks // width),
    ]


def _seconds(work: Work) -> StepSeconds:
    """Micro-batches pass through the stages; after the last one, replicas of the pipeline sum their gradients."""
    setup, block_costs = work.setup, work.profile.division.costs
    p, m = setup.traits.ranks_per_replica, setup.grad_accum_steps
    # The slowest rank determines the time, because blocks are not divided: the largest share of a rank in the model's
    # operations, and in its trained weights.
    ranks = [stages_of_rank(work.profile, setup, place) for place in range(p)]
    costs = [sum(sum(block_costs[span.begin : span.end]) for span in spans) for spans in ranks]
    computing = max(costs) / sum(costs)
    states = max(stage_gradients(work.profile, setup, place) for place in range(p)) / max(1, work.grads)
    ideal = m * (work.forward_s + work.backward_s) / p
    bubble = ideal * computing * p / (1 - (setup.traits.ideal_bubble_share(m) or 0.0)) - ideal
    neighbours = link_between(work.constants, p, setup.ranks_per_node)
    send = neighbours.seconds("send", work.profile.hidden_bytes)
    # Messages overlap nothing while the pipeline fills and drains; a rank in the middle sends 2 m v.
    num_messages = 2 * m * setup.traits.stages_per_rank
    sending = 2 * (p - 1) * send + (1 - work.constants.value("overlap", 0.0)) * num_messages * send
    replicas = link_between(work.constants, setup.num_ranks // p, setup.ranks_per_node, stride=p)
    ends = link_between(work.constants, 2, setup.ranks_per_node, stride=p - 1)
    reducing = replicas.seconds("all_reduce", work.grads * states) + neighbours.seconds("all_reduce", 8)
    reducing += ends.seconds("all_reduce", sum(shared_gradients(work.profile, setup).values()))
    return StepSeconds(
        forward_s=m * work.forward_s / p,
        backward_s=(m * work.backward_s + work.accumulated_s) / p,
        optimizer_s=work.optimizer_s(states),
        communication_s=work.scaled_communication_s(sending + reducing),
        bubble_s=bubble * work.constants.value("factor.pipeline", 1.0),
    )


def in_flight(strategy: PipelineOptions, traits: Traits, place: int, num_micro_batches: int) -> list[int]:
    """Return the largest number of micro-batches whose activations a rank keeps, for each of its stages.

    GPipe: all micro-batches. 1F1B: the number of stages from this one to the last. Interleaved with v stages on a rank:
    (v - 1) p + 2 (p - place - 1) + 1 passes, which take its stages in turn, p micro-batches each.

    p is the number of ranks of the pipeline, v the stages on each rank, and `place` the position of the rank, from 0.

    Source: Narayanan et al., Efficient Large-Scale Language Model Training on GPU Clusters, SC 2021, section 2.2;
        PyTorch 2.13, torch/distributed/pipelining/schedules.py, `Schedule1F1B`, `ScheduleInterleaved1F1B`.
    """
    p, v = strategy.stages, traits.stages_per_rank
    if strategy.schedule == "gpipe":
        return [num_micro_batches] * v
    if strategy.schedule == "1f1b":
        return [min(p - place, num_micro_batches)]
    num_passes = min((v - 1) * p + 2 * (p - 1 - place) + 1, v * num_micro_batches)
    in_flight_by_stage = [0] * v
    for pass_number in range(num_passes):
        in_flight_by_stage[pass_number // p % v] += 1
    return in_flight_by_stage


def stage_terms(view: EngineInputs, place: int) -> tuple[dict[str, int], dict[str, int]]:
    """Return bytes by term, without weights and moments, during the passes and during the update.

    `place` is the position of the rank in its pipeline, from 0.
    """
    strategy, profile, setup = view.setup.strategy, view.profile, view.setup
    assert isinstance(strategy, PipelineOptions)
    num_micro_batches = setup.grad_accum_steps
    spans = stages_of_rank(profile, setup, place)
    num_in_flight = in_flight(strategy, setup.traits, place, num_micro_batches)
    # Of one micro-batch, the output of the stage included.
    head = profile.saved_bytes - profile.saved_before - sum(profile.saved_by_block)
    saved = [
        sum(profile.saved_by_block[span.begin : span.end])
        + (profile.saved_before if span.begin == 0 else 0)
        + (head if span.end == profile.num_blocks else profile.hidden_bytes)
        for span in spans
    ]
    kept = sum(count * size for count, size in zip(num_in_flight, saved, strict=True))
    # The first backward pass allocates the gradients; in later ones they exist, with as many micro-batches in flight.
    first = kept + max(_peak_of_stage(view, span, keeps=True) - size for span, size in zip(spans, saved, strict=True))
    if sum(num_in_flight) == num_micro_batches * len(spans):
        kept -= min(saved)
    later = kept + max(_peak_of_stage(view, span, keeps=False) - size for span, size in zip(spans, saved, strict=True))
    gradients = view.states.gradients if later + view.states.gradients > first else 0
    # Each stage has a receive buffer for every micro-batch, one for the gradient of each output, and keeps its sent
    # tensors until they have arrived.
    num_sending = sum(span.end < profile.num_blocks for span in spans)
    num_buffers = (sum(span.begin > 0 for span in spans) + num_sending) * num_micro_batches + 2 * num_sending
    received = num_buffers * profile.hidden_bytes
    passes = {"activations": later if gradients else first, COMMUNICATION: received, GRADIENTS: gradients}
    sent = min(BUCKET_BYTES, view.states.gradients) if setup.data_world_size > 1 else 0
    return passes, {COMMUNICATION: received + sent, GRADIENTS: view.states.gradients}


def _peak_of_stage(view: EngineInputs, span: BlockSpan, *, keeps: bool) -> int:
    """Return the peak memory of one micro-batch in a stage, in its forward or backward pass.

    This is the peak of the whole model's passes within the blocks of the stage, minus the activations of earlier
    blocks.

    New gradients are kept if `keeps`; else they are added to existing ones and freed.
    """
    profile, timeline = view.profile, view.profile.timeline
    until = timeline.positions("gradient")
    if keeps:
        blocks = {number: parameter.block for number, parameter in enumerate(profile.parameters)}
        inside = range(span.begin, span.end)
        until = {number: view.end if blocks[number] in inside else at for number, at in until.items()}
    level = timeline.level(view.rounding, without=timeline.gradients)
    for delta in view.gradients(until):
        level[delta.position :] += delta.num_bytes
    before = 0 if span.begin == 0 else profile.saved_before + sum(profile.saved_by_block[: span.begin])
    is_last = span.end == profile.num_blocks
    forward_ends, begins = timeline.positions("forward_end"), timeline.positions("backward")
    # The embeddings belong to the first stage, the head to the last one, whose backward pass follows at once.
    first = 0 if span.begin == 0 else timeline.positions("forward")[span.begin]
    last = timeline.num_forward if is_last else forward_ends[span.end - 1]
    forward = level[first : last + 1]
    begin = timeline.num_forward if is_last else begins[span.end - 1]
    end = view.end if span.begin == 0 else view.ends[span.begin]
    backward = level[begin : end + 1]
    return int(max(forward.max(), backward.max())) - before


PIPELINE = PlanFunctions(_states, _transfers, _seconds, None)
