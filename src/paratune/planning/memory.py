"""The peak memory of a rank, term by term."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from paratune.base.units import MIB
from paratune.config.model_states import PART_NUMBERS_8_BITS
from paratune.planning.allocator import StepAllocations, reserve
from paratune.planning.kinds import KINDS, states_of_rank
from paratune.planning.kinds.pipeline import stage_terms
from paratune.planning.machine import Machine
from paratune.planning.profile import Profile
from paratune.planning.states import (
    GRADIENTS,
    EngineInputs,
    EngineMemory,
    PredictionSetup,
    state_tensors,
    weight_bytes,
)
from paratune.planning.trace import CUDA_ROUNDING, Delta, find_fullest, rounded

CONTEXT_BYTES = 500 * MIB
"""CUDA's context with the kernels that a training loads: assumed, not measured."""
NCCL_CHANNEL_BYTES = 12 * MIB
"""Of a channel to one neighbour: 10 MiB to receive (4 MiB of the protocol Simple, 4.7 of LL128, 0.5 of LL, rounded up)
and 2 MiB to send.

Source: NCCL, src/init.cc, DEFAULT_BUFFSIZE, DEFAULT_LL128_BUFFSIZE, DEFAULT_LL_BUFFSIZE; the sizes of its allocations
in NVIDIA/nccl#1685.
"""
NCCL_CHANNELS = {True: 16, False: 4}
"""Channels over NVLink or the like, and over PCIe: NCCL has 2 to 32, "linearly tied" to its
memory (NVIDIA/nccl#986)."""
_NCCL_NEIGHBOURS = 2
"""Connections of a channel: a ring has one; a tree, for all-reduces of few bytes or on many nodes, up to three more."""
_NCCL_SPREAD = 4
"""Factor from the value of the term `nccl` to both of its bounds: half the channels with rings only, and twice the
channels with rings and trees. One communicator took 1.6 GB in NVIDIA/nccl#864, with the context."""
WORKSPACE_BYTES = 2 * 32 * MIB
"""Workspace of cuBLAS for the threads of the forward and of the backward pass: on Hopper and newer PyTorch reserves
4096 x 8 KiB for each thread, on other devices a quarter of it.

Source: aten/src/ATen/cuda/CublasHandlePool.cpp, `parseChosenWorkspaceSize`.
"""
FRAGMENTED_SHARE = 0.05
"""Share of the transient memory that the allocator reserves and cannot use, where it is not simulated: assumed."""
PROCESS_BYTES = 550 * MIB
"""Resident memory of a process of a training on a CPU, besides the terms of the plan: Python, torch, transformers, the
loader, and memory that the allocator keeps. Measured: benchmarks/plan_memory_cpu_202611.md."""
_BOUNDS = {"context": (CONTEXT_BYTES, 300 * MIB, 1100 * MIB), "process": (PROCESS_BYTES, 450 * MIB, 1400 * MIB)}
"""Terms with their value, lower and upper bound. Of the context: a driver with few kernels loaded, and 1,032 MiB of an
RTX 3090 after its first steps (benchmarks/plan_published_202611.md); one that loads all kernels at its start can take
more. The upper bound of the process is assumed."""
MAX_FRAGMENTED = 0.12
"""Upper bound of the fragmented share, also of a simulated one that is smaller; the lower one is 0."""
BUCKET_BYTES = 25 * MIB
"""Buckets of DDP in the simulation of the allocator: PyTorch's default."""
UPDATE_BYTES_8_BITS = 28
"""Bytes for each number of a part that adamw_8bit updates: seven tensors of 4 bytes at the same time."""
_TRANSIENT = ("activations", "cast_weights", "gathered_weights", "communication")


