"""What is true of a strategy before it runs: plain data that plans, checks, launchers and reports read, no torch."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Traits:
    """The one fact of the strategy protocol."""

    kind: str
    """Name in the configuration."""
    phases: Mapping[str, str]
    """What each measured phase contains, in words, for get_batch, forward, backward, optimizer."""
    own_phases: tuple[str, ...] = ("get_batch",)
    """Phases in which a rank waits for no other rank, so that their times tell a slow rank from those it holds up."""
    shards: tuple[str, ...] = ()
    """What each rank holds only a part of: any of weights, gradients, optimizer."""
    states_on: str = "device"
    """Where the optimizer states live: device or cpu."""
    min_world_size: int = 1
    """Fewest processes with which the strategy means anything."""
    max_world_size: int | None = None
    """Most processes; None for no limit."""
    world_size_multiple: int = 1
    """What the number of processes must be a multiple of."""
    equal_shapes: bool = False
    """All micro-batches of a step must have the same number of rows and the same padded length."""
    num_micro_batches: int = 1
    """Fewest micro-batches of a step; with `batch.global` and no micro_batch_size, four times as many are made."""
    micro_batch_multiple: int = 1
    """What the number of micro-batches of a step must be a multiple of."""
    ranks_per_replica: int = 1
    """Processes that work on the same samples, such as the stages of a pipeline."""
    cuts_blocks: bool = False
    """Whether it cuts the model at its blocks: a pipeline of `ranks_per_replica` ranks."""
    stages_per_rank: int = 1
    """Parts of the model on each rank of a pipeline."""
    shard_size: int | None = None
    """Ranks that share one copy of the states, where these are not all of them."""
    shards_within_node: bool = False
    """Whether the ranks of one machine share a copy of the states, and so several machines are needed."""
    has_uneven_shards: bool = False
    """Whether ranks hold unequal parts, because whole parameters, or flat ranges of them, are dealt out."""
    keeps_working_weights: bool = False
    """Whether it keeps the weights in fp32, and copies of them in the dtype of autocast for the passes."""
    reduces_in_fp32: bool = False
    """Whether gradients of 16 bits are summed over ranks in fp32."""
    compiles_optimizer: bool = False
    """Whether the first run compiles its optimizer, for which compilers must be there."""
    offload_option: str | None = None
    """Option that moves more of the states to the host when it is set to true; None where there is none left."""
    fully_sharded_by: str | None = "strategy.kind: zero3"
    """The line under which each rank holds a part of everything; None where it does already."""
    grouped_as: str | None = None
    """Strategy that shards the same over groups of ranks (`strategy.shard_size`) and not over all of them."""
    backward_is_local: bool = False
    """Whether a rank can run forward and backward of the prepared model by itself, without meeting the others."""
    gathers_per_micro_step: int = 0
    """How often the weights, sharded, are gathered for a micro-batch: for forward and again for backward."""
    reduces_each_micro_step: bool = False
    """Whether gradients are reduced over ranks with each micro-batch, and not with the last one of a step only."""
    needs_accelerator: bool = False
    """Whether it moves states between a device and the host, and so needs a device that is not the host."""
    package: str | None = None
    """Optional package that it needs; the extra that brings it has the same name."""
    excludes: Mapping[str, str] = field(default_factory=dict)
    """Settings that it cannot be combined with ("precision=fp16"), each with the reason."""

    def ideal_bubble_share(self, num_micro_batches: int) -> float | None:
        """Return the part of a pipeline's schedule in which a rank waits when nothing but computing takes time.

        (p - 1) / (m + p - 1) for GPipe and 1F1B; with v stages on each rank the passes that fill and drain the pipeline
        are v times shorter: (p - 1) / (v m + p - 1). None for what is no pipeline.

        Args:
            num_micro_batches: Of a step, m.

        Source: Huang et al., GPipe, NeurIPS 2019, section 2.3; Narayanan et al., Efficient Large-Scale Language Model
            Training on GPU Clusters, SC 2021, section 2.2 (there over the ideal time, here over all of it).
        """
        p, v = self.ranks_per_replica, self.stages_per_rank
        return None if p == 1 else (p - 1) / (v * num_micro_batches + p - 1)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


_GET_BATCH = "reading tokens, packing or padding, copy to the device"
_FORWARD = "forward pass and loss"
_REDUCED = "backward pass and the all-reduce of gradients, overlapped"
_SHARDED_STEP = "gradient norm (one all-reduce; with LAMB another), clipping, update of this rank's shards"

TRAITS: dict[str, Traits] = {
    "single": Traits(
        kind="single",
        phases={
            "get_batch": _GET_BATCH,
            "forward": _FORWARD,
            "backward": "backward pass",
            "optimizer": "gradient norm, clipping, update",
        },
        own_phases=("get_batch", "forward", "backward", "optimizer"),
        max_world_size=1,
        keeps_working_weights=True,
        backward_is_local=True,
    ),
    "ddp": Traits(
        kind="ddp",
        phases={
            "get_batch": _GET_BATCH,
            "forward": _FORWARD,
            "backward": _REDUCED,
            "optimizer": "gradient norm, clipping, update of the whole model on each rank",
        },
        own_phases=("get_batch", "forward", "optimizer"),
        keeps_working_weights=True,
        backward_is_local=True,
    ),
    "zero1": Traits(
        kind="zero1",
        phases={
            "get_batch": _GET_BATCH,
            "forward": _FORWARD,
            "backward": _REDUCED,
            "optimizer": "gradient norm, clipping, update of this rank's part, broadcast of the weights",
        },
        own_phases=("get_batch", "forward"),
        shards=("optimizer",),
        has_uneven_shards=True,
        keeps_working_weights=True,
        backward_is_local=True,
    ),
    "zero2": Traits(
        kind="zero2",
        phases={
            "get_batch": _GET_BATCH,
            "forward": "forward pass, loss and the all-gather of weights, overlapped",
            "backward": "backward pass and the reduce-scatter of gradients, overlapped",
            "optimizer": _SHARDED_STEP,
        },
        shards=("gradients", "optimizer"),
        reduces_in_fp32=True,
        offload_option="cpu_offload",
    ),
    "zero3": Traits(
        kind="zero3",
        phases={
            "get_batch": _GET_BATCH,
            "forward": "forward pass, loss and the all-gather of weights, overlapped",
            "backward": "backward pass, another all-gather of weights and the reduce-scatter of gradients, overlapped",
            "optimizer": _SHARDED_STEP,
        },
        shards=("weights", "gradients", "optimizer"),
        gathers_per_micro_step=2,
        reduces_in_fp32=True,
        offload_option="cpu_offload",
        fully_sharded_by=None,
        grouped_as="hsdp",
    ),
    "hsdp": Traits(
        kind="hsdp",
        phases={
            "get_batch": _GET_BATCH,
            "forward": "forward pass, loss and the all-gather of weights within the group, overlapped",
            "backward": "backward pass, all-gather and reduce-scatter within the group, all-reduce between groups",
            "optimizer": _SHARDED_STEP,
        },
        shards=("weights", "gradients", "optimizer"),
        gathers_per_micro_step=2,
        min_world_size=2,
        shards_within_node=True,
        reduces_in_fp32=True,
        fully_sharded_by=None,
        offload_option="cpu_offload",
    ),
    "pipeline": Traits(
        kind="pipeline",
        phases={
            "get_batch": _GET_BATCH,
            "forward": "forward pass of the rank's own stages, and the loss on the last",
            "backward": "backward pass of the rank's own stages; sums of gradients over stages that share a weight and "
            "over pipelines",
            "optimizer": "gradient norm (one all-reduce), clipping, update of the rank's own stages",
            "other": "sending and receiving hidden states, and waiting for other stages: the bubble",
        },
        own_phases=("get_batch", "forward"),
        shards=("weights", "gradients", "optimizer"),
        excludes={
            "train.freeze_encoder=true": "the first stages would have nothing to train",
            "batch.layout=packed": "its micro-batches have equal shapes; leave it out",
            "batch.layout=bucketed": "its micro-batches have equal shapes; leave it out",
            "train.compile=true": "it cuts the model by entering its blocks one by one, outside of any graph",
        },
        min_world_size=2,
        fully_sharded_by=None,
        cuts_blocks=True,
        equal_shapes=True,
        num_micro_batches=2,
    ),
    "deepspeed": Traits(
        kind="deepspeed",
        phases={
            "get_batch": _GET_BATCH,
            "forward": _FORWARD,
            "backward": "backward pass and the reduction of gradients, bucket by bucket, in each micro-step",
            "optimizer": "gradient norm, clipping, update of this rank's part, all-gather of the weights",
        },
        own_phases=("get_batch", "forward"),
        shards=("gradients", "optimizer"),
        reduces_each_micro_step=True,
        package="deepspeed",
    ),
}
"""Traits by kind, of the strategies in this package; an outside one carries its own as the class attribute `traits`."""


_OFFLOADED = {
    # Phases of a kind whose states stay on the host.
    kind: {
        "forward": f"{TRAITS[kind].phases['forward']}, after a copy of the shards from the host",
        "backward": f"{TRAITS[kind].phases['backward']}, with copies of shards and gradients from and to the host",
        "optimizer": f"{_SHARDED_STEP}, all on the host",
    }
    for kind in ("zero2", "zero3", "hsdp")
}


def traits_of(kind: str, options: Mapping[str, Any]) -> Traits | None:
    """Return the traits of a strategy of this package under its options; None for an outside one, whose class has them.

    Args:
        kind: As in the configuration.
        options: The other fields of its section.
    """
    traits = TRAITS.get(kind)
    if kind == "pipeline" and traits:
        stages, is_interleaved = options["stages"], options.get("schedule") == "interleaved"
        return replace(
            traits,
            min_world_size=stages,
            world_size_multiple=stages,
            ranks_per_replica=stages,
            num_micro_batches=stages,
            # A rank takes as many micro-batches through one of its stages as there are ranks, then through the next.
            micro_batch_multiple=stages if is_interleaved else 1,
            stages_per_rank=(options.get("chunks") or 2) if is_interleaved else 1,
        )
    if traits and kind in _OFFLOADED and options.get("cpu_offload"):
        phases = {**traits.phases, **_OFFLOADED[kind]}
        traits = replace(traits, states_on="cpu", needs_accelerator=True, offload_option=None, phases=phases)
    if kind == "hsdp" and traits and options.get("shard_size"):
        size = options["shard_size"]
        groups = {"shard_size": size, "shards_within_node": False}
        return replace(traits, world_size_multiple=size, min_world_size=2 * size, **groups)
    if kind == "deepspeed" and traits:
        return _of_deepspeed(traits, options)
    return traits


def _of_deepspeed(traits: Traits, options: Mapping[str, Any]) -> Traits:
    """Return what is true of a stage; `traits` are those of stage 2."""
    stage = options.get("stage", 2)
    phases = dict(traits.phases)
    if stage == 0:
        phases["optimizer"] = "gradient norm, clipping, update of the whole model on each rank"
    if stage < 2:
        phases["backward"] = "backward pass and, after it, the all-reduce of gradients"
    if stage == 3:
        phases["forward"] = "forward pass, loss and the all-gather of weights, overlapped"
        phases["backward"] = (
            "backward pass, another all-gather of weights and the reduce-scatter of gradients, in each micro-step"
        )
        phases["optimizer"] = "gradient norm, clipping, update of this rank's part, all-gather of small weights"
    states_on = "cpu" if options.get("offload_optimizer") else "device"
    if states_on == "cpu":
        phases["optimizer"] += "; gradients and weights cross between GPU and host"
    shards = ("weights", "gradients", "optimizer")[3 - stage :]
    excludes = dict(traits.excludes)
    if options.get("cpu_adam"):
        excludes["precision=fp64"] = "DeepSpeed's own AdamW computes in fp32; set strategy.cpu_adam: false"
    if options.get("param_dtype", "fp32") != "fp32":
        excludes["train.freeze_encoder=true"] = (
            "DeepSpeed keeps no copy in fp32 of weights that it does not train, and would save them in 16 bits; take "
            "strategy.kind: zero2 or zero3, or leave strategy.param_dtype out"
        )
    if stage > 0:
        excludes["train.optimizer=lamb"] = (
            f"at stage {stage} DeepSpeed joins weights to flat tensors, and LAMB needs the norm of each weight; take "
            "strategy.kind: zero1, zero2, zero3 or hsdp, or stage 0"
        )
    if stage == 3:
        excludes["train.compile=true"] = (
            "at stage 3 DeepSpeed gathers weights inside of the blocks, by Python code that no graph holds; take "
            "strategy.kind: zero3, or stage 2"
        )
    return replace(
        traits,
        phases=phases,
        own_phases=("get_batch",) if stage == 3 else traits.own_phases,
        shards=shards,
        states_on=states_on,
        has_uneven_shards=stage in (1, 2),
        compiles_optimizer=bool(options.get("cpu_adam")),
        offload_option=_offload_option(stage, options),
        fully_sharded_by="strategy.stage: 3" if stage < 3 else None,
        gathers_per_micro_step=2 if stage == 3 else 0,
        reduces_each_micro_step=stage >= 2,
        needs_accelerator=bool(options.get("offload_optimizer") or options.get("offload_parameters")),
        excludes=excludes,
    )


def _offload_option(stage: int, options: Mapping[str, Any]) -> str | None:
    """Return the option of DeepSpeed that moves more states to the host, of those that the stage has."""
    least = {"offload_optimizer": 1, "offload_parameters": 3}
    return next((key for key, fewest in least.items() if stage >= fewest and not options.get(key)), None)
