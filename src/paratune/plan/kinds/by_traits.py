"""A strategy from outside the package: what its traits tell."""

from paratune.config.model_states import model_state_bytes
from paratune.plan.constants import UnknownFigure
from paratune.plan.kinds.plan_functions import PlanFunctions
from paratune.plan.kinds.replicated import replicated
from paratune.plan.profile import Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.states import STEP_BYTES, States, count, numbers_of, shard_size
from paratune.plan.traffic import Transfer
from paratune.plan.work import StepSeconds, Work


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
    raise UnknownFigure(f"strategy {setup.strategy.kind}")


def _seconds(work: Work) -> StepSeconds:
    raise UnknownFigure(f"strategy {work.setup.strategy.kind}")


BY_TRAITS = PlanFunctions(_states, _transfers, _seconds, replicated)
