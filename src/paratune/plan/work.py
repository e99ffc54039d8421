"""The time of a step before its strategy is looked at, and the parts that all strategies are made of."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from paratune.plan.constants import Constants
from paratune.plan.profile import Profile, Weights
from paratune.plan.setup import PredictionSetup
from paratune.plan.traffic import unit_gradients, unit_weights

ADAMW_PASSES = 9
"""Times that an optimizer step reads or writes as many bytes as there are trained weights: gradients for their norm;
weights, gradients and both moments read; the same four written, gradients divided by what clips them."""

SHARDED_ADAMW_PASSES = 10
"""The same for shards, whose gradients are read for the norm, read and written to be divided, and then only read."""

LAMB_PASSES = 32
"""The same for LAMB, sharded or not: 3 for the gradients' norm and clipping, 8 for the moments, 6 for the denominators,
8 to put r + decay x in the place of gradients, 2 for norms, 5 to multiply by the trust ratios and to take the step."""


@dataclass(frozen=True)
class Work:
    """What a rank would do by itself."""

    profile: Profile
    blocks: tuple[Weights, ...]
    """The profile's."""
    rest: Weights
    """The profile's."""
    setup: PredictionSetup
    constants: Constants
    forward_s: float
    """Of one micro-batch through the whole model."""
    backward_s: float
    is_cuda: bool
    idle_s: float = 0.0
    """That the host is ahead of the device in both passes of a micro-batch: engines' Python costs nothing so long."""
    slower: float = 1.0
    """How much slower the rank computes for the other ranks of its machine."""

    @cached_property
    def grads(self) -> int:
        """Bytes of all gradients, as they are summed over ranks and micro-batches."""
        return sum(unit_gradients(self.profile, self.setup))

    @cached_property
    def updated(self) -> int:
        """Bytes of all trained weights as the optimizer has them."""
        size = self.setup.state_bytes if self.setup.keeps_16_bits else self.profile.weight_bytes
        return size * self.profile.num_trained

    @cached_property
    def weights(self) -> int:
        """Bytes of all weights, frozen ones included."""
        return sum(unit_weights(self.profile))

    @cached_property
    def num_tensors(self) -> int:
        return sum(len(part.sizes) for part in (*self.blocks, self.rest))

    @property
    def overlap(self) -> float:
        return self.constants.value("overlap", 0.0)

    def moved_s(self, num_bytes: float) -> float:
        """Return the seconds of passes over memory that read and write so many bytes."""
        return self.slower * num_bytes / self.constants["elementwise"].at(num_bytes) if num_bytes else 0.0


@dataclass(frozen=True)
class StepSeconds:
    """A step of a rank, in seconds."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    communication_s: float = 0.0
    """Of collectives, what does not run beside computing."""
    bubble_s: float = 0.0
    offload_s: float = 0.0
    python_s: Mapping[str, float] = field(default_factory=dict)
    """Of these, by the term of `plan.time`, what is an engine's own Python, which the host is the bound of."""
    hidden_s: float = 0.0
    """Of such Python, what the host does while it is ahead of the device, beside the step's own seconds."""

    @property
    def total_s(self) -> float:
        parts = (self.forward_s, self.backward_s, self.optimizer_s)
        return math.fsum((*parts, self.communication_s, self.bubble_s, self.offload_s))


def alone(work: Work) -> StepSeconds:
    """Return the step of a rank that holds the whole model and meets no other."""
    accumulating = accumulated_s(work)
    steps = work.setup.grad_accum_steps
    return StepSeconds(steps * work.forward_s, steps * work.backward_s + accumulating, optimizer_s(work))


def accumulated_s(work: Work) -> float:
    """Return the seconds of adding the gradients of micro-batches after the first: two reads and a write."""
    return (work.setup.grad_accum_steps - 1) * work.moved_s(3 * work.grads)


def factored(work: Work, seconds: float) -> float:
    """Return exposed seconds of collectives as runs on the machine have shown them to be."""
    return seconds * work.constants.value("factor.communication", 1.0)


def hooks_s(work: Work, name: str, number: int) -> tuple[float, float]:
    """Return the seconds of a step by which an engine's own Python holds up its passes, and those that hold nothing up.

    Args:
        work: Of the step.
        name: Of the figure of the machine, for one of what the engine looks after; 0 where it is not known.
        number: Of these.
    """
    each, steps = number * work.constants.value(name, 0.0), work.setup.grad_accum_steps
    return steps * work.slower * max(0.0, each - work.idle_s), steps * min(each, work.idle_s)


def optimizer_s(work: Work, share: float = 1.0, *, is_sharded: bool = False) -> float:
    """Return the seconds of norm, clipping and update on the device, of a share of the model's trained weights.

    Args:
        work: Of the step.
        share: Of the numbers, not of the tensors.
        is_sharded: Whether each tensor is a shard of FSDP2: gradients are then divided in passes of their own.
    """
    constants = work.constants
    moving = (
        work.slower * share * update_passes(work.setup, is_sharded=is_sharded) * work.updated / constants["adamw"].value
    )
    each = constants.value("adamw.tensor", 0.0)
    # Copies in half precision are made of float32 weights: three times their own bytes are read and written.
    moving += work.moved_s(3 * work.profile.working_bytes)
    calling = work.slower * work.num_tensors * (constants.value("adamw.shard", each) if is_sharded else each)
    return (max(moving, calling) if work.is_cuda else moving + calling) * constants.value("factor.optimizer", 1.0)


def update_passes(setup: PredictionSetup, *, is_sharded: bool = False) -> int:
    """Return how often norm, clipping and update read or write as many bytes as there are trained weights."""
    if setup.optimizer == "lamb":
        return LAMB_PASSES
    return SHARDED_ADAMW_PASSES if is_sharded else ADAMW_PASSES


def exposed_s(passes: Iterable[tuple[float, float]], end_s: float, overlap: float) -> float:
    """Return how long collectives hold up a pass that ends without them at `end_s`.

    Args:
        passes: When each collective could begin, and how long it takes; they run one behind the other.
        end_s: Seconds of the pass.
        overlap: Share that runs beside computing where it could; the rest of each holds computing up.
    """
    finished = total = 0.0
    for ready, seconds in passes:
        finished = max(finished, ready) + seconds
        total += seconds
    hidden = max(0.0, finished - end_s)
    return overlap * hidden + (1 - overlap) * total
