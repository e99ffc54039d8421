"""Changes that help when memory ran out, ordered by the bytes that they save."""

from collections.abc import Iterator
from dataclasses import dataclass

from paratune.base.units import format_bytes
from paratune.config.traits import Traits


@dataclass(frozen=True)
class Shortage:
    """Use of memory and options at the time when memory ran out."""

    doing: str
    """"training", "evaluating", or other words."""
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    rest_bytes: int
    """Activations and buffers; 0 when not known."""
    unallocated_bytes: int
    """Reserved by PyTorch and not in use."""
    others_bytes: int
    """Of other processes on a GPU."""
    micro_batch_size: int
    smaller_micro_batch_size: int | None
    """The size after halving; None where `micro_batch_size` is 1."""
    batch_key: str
    """Option that sets `micro_batch_size`."""
    smaller_grad_accum_steps: int | None
    """Micro-steps with which the smaller size gives the same global batch; None where no option sets them."""
    evaluate_batch_size: int
    num_blocks: int
    """Repeated layers of the model."""
    checkpoints_activations: bool
    """Whether train.activation_checkpointing is on."""
    offload_option: str | None
    """Option of the strategy that keeps states on the host, where the strategy has one and it is off."""
    world_size: int
    is_gpu: bool


def remedies(shortage: Shortage, traits: Traits, most: int = 3) -> list[str]:
    """Return the changes that save the most memory, at most `most` of them, each with the upper limit of its bytes.

    Source: activation checkpointing keeps the inputs of the blocks and the activations of one: Chen et al., Training
        deep nets with sublinear memory cost, 2016; sharding over N ranks leaves 1/N: Rajbhandari et al., ZeRO, SC 2020.
    """
    useful = [(saves, change) for change, saves in _changes(shortage, traits) if saves > 0]
    useful.sort(key=lambda remedy: -remedy[0])
    return [f"{change} (saves up to {format_bytes(saves)})" for saves, change in useful[:most]]


def _changes(short: Shortage, traits: Traits) -> Iterator[tuple[str, int]]:
    """Yield changes of an option, with the bytes that they save on the rank that ran out of memory."""
    if short.doing == "evaluating" and short.evaluate_batch_size > 1:
        half = short.evaluate_batch_size // 2
        change = f"evaluate.batch_size: {half} instead of {short.evaluate_batch_size}"
        yield change, round(short.rest_bytes * (1 - half / short.evaluate_batch_size))
    if short.doing == "training" and short.smaller_micro_batch_size is not None:
        left = short.smaller_micro_batch_size / short.micro_batch_size
        change = f"{short.batch_key}: {short.smaller_micro_batch_size} instead of {short.micro_batch_size}"
        if short.smaller_grad_accum_steps is not None:
            change += f" and batch.grad_accum_steps: {short.smaller_grad_accum_steps}"
        yield change, round(short.rest_bytes * (1 - left))
    if short.doing == "training" and not short.checkpoints_activations and short.num_blocks > 1:
        yield "train.activation_checkpointing: 1", round(short.rest_bytes * (1 - 1 / short.num_blocks))
    if not short.is_gpu:  # on a CPU all ranks of a machine share one memory
        return
    states = short.weights_bytes + short.gradients_bytes + short.optimizer_bytes
    if short.offload_option is not None:
        yield f"strategy.{short.offload_option}: true", states
    if traits.ranks_per_replica == 1 and "weights" not in traits.shards:
        ranks = max(2, short.world_size)
        where = f"on the {ranks} processes" if short.world_size > 1 else "on 2 GPUs"
        yield f"strategy.kind: zero3 {where}", round(states * (1 - 1 / ranks))
        if not traits.shards:
            yield f"strategy.kind: zero1 {where}", round(short.optimizer_bytes * (1 - 1 / ranks))
    yield "PYTORCH_ALLOC_CONF=expandable_segments:True in the environment", short.unallocated_bytes
    yield "end the other processes on this GPU (nvidia-smi)", short.others_bytes
