"""Pipeline parallelism: each rank has one or more stages. The memory of its passes is in `planning.stage_memory`.

`p` stages, `m` micro-batches, `v` stages on a rank.
"""

import math
from collections import defaultdict

from paratune.config.strategy_sections import PipelineOptions
from paratune.planning.links import link_between
from paratune.planning.profile import Parameter, Profile
from paratune.planning.setup import PredictionSetup
from paratune.planning.states import States, count, numbers_of, unsharded
from paratune.planning.work import (
    PlanFunctions,
    StepSeconds,
    Transfer,
    Work,
    accumulated_s,
    optimizer_s,
    scaled_communication_s,
)


def _states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    held, trained = stage_parameters(profile, setup, rank)
    states, numbers = unsharded(trained, numbers_of(profile, setup)), numbers_of(profile, setup)
    return States(numbers.weight * count(held), states.gradients, states.optimizer)


def stage_parameters(profile: Profile, setup: PredictionSetup, rank: int) -> tuple[list[Parameter], list[Parameter]]:
    """Return the parameters in the memory of a rank of a pipeline, and those among them that it trains.

    Parameters that no stage uses belong to the last stage.
    """
    strategy, division = setup.strategy, profile.division
    assert isinstance(strategy, PipelineOptions)
    assert division is not None, "the profile of a pipeline has a division"
    place = rank % strategy.stages
    spans = division.stages_of_rank(place, strategy, setup.traits)
    used, holds = division.uses(spans), division.holds(spans)
    anywhere = frozenset().union(*division.used)
    is_last = place == strategy.stages - 1
    trained = [
        parameter
        for parameter in profile.parameters
        if parameter.name in used or (is_last and parameter.name not in anywhere)
    ]
    names = holds | {parameter.name for parameter in trained}
    held = [parameter for parameter in profile.parameters if parameter.name in names]
    return held, trained


def hidden_messages(setup: PredictionSetup) -> int:
    """Return how often a rank in the middle of a pipeline sends hidden states or their gradients: 2 m v."""
    return 2 * setup.grad_accum_steps * setup.traits.stages_per_rank


def stage_gradients(profile: Profile, setup: PredictionSetup, rank: int) -> float:
    """Return the bytes of the gradients of a rank; an equal share if the profile has no division."""
    if profile.division is None:
        return profile.weight_bytes * profile.num_trained / setup.traits.ranks_per_replica
    _, trained = stage_parameters(profile, setup, rank)
    return profile.weight_bytes * sum(parameter.numel for parameter in trained if parameter.is_trained)


def shared_gradients(profile: Profile, setup: PredictionSetup) -> dict[tuple[int, ...], int]:
    """Return the bytes of gradients that ranks of a pipeline sum because they share weights, such as tied ones.

    Returns:
        Bytes by the positions in the pipeline, from 0, of the ranks that share them.
    """
    strategy, traits, division = setup.strategy, setup.traits, profile.division
    if division is None:
        return {}
    assert isinstance(strategy, PipelineOptions)
    users: dict[str, list[int]] = defaultdict(list)
    for place in range(traits.ranks_per_replica):
        for name in division.uses(division.stages_of_rank(place, strategy, traits)):
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
    num_messages = hidden_messages(setup) - num_ends * num_micro_batches
    shared = shared_gradients(profile, setup)
    return [
        Transfer("send", profile.hidden_bytes, 2, num_messages),
        *(Transfer("all_reduce", num_bytes, len(places)) for places, num_bytes in shared.items() if place in places),
        Transfer("all_reduce", stage_gradients(profile, setup, place), setup.num_ranks // width),
    ]


def _seconds(work: Work) -> StepSeconds:
    """Micro-batches pass through the stages; after the last one, replicas of the pipeline sum their gradients."""
    setup = work.setup
    p = setup.traits.ranks_per_replica
    m = setup.grad_accum_steps
    computing, states = _fullest_rank(work)
    ideal = m * (work.forward_s + work.backward_s) / p
    # The slowest rank determines the time, because blocks are not divided.
    bubble = ideal * computing * p / (1 - (setup.traits.ideal_bubble_share(m) or 0.0)) - ideal
    neighbours = link_between(work.constants, p, setup.ranks_per_node)
    send = neighbours.send_s(work.profile.hidden_bytes)
    # Messages overlap nothing while the pipeline fills and drains.
    sending = 2 * (p - 1) * send + (1 - work.overlap) * hidden_messages(setup) * send
    replicas = link_between(work.constants, setup.num_ranks // p, setup.ranks_per_node, stride=p)
    ends = link_between(work.constants, 2, setup.ranks_per_node, stride=p - 1)
    reducing = replicas.all_reduce_s(work.grads * states) + neighbours.all_reduce_s(8)
    reducing += ends.all_reduce_s(sum(shared_gradients(work.profile, setup).values()))
    return StepSeconds(
        forward_s=m * work.forward_s / p,
        backward_s=(m * work.backward_s + accumulated_s(work)) / p,
        optimizer_s=optimizer_s(work, states),
        communication_s=scaled_communication_s(work, sending + reducing),
        bubble_s=bubble * work.constants.value("factor.pipeline", 1.0),
    )


def _fullest_rank(work: Work) -> tuple[float, float]:
    """Return the largest share of a rank in the model's operations, and in its trained weights."""
    strategy, traits, division = work.setup.strategy, work.setup.traits, work.profile.division
    p, v = traits.ranks_per_replica, traits.stages_per_rank
    if division is None:
        num_blocks = work.profile.num_blocks
        return math.ceil(num_blocks / (p * v)) * v / num_blocks, 1 / p
    assert isinstance(strategy, PipelineOptions)
    ranks = [division.stages_of_rank(place, strategy, traits) for place in range(p)]
    costs = [sum(sum(division.costs[span.begin : span.end]) for span in spans) for spans in ranks]
    trained = max(stage_gradients(work.profile, work.setup, place) for place in range(p))
    return max(costs) / sum(costs), trained / max(1, work.grads)


PIPELINE = PlanFunctions(_states, _transfers, _seconds, None)
