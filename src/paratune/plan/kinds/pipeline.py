"""A pipeline: stages on ranks, micro-batches through them. Its memory in passes is in `plan.stage_memory`.

`p` stages, `m` micro-batches, `v` stages on a rank.
"""

import math
from collections import defaultdict

from paratune.config.strategy_sections import PipelineOptions
from paratune.plan.kinds.plan_functions import PlanFunctions
from paratune.plan.links import link_between
from paratune.plan.profile import Parameter, Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.states import States, count, numbers_of, whole
from paratune.plan.traffic import Transfer
from paratune.plan.work import StepSeconds, Work, accumulated_s, factored, optimizer_s


def _states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    held, trained = stage_parameters(profile, setup, rank)
    found, numbers = whole(trained, numbers_of(profile)), numbers_of(profile)
    return States(numbers.weight * count(held), found.gradients, found.optimizer)


def stage_parameters(profile: Profile, setup: PredictionSetup, rank: int) -> tuple[list[Parameter], list[Parameter]]:
    """Return the parameters that a rank of a pipeline holds, and those among them that it trains.

    Those that no stage uses are of the last one.
    """
    strategy, division = setup.strategy, profile.division
    assert isinstance(strategy, PipelineOptions)
    assert division is not None, "the profile of a pipeline has a division"
    place = rank % strategy.stages
    spans = division.of_rank(place, strategy, setup.traits)
    used, holds = division.uses(spans), division.holds(spans)
    anywhere = frozenset().union(*division.used)
    is_last = place == strategy.stages - 1
    trained = [each for each in profile.parameters if each.name in used or (is_last and each.name not in anywhere)]
    held = [each for each in profile.parameters if each in trained or each.name in holds]
    return held, trained


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


def _transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
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


def _seconds(work: Work) -> StepSeconds:
    """Stages on ranks, micro-batches through them; replicas of the pipeline sum their gradients behind it all."""
    setup = work.setup
    p = setup.traits.ranks_per_replica
    m = setup.grad_accum_steps
    computing, states = _fullest_rank(work)
    ideal = m * (work.forward_s + work.backward_s) / p
    # The slowest rank sets the pace: blocks are not divided.
    bubble = ideal * computing * p / (1 - (setup.traits.ideal_bubble_share(m) or 0.0)) - ideal
    neighbours = link_between(work.constants, p, setup.ranks_per_node)
    send = neighbours.send_s(work.profile.hidden_bytes)
    # Filling and draining nothing runs beside; else each micro-batch is sent on and its gradient back, for each stage.
    sending = 2 * (p - 1) * send + (1 - work.overlap) * hidden_messages(setup) * send
    replicas = link_between(work.constants, setup.num_ranks // p, setup.ranks_per_node, stride=p)
    ends = link_between(work.constants, 2, setup.ranks_per_node, stride=p - 1)
    reducing = replicas.all_reduce_s(work.grads * states) + neighbours.all_reduce_s(8)
    reducing += ends.all_reduce_s(sum(shared_gradients(work.profile, setup).values()))
    return StepSeconds(
        forward_s=m * work.forward_s / p,
        backward_s=(m * work.backward_s + accumulated_s(work)) / p,
        optimizer_s=optimizer_s(work, states),
        communication_s=factored(work, sending + reducing),
        bubble_s=bubble * work.constants.value("factor.pipeline", 1.0),
    )


def _fullest_rank(work: Work) -> tuple[float, float]:
    """Return the shares of the whole model's operations, and of its trained weights, of the ranks that have most."""
    strategy, traits, division = work.setup.strategy, work.setup.traits, work.profile.division
    p, v = traits.ranks_per_replica, traits.stages_per_rank
    if division is None:
        return math.ceil(len(work.blocks) / (p * v)) * v / len(work.blocks), 1 / p
    assert isinstance(strategy, PipelineOptions)
    ranks = [division.of_rank(place, strategy, traits) for place in range(p)]
    costs = [sum(sum(division.costs[span.begin : span.end]) for span in spans) for spans in ranks]
    trained = max(stage_gradients(work.profile, work.setup, place) for place in range(p))
    return max(costs) / sum(costs), trained / max(1, work.grads)


PIPELINE = PlanFunctions(_states, _transfers, _seconds, None)
