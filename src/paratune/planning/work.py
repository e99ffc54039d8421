"""The time of a step on one rank without its strategy, and functions that all strategies use.

The modules of `planning.kinds` list the collectives of a step with their bytes (`Transfer`), and compute their times.
Scalars (gradient norms, losses) and an engine's messages about its buckets are not counted. In strategies that shard
weights, each block is a unit that is gathered and reduced separately; the rest (embeddings and head) is one more.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from paratune.planning.constants import Constants, communication_factor
from paratune.planning.engines import EngineInputs, EngineMemory
from paratune.planning.links import Collective, ring_bytes
from paratune.planning.profile import Profile
from paratune.planning.setup import PredictionSetup
from paratune.planning.states import States, padded_sum

ADAMW_PASSES = 9
"""How often an optimizer step reads or writes the bytes of the trained weights: gradients for their norm; weights,
gradients and both moments read; the same four written, with clipped gradients."""
SHARDED_ADAMW_PASSES = 10
"""The same for shards, whose gradients are read for the norm, read and written for clipping, and then only read."""


@dataclass(frozen=True)
class Work:
    """Inputs of the time of a step, and the times of the passes on one rank."""

    profile: Profile
    setup: PredictionSetup
    constants: Constants
    forward_s: float
    """Seconds of one micro-batch through the whole model."""
    backward_s: float
    is_cuda: bool
    idle_s: float = 0.0
    """Seconds by which the host is ahead of the device in a micro-batch; so much Python of an engine takes no time."""
    slower: float = 1.0
    """Factor by which the other ranks of the machine slow the rank down."""
    threads_speedup: float = 1.0
    """Factor by which the threads of a rank on a CPU compute faster than one."""

    @cached_property
    def grads(self) -> int:
        """Bytes of all gradients, as they are summed over ranks and micro-batches."""
        return sum(unit_gradients(self.profile, self.setup))

    @cached_property
    def updated(self) -> int:
        """Bytes of all trained weights in the dtype of the optimizer."""
        size = self.setup.state_bytes if self.setup.keeps_16_bits else self.profile.weight_bytes
        return size * self.profile.num_trained

    @cached_property
    def weights(self) -> int:
        """Bytes of all weights, frozen ones included."""
        return sum(unit_weights(self.profile))

    @cached_property
    def num_tensors(self) -> int:
        return sum(len(part.sizes) for part in (*self.profile.blocks, self.profile.rest))

    @property
    def overlap(self) -> float:
        return self.constants.value("overlap", 0.0)

    def moved_s(self, num_bytes: float) -> float:
        """Return the seconds in which kernels read and write `num_bytes` bytes together."""
        if not num_bytes:
            return 0.0
        return self.slower * num_bytes / (self.constants["elementwise"].value * self.threads_speedup)


@dataclass(frozen=True)
class StepSeconds:
    """The seconds of a step on a rank."""

    forward_s: float
    backward_s: float
    optimizer_s: float
    communication_s: float = 0.0
    """Collectives, as far as they do not overlap computing."""
    bubble_s: float = 0.0
    offload_s: float = 0.0
    python_s: Mapping[str, float] = field(default_factory=dict)
    """The part of these seconds that is Python of an engine, by the term of `planning.time`."""
    hidden_s: float = 0.0
    """Python of an engine while the host is ahead of the device, which adds nothing to the step."""

    @property
    def total_s(self) -> float:
        parts = (self.forward_s, self.backward_s, self.optimizer_s)
        return math.fsum((*parts, self.communication_s, self.bubble_s, self.offload_s))


def local_step(work: Work) -> StepSeconds:
    """Return the step of a single rank with the whole model."""
    accumulating = accumulated_s(work)
    steps = work.setup.grad_accum_steps
    return StepSeconds(steps * work.forward_s, steps * work.backward_s + accumulating, optimizer_s(work))


def accumulated_s(work: Work) -> float:
    """Return the seconds of adding the gradients of micro-batches after the first: two reads and a write."""
    return (work.setup.grad_accum_steps - 1) * work.moved_s(3 * work.grads)


def scaled_communication_s(work: Work, seconds: float) -> float:
    """Return the exposed seconds of collectives times their factor, which measured runs determine."""
    return seconds * work.constants.value(communication_factor(work.setup.traits.shards), 1.0)


def engine_python_s(work: Work, name: str, number: int) -> tuple[float, float]:
    """Return the seconds of an engine's Python in a step that delay its passes, and those that do not.

    The engine manages `number` units or parameters; the constant `name` is for one of them, 0 if it is unknown.
    """
    python_s, steps = number * work.constants.value(name, 0.0), work.setup.grad_accum_steps
    return steps * work.slower * max(0.0, python_s - work.idle_s), steps * min(python_s, work.idle_s)


def optimizer_s(work: Work, share: float = 1.0, *, is_sharded: bool = False) -> float:
    """Return the seconds of norm, clipping and update on the device, for a share of the trained weights.

    `share` is of the elements, not of the tensors. Gradients of shards of FSDP2 are clipped in separate kernels.
    """
    constants = work.constants
    num_bytes = share * update_passes(work.setup, is_sharded=is_sharded) * work.updated
    moving = work.slower * num_bytes / (constants["adamw"].value * work.threads_speedup)
    tensor_s = constants.value("adamw.tensor", 0.0)
    calling = work.slower * work.num_tensors * (constants.value("adamw.shard", tensor_s) if is_sharded else tensor_s)
    # A GPU updates one tensor while the host launches the next; a CPU does one after the other.
    return (max(moving, calling) if work.is_cuda else moving + calling) * constants.value("factor.optimizer", 1.0)


def update_passes(setup: PredictionSetup, *, is_sharded: bool = False) -> int:
    """Return how often norm, clipping and update read or write the bytes of the trained weights."""
    return SHARDED_ADAMW_PASSES if is_sharded else ADAMW_PASSES


def exposed_s(passes: Iterable[tuple[float, float]], end_s: float, overlap: float) -> float:
    """Return the seconds by which collectives delay a pass.

    Args:
        passes: The earliest start and the duration of each collective; they run one after another.
        end_s: Seconds of the pass without collectives.
        overlap: Share of a collective that overlaps computing if possible; the rest delays computing.
    """
    finished = total = 0.0
    for ready, seconds in passes:
        finished = max(finished, ready) + seconds
        total += seconds
    hidden = max(0.0, finished - end_s)
    return overlap * hidden + (1 - overlap) * total


def gathered_forward_s(work: Work, gathers: Sequence[float], first: float) -> float:
    """Return the seconds that gathering adds to a forward pass: a block is gathered while the previous one computes.

    The gathers of the rest (embeddings) and of the first block overlap nothing.

    Source: PyTorch, docs of torch.distributed.fsdp.fully_shard: implicit prefetching in forward.
    """
    block_s = work.forward_s / max(1, len(gathers))
    overlapped = [*gathers[1:], 0.0] if gathers else []
    hidden = first + sum(gathers[:1]) + math.fsum(max(0.0, seconds - block_s) for seconds in overlapped)
    return work.overlap * hidden + (1 - work.overlap) * (first + math.fsum(gathers))


def gathered_backward_s(work: Work, gathers: Sequence[float], first: float, reductions: Sequence[float]) -> float:
    """Return the seconds that gathers and reduce-scatters add to a backward pass.

    While a block computes, the next one is gathered and the gradients of the previous one are reduced, over one link.
    The gathers of the rest and of the last block, before all others, and the reduce-scatters of the first block and of
    the rest, at the end, overlap nothing.
    """
    block_s = work.backward_s / max(1, len(gathers))
    gather_order, reduce_order = gathers[::-1], reductions[-2::-1]
    # For each block: the gather of the next one and the reduction of the previous one.
    overlapped = [a + b for a, b in zip([*gather_order[1:], 0.0], [0.0, *reduce_order], strict=False)]
    ends = first + sum(gather_order[:1]) + sum(reduce_order[-1:]) + reductions[-1]
    hidden = ends + math.fsum(max(0.0, seconds - block_s) for seconds in overlapped)
    total = first + math.fsum(gather_order) + math.fsum(reductions)
    return work.overlap * hidden + (1 - work.overlap) * total


def offload_s(work: Work, group: int, *, gathered: int, copies_out: int) -> float:
    """Return the seconds of copies between host and device, and of the update on the host.

    Copies overlap nothing: the collective or the update that needs a copy waits for it.

    Args:
        work: The work of the step.
        group: Ranks that share the states.
        gathered: Bytes of the weights whose shards are copied to the devices in a step, of all ranks together.
        copies_out: How often gradients are copied to the host in a step.
    """
    constants, ranks = work.constants, work.setup.ranks_per_node
    # States on the host are fp32.
    wider = work.setup.state_bytes / work.profile.weight_bytes if work.setup.reduces_in_wider_dtype else 1.0
    crossing = (wider * gathered + copies_out * work.grads) / group / constants["host_link"].value
    # The ranks of a machine share its memory.
    updating = update_passes(work.setup) * work.updated / group * ranks / constants["adamw.host"].value
    return crossing + updating * constants.value("factor.optimizer", 1.0)


@dataclass(frozen=True)
class Transfer:
    """Equal calls of one collective in a step."""

    collective: Collective
    num_bytes: float
    """Of the whole tensor of one call, not of a shard."""
    num_ranks: int
    """Of the group."""
    num_calls: int = 1

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in all these calls; for broadcasts with different roots, the mean over ranks."""
        return self.num_calls * ring_bytes(self.collective, self.num_bytes, self.num_ranks)


