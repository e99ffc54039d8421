"""The functions that a plan needs for each kind of strategy: states, collectives, seconds and memory of a step."""

from collections.abc import Callable
from dataclasses import dataclass

from paratune.planning.engines import EngineInputs, EngineMemory
from paratune.planning.profile import Profile
from paratune.planning.setup import PredictionSetup
from paratune.planning.states import States
from paratune.planning.work import StepSeconds, Transfer, Work


@dataclass(frozen=True)
class PlanFunctions:
    """The functions of one kind of strategy."""

    states: Callable[[Profile, PredictionSetup, int], States]
    """Returns the states of a rank."""
    transfers: Callable[[Profile, PredictionSetup, int], list[Transfer]]
    """Returns the collectives of a rank in one optimizer step."""
    seconds: Callable[[Work], StepSeconds]
    """Returns the seconds of a step."""
    engine_memory: Callable[[EngineInputs], EngineMemory] | None
    """Returns the memory of the engine in passes; None for a pipeline, which `plan.stage_memory` predicts."""
    why_no_seconds: Callable[[PredictionSetup], str | None] = lambda setup: None
    """Returns the reason why `seconds` cannot be computed for a setup, or None."""
    note: str | None = None
    """A note for readers of the figures."""
    holds_whole_model: bool = False
    """Whether a rank has all weights, gradients and states, so that its allocator can be simulated."""