@dataclass(frozen=True)
class Memory:
    """Bytes of the rank that needs most, at its peak."""

    terms: Mapping[str, int]
    """On the device: weights, gradients, optimizer, buffers (of the model), batch, activations, cast_weights (by
    autocast), gathered_weights, communication, update; on CUDA context, workspaces, fragmentation; in predictions nccl
    or process (`with_machine`)."""
    host_terms: Mapping[str, int]
    """On the host, states that are offloaded."""

    @property
    def total(self) -> int:
        return sum(self.terms.values())

    @property
    def host_total(self) -> int:
        return sum(self.host_terms.values())

    @property
    def bounds(self) -> tuple[int, int]:
        """Lower and upper bound of the total, from those of context, NCCL, fragmentation and process."""
        nccl, fragmented = self.terms.get("nccl", 0), self.terms.get("fragmentation", 0)
        low = self.total - (nccl - nccl // _NCCL_SPREAD) - fragmented
        high = self.total + (_NCCL_SPREAD - 1) * nccl
        for term, (value, least, most) in _BOUNDS.items():
            if term in self.terms:
                low, high = low - (value - least), high + most - value
        if "context" in self.terms:
            transient = sum(self.terms.get(name, 0) for name in _TRANSIENT)
            high += max(0, round(MAX_FRAGMENTED * transient) - fragmented)
        return low, high


def peak(profile: Profile, setup: PredictionSetup, on_cuda: bool = True) -> Memory:
    """Return the memory of the rank that needs most, for the largest micro-batch.

    The profile of a pipeline must have the division into stages.

    Raises:
        ConfigError: A pipeline has fewer blocks than stages.
    """
    ranks: Iterable[int] = range(setup.num_ranks)
    if not setup.traits.has_uneven_shards:  # every other rank has the same states as one of these
        ranks = range(setup.traits.ranks_per_replica if setup.traits.cuts_blocks else 1)
    if not setup.traits.cuts_blocks:
        # Ranks differ only in their states.
        states = {rank: states_of_rank(profile, setup, rank) for rank in ranks}
        ranks = [max(states, key=lambda rank: states[rank].totals)]
    return max((peak_of_rank(profile, setup, rank, on_cuda) for rank in ranks), key=lambda memory: memory.total)


def with_machine(memory: Memory, machine: Machine, num_ranks: int) -> Memory:
    """Return the memory of one of `num_ranks` ranks with what PyTorch does not allocate.

    On a CPU that of the process, as the system shows it (resident memory); on several GPUs the buffers of one NCCL
    communicator.
    """
    if not machine.is_cuda:
        return replace(memory, terms={**memory.terms, "process": PROCESS_BYTES})
    if num_ranks == 1:
        return memory
    # A bridge connects two cards, if there is one.
    has_links = machine.device is not None and machine.device.link_kind not in (None, "nvlink bridge")
    num_bytes = NCCL_CHANNELS[has_links] * _NCCL_NEIGHBOURS * NCCL_CHANNEL_BYTES
    return replace(memory, terms={**memory.terms, "nccl": num_bytes})


def peak_of_rank(profile: Profile, setup: PredictionSetup, rank: int, on_cuda: bool = True) -> Memory:
    """Return the memory of one rank; see `peak`."""
    view = EngineInputs(profile, setup, states_of_rank(profile, setup, rank), CUDA_ROUNDING if on_cuda else 1)
    kind = KINDS[setup.strategy.kind]
    # A step has two candidates for its peak: a moment of the last forward and backward pass, with activations; and the
    # update, with all gradients and what the optimizer allocates. Weights and moments exist in both.
    if kind.engine_memory is None:
        passes, update = stage_terms(view, rank % setup.traits.ranks_per_replica)
    else:
        engine_memory = kind.engine_memory(view)
        passes = _peak_of_passes(view, engine_memory)
        update = {**engine_memory.at_step}
        for name, size in engine_memory.always.items():
            update[name] = update.get(name, 0) + size
        # Unsharded gradients are freed if each rank keeps only its shard.
        update[GRADIENTS] = view.states.gradients
    update = {**update, "update": update_bytes(view)}
    fuller = max(passes, update, key=lambda terms: sum(terms.values()))
    states = view.states
    # All micro-batches of a step are on the device when it begins.
    batch_bytes = profile.batch_bytes * setup.grad_accum_steps
    terms = {"weights": states.weights, "optimizer": states.optimizer, "buffers": profile.num_buffer_bytes}
    terms |= {"batch": batch_bytes, **fuller}
    if on_cuda:
        fragmented = round(FRAGMENTED_SHARE * sum(terms.get(name, 0) for name in _TRANSIENT))
        if kind.holds_whole_model:  # the allocator can be simulated
            allocator = reserve(step_allocations(view))
            fragmented = allocator.reserved - allocator.most_allocated
        terms |= {"context": CONTEXT_BYTES, "workspaces": WORKSPACE_BYTES, "fragmentation": fragmented}
    host_terms = {"weights": states.host_weights, "gradients": states.host_gradients}
    host_terms["optimizer"] = states.host_optimizer
    return Memory(*({name: size for name, size in each.items() if size} for each in (terms, host_terms)))


def step_allocations(view: EngineInputs) -> StepAllocations:
    """Return the allocations of the steps of a rank that has the whole model."""
    profile, setup = view.profile, view.setup
    size = profile.weight_bytes
    trained = [parameter for parameter in profile.parameters if parameter.is_trained and parameter.has_gradient]
    buckets, rest = divmod(view.states.gradients, BUCKET_BYTES)
    has_buckets = setup.traits.max_world_size != 1
    return StepAllocations(
        timeline=profile.timeline,
        weights=(
            *(weight_bytes([parameter], size) for parameter in profile.parameters),
            *filter(None, [profile.num_buffer_bytes]),
        ),
        gradients=(*[BUCKET_BYTES] * buckets, *filter(None, [rest])) if has_buckets else (),
        batch=(profile.batch_bytes * setup.grad_accum_steps,),
        moments=[num_bytes for parameter in trained for num_bytes in state_tensors(parameter, size, setup)],
        update=list(filter(None, [update_bytes(view)])),
        workspace=WORKSPACE_BYTES // 2,
        accumulates=view.accumulates,
    )


def _peak_of_passes(view: EngineInputs, engine_memory: EngineMemory) -> dict[str, int]:
    timeline = view.profile.timeline
    level = timeline.level(view.rounding, without={*timeline.gradients, *timeline.casts})
    deltas = list(engine_memory.deltas)
    # Copies of weights that autocast makes and autograd keeps until their backward pass.
    position = {change: at for at, change in enumerate(timeline.changes)}
    for number in timeline.casts if engine_memory.keeps_casts else ():
        size = rounded(timeline.sizes[number], view.rounding)
        freed = position.get(~number, view.end)
        deltas += [Delta(position[number] + 1, "cast_weights", size), Delta(freed, "cast_weights", -size)]
    fullest, terms_of_engine = find_fullest(level, deltas)
    terms = {"activations": int(level[fullest]), **terms_of_engine}
    for name, size in engine_memory.always.items():
        terms[name] = terms.get(name, 0) + size
    return terms


def update_bytes(view: EngineInputs) -> int:
    """Return the additional bytes of the update: 0 for fused AdamW with clipping.

    For adamw_8bit, both moments of a part of the largest weight in float32, their places in the table and the step; for
    Adafactor, the second moment and the step of the largest weight.
    """
    largest = max((parameter.numel for parameter in view.profile.parameters if parameter.is_trained), default=0)
    if view.setup.optimizer == "adamw_8bit":
        return UPDATE_BYTES_8_BITS * min(PART_NUMBERS_8_BITS, largest)
    if view.setup.optimizer == "adafactor":
        return 2 * view.profile.weight_bytes * largest
    return 0
