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
    """What each module of this package has of its own."""

    states: Callable[[Profile, PredictionSetup, int], States]
    """Gives the states of a rank."""
    transfers: Callable[[Profile, PredictionSetup, int], list[Transfer]]
    """Gives the collectives of a rank in one optimizer step."""
    seconds: Callable[[Work], StepSeconds]
    """Gives the seconds of a step."""
    course: Callable[[View], Course] | None
    """Gives what the engine takes in passes; None for a pipeline, whose stages `plan.stage_memory` counts."""
    why_no_seconds: Callable[[PredictionSetup], str | None] = lambda setup: None
    """Gives the reason why `seconds` cannot be computed for a setup; None where they can."""
    note: str | None = None
    """What a reader of the figures has to know."""
