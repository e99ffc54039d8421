"""Options that do not help in this run, and changes that help when memory ran out, with numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

from paratune.base.units import format_bytes
from paratune.config.batch_size import ResolvedBatch, divisors
from paratune.config.model_states import adam_bytes, model_state_bytes, shard_count
from paratune.config.sections import Config
from paratune.config.traits import Traits

ROOMY = 4
"""Memory is sufficient when the model states fit this many times: three quarters of it remain for activations."""
BUBBLE_FREE = 4
"""With this many micro-batches per stage the bubble is negligible (Huang et al., GPipe, NeurIPS 2019, section 2.3)."""


def advice(
    traits: Traits,
    config: Config,
    batch: ResolvedBatch,
    *,
    num_parameters: int,
    num_trainable: int,
    bytes_per_value: int,
    world_size: int,
    device_bytes: int | None,
    device_name: str,
    num_local_ranks: int = 1,
    num_cores: float | None = None,
) -> list[str]:
    """Return one line for each option that does not help in a run, or that costs much; only where sizes are known.

    Args:
        bytes_per_value: Of a weight, of a gradient and of both moments of the optimizer: 4, or 8 with precision: fp64.
        device_bytes: Memory of the device; on a CPU this process's part of it.
        num_local_ranks: Ranks on a machine.
        num_cores: Logical cores that these ranks may use together.

    Source: bytes of model states: Rajbhandari et al., ZeRO, SC 2020, section 3.
    """

    def states_bytes(shards: tuple[str, ...] = (), num_shards: int = 1) -> int:
        numbers = adam_bytes(bytes_per_value)
        return model_state_bytes(
            num_parameters, num_trained=num_trainable, shards=shards, num_shards=num_shards, numbers=numbers
        )

    lines = list[str]()
    kind, is_offloaded = f"strategy.kind: {traits.kind}", traits.states_on == "cpu"
    is_useless = bool(traits.shards) and world_size == 1
    if is_useless:
        lines.append(f"{kind} in one process does not shard {' and '.join(traits.shards)}: it is single, but slower")
    states = states_bytes()
    times = 0 if device_bytes is None else device_bytes // max(1, states)
    if device_bytes is not None and times >= ROOMY and (is_offloaded or not is_useless):
        fit = (
            f"weights, gradients and optimizer states of {num_parameters / 1e6:.3g} M parameters take "
            f"{format_bytes(states)} and would fit {times} times in the {format_bytes(device_bytes)} of {device_name}"
        )
        if is_offloaded:
            lines.append(f"offload to the CPU moves states in every step and does not help: {fit}; switch it off")
        elif traits.ranks_per_replica > 1:
            lines.append(f"{kind} is for models that do not fit: {fit}; strategy.kind: ddp has no bubble")
        elif traits.shards:
            num_shards = shard_count(traits, world_size, num_local_ranks)
            saved = format_bytes(states - states_bytes(traits.shards, num_shards))
            costs = f"{kind} saves at most {saved} per rank and costs communication"
            lines.append(f"{costs}: {fit}; strategy.kind: ddp is simpler")
    lines += _pipeline(traits, config, batch)
    num_workers, all_workers = config.data.num_workers, num_local_ranks * config.data.num_workers
    if num_cores is not None and all_workers and num_local_ranks + all_workers > num_cores:
        lines.append(
            f"data.num_workers: {num_workers} makes {all_workers} worker processes in addition to {num_local_ranks} "
            f"training processes, and this machine has {num_cores:.3g} cores: they take turns; set data.num_workers: "
            f"{max(0, int(num_cores // num_local_ranks) - 1)}"
        )
    return lines


def _pipeline(traits: Traits, config: Config, batch: ResolvedBatch) -> Iterator[str]:
    p, m, v = traits.ranks_per_replica, batch.grad_accum_steps, traits.stages_per_rank
    if p == 1 or m >= BUBBLE_FREE * p:
        return
    possible = [n for n in divisors(batch.share) if n % traits.micro_batch_multiple == 0 and n <= BUBBLE_FREE * p]
    more = max(possible, default=m)
    now, then = (f"{100 * (traits.ideal_bubble_share(number) or 0):.0f}%" for number in (m, more))
    remedy = ""
    if more > m:
        is_per_device = config.batch.per_device is not None
        key = f"batch.grad_accum_steps: {more} and batch.per_device" if is_per_device else "batch.micro_batch_size"
        remedy = f"; {key}: {batch.share // more} makes {more} and leaves {then}"
    formula = "(p-1)/(m+p-1)" if v == 1 else f"(p-1)/({v}m+p-1)"
    yield (
        f"{m} micro-batch{'es' * (m > 1)} in {p} stages leave each device idle for {formula} = {now} of forward and "
        f"backward{remedy}"
    )


def remedies(
    use: Mapping[str, Any],
    config: Config,
    traits: Traits,
    sizes: ResolvedBatch,
    smaller: ResolvedBatch | None,
    *,
    doing: str,
    num_blocks: int,
    world_size: int,
    is_gpu: bool,
) -> list[str]:
    """Return at most three changes of an option that save the most memory, with the upper limits of their bytes.

    Args:
        use: Bytes on the rank that ran out of memory, None where not known: `weights_bytes`, `gradients_bytes`,
            `optimizer_bytes`, `rest_bytes` (activations and buffers), `unallocated_bytes` (reserved by PyTorch and not
            in use), `others_bytes` (of other processes on a GPU).
        smaller: `sizes` after halving; None for one sample.
        doing: "training", "evaluating", or other words.
        num_blocks: Repeated layers of the model.

    Source: activation checkpointing keeps the inputs of the blocks and the activations of one: Chen et al., Training
        deep nets with sublinear memory cost, 2016; sharding over N ranks leaves 1/N: Rajbhandari et al., ZeRO, SC 2020.
    """
    changes: list[tuple[str, float]] = []
    rest, evaluated = use["rest_bytes"] or 0, config.evaluate.batch_size
    if doing == "evaluating" and evaluated > 1:
        half = evaluated // 2
        changes.append((f"evaluate.batch_size: {half} instead of {evaluated}", rest * (1 - half / evaluated)))
    if doing == "training" and smaller is not None:
        key = "batch.micro_batch_size" if config.batch.per_device is None else "batch.per_device"
        change = f"{key}: {smaller.micro_batch_size} instead of {sizes.micro_batch_size}"
        if config.batch.per_device is not None:
            change += f" and batch.grad_accum_steps: {smaller.grad_accum_steps}"
        changes.append((change, rest * (1 - smaller.micro_batch_size / sizes.micro_batch_size)))
    if doing == "training" and not config.train.activation_checkpointing and num_blocks > 1:
        changes.append(("train.activation_checkpointing: 1", rest * (1 - 1 / num_blocks)))
    is_whole_trained = config.model.adapter is None and not config.train.freeze_encoder
    is_kept = is_whole_trained and not getattr(config.strategy, "reduce_each_micro_step", True)
    if doing == "training" and sizes.grad_accum_steps > 1 and is_kept:
        whole = use["weights_bytes"] * (traits.shard_size or world_size)  # gradients in fp32, as the shards of weights
        changes.append(("strategy.reduce_each_micro_step: true", whole - use["weights_bytes"]))
    if is_gpu:  # on a CPU all ranks of a machine share one memory
        optimizer = use["optimizer_bytes"]
        states = use["weights_bytes"] + use["gradients_bytes"] + optimizer
        if traits.offload_option is not None:
            changes.append((f"strategy.{traits.offload_option}: true", states))
        if traits.ranks_per_replica == 1 and "weights" not in traits.shards:
            ranks = max(2, world_size)
            where = f"on the {ranks} processes" if world_size > 1 else "on 2 GPUs"
            changes.append((f"strategy.kind: zero3 {where}", states * (1 - 1 / ranks)))
            if not traits.shards:
                changes.append((f"strategy.kind: zero1 {where}", optimizer * (1 - 1 / ranks)))
        fragments, others = use["unallocated_bytes"] or 0, use["others_bytes"] or 0
        changes.append(("PYTORCH_ALLOC_CONF=expandable_segments:True in the environment", fragments))
        changes.append(("end the other processes on this GPU (nvidia-smi)", others))
    useful = sorted(((change, round(saves)) for change, saves in changes), key=lambda remedy: -remedy[1])
    return [f"{change} (saves up to {format_bytes(saves)})" for change, saves in useful[:3] if saves > 0]
