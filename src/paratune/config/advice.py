"""Advice before the first step: options that do not help in this run, with numbers; only where the sizes are known."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from paratune.base.units import format_bytes, format_duration
from paratune.config.batch_size import divisors
from paratune.config.model_states import StateBytes, adam_bytes, model_state_bytes, shard_count
from paratune.config.traits import Traits

ROOMY = 4
"""Memory is sufficient when the model states fit this many times: three quarters of it remain for activations."""
BUBBLE_FREE = 4
"""With this many micro-batches per stage the bubble is negligible (Huang et al., GPipe, NeurIPS 2019, section 2.3)."""
SLOW_S = 0.1
"""Minimum seconds of communication per step for advice."""


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
    link_bytes_per_s: float | None
    """Between ranks, one direction, of the slowest link; None when not known."""
    is_per_device: bool = False
    """Whether `batch.per_device` sets the batch; `batch.micro_batch_size` has no effect then."""
    num_workers: int = 0
    """`data.num_workers`, of each rank."""
    num_local_ranks: int = 1
    """Ranks on a machine."""
    num_cores: float | None = None
    """Logical cores that these ranks may use together; None when not known."""

    @property
    def states_bytes(self) -> int:
        """Weights, gradients and both moments: 16 bytes a trained parameter in fp32."""
        return self.states_per_rank().total

    def states_per_rank(self, shards: Collection[str] = (), num_shards: int = 1) -> StateBytes:
        """Return the bytes on one rank; see `model_state_bytes`."""
        return model_state_bytes(
            self.num_parameters,
            num_trained=self.num_trainable,
            shards=shards,
            num_shards=num_shards,
            numbers=adam_bytes(self.bytes_per_value),
        )


def advice(traits: Traits, job: JobSizes) -> list[str]:
    """Return one line for each option that does not help, or that costs much.

    Source: bytes of model states and of communication: Rajbhandari et al., ZeRO, SC 2020, sections 3 and 7.
    """
    return [*_sharding(traits, job), *_slow_links(traits, job), *_pipeline(traits, job), *_loader(job)]


def _sharding(traits: Traits, job: JobSizes) -> Iterator[str]:
    offloads = traits.states_on == "cpu"
    is_pipeline = traits.ranks_per_replica > 1
    if traits.shards and job.world_size == 1:
        yield (
            f"strategy.kind: {traits.kind} in one process does not shard {_and(traits.shards)}: it is the same as "
            "single, but slower"
        )
        if not offloads:
            return
    times = 0 if job.device_bytes is None else job.device_bytes // max(1, job.states_bytes)
    if times < ROOMY:
        return
    fit = (
        f"weights, gradients and optimizer states of {job.num_parameters / 1e6:.3g} M parameters take "
        f"{format_bytes(job.states_bytes)} and would fit {times} times in the {format_bytes(job.device_bytes)} of "
        f"{job.device_name}"
    )
    if offloads:
        yield f"offload to the CPU moves states in every step and does not help: {fit}; switch it off"
    elif is_pipeline:
        yield f"strategy.kind: {traits.kind} is for models that do not fit: {fit}; strategy.kind: ddp has no bubble"
    elif traits.shards and job.world_size > 1:
        num_shards = shard_count(traits, job.world_size, job.num_local_ranks)
        saved = job.states_bytes - job.states_per_rank(traits.shards, num_shards).total
        yield (
            f"strategy.kind: {traits.kind} saves at most {format_bytes(saved)} per rank, costs communication, and "
            f"memory is sufficient without it: {fit}; strategy.kind: ddp is simpler"
        )


def _slow_links(traits: Traits, job: JobSizes) -> Iterator[str]:
    """Yield the cost of communication where weights are gathered or gradients reduced more often than in ddp."""
    if job.link_bytes_per_s is None or traits.ranks_per_replica > 1 or job.world_size == 1:
        return
    m, by_ddp = job.num_micro_batches, 2 * job.states_per_rank().gradients * _others(job.world_size)
    moved = moved_bytes(traits, job)
    seconds = moved / job.link_bytes_per_s
    if moved <= by_ddp or seconds < SLOW_S:
        return
    reductions = m if traits.reduces_each_micro_step else 1
    yield (
        f"strategy.kind: {traits.kind} gathers the weights {_times(max(1, traits.gathers_per_micro_step * m))} a step "
        f"and reduces the gradients {_times(reductions)} ({m} micro-batch{'es' * (m > 1)}): {format_bytes(moved)} a "
        f"rank, {format_duration(seconds)} or more over links of {job.link_bytes_per_s / 1e9:.3g} GB/s; ddp moves "
        f"{format_bytes(by_ddp)}"
    )


def moved_bytes(traits: Traits, job: JobSizes) -> float:
    """Return the bytes that a rank sends in an optimizer step, overlapped or not; not for a pipeline.

    N ranks in groups of S that shard the states, m micro-steps: (S - 1)/S of the weights in each gathering and of the
    gradients in each reduction; then, between the N/S groups, 2 (N/S - 1)/(N/S) of the gradients' shards, once.

    Source: of a collective: Patarasuk and Yuan, Bandwidth Optimal All-reduce Algorithms, 2009. Of ZeRO: Rajbhandari et
        al., ZeRO, SC 2020, section 7. Of hybrid sharding: Zhao et al., PyTorch FSDP, VLDB 2023, section 3.2.2.
    """
    m, size = job.num_micro_batches, shard_count(traits, job.world_size, job.num_local_ranks)
    reductions = m if traits.reduces_each_micro_step else 1
    states = job.states_per_rank()
    gradients = states.gradients
    # Backward gathers only the trained weights.
    gathered = gradients  # the second half of an all-reduce, or the weights that other ranks updated
    if traits.gathers_per_micro_step:
        gathered = m * (states.weights + (traits.gathers_per_micro_step - 1) * gradients)
    within = (gathered + reductions * gradients) * _others(size)
    return within + 2 * gradients / size * _others(job.world_size // size)


def _others(num_ranks: int) -> float:
    """Return the part of an evenly sharded state that is on other ranks."""
    return (num_ranks - 1) / num_ranks


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _pipeline(traits: Traits, job: JobSizes) -> Iterator[str]:
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


def _loader(job: JobSizes) -> Iterator[str]:
    """Yield a line where loader workers and ranks have to share cores."""
    n, workers = job.num_local_ranks, job.num_local_ranks * job.num_workers
    if job.num_cores is None or not workers or n + workers <= job.num_cores:
        return
    most = max(0, int(job.num_cores // n) - 1)
    cores = f"{job.num_cores:.3g} core{'s' * (job.num_cores != 1)}"
    yield (
        f"data.num_workers: {job.num_workers} makes {workers} worker process{'es' * (workers > 1)} in addition to "
        f"{n} training process{'es' * (n > 1)}, and this machine has {cores}: they take turns; "
        f"data.num_workers: {most} " + ("leaves each a core" if most else "makes batches in the training process")
    )


def _percent(traits: Traits, num_micro_batches: int) -> str:
    return f"{100 * (traits.ideal_bubble_share(num_micro_batches) or 0):.0f}%"


def _and(words: tuple[str, ...]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
