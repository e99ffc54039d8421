"""The batch size of a run: from what was said to what each rank does."""

from dataclasses import dataclass

from paratune.config.sections import BatchSize
from paratune.errors import ConfigError


@dataclass(frozen=True)
class ResolvedBatch:
    """Samples per optimizer step; `global_batch_size` = micro_batch_size * grad_accum_steps * ranks."""

    global_batch_size: int
    """Samples per optimizer step over all ranks."""
    micro_batch_size: int
    """Samples per rank and micro-step."""
    grad_accum_steps: int
    """Micro-steps per optimizer step."""


def resolve_batch(batch: BatchSize, *, data_world_size: int) -> ResolvedBatch:
    """Return what each rank does in one optimizer step.

    `global` is kept whatever the number of ranks: each takes an equal share of it, in micro-steps of at most
    `micro_batch_size` samples. With `per_device` the global batch grows with ranks and accumulation.

    Args:
        batch: Exactly one of `global` and `per_device` is given.
        data_world_size: Ranks that see different data, at least 1.

    Raises:
        ConfigError: The global batch cannot be dealt evenly to the ranks, or a share not to micro-steps.
    """
    if batch.per_device is not None:
        steps = batch.grad_accum_steps or 1
        return ResolvedBatch(batch.per_device * steps * data_world_size, batch.per_device, steps)
    assert batch.global_ is not None, "check.py refuses a batch without a size"
    share, rest = divmod(batch.global_, data_world_size)
    if rest:
        near = _either([size for size in (share * data_world_size, (share + 1) * data_world_size) if size])
        raise ConfigError(
            f"batch.global is {batch.global_}, which {data_world_size} ranks cannot share evenly; "
            f"the nearest sizes that they can: {near}"
        )
    micro = min(batch.micro_batch_size or share, share)
    if share % micro:
        divisors = [size for size in range(1, share + 1) if share % size == 0]
        near = _either([max(size for size in divisors if size < micro), min(size for size in divisors if size > micro)])
        raise ConfigError(
            f"batch.micro_batch_size is {micro}, which does not divide the {share} samples that each of "
            f"{data_world_size} ranks takes of batch.global: {batch.global_}; the nearest that do: {near}"
        )
    return ResolvedBatch(batch.global_, micro, share // micro)


def _either(sizes: list[int]) -> str:
    return " or ".join(str(size) for size in sizes)
