"""A strategy from outside the package: what its traits imply."""

from paratune.config.model_states import model_state_bytes
from paratune.plan.kinds.plan_functions import PlanFunctions
from paratune.plan.kinds.replicated import replicated
from paratune.plan.links import link_between
from paratune.plan.profile import Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.sharded import offload_s
from paratune.plan.states import STEP_BYTES, States, count, numbers_of, shard_size
from paratune.plan.traffic import Transfer, unit_gradients, unit_weights
from paratune.plan.work import StepSeconds, Work, alone, factored, optimizer_s


def _states(profile: Profile, setup: PredictionSetup, rank: int) -> States:
    """Return what a strategy from outside has if it divides evenly what its traits say that it shards."""
    trained = [each for each in profile.parameters if each.is_trained and each.has_gradient]
    held = model_state_bytes(
        count(profile.parameters),
        num_trained=count(trained),
        shards=setup.traits.shards,
        num_shards=shard_size(setup),
        numbers=numbers_of(profile),
    )
    divided = States(held.weights, held.gradients, held.optimizer + STEP_BYTES * len(trained))
    return divided if setup.traits.states_on == "device" else divided.on_host()


def _transfers(profile: Profile, setup: PredictionSetup, rank: int) -> list[Transfer]:
    """Return the collectives that the traits imply; see `_why_no_seconds` for those that imply none.

    Weights that are sharded are gathered for passes; else the trained ones are gathered after the update where
    optimizer states are sharded. Gradients are summed over all ranks, or scattered among those that share them and
    then summed over the others.
    """
    traits, group, steps = setup.traits, shard_size(setup), setup.grad_accum_steps
    gradients = sum(unit_gradients(profile, setup))
    times = steps if traits.reduces_each_micro_step else 1
    found = []
    if "gradients" in traits.shards:
        found.append(Transfer("reduce_scatter", gradients, group, times))
        found.append(Transfer("all_reduce", gradients / group, setup.num_ranks // group, times))
    else:
        found.append(Transfer("all_reduce", gradients, setup.num_ranks, times))
    if "weights" in traits.shards:
        weights = sum(unit_weights(profile))
        found.append(Transfer("all_gather", weights, group, max(1, traits.gathers_per_micro_step * steps)))
    elif "optimizer" in traits.shards:
        found.append(Transfer("all_gather", profile.weight_bytes * profile.num_trained, group))
    return found


def _seconds(work: Work) -> StepSeconds:
    """Return the step with every collective beside no computing: traits do not tell what an engine overlaps."""
    setup, traits, whole = work.setup, work.setup.traits, alone(work)
    group = shard_size(setup)
    waiting = 0.0
    for each in _transfers(work.profile, setup, 0):
        # Gradients that were scattered within groups are summed between them.
        is_between = each.collective == "all_reduce" and "gradients" in traits.shards
        link = link_between(work.constants, each.num_ranks, setup.ranks_per_node, stride=group if is_between else 1)
        seconds = {
            "all_reduce": link.all_reduce_s,
            "all_gather": link.all_gather_s,
            "reduce_scatter": link.reduce_scatter_s,
        }[each.collective]
        waiting += each.num_calls * seconds(each.num_bytes)
    exposed = factored(work, waiting)
    if traits.states_on == "cpu":
        times = setup.grad_accum_steps if traits.reduces_each_micro_step else 1
        gathered = work.weights * max(1, traits.gathers_per_micro_step * setup.grad_accum_steps)
        offload = offload_s(work, group, gathered=gathered, copies_out=times)
        return StepSeconds(whole.forward_s, whole.backward_s, 0.0, exposed, offload_s=offload)
    is_sharded = "optimizer" in traits.shards
    updating = optimizer_s(work, 1 / group if is_sharded else 1.0, is_sharded=is_sharded)
    return StepSeconds(whole.forward_s, whole.backward_s, updating, exposed)


def _why_no_seconds(setup: PredictionSetup) -> str | None:
    if setup.traits.ranks_per_replica == 1:
        return None
    return (
        f"the traits of {setup.strategy.kind} do not describe what the {setup.traits.ranks_per_replica} ranks "
        f"of a replica "
        "send to each other; measure it: paratune sweep MATRIX --probe"
    )


BY_TRAITS = PlanFunctions(
    _states,
    _transfers,
    _seconds,
    replicated,
    _why_no_seconds,
    "memory and time are computed from traits: shards of equal size, no collective overlaps computing",
)
