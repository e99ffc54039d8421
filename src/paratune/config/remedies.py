"""Changes that help when memory ran out, ordered by the bytes that they save."""

from collections.abc import Iterator
from dataclasses import dataclass

from paratune.base.units import format_bytes
from paratune.config.traits import Traits


@dataclass(frozen=True)
class Remedy:
    """A change of an option, and the memory that it saves."""

    change: str
    """The option with its value."""
    saves_bytes: int
    """Upper limit, on the rank that ran out of memory."""

    def text(self) -> str:
        return f"{self.change} (saves up to {format_bytes(self.saves_bytes)})"


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


def remedies(shortage: Shortage, traits: Traits, most: int = 3) -> list[Remedy]:
    """Return the changes that save the most memory, at most `most` of them.

    Source: activation checkpointing keeps the inputs of the blocks and the activations of one: Chen et al., Training
        deep nets with sublinear memory cost, 2016; sharding over N ranks leaves 1/N: Rajbhandari et al., ZeRO, SC 2020.
    """
    useful = [remedy for remedy in _all_remedies(shortage, traits) if remedy.saves_bytes > 0]
    return sorted(useful, key=lambda remedy: -remedy.saves_bytes)[:most]


def _all_remedies(short: Shortage, traits: Traits) -> Iterator[Remedy]:
    if short.doing == "evaluating":
        if short.evaluate_batch_size > 1:
            half = short.evaluate_batch_size // 2
            change = f"evaluate.batch_size: {half} instead of {short.evaluate_batch_size}"
            yield Remedy(change, round(short.rest_bytes * (1 - half / short.evaluate_batch_size)))
    elif short.doing == "training":
        yield from _less_activations(short)
    yield from _less_states(short, traits)
    if short.is_gpu:
        yield Remedy("PYTORCH_ALLOC_CONF=expandable_segments:True in the environment", short.unallocated_bytes)
        yield Remedy("end the other processes on this GPU (nvidia-smi)", short.others_bytes)


def _less_activations(short: Shortage) -> Iterator[Remedy]:
    if short.smaller_micro_batch_size is not None:
        left = short.smaller_micro_batch_size / short.micro_batch_size
        change = f"{short.batch_key}: {short.smaller_micro_batch_size} instead of {short.micro_batch_size}"
        if short.smaller_grad_accum_steps is not None:
            change += f" and batch.grad_accum_steps: {short.smaller_grad_accum_steps}"
        yield Remedy(change, round(short.rest_bytes * (1 - left)))
    if not short.checkpoints_activations and short.num_blocks > 1:
        yield Remedy("train.activation_checkpointing: 1", round(short.rest_bytes * (1 - 1 / short.num_blocks)))


def _less_states(short: Shortage, traits: Traits) -> Iterator[Remedy]:
    states = short.weights_bytes + short.gradients_bytes + short.optimizer_bytes
    if short.offload_option is not None and short.is_gpu:
        yield Remedy(f"strategy.{short.offload_option}: true", states)
    if traits.ranks_per_replica > 1 or "weights" in traits.shards or not short.is_gpu:
        return  # on a CPU all ranks of a machine share one memory
    ranks = max(2, short.world_size)
    where = f"on the {ranks} processes" if short.world_size > 1 else "on 2 GPUs"
    yield Remedy(f"strategy.kind: zero3 {where}", round(states * (1 - 1 / ranks)))
    if not traits.shards:
        yield Remedy(f"strategy.kind: zero1 {where}", round(short.optimizer_bytes * (1 - 1 / ranks)))
