"""Options that do not help in this run, and changes that help when memory ran out, with numbers."""

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
