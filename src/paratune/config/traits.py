"""`Traits`, the facts of a strategy as plain data for plans, checks, launchers and reports."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True)
class Traits:
    """Facts of a strategy that do not depend on a run."""

    kind: str
    """Name in the configuration."""
    phases: Mapping[str, str]
    """Content of each measured phase in words, for get_batch, forward, backward, optimizer."""
    own_phases: tuple[str, ...] = ("get_batch",)
    """Phases in which a rank does not wait for other ranks, so that their times show which rank is slow."""
    shards: tuple[str, ...] = ()
    """Sharded states: any of weights, gradients, optimizer."""
    states_on: str = "device"
    """Place of the optimizer states: device or cpu."""
    min_world_size: int = 1
    """Minimum number of processes."""
    max_world_size: int | None = None
    """Maximum number of processes; None for no limit."""
    world_size_multiple: int = 1
    """The number of processes must be a multiple of this."""
    equal_shapes: bool = False
    """Whether all micro-batches of a step need the same number of rows and the same padded length."""
    num_micro_batches: int = 1
    """Minimum number of micro-batches of a step; with `batch.global` and no micro_batch_size a step has four times as
    many."""
    micro_batch_multiple: int = 1
    """The number of micro-batches of a step must be a multiple of this."""
    ranks_per_replica: int = 1
    """Processes that work on the same samples, such as the stages of a pipeline."""
    cuts_blocks: bool = False
    """Whether it divides the blocks of the model between `ranks_per_replica` ranks, as a pipeline."""
    stages_per_rank: int = 1
    """Stages of the model on each rank of a pipeline."""
    shard_size: int | None = None
    """Ranks that share one copy of the states, where these are not all ranks."""
    shards_within_node: bool = False
    """Whether the ranks of one machine share a copy of the states; several machines are needed then."""
    has_uneven_shards: bool = False
    """Whether ranks have unequal shards: whole parameters, or flat ranges of them."""
    reduces_in_fp32: bool = False
    """Whether 16-bit gradients are summed over ranks in fp32."""
    writes_shards: bool = False
    """Whether each rank can write its own part of a checkpoint; its state is a `ShardedState`."""
    offload_option: str | None = None
    """Option that moves more states to the host when it is true; None where there is none."""
    fully_sharded_by: str | None = "strategy.kind: zero3"
    """Setting that shards all states; None where they are sharded already."""
    backward_is_local: bool = False
    """Whether a rank can run forward and backward of the prepared model without communication."""
    gathers_per_micro_step: int = 0
    """How often sharded weights are gathered for a micro-batch: for forward and again for backward."""
    reduces_each_micro_step: bool = False
    """Whether gradients are reduced over ranks with each micro-batch, and not only with the last one of a step."""
    holds_16_bits: bool = False
    """Whether frozen weights of linear layers stay in the 16 bits of their file, where autocast computes in these."""
    needs_accelerator: bool = False
    """Whether it moves states between a device and the host, and so needs a GPU."""
    package: str | None = None
    """Optional package that it needs; the extra with the package has the same name."""
    excludes: Mapping[str, str] = field(default_factory=dict)
    """Settings that it cannot be combined with ("precision=fp16", "train.freeze.blocks!=0"), with the reasons."""

    def ideal_bubble_share(self, num_micro_batches: int) -> float | None:
        """Return the share of a pipeline's schedule in which a rank waits, if only computing takes time.

        (p - 1) / (m + p - 1) for GPipe and 1F1B; with v stages on each rank the passes that fill and drain the pipeline
        are v times shorter: (p - 1) / (v m + p - 1). None for other strategies.

        Args:
            num_micro_batches: Of a step, m.

        Source: Huang et al., GPipe, NeurIPS 2019, section 2.3; Narayanan et al., Efficient Large-Scale Language Model
            Training on GPU Clusters, SC 2021, section 2.2 (there over the ideal time, here over all of it).
        """
        p, v = self.ranks_per_replica, self.stages_per_rank
        return None if p == 1 else (p - 1) / (v * num_micro_batches + p - 1)


_FORWARD = "forward pass and loss"
_GATHERED_FORWARD = "forward pass, loss and the all-gather of weights, overlapped"
_REDUCED = "backward pass and the all-reduce of gradients, overlapped"
_SHARDED_STEP = "gradient norm (one all-reduce), clipping, update of this rank's shards"


def _phases(forward: str, backward: str, optimizer: str, **other: str) -> dict[str, str]:
    get_batch = "reading tokens, packing or padding, copy to the device"
    return {"get_batch": get_batch, "forward": forward, "backward": backward, "optimizer": optimizer, **other}


FREEZES = ("train.freeze.embeddings=true", "train.freeze.blocks!=0", "train.freeze.names!=[]")
"""Settings that freeze a part of the encoder, as in `Traits.excludes`."""
_OWN = "train.optimizer.function!=null"
_WHOLE_WEIGHTS = dict.fromkeys(
    ("train.optimizer=adamw_8bit", "train.optimizer=adafactor"),
    "its states belong to whole weights (a scale for each block of numbers, or sums of rows and columns); use single "
    "or ddp",
)
"""Optimizers that cannot update shards of weights."""
_NOT_ELEMENTWISE = {
    **_WHOLE_WEIGHTS,
    "train.optimizer.elementwise=false": "each rank has only a shard of each weight, which is sufficient only for an "
    "elementwise optimizer; set elementwise: true if yours is one, or use single or ddp",
}
_ZERO2 = Traits(
    kind="zero2",
    phases=_phases(_GATHERED_FORWARD, "backward pass and the reduce-scatter of gradients, overlapped", _SHARDED_STEP),
    shards=("gradients", "optimizer"),
    excludes=_NOT_ELEMENTWISE,
    reduces_in_fp32=True,
    holds_16_bits=True,
    writes_shards=True,
    offload_option="cpu_offload",
)
_ZERO3 = replace(
    _ZERO2,
    kind="zero3",
    phases=_phases(
        _GATHERED_FORWARD,
        "backward pass, another all-gather of weights and the reduce-scatter of gradients, overlapped",
        _SHARDED_STEP,
    ),
    shards=("weights", "gradients", "optimizer"),
    gathers_per_micro_step=2,
    fully_sharded_by=None,
)
_ALL_TRAITS = (
    Traits(
        kind="single",
        phases=_phases(_FORWARD, "backward pass", "gradient norm, clipping, update"),
        own_phases=("get_batch", "forward", "backward", "optimizer"),
        max_world_size=1,
        holds_16_bits=True,
        backward_is_local=True,
    ),
    Traits(
        kind="ddp",
        phases=_phases(_FORWARD, _REDUCED, "gradient norm, clipping, update of the whole model on each rank"),
        own_phases=("get_batch", "forward", "optimizer"),
        holds_16_bits=True,
        backward_is_local=True,
    ),
    Traits(
        kind="zero1",
        phases=_phases(
            _FORWARD, _REDUCED, "gradient norm, clipping, update of this rank's part, broadcast of the weights"
        ),
        own_phases=("get_batch", "forward"),
        shards=("optimizer",),
        excludes={
            **_WHOLE_WEIGHTS,
            _OWN: "ZeroRedundancyOptimizer makes an optimizer of each rank's part from a class, and its checkpoints "
            "have the states of AdamW; use single or ddp or, with an elementwise optimizer, zero2",
        },
        has_uneven_shards=True,
        holds_16_bits=True,
        backward_is_local=True,
    ),
    _ZERO2,
    _ZERO3,
    replace(
        _ZERO3,
        kind="hsdp",
        phases=_phases(
            "forward pass, loss and the all-gather of weights within the group, overlapped",
            "backward pass, all-gather and reduce-scatter within the group, all-reduce between groups",
            _SHARDED_STEP,
        ),
        min_world_size=2,
        shards_within_node=True,
    ),
    Traits(
        kind="pipeline",
        phases=_phases(
            "forward pass of the rank's own stages, and the loss on the last",
            "backward pass of the rank's own stages; sums of gradients over stages that share a weight and "
            "over pipelines",
            "gradient norm (one all-reduce), clipping, update of the rank's own stages",
            other="sending and receiving hidden states, and waiting for other stages: the bubble",
        ),
        own_phases=("get_batch", "forward"),
        shards=("weights", "gradients", "optimizer"),
        excludes={
            **_WHOLE_WEIGHTS,
            "train.freeze_encoder=true": "the first stages would have nothing to train",
            "train.freeze.blocks!=0": "the first stages could have nothing to train",
            "train.freeze.names!=[]": "a stage could have nothing to train",
            "batch.layout=packed": "its micro-batches have equal shapes; leave it out",
            "batch.layout=bucketed": "its micro-batches have equal shapes; leave it out",
            _OWN: "its checkpoints have the states of AdamW; use single or ddp or, with an elementwise "
            "optimizer, zero3",
            "model.quantize_base!=null": "it finds the weights of a stage by their gradients, and integers have none; "
            "use single, ddp, zero2 or zero3",
            "train.compile=true": "it calls the blocks of the model one by one, outside of a compiled graph",
        },
        min_world_size=2,
        fully_sharded_by=None,
        cuts_blocks=True,
        writes_shards=True,
        equal_shapes=True,
        num_micro_batches=2,
    ),
    Traits(
        kind="deepspeed",
        phases=_phases(
            _FORWARD,
            "backward pass and the reduction of gradients, bucket by bucket, in each micro-step",
            "gradient norm, clipping, update of this rank's part, all-gather of the weights",
        ),
        own_phases=("get_batch", "forward"),
        shards=("gradients", "optimizer"),
        excludes={
            **_WHOLE_WEIGHTS,
            "model.quantize_base!=null": "DeepSpeed joins weights of one dtype, and its plan counts them so; "
            "use single, ddp, zero2 or zero3",
            _OWN: "DeepSpeed joins weights to flat tensors and saves the states of AdamW; use single or ddp or, with "
            "an elementwise optimizer, zero2 or zero3",
        },
        reduces_each_micro_step=True,
        writes_shards=True,
        package="deepspeed",
    ),
)
TRAITS: dict[str, Traits] = {traits.kind: traits for traits in _ALL_TRAITS}
"""Traits by kind; the user's own strategies have them as the class attribute `traits`."""

