"""Options of each strategy: one class for each kind; sizes of DeepSpeed's buckets and gathered weights."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import Field

from paratune.base.units import MIB
from paratune.config.section import Positive, PositiveFloat, Section

_BUCKET = "Size in MiB of the buckets in which gradients are reduced."
BucketCap = Annotated[PositiveFloat, Field(description=_BUCKET)]
_UNUSED = (
    "Search in each step for parameters without a gradient; needed for models that do not use all their parameters."
)
FindUnused = Annotated[bool, Field(description=_UNUSED)]
_OFFLOAD = "Keep the shards of weights, gradients and optimizer states in CPU memory, and update them there; for GPUs."
CpuOffload = Annotated[bool, Field(description=_OFFLOAD)]
_EACH = """Reduce gradients in each micro-step, not only in the last of a step: a rank then holds only its shard between
micro-steps, and sends more bytes. `paratune plan` recommends it where memory needs it."""
ReduceEach = Annotated[bool, Field(description=_EACH)]
_DTYPE = """Dtype of the weights in forward and backward: fp32 (under autocast), or 16-bit copies with the same name as
`precision`."""
ParamDtype = Annotated[Literal["fp32", "bf16", "fp16"], Field(description=_DTYPE)]


class SingleOptions(Section):
    """One process on one device."""

    kind: Literal["single"]


class DDPOptions(Section):
    """A complete model in each process; gradients are all-reduced during backward."""

    kind: Literal["ddp"]
    bucket_cap_mb: BucketCap = 25.0
    find_unused_parameters: FindUnused = False


class Zero1Options(Section):
    """ZeRO-1: a complete model in each process, optimizer states sharded (ZeroRedundancyOptimizer)."""

    kind: Literal["zero1"]
    bucket_cap_mb: BucketCap = 25.0
    find_unused_parameters: FindUnused = False


class Zero2Options(Section):
    """ZeRO-2 by FSDP2: gradients and optimizer states sharded; weights gathered once per step."""

    kind: Literal["zero2"]
    cpu_offload: CpuOffload = False
    param_dtype: ParamDtype = "fp32"
    reduce_each_micro_step: ReduceEach = False


class Zero3Options(Section):
    """ZeRO-3 by FSDP2: weights, gradients and optimizer states sharded; weights gathered block by block."""

    kind: Literal["zero3"]
    cpu_offload: CpuOffload = False
    param_dtype: ParamDtype = "fp32"
    reduce_each_micro_step: ReduceEach = False


class HSDPOptions(Section):
    """ZeRO-3 within groups of ranks, data parallelism between the groups."""

    kind: Literal["hsdp"]
    shard_size: Positive | None = None
    """Number of ranks that share one copy of the states; default: the ranks of one node. There must be at least two
    groups."""
    cpu_offload: CpuOffload = False
    param_dtype: ParamDtype = "fp32"
    reduce_each_micro_step: ReduceEach = False


class PipelineOptions(Section):
    """The model's blocks divided into stages, one per rank; micro-batches pass through the stages."""

    kind: Literal["pipeline"]
    stages: Annotated[int, Field(ge=2)] = 2
    """Number of ranks of one pipeline; the world size divided by it is the number of pipelines in data parallel."""
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    """Order of forward and backward passes: GPipe, 1F1B, or 1F1B with several stages per rank."""
    chunks: Annotated[int, Field(ge=2)] | None = None
    """With `schedule: interleaved`: stages on each rank; default: 2."""
    balance: Literal["estimated", "measured"] | Annotated[list[Positive], Field(min_length=2)] = "estimated"
    """How blocks are divided into stages: by counted operations, by a measurement at the start, or a list of the number
    of blocks of each stage."""


