"""Advice before the first step: options that do not help in this run, with numbers; only where the sizes are known."""

from collections.abc import Iterator
from dataclasses import dataclass

from paratune.base.units import format_bytes
from paratune.config.batch_size import divisors
from paratune.config.model_states import adam_bytes, model_state_bytes, shard_count
from paratune.config.traits import Traits

ROOMY = 4
"""Memory is sufficient when the model states fit this many times: three quarters of it remain for activations."""
BUBBLE_FREE = 4
"""With this many micro-batches per stage the bubble is negligible (Huang et al., GPipe, NeurIPS 2019, section 2.3)."""


@dataclass(frozen=True)
class JobSizes:
    """Sizes of a run and of the machine."""

    num_parameters: int
    num_trainable: int
    bytes_per_value: int
    """Of a weight, of a gradient and of both moments of the optimizer: 4, or 8 with precision: fp64."""
    world_size: int
    share: int
    """Samples of one replica per optimizer step."""
    num_micro_batches: int
    """Micro-batches of a replica per optimizer step."""
    device_bytes: int | None
    """Memory of the device; on a CPU this process's part of it."""
    device_name: str
    is_per_device: bool = False
    """Whether `batch.per_device` sets the batch; `batch.micro_batch_size` has no effect then."""
    num_workers: int = 0
    """`data.num_workers`, of each rank."""
    num_local_ranks: int = 1
    """Ranks on a machine."""
    num_cores: float | None = None
    """Logical cores that these ranks may use together; None when not known."""

    def states_bytes(self, shards: tuple[str, ...] = (), num_shards: int = 1) -> int:
        """Return the bytes of weights, gradients and both moments on one rank; see `model_state_bytes`."""
        numbers, trained = adam_bytes(self.bytes_per_value), self.num_trainable
        return model_state_bytes(
            self.num_parameters, num_trained=trained, shards=shards, num_shards=num_shards, numbers=numbers
        ).total


def advice(traits: Traits, job: JobSizes) -> list[str]:
    """Return one line for each option that does not help, or that costs much.

    Source: bytes of model states: Rajbhandari et al., ZeRO, SC 2020, section 3.
    """
    return [*_sharding(traits, job), *_pipeline(traits, job), *_loader(job)]


def _sharding(traits: Traits, job: JobSizes) -> Iterator[str]:
    offloads, kind = traits.states_on == "cpu", f"strategy.kind: {traits.kind}"
    if traits.shards and job.world_size == 1:
        yield f"{kind} in one process does not shard {' and '.join(traits.shards)}: it is single, but slower"
        if not offloads:
            return
    states = job.states_bytes()
    times = 0 if job.device_bytes is None else job.device_bytes // max(1, states)
    if times < ROOMY:
        return
    fit = (
        f"weights, gradients and optimizer states of {job.num_parameters / 1e6:.3g} M parameters take "
        f"{format_bytes(states)} and would fit {times} times in the "
        f"{format_bytes(job.device_bytes)} of {job.device_name}"
    )
    if offloads:
        yield f"offload to the CPU moves states in every step and does not help: {fit}; switch it off"
    elif traits.ranks_per_replica > 1:
        yield f"{kind} is for models that do not fit: {fit}; strategy.kind: ddp has no bubble"
    elif traits.shards and job.world_size > 1:
        num_shards = shard_count(traits, job.world_size, job.num_local_ranks)
        saved = format_bytes(states - job.states_bytes(traits.shards, num_shards))
        yield f"{kind} saves at most {saved} per rank and costs communication: {fit}; strategy.kind: ddp is simpler"


def _pipeline(traits: Traits, job: JobSizes) -> Iterator[str]:
    p, m, v = traits.ranks_per_replica, job.num_micro_batches, traits.stages_per_rank
    if p == 1 or m >= BUBBLE_FREE * p:
        return
    possible = [n for n in divisors(job.share) if n % traits.micro_batch_multiple == 0 and n <= BUBBLE_FREE * p]
    more = max(possible, default=m)
    now, then = (f"{100 * (traits.ideal_bubble_share(number) or 0):.0f}%" for number in (m, more))
    remedy = ""
    if more > m:
        key = f"batch.grad_accum_steps: {more} and batch.per_device" if job.is_per_device else "batch.micro_batch_size"
        remedy = f"; {key}: {job.share // more} makes {more} and leaves {then}"
    formula = "(p-1)/(m+p-1)" if v == 1 else f"(p-1)/({v}m+p-1)"
    yield (
        f"{m} micro-batch{'es' * (m > 1)} in {p} stages leave each device idle for {formula} = {now} of forward and "
        f"backward{remedy}"
    )


def _loader(job: JobSizes) -> Iterator[str]:
    """Yield a line where loader workers and ranks have to share cores."""
    n, workers = job.num_local_ranks, job.num_local_ranks * job.num_workers
    if job.num_cores is None or not workers or n + workers <= job.num_cores:
        return
    most = max(0, int(job.num_cores // n) - 1)
    yield (
        f"data.num_workers: {job.num_workers} makes {workers} worker processes in addition to {n} training processes, "
        f"and this machine has {job.num_cores:.3g} cores: they take turns; set data.num_workers: {most}"
    )