_OFFLOADED = {
    "forward": ", after a copy of the shards from the host",
    "backward": ", with copies of shards and gradients from and to the host",
    "optimizer": ", all on the host",
}
"""What offloading adds to the content of phases."""


def strategy_traits(kind: str, options: Mapping[str, Any]) -> Traits | None:
    """Return the traits of a strategy with its options; None for the user's own strategy, whose class has them."""
    traits = TRAITS.get(kind)
    if kind == "pipeline" and traits:
        stages, is_interleaved = options["stages"], options.get("schedule") == "interleaved"
        return replace(
            traits,
            min_world_size=stages,
            world_size_multiple=stages,
            ranks_per_replica=stages,
            num_micro_batches=stages,
            # A rank runs as many micro-batches through one of its stages as there are ranks, then through the next.
            micro_batch_multiple=stages if is_interleaved else 1,
            stages_per_rank=(options.get("chunks") or 2) if is_interleaved else 1,
        )
    if traits and options.get("cpu_offload"):
        phases = {phase: text + _OFFLOADED.get(phase, "") for phase, text in traits.phases.items()}
        traits = replace(traits, states_on="cpu", needs_accelerator=True, offload_option=None, phases=phases)
    if traits and options.get("reduce_each_micro_step"):
        traits = replace(traits, reduces_each_micro_step=True)
    if kind == "hsdp" and traits and options.get("shard_size"):
        size = options["shard_size"]
        groups = {"shard_size": size, "shards_within_node": False}
        return replace(traits, world_size_multiple=size, min_world_size=2 * size, **groups)
    if kind == "deepspeed" and traits:
        return _deepspeed_traits(traits, options)
    return traits


