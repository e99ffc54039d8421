"""Advice before the first step: what was chosen and cannot help here, with the numbers; nothing of what is unknown."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paratune.config.batch_size import divisors
from paratune.config.traits import Traits
from paratune.units import format_bytes, format_duration

ROOMY = 4
"""Model states that fit so many times leave three quarters of the memory to activations: memory is not short."""
BUBBLE_FREE = 4
"""Micro-batches per stage from which on the bubble is negligible (Huang et al., GPipe, NeurIPS 2019, section 2.3)."""
SLOW_S = 0.1
"""Seconds of communication per step from which on they are worth a line."""


@dataclass(frozen=True)
class Job:
    """Sizes of a run and of the machine."""

    num_parameters: int
    num_trainable: int
    bytes_per_value: int
    """Of a weight, a gradient and each of AdamW's two moments: 4, or 8 with precision: fp64."""
    world_size: int
    share: int
    """Samples of one replica per optimizer step."""
    num_micro_batches: int
    """Micro-batches of a replica per optimizer step."""
    device_bytes: int | None
    """Memory of the device; on a CPU this process's part of it."""
    device_name: str
    link_bytes_per_s: float | None
    """Between ranks, one direction, of the slowest link; None when not known."""
    is_per_device: bool = False
    """Whether the batch is given by `batch.per_device`, which knows no batch.micro_batch_size."""

    @property
    def weights_bytes(self) -> int:
        return self.num_parameters * self.bytes_per_value

    @property
    def states_bytes(self) -> int:
        """Weights, gradients and both moments: 16 bytes a trained parameter in fp32."""
        return (self.num_parameters + 3 * self.num_trainable) * self.bytes_per_value

    @property
    def times_states_fit(self) -> int | None:
        return None if self.device_bytes is None else self.device_bytes // max(1, self.states_bytes)


def advice(traits: Traits, options: Mapping[str, Any], job: Job) -> list[str]:
    """Return one line for each choice that cannot help, or costs much; an empty list where there is nothing to say.

    Args:
        traits: Of the strategy.
        options: Of the strategy's section.
        job: Sizes.

    Source: bytes of model states and of communication: Rajbhandari et al., ZeRO, SC 2020, sections 3 and 7.
    """
    return [*_sharding(traits, options, job), *_slow_links(traits, job), *_pipeline(traits, job)]


def _sharding(traits: Traits, options: Mapping[str, Any], job: Job) -> Iterator[str]:
    offloads = traits.states_on == "cpu"
    is_pipeline = traits.ranks_per_replica > 1
    if traits.shards and job.world_size == 1:
        yield f"strategy.kind: {traits.kind} in one process shares {_and(traits.shards)} with nobody: as single, slower"
        if not offloads:
            return
    times = job.times_states_fit
    if times is None or times < ROOMY:
        return
    fit = (
        f"weights, gradients and AdamW states of {job.num_parameters / 1e6:.3g} M parameters take "
        f"{format_bytes(job.states_bytes)} and fit {times} times into the {format_bytes(job.device_bytes)} of "
        f"{job.device_name}"
    )
    if offloads:
        yield f"keeping states on the CPU moves them in every step and cannot help: {fit}; leave offloading off"
    elif is_pipeline:
        yield f"strategy.kind: {traits.kind} is for models that do not fit: {fit}; strategy.kind: ddp has no bubble"
    elif traits.shards and job.world_size > 1:
        ranks = options.get("shard_size") or job.world_size
        saved = _sharded_bytes(traits, job) * (1 - 1 / ranks)
        yield (
            f"strategy.kind: {traits.kind} saves at most {format_bytes(saved)} a rank, which is not short, and costs "
            f"communication: {fit}; strategy.kind: ddp is the simpler choice"
        )


def _sharded_bytes(traits: Traits, job: Job) -> int:
    parts = {
        "weights": job.weights_bytes,
        "gradients": job.num_trainable * job.bytes_per_value,
        "optimizer": 2 * job.num_trainable * job.bytes_per_value,
    }
    return sum(parts[name] for name in traits.shards)


def _slow_links(traits: Traits, job: Job) -> Iterator[str]:
    """Say what gathering weights twice a micro-batch and reducing gradients once costs at least."""
    gathers = "weights" in traits.shards and traits.ranks_per_replica == 1
    if job.link_bytes_per_s is None or not gathers or job.world_size == 1:
        return
    ranks, m = job.world_size, job.num_micro_batches
    part = (ranks - 1) / ranks
    moved = (2 * m * job.weights_bytes + job.num_trainable * job.bytes_per_value) * part
    by_ddp = 2 * job.num_trainable * job.bytes_per_value * part
    seconds = moved / job.link_bytes_per_s
    if seconds >= SLOW_S:
        yield (
            f"strategy.kind: {traits.kind} moves {format_bytes(moved)} a step and rank ({2 * m + 1} x the weights with "
            f"{m} micro-batch{'es' * (m > 1)}), at least {format_duration(seconds)} over links of "
            f"{job.link_bytes_per_s / 1e9:.3g} GB/s; ddp moves {format_bytes(by_ddp)}"
        )


def _pipeline(traits: Traits, job: Job) -> Iterator[str]:
    p, m, v = traits.ranks_per_replica, job.num_micro_batches, traits.stages_per_rank
    if p == 1 or m >= BUBBLE_FREE * p:
        return
    possible = [n for n in divisors(job.share) if n % traits.micro_batch_multiple == 0 and n <= BUBBLE_FREE * p]
    more = max(possible, default=m)
    remedy = ""
    if more > m:
        key = f"batch.grad_accum_steps: {more} and batch.per_device" if job.is_per_device else "batch.micro_batch_size"
        remedy = f"; {key}: {job.share // more} makes {more} and leaves {_percent(traits, more)}"
    formula = "(p-1)/(m+p-1)" if v == 1 else f"(p-1)/({v}m+p-1)"
    yield (
        f"{m} micro-batch{'es' * (m > 1)} in {p} stages leave each device idle for {formula} = "
        f"{_percent(traits, m)} of forward and backward{remedy}"
    )


def _percent(traits: Traits, num_micro_batches: int) -> str:
    return f"{100 * (traits.ideal_bubble_share(num_micro_batches) or 0):.0f}%"


def _and(words: tuple[str, ...]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
