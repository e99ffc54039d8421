"""The time of a step on one rank without its strategy, and functions that all strategies use.

An operation takes on the device the longer of its arithmetic and its memory traffic, and on the host its launch.
The modules of `planning.kinds` list the collectives of a step with their bytes (`Transfer`), and compute their times.
Scalars (gradient norms, losses) and an engine's messages about its buckets are not counted. In strategies that shard
weights, each block is a unit that is gathered and reduced separately; the rest (embeddings and head) is one more.

Collectives are rings over the slowest link, or trees, each step with its latency. `N` ranks, `n` bytes of the tensor.

Source: Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, JPDC 2009, section 3;
the same factors are those of the bus bandwidth in nccl-tests, doc/PERFORMANCE.md.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from paratune.planning.constants import Constants
from paratune.planning.machine import Machine
from paratune.planning.profile import Profile
from paratune.planning.states import EngineInputs, EngineMemory, PredictionSetup, States, padded_bytes
from paratune.planning.trace import Operation

TREE_SHARE = 0.9
"""Bandwidth of a tree over that of a ring. Source: NCCL, src/graph/tuning.cc, `ncclTopoTuneModel`."""
Collective = Literal["all_reduce", "all_gather", "reduce_scatter", "broadcast", "send"]
ADAMW_PASSES = 9
"""How often an optimizer step reads or writes the bytes of the trained weights: gradients for their norm; weights,
gradients and both moments read; the same four written, with clipped gradients."""
SHARDED_ADAMW_PASSES = 10
"""The same for shards, whose gradients are read for the norm, read and written for clipping, and then only read."""
_PRODUCTS = {"mm", "addmm", "linear", "convolution", "_linear_pointwise"}
_OPERATORS = {
    "activation": "gelu gelu_backward tanh tanh_backward silu silu_backward exp erf",
    "softmax": (
        "_softmax _softmax_backward_data _safe_softmax _log_softmax _log_softmax_backward_data logsumexp softmax"
    ),
    "norm": "native_layer_norm native_layer_norm_backward _fused_rms_norm",
    "dropout": "native_dropout native_dropout_backward cheap_dropout",
    "random": "bernoulli_ bernoulli rand_like uniform_",
    "gather": "embedding gather scatter_add scatter_add_ index index_put index_put_ index_select index_add index_add_",
    "scatter": "embedding_dense_backward",
    "scores": "tile_scores",
    "scores_backward": "tile_scores_backward",
}
"""Operators without matrix products, by their constant; `elementwise` for all others."""
_KIND_OF = {name: kind for kind, names in _OPERATORS.items() for name in names.split()}
_FUSED = ("_scaled_dot_product_flash_attention", "packed_attention")
"""How names of attention's operators begin that need no matrices of scores."""
TILE = 128
"""Rows and columns of the part of a product that a multiprocessor computes at a time."""
_MATRIX_UNITS = {"tf32", "fp16", "bf16"}
"""Arithmetic of tensor and matrix cores, whose rate depends on the shape."""
_ARITHMETIC = {"float32": "fp32", "float64": "fp64", "float16": "fp16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Link:
    """The slowest link of a ring."""

    num_ranks: int
    """N."""
    bytes_per_s: float
    """One direction."""
    latency_s: float
    """Of one step of the ring, on average."""
    call_s: float = 0.0
    """Of each collective, for any ranks and bytes."""
    tree_s: float | None = None
    """Latencies of all steps of a tree, up and down; None where all-reduces use rings only (gloo)."""

    def seconds(self, collective: Collective, num_bytes: float) -> float:
        """Return the seconds of a collective of `num_bytes`, which all ranks together have of a gather's shards.

        An all-reduce takes 2 (N - 1) steps, a gather and a reduce-scatter N - 1. NCCL takes a tree for an all-reduce
        where it is faster: it sends 2 n with `TREE_SHARE` of the bandwidth, in fewer steps.
        """
        if self.num_ranks == 1:
            return 0.0
        steps = {"all_reduce": 2 * (self.num_ranks - 1), "send": 1}.get(collective, self.num_ranks - 1)
        seconds = ring_bytes(collective, num_bytes, self.num_ranks) / self.bytes_per_s + steps * self.latency_s
        if collective == "all_reduce" and self.tree_s is not None:
            seconds = min(seconds, 2 * num_bytes / (TREE_SHARE * self.bytes_per_s) + self.tree_s)
        return self.call_s + seconds


def ring_bytes(collective: Collective, num_bytes: float, num_ranks: int) -> float:
    """Return the bytes that each rank of N sends, and receives, in a collective over a ring.

    n (`num_bytes`) is the size of the whole tensor, not of a shard. For a broadcast this is the mean over ranks (the
    root receives nothing, the last rank sends nothing); for a send the bytes of the sending rank.
    """
    if num_ranks == 1:
        return 0.0
    share = (num_ranks - 1) / num_ranks
    factors = {"all_reduce": 2 * share, "send": 1.0}
    return num_bytes * factors.get(collective, share)


def link_between(constants: Constants, num_ranks: int, ranks_per_node: int, *, stride: int = 1) -> Link:
    """Return the ring through a group of ranks.

    A ring enters and leaves each machine once, so it uses the whole network of it. `stride` is the distance between the
    ranks of the group: 1 for neighbours. Parallel groups (one for each shard of hybrid sharding) share the network.

    Raises:
        UnknownConstant: The constant of the link is unknown.

    Source: NCCL, src/graph/tuning.cc: steps of a ring between machines have the latency of the network, the others that
        of the links inside a machine. A tree is a chain inside a machine, and a binary tree between machines.
    """
    call_s = constants.value("link.call", 0.0)
    if num_ranks == 1:
        return Link(1, 1.0, 0.0)
    is_within = (num_ranks - 1) * stride < ranks_per_node
    num_within = num_ranks if is_within else max(1, ranks_per_node // stride)
    tree_s = None
    if "link.tree" in constants and (is_within or "network.tree" in constants):
        hops = 0.0 if is_within else math.log2(-(-num_ranks // num_within)) * constants["network.tree"].value
        tree_s = 2 * ((num_within - 1) * constants["link.tree"].value + hops)
    if is_within:
        latency_s = constants["link.latency"].value
        return Link(num_ranks, constants["link"].value, latency_s, call_s, tree_s)
    rate = constants["network"].value / min(stride, ranks_per_node)
    if "link" in constants and ranks_per_node > stride:
        rate = min(rate, constants["link"].value)
    between = constants["network.latency"].value
    within = constants.value("link.latency", between)
    return Link(num_ranks, rate, (between + (num_within - 1) * within) / num_within, call_s, tree_s)


@dataclass(frozen=True)
class StepCase:
    """All inputs of the time of a step."""

    profile: Profile
    """Of one micro-batch of the setup."""
    setup: PredictionSetup
    machine: Machine
    num_tokens: float
    """Computed tokens of a micro-batch: T, or B x S."""
    num_workers: int = 0
    """As `data.num_workers`: processes of each rank that make batches."""
    hides_words: bool = False
    """Whether masked words are drawn for each batch (masked LM)."""
    num_threads: int = 1
    """Threads of each rank, on a CPU."""


class Work:
    """A step with some values of the constants, and the times of its passes on one rank."""

    def __init__(self, case: StepCase, constants: Constants) -> None:
        self.profile, self.setup, self.constants = profile, setup, constants = case.profile, case.setup, constants
        self.is_cuda = case.machine.is_cuda
        self.slower = 1.0
        """Factor by which the other ranks of the machine slow the rank down."""
        if setup.ranks_per_node > 1:
            self.slower = constants.value("together", 1.0)
            if not self.is_cuda and case.machine.num_cores is not None:
                self.slower = max(self.slower, setup.ranks_per_node * case.num_threads / case.machine.num_cores)
        self.threads_speedup = 1.0
        """Factor by which the threads of a rank on a CPU compute faster than one."""
        if case.num_threads != 1:
            self.threads_speedup = float(case.num_threads ** constants.value("threads", 1.0))
        seconds, ahead_s = [], 0.0
        for name, phase in (("forward", profile.forward), ("backward", profile.backward)):
            device_s, host_s = pass_seconds(
                phase.operations,
                constants,
                launch=f"launch.{name}",
                tf32=setup.precision.tf32,
                is_cuda=self.is_cuda,
                threads_speedup=self.threads_speedup,
            )
            # A GPU computes while the host launches the next operations; a CPU does one after the other.
            whole_s = max(device_s, host_s) if self.is_cuda else device_s + host_s
            seconds.append(whole_s * self.slower * constants.value(f"factor.{name}", 1.0))
            ahead_s += device_s - host_s
        self.forward_s, self.backward_s = seconds
        """Seconds of one micro-batch through the whole model."""
        self.idle_s = max(0.0, ahead_s) if self.is_cuda else 0.0
        """Seconds by which the host is ahead of the device in a micro-batch; so much Python of an engine takes no time.
        0 on a CPU."""
        self.grads = sum(unit_gradients(profile, setup))
        """Bytes of all gradients, as they are summed over ranks and micro-batches."""
        self.updated = setup.state_bytes * profile.num_trained
        """Bytes of all trained weights in the dtype of the optimizer."""
        self.accumulated_s = (setup.grad_accum_steps - 1) * self.moved_s(3 * self.grads)
        """Seconds of adding the gradients of micro-batches after the first: two reads and a write."""

    def moved_s(self, num_bytes: float) -> float:
        """Return the seconds in which kernels read and write `num_bytes` bytes together."""
        if not num_bytes:
            return 0.0
        return self.slower * num_bytes / (self.constants["elementwise"].value * self.threads_speedup)

    def local_step(self) -> "StepSeconds":
        """Return the step of a single rank with the whole model."""
        steps = self.setup.grad_accum_steps
        return StepSeconds(steps * self.forward_s, steps * self.backward_s + self.accumulated_s, self.optimizer_s())

    def scaled_communication_s(self, seconds: float) -> float:
        """Return the exposed seconds of collectives times their factor, which measured runs determine."""
        factor = "factor.sharding" if "gradients" in self.setup.traits.shards else "factor.communication"
        return seconds * self.constants.value(factor, 1.0)

    def engine_python_s(self, name: str, number: int) -> tuple[float, float]:
        """Return the seconds of an engine's Python in a step that delay its passes, and those that do not.

        The engine manages `number` units or parameters; the constant `name` is for one of them, 0 if it is unknown.
        """
        python_s, steps = number * self.constants.value(name, 0.0), self.setup.grad_accum_steps
        return steps * self.slower * max(0.0, python_s - self.idle_s), steps * min(python_s, self.idle_s)

    def optimizer_s(self, share: float = 1.0, *, is_sharded: bool = False) -> float:
        """Return the seconds of norm, clipping and update on the device, for a share of the trained weights.

        `share` is of the elements, not of the tensors. Gradients of shards of FSDP2 are clipped in separate kernels.
        """
        constants = self.constants
        num_bytes = share * (SHARDED_ADAMW_PASSES if is_sharded else ADAMW_PASSES) * self.updated
        moving = self.slower * num_bytes / (constants["adamw"].value * self.threads_speedup)
        tensor_s = constants.value("adamw.tensor", 0.0)
        tensor_s = constants.value("adamw.shard", tensor_s) if is_sharded else tensor_s
        calling = self.slower * len(self.profile.parameters) * tensor_s
        # A GPU updates one tensor while the host launches the next; a CPU does one after the other.
        return (max(moving, calling) if self.is_cuda else moving + calling) * constants.value("factor.optimizer", 1.0)

    def gathering_s(
        self, pass_s: float, gathers: Sequence[float], first: float, reductions: Sequence[float] = (), last: float = 0.0
    ) -> float:
        """Return the seconds that gathers and reduce-scatters add to a pass; those of blocks are in its order.

        While a block computes, the next one is gathered and the gradients of the previous one are reduced, over one
        link. At the beginning the gathers of the rest (`first`) and of the first block overlap nothing; at the end the
        reduce-scatters of the last block and of the rest (`last`).

        Source: PyTorch, docs of torch.distributed.fsdp.fully_shard: implicit prefetching in forward.
        """
        block_s, reductions = pass_s / max(1, len(gathers)), reductions or [0.0] * len(gathers)
        # For each block: the gather of the next one and the reduction of the previous one.
        overlapped = [a + b for a, b in zip([*gathers[1:], 0.0], [0.0, *reductions], strict=False)]
        exposed = first + sum(gathers[:1]) + sum(reductions[-1:]) + last
        exposed += math.fsum(max(0.0, seconds - block_s) for seconds in overlapped)
        overlap = self.constants.value("overlap", 0.0)
        return overlap * exposed + (1 - overlap) * (first + math.fsum(gathers) + math.fsum([*reductions, last]))

    def offload_s(self, group: int, *, gathered: int, copies_out: int) -> float:
        """Return the seconds of copies between host and device, and of the update on the host.

        Copies overlap nothing: the collective or the update that needs a copy waits for it.

        Args:
            group: Ranks that share the states.
            gathered: Bytes of the weights whose shards are copied to the devices in a step, of all ranks together.
            copies_out: How often gradients are copied to the host in a step.
        """
        constants, ranks = self.constants, self.setup.ranks_per_node
        # States on the host are fp32.
        wider = self.setup.state_bytes / self.profile.weight_bytes if self.setup.traits.reduces_in_fp32 else 1.0
        crossing = (wider * gathered + copies_out * self.grads) / group / constants["host_link"].value
        # The ranks of a machine share its memory.
        updating = ADAMW_PASSES * self.updated / group * ranks / constants["adamw.host"].value
        return crossing + updating * constants.value("factor.optimizer", 1.0)


def pass_seconds(
    operations: Mapping[Operation, int],
    constants: Constants,
    *,
    launch: str,
    tf32: bool,
    is_cuda: bool,
    threads_speedup: float = 1.0,
) -> tuple[float, float]:
    """Return the seconds of operations, given how often each runs: on the device, and on the host for launching them.

    On CUDA the host puts them into a queue, so that a pass takes the longer of both; on a CPU it takes both.

    `launch` is the constant for the host's time of an operation: launch.forward or launch.backward; `threads_speedup`
    divides the time of the operations on a CPU.

    Raises:
        UnknownConstant: The constant of an operation is unknown, such as an arithmetic that is not on the data sheet.
    """
    shortest = constants.value("kernel", 0.0) if is_cuda else 0.0
    device_s = 0.0
    for operation, count in operations.items():
        kind, arithmetic_s = _KIND_OF.get(operation.name, "elementwise"), 0.0
        if operation.flops:
            arithmetic = _ARITHMETIC.get(operation.dtype, "fp32")
            arithmetic = "tf32" if tf32 and arithmetic == "fp32" else arithmetic
            family = "product" if operation.name in _PRODUCTS else "batched"
            if operation.name.startswith(_FUSED) and f"fused.{arithmetic}" in constants:
                family = "fused"
            rate = constants[f"{family}.{arithmetic}"].value
            if family == "product" and arithmetic in _MATRIX_UNITS:
                rate *= share_of_rate(operation, constants)
            kind, arithmetic_s = "elementwise", operation.flops / rate
        elif kind == "scatter" and kind not in constants:
            kind = "gather"
        device_s += count * max(arithmetic_s, operation.num_bytes / constants[kind].value, shortest)
    return device_s / threads_speedup, sum(operations.values()) * constants[launch].value


def share_of_rate(operation: Operation, constants: Constants) -> float:
    """Return the share of its rate that a matrix product reaches because of its shape; 1 on a CPU.

    A multiprocessor computes a tile of the output at a time, so that the last wave of tiles leaves some without work;
    and a short inner dimension leaves little to do between the beginning and the end of a tile.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, sections Tile Quantization and Wave Quantization.
    """
    if "units" not in constants or not operation.rows:
        return 1.0
    rows, columns, units = operation.rows, operation.columns, constants["units"].value
    tiles = math.ceil(rows / TILE) * math.ceil(columns / TILE)
    inner = operation.flops / (2 * rows * columns)
    busy = rows * columns / (TILE**2 * units * math.ceil(tiles / units))
    return busy * inner / (inner + constants["depth"].value)


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
    hidden_s: float = 0.0
    """Python of an engine while the host is ahead of the device, which adds nothing to the step."""


@dataclass(frozen=True)
class Transfer:
    """Equal calls of one collective in a step."""

    collective: Collective
    num_bytes: float
    """Of the whole tensor of one call, not of a shard."""
    num_ranks: int
    """Of the group."""
    num_calls: int = 1


def unit_weights(profile: Profile, num_shards: int = 1) -> list[int]:
    """Return the bytes of the weights of each block, frozen ones included, and last those of the rest.

    FSDP2 pads each weight to `num_shards` equal shards.
    """
    return [padded_bytes(part, num_shards, profile.weight_bytes) for part in profile.parts]


def unit_gradients(profile: Profile, setup: PredictionSetup, num_shards: int = 1) -> list[int]:
    """Return the bytes of the gradients of each block, and last those of the rest; see `unit_weights`.

    In the dtype in which they are summed over ranks: under FSDP2 fp32, also for weights of 16 bits.
    """
    size = setup.precision.reduce_dtype.itemsize if setup.traits.reduces_in_fp32 else profile.weight_bytes
    return [padded_bytes(part, num_shards, size, trained=True) for part in profile.parts]


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
    """Returns the memory of the engine in passes; None for a pipeline (`stage_terms`)."""
    holds_whole_model: bool = False
    """Whether a rank has all weights, gradients and states, so that its allocator can be simulated."""