def _deepspeed_traits(traits: Traits, options: Mapping[str, Any]) -> Traits:
    """Return the traits of a stage of DeepSpeed; `traits` are those of stage 2."""
    stage = options.get("stage", 2)
    phases = dict(traits.phases)
    if stage == 0:
        phases["optimizer"] = "gradient norm, clipping, update of the whole model on each rank"
    if stage < 2:
        phases["backward"] = "backward pass and, after it, the all-reduce of gradients"
    if stage == 3:
        phases["forward"] = _GATHERED_FORWARD
        phases["backward"] = (
            "backward pass, another all-gather of weights and the reduce-scatter of gradients, in each micro-step"
        )
        phases["optimizer"] = "gradient norm, clipping, update of this rank's part, all-gather of small weights"
    states_on = "cpu" if options.get("offload_optimizer") else "device"
    if states_on == "cpu":
        phases["optimizer"] += "; gradients and weights cross between GPU and host"
    shards = ("weights", "gradients", "optimizer")[3 - stage :]
    moving = {"offload_optimizer": 1, "offload_parameters": 3}  # with the first stage that can move these states
    excludes = dict(traits.excludes)
    if options.get("cpu_adam"):
        excludes["precision=fp64"] = "DeepSpeed's own AdamW computes in fp32; set strategy.cpu_adam: false"
    if options.get("param_dtype", "fp32") != "fp32":
        why = (
            "DeepSpeed keeps no copy in fp32 of weights that it does not train, and would save them in 16 bits; use "
            "strategy.kind: zero2 or zero3, or leave strategy.param_dtype out"
        )
        excludes |= dict.fromkeys(("train.freeze_encoder=true", "model.adapter.kind!=null", *FREEZES), why)
    if stage == 3:
        excludes["train.compile=true"] = (
            "at stage 3 DeepSpeed gathers weights inside the blocks in Python code, which cannot be compiled; use "
            "strategy.kind: zero3, or stage 2"
        )
    return replace(
        traits,
        phases=phases,
        own_phases=("get_batch",) if stage == 3 else traits.own_phases,
        shards=shards,
        states_on=states_on,
        has_uneven_shards=stage in (1, 2),
        writes_shards=stage > 0,
        offload_option=next((key for key, first in moving.items() if stage >= first and not options.get(key)), None),
        fully_sharded_by="strategy.stage: 3" if stage < 3 else None,
        gathers_per_micro_step=2 if stage == 3 else 0,
        reduces_each_micro_step=stage >= 2,
        needs_accelerator=bool(options.get("offload_optimizer") or options.get("offload_parameters")),
        excludes=excludes,
    )
