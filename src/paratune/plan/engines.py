"""What a strategy's engine takes on a rank besides the states, in the course of a step's last micro-batch.

The last one is the fullest where there are several: gradients of the others are there already. `plan.kinds` has the
course of each engine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paratune.plan.profile import Profile
from paratune.plan.setup import PredictionSetup
from paratune.plan.states import States
from paratune.plan.timeline import Delta, rounded

GRADIENTS, GATHERED, COMMUNICATION = "gradients", "gathered_weights", "communication"

CAST_WEIGHTS = "cast_weights"


@dataclass(frozen=True)
class Course:
    """What an engine takes on the device, by term."""

    always: Mapping[str, int] = field(default_factory=dict)
    """Bytes from the first forward pass to the update."""
    deltas: tuple[Delta, ...] = ()
    """Bytes that come and go in a pass."""
    at_step: Mapping[str, int] = field(default_factory=dict)
    """Bytes that the update takes besides states and gradients."""
    keeps_casts: bool = True
    """Whether autograd keeps the weights that autocast has cast."""


@dataclass(frozen=True)
class View:
    """What engines look at."""

    profile: Profile
    setup: PredictionSetup
    states: States
    """Of the rank."""
    rounding: int
    """Bytes to a multiple of which allocations are rounded."""

    @cached_property
    def starts(self) -> dict[int, int]:
        """Where each block begins in the forward pass."""
        return self.profile.timeline.positions("forward")

    @cached_property
    def ends(self) -> dict[int, int]:
        """Where each block's backward pass is done; blocks that have none are missing."""
        timeline = self.profile.timeline
        begins, inner_end = timeline.positions("backward"), timeline.positions("inner_end")
        return {number: begins.get(number - 1, inner_end.get(0, self.end)) for number in begins}

    @property
    def end(self) -> int:
        """Where the backward pass is done."""
        return len(self.profile.timeline.changes)

    def gradients(self, until: Mapping[int, int] | None = None) -> Iterator[Delta]:
        """Yield the gradients as autograd makes them.

        Args:
            until: Where each parameter's is let go of; all are kept when None.
        """
        timeline = self.profile.timeline
        made = {change: at + 1 for at, change in enumerate(timeline.changes)}
        for number, parameter in timeline.gradients.items():
            size = rounded(timeline.sizes[number], self.rounding)
            yield Delta(made[number], GRADIENTS, size)
            if until is not None:
                yield Delta(until[parameter], GRADIENTS, -size)

    def copied_gradients(self) -> tuple[Delta, ...]:
        """Return gradients that are added to others, or copied, as soon as they are whole."""
        return tuple(self.gradients(self.profile.timeline.positions("gradient")))

    def earlier_gradients(self) -> Iterator[Delta]:
        """Yield the gradients of the micro-batches before, each until the last one's has been added."""
        whole = self.profile.timeline.positions("gradient")
        for number, parameter in self.profile.timeline.gradients.items():
            size = rounded(self.profile.timeline.sizes[number], self.rounding)
            yield Delta(0, GRADIENTS, size)
            yield Delta(whole[parameter], GRADIENTS, -size)

    @property
    def accumulates(self) -> bool:
        return self.setup.grad_accum_steps > 1
