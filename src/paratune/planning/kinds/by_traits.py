"""A strategy from outside this package, predicted from its traits."""

from paratune.config.model_states import model_state_bytes
from paratune.planning.kinds.replicated import replicated
from paratune.planning.links import link_between
from paratune.planning.profile import Profile
from paratune.planning.setup import PredictionSetup
from paratune.planning.states import STEP_BYTES, States, count, numbers_of, shard_size
from paratune.planning.work import PlanFunctions, StepSeconds, Transfer, Work, unit_gradients, unit_weights


def _states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Return the states of a strategy from outside, assuming equal shards of the states that its traits name."""
    trained = [parameter for parameter in profile.parameters if parameter.is_trained and parameter.has_gradient]
    held = model_state_bytes(
        count(profile.parameters),
        num_trained=count(trained),
        shards=setup.traits.shards,
        num_shards=shard_size(setup),
        numbers=numbers_of(profile, setup),
    )
    divided = States(held.weights, held.gradients, held.optimizer + STEP_BYTES * len(trained))
    return divided if setup.traits.states_on == "device" else divided.on_host()


def _transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    """Return the collectives that follow from the traits; see `_why_no_seconds` for traits that are not sufficient.

    Sharded weights are gathered for passes. If only optimizer states are sharded, the trained weights are gathered
    after the update. Gradients are summed over all ranks; sharded ones are reduce-scattered within the group that
    shares them and then summed over the other groups.
    """
    traits, group, times = setup.traits, shard_size(setup), setup.num_reductions
    gradients = sum(unit_gradients(profile, setup))
    transfers = []
    if "gradients" in traits.shards:
        transfers.append(Transfer("reduce_scatter", gradients, group, times))
        transfers.append(Transfer("all_reduce", gradients / group, setup.num_ranks // group, times))
    else:
        transfers.append(Transfer("all_reduce", gradients, setup.num_ranks, times))
    if "weights" in traits.shards:
        weights = sum(unit_weights(profile))
        gathers = max(1, traits.gathers_per_micro_step * setup.grad_accum_steps)
        transfers.append(Transfer("all_gather", weights, group, gathers))
    elif "optimizer" in traits.shards:
        transfers.append(Transfer("all_gather", profile.weight_bytes * profile.num_trained, group))
    return transfers


def _seconds(work: Work) -> StepSeconds:
    """Return the step without overlap of collectives and computing, which traits do not describe."""
    setup, traits, whole = work.setup, work.setup.traits, work.local_step()
    group = shard_size(setup)
    waiting = 0.0
    for transfer in _transfers(work.profile, setup, 0):
        # Gradients that were scattered within groups are summed between them.
        is_between = transfer.collective == "all_reduce" and "gradients" in traits.shards
        link = link_between(work.constants, transfer.num_ranks, setup.ranks_per_node, stride=group if is_between else 1)
        waiting += transfer.num_calls * link.seconds(transfer.collective, transfer.num_bytes)
    exposed = work.scaled_communication_s(waiting)
    if traits.states_on == "cpu":
        gathered = work.weights * max(1, traits.gathers_per_micro_step * setup.grad_accum_steps)
        offload = work.offload_s(group, gathered=gathered, copies_out=setup.num_reductions)
        return StepSeconds(whole.forward_s, whole.backward_s, 0.0, exposed, offload_s=offload)
    is_sharded = "optimizer" in traits.shards
    updating = work.optimizer_s(1 / group if is_sharded else 1.0, is_sharded=is_sharded)
    return StepSeconds(whole.forward_s, whole.backward_s, updating, exposed)


def _why_no_seconds(setup: PredictionSetup) -> str | None:
    if setup.traits.ranks_per_replica == 1:
        return None
    return (
        f"the traits of {setup.strategy.kind} do not describe what the {setup.traits.ranks_per_replica} ranks of a "
        "replica send to each other; measure it: paratune sweep MATRIX --probe"
    )


BY_TRAITS = PlanFunctions(
    _states,
    _transfers,
    _seconds,
    replicated,
    _why_no_seconds,
    "memory and time are computed from traits: shards of equal size, no collective overlaps computing",
)
