"""The memory that a strategy's engine needs on a rank besides the states, during the last micro-batch of a step.

The last micro-batch needs most, because the gradients of the others already exist. The modules of `planning.kinds`
describe each engine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paratune.planning.profile import Profile
from paratune.planning.setup import PredictionSetup
from paratune.planning.states import States
from paratune.planning.timeline import Delta, rounded

GRADIENTS, GATHERED, COMMUNICATION = "gradients", "gathered_weights", "communication"


@dataclass(frozen=True)
class EngineMemory:
    """Memory that an engine needs on the device, by term (such as communication)."""

    always: Mapping[str, int] = field(default_factory=dict)
    """Bytes from the first forward pass to the update."""
    deltas: tuple[Delta, ...] = ()
    """Bytes that are allocated and freed during a pass."""
    at_step: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the update needs besides states and gradients."""
    keeps_casts: bool = True
    """Whether autograd keeps the copies of weights that autocast makes."""


@dataclass(frozen=True)
class EngineInputs:
    """The inputs from which the memory of an engine is computed, for one rank."""

    profile: Profile
    setup: PredictionSetup
    states: States
    """States of the rank."""
    rounding: int
    """Allocations are rounded up to a multiple of so many bytes."""

    @cached_property
    def starts(self) -> dict[int, int]:
        """Position at which the forward pass of each block begins."""
        return self.profile.timeline.positions("forward")

    @cached_property
    def ends(self) -> dict[int, int]:
        """Position at which the backward pass of each block ends; blocks without a backward pass are missing."""
        timeline = self.profile.timeline
        begins, inner_end = timeline.positions("backward"), timeline.positions("inner_end")
        return {number: begins.get(number - 1, inner_end.get(0, self.end)) for number in begins}

    @property
    def end(self) -> int:
        """Position at which the backward pass ends."""
        return len(self.profile.timeline.changes)

    def gradients(self, until: Mapping[int, int] | None = None) -> Iterator[Delta]:
        """Yield the gradients as autograd allocates them.

        Each is freed at the position `until` has for its parameter; None keeps all.
        """
        timeline = self.profile.timeline
        made = {change: at + 1 for at, change in enumerate(timeline.changes)}
        for number, parameter in timeline.gradients.items():
            size = rounded(timeline.sizes[number], self.rounding)
            yield Delta(made[number], GRADIENTS, size)
            if until is not None:
                yield Delta(until[parameter], GRADIENTS, -size)

    def copied_gradients(self) -> tuple[Delta, ...]:
        """Return gradients that are freed as soon as they are complete, because they are added to others or copied."""
        return tuple(self.gradients(self.profile.timeline.positions("gradient")))

    def earlier_gradients(self) -> Iterator[Delta]:
        """Yield gradients of the earlier micro-batches, each until that of the last micro-batch is added to it."""
        whole = self.profile.timeline.positions("gradient")
        for number, parameter in self.profile.timeline.gradients.items():
            size = rounded(self.profile.timeline.sizes[number], self.rounding)
            yield Delta(0, GRADIENTS, size)
            yield Delta(whole[parameter], GRADIENTS, -size)

    @property
    def accumulates(self) -> bool:
        return self.setup.grad_accum_steps > 1
