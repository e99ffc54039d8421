"""What a plan asks of a kind of strategy: states, collectives, seconds of a step, and memory in passes."""

from collections.abc import Callable
from dataclasses import dataclass

from paratune.plan.engines import Course, View
from paratune.plan.profile import Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.states import States
from paratune.plan.traffic import Transfer
from paratune.plan.work import StepSeconds, Work


@dataclass(frozen=True)
class PlanFunctions:
    """Four functions, of which each module of this package has its own."""

    states: Callable[[Profile, PredictionSetup, int], States]
    """Gives the states of a rank."""
    transfers: Callable[[Profile, PredictionSetup, int], list[Transfer]]
    """Gives the collectives of a rank in one optimizer step."""
    seconds: Callable[[Work], StepSeconds]
    """Gives the seconds of a step."""
    course: Callable[[View], Course] | None
    """Gives what the engine takes in passes; None for a pipeline, whose stages `plan.stage_memory` counts."""