def unit_weights(profile: Profile, num_shards: int = 1) -> list[int]:
    """Return the bytes of the weights of each block, frozen ones included, and last those of the rest.

    FSDP2 pads each weight to `num_shards` equal shards.
    """
    return [profile.weight_bytes * padded_sum(part, num_shards) for part in (*profile.blocks, profile.rest)]


def unit_gradients(profile: Profile, setup: PredictionSetup, num_shards: int = 1) -> list[int]:
    """Return the bytes of the gradients of each block, and last those of the rest; see `unit_weights`.

    In the dtype in which they are summed over ranks: under FSDP2 fp32, also for weights of 16 bits.
    """
    size = setup.precision.reduce_dtype.itemsize if setup.reduces_in_wider_dtype else profile.weight_bytes
    return [size * padded_sum(part, num_shards, trained=True) for part in (*profile.blocks, profile.rest)]


@dataclass(frozen=True)
class PlanFunctions:
    """The functions that a plan needs for one kind of strategy; a module of `planning.kinds` has them."""

    states: Callable[[Profile, PredictionSetup, int], States]
    """Returns the states of a rank."""
    transfers: Callable[[Profile, PredictionSetup, int], list[Transfer]]
    """Returns the collectives of a rank in one optimizer step."""
    seconds: Callable[[Work], StepSeconds]
    """Returns the seconds of a step."""
    engine_memory: Callable[[EngineInputs], EngineMemory] | None
    """Returns the memory of the engine in passes; None for a pipeline, which `planning.stage_memory` predicts."""
    why_no_seconds: Callable[[PredictionSetup], str | None] = lambda setup: None
    """Returns the reason why `seconds` cannot be computed for a setup, or None."""
    note: str | None = None
    """A note for readers of the figures."""
    holds_whole_model: bool = False
    """Whether a rank has all weights, gradients and states, so that its allocator can be simulated."""
