"""How work can be spread over devices: one class a strategy, chosen by `kind`, with the options that it alone has."""

from typing import Annotated, Any, Literal

from pydantic import Field

from paratune.config.section import Positive, PositiveFloat, Section


class SingleOptions(Section):
    """One process on one device."""

    kind: Literal["single"]
    """The strategy."""


class DDPOptions(Section):
    """A whole model in each process; gradients are summed between them during backward."""

    kind: Literal["ddp"]
    """The strategy."""
    bucket_cap_mb: PositiveFloat = 25.0
    """Size in MiB of the pieces in which gradients travel."""
    find_unused_parameters: bool = False
    """Look in each step for parameters without a gradient; needed for models that do not use all of theirs."""


class Zero1Options(Section):
    """ZeRO-1: a whole model in each process, the optimizer states of a part of it (ZeroRedundancyOptimizer)."""

    kind: Literal["zero1"]
    """The strategy."""
    bucket_cap_mb: PositiveFloat = 25.0
    """Size in MiB of the pieces in which gradients travel."""
    find_unused_parameters: bool = False
    """Look in each step for parameters without a gradient; needed for models that do not use all of theirs."""


class Zero2Options(Section):
    """ZeRO-2 by FSDP2: gradients and optimizer states sharded; weights gathered once a step."""

    kind: Literal["zero2"]
    """The strategy."""
    cpu_offload: bool = False
    """Keep shards of weights, gradients and optimizer states in host memory, and update there; for GPUs."""
    param_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the weights that passes read: fp32 (under autocast), or copies in 16 bits, of the same name as `precision`."""


class Zero3Options(Section):
    """ZeRO-3 by FSDP2: weights, gradients and optimizer states sharded; weights gathered block by block."""

    kind: Literal["zero3"]
    """The strategy."""
    cpu_offload: bool = False
    """Keep shards of weights, gradients and optimizer states in host memory, and update there; for GPUs."""
    param_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the weights that passes read: fp32 (under autocast), or copies in 16 bits, of the same name as `precision`."""


class HSDPOptions(Section):
    """ZeRO-3 within groups of ranks, data parallelism between the groups."""

    kind: Literal["hsdp"]
    """The strategy."""
    shard_size: Positive | None = None
    """Ranks that share one copy of the states; those of one node when not given. There must be at least two groups."""
    cpu_offload: bool = False
    """Keep shards of weights, gradients and optimizer states in host memory, and update there; for GPUs."""
    param_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the weights that passes read: fp32 (under autocast), or copies in 16 bits, of the same name as `precision`."""


class PipelineOptions(Section):
    """The model's blocks cut into stages, one on each rank, and micro-batches sent through them."""

    kind: Literal["pipeline"]
    """The strategy."""
    stages: Annotated[int, Field(ge=2)] = 2
    """Ranks of one pipeline; as many pipelines as fit into the world size work in data parallel."""
    schedule: Literal["gpipe", "1f1b", "interleaved"] = "1f1b"
    """Order of forward and backward passes: GPipe, one forward one backward, or that with several stages a rank."""
    chunks: Annotated[int, Field(ge=2)] | None = None
    """With `schedule: interleaved`: stages on each rank; 2 when not given."""
    balance: Literal["estimated", "measured"] | Annotated[list[Positive], Field(min_length=2)] = "estimated"
    """How blocks are divided: by counted operations, by a measurement at the start, or the blocks of each stage."""


class DeepSpeedOptions(Section):
    """ZeRO by DeepSpeed (extra `deepspeed`), with offload to the host's memory."""

    kind: Literal["deepspeed"]
    """The strategy."""
    stage: Literal[0, 1, 2, 3] = 2
    """What is sharded: nothing; optimizer states; gradients too; weights too."""
    offload_optimizer: bool = False
    """Keep optimizer states in the host's memory and update there (stages 1 to 3, with a GPU)."""
    offload_parameters: bool = False
    """Keep shards of the weights in the host's memory (stage 3, with a GPU)."""
    cpu_adam: bool = False
    """With `offload_optimizer`: update with DeepSpeed's own AdamW, compiled on first use, instead of PyTorch's."""
    param_dtype: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Of the weights that passes read: fp32 under autocast, or DeepSpeed's own mode of `precision` (stages 1 to 3)."""
    bucket_cap_mb: PositiveFloat | None = None
    """Size in MiB of the pieces in which gradients and weights travel (stages 1 to 3); 100 in fp32 when not given."""
    reduce_bucket_size: Positive | None = None
    """The same of gradients in numbers (stages 1 to 3); 500000000 when not given, with a `param_dtype` of 16 bits."""
    allgather_bucket_size: Positive | None = None
    """The same of updated weights, an even number (stages 1 and 2); its default is that of `reduce_bucket_size`."""
    prefetch_bucket_size: Annotated[int, Field(ge=0)] | None = None
    """Numbers of weights that are gathered ahead (stage 3); 50000000 with 16 bits, else a block at most."""
    max_live_parameters: Annotated[int, Field(ge=0)] | None = None
    """Numbers of weights that are gathered at once (stage 3); 1000000000 with 16 bits, else two blocks."""
    max_reuse_distance: Annotated[int, Field(ge=0)] | None = None
    """Weights needed again within so many numbers stay gathered (stage 3); as `max_live_parameters`."""
    param_persistence_threshold: Annotated[int, Field(ge=0)] | None = None
    """Weights with fewer numbers than this stay gathered (stage 3); 100000 when not given."""


class OutsideStrategy(Section):
    """A class of your own, named in full; see docs/strategies.md."""

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

"""Told apart by `kind`."""


def strategy_options(strategy: Section) -> dict[str, Any]:
    """Return the keyword arguments of a strategy's class."""
    if isinstance(strategy, OutsideStrategy):
        return dict(strategy.options)
    return strategy.model_dump(exclude={"kind"})