class DeepSpeedOptions(Section):
    """ZeRO by DeepSpeed (extra `deepspeed`), with offload to CPU memory."""

    kind: Literal["deepspeed"]
    stage: Literal[0, 1, 2, 3] = 2
    """0: nothing is sharded; 1: optimizer states; 2: gradients too; 3: weights too."""
    offload_optimizer: bool = False
    """Keep optimizer states in CPU memory and update there (stages 1 to 3, with a GPU)."""
    offload_parameters: bool = False
    """Keep the shards of the weights in CPU memory (stage 3, with a GPU)."""
    cpu_adam: bool = False
    """With `offload_optimizer`: use DeepSpeed's AdamW, which is compiled on first use, instead of PyTorch's."""
    param_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Dtype of the weights in forward and backward: fp32 under autocast, or DeepSpeed's own mode of `precision` (stages
    1 to 3)."""
    bucket_cap_mb: PositiveFloat | None = None
    """Size in MiB of the buckets in which gradients and weights are sent (stages 1 to 3); default in fp32: 100."""
    reduce_bucket_size: Positive | None = None
    """Size of the buckets of gradients in elements (stages 1 to 3); default with a 16-bit `param_dtype`: 500000000."""
    allgather_bucket_size: Annotated[int, Field(ge=2, multiple_of=2)] | None = None
    """Size of the buckets of updated weights in elements, an even number (stages 1 and 2); default: as
    `reduce_bucket_size`."""
    prefetch_bucket_size: Annotated[int, Field(ge=0)] | None = None
    """Weights, in elements, that are gathered ahead (stage 3); default: 50000000 with 16 bits, else at most one
    block."""
    max_live_parameters: Annotated[int, Field(ge=0)] | None = None
    """Weights, in elements, that are gathered at the same time (stage 3); default: 1000000000 with 16 bits, else two
    blocks."""
    max_reuse_distance: Annotated[int, Field(ge=0)] | None = None
    """Weights that are needed again within this number of elements stay gathered (stage 3); default: as
    `max_live_parameters`."""
    param_persistence_threshold: Annotated[int, Field(ge=0)] | None = None
    """Weights with fewer elements than this stay gathered (stage 3); default: 100000."""


class OutsideStrategy(Section):
    """Your own class, with its full name; see docs/explanation/strategies.md."""

    kind: Annotated[str, Field(pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")]
    """package.module:Class."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Keyword arguments of the class."""


Strategy = (
    SingleOptions
    | DDPOptions
    | Zero1Options
    | Zero2Options
    | Zero3Options
    | HSDPOptions
    | PipelineOptions
    | DeepSpeedOptions
    | OutsideStrategy
)


def strategy_options(strategy: Section) -> dict[str, Any]:
    """Return the keyword arguments of a strategy's class."""
    if isinstance(strategy, OutsideStrategy):
        return dict(strategy.options)
    return strategy.model_dump(exclude={"kind"})


BUCKET_CAP_MB = 100.0
"""Default for weights in fp32: DeepSpeed's 5e8 elements are 2 GB, more than the gradients of BERT-base."""
STAGES = {
    "bucket_cap_mb": (1, 2, 3),
    "reduce_bucket_size": (1, 2, 3),
    "allgather_bucket_size": (1, 2),
    "prefetch_bucket_size": (3,),
    "max_live_parameters": (3,),
    "max_reuse_distance": (3,),
    "param_persistence_threshold": (3,),
}
"""Stages in which each option has an effect."""


@dataclass(frozen=True)
class Limits:
    """Limits in elements, with the names and the defaults of DeepSpeed.

    Source: DeepSpeed 0.19.8, runtime/zero/config.py, `DeepSpeedZeroConfig`.
    """

    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    prefetch_bucket_size: int = 50_000_000
    max_live_parameters: int = 1_000_000_000
    max_reuse_distance: int = 1_000_000_000
    param_persistence_threshold: int = 100_000


def deepspeed_limits(options: Mapping[str, Any], *, element_size: int, largest_block: int) -> Limits:
    """Return the limits for the options of a strategy.

    With 16-bit weights the defaults are those of DeepSpeed, as in other programs that use it. In fp32 stage 3 gathers
    two blocks at a time: with DeepSpeed's larger defaults every weight of a small model stays gathered after its first
    use.

    Args:
        element_size: Bytes of an element that is sent.
        largest_block: Elements of the largest of the model's repeated layers.
    """
    limits, cap_mb = Limits(), options.get("bucket_cap_mb")
    if options.get("param_dtype", "fp32") == "fp32":
        live = 2 * largest_block
        limits = _with_buckets(limits, cap_mb or BUCKET_CAP_MB, element_size)
        prefetch = min(largest_block, limits.reduce_bucket_size)
        limits = replace(limits, prefetch_bucket_size=prefetch, max_live_parameters=live, max_reuse_distance=live)
    elif cap_mb is not None:
        limits = _with_buckets(limits, cap_mb, element_size)
    given = {name: options[name] for name in vars(limits) if options.get(name) is not None}
    given.setdefault("max_reuse_distance", given.get("max_live_parameters", limits.max_reuse_distance))
    return replace(limits, **given)


def _with_buckets(limits: Limits, cap_mb: float, element_size: int) -> Limits:
    # An even number: DeepSpeed aligns gathered weights to 4 bytes.
    numel = max(2, int(cap_mb * MIB / element_size) // 2 * 2)
    return replace(limits, reduce_bucket_size=numel, allgather_bucket_size=numel)
