"""The batch size of a run: from what was said to what each rank does."""

import math
from dataclasses import dataclass, replace
from typing import Any

from paratune.config.feasibility.reason import Reason
from paratune.config.feasibility.words import error
from paratune.config.sections import BatchSize

MAX_SAMPLES = 2**24
"""Most samples of a step: hundreds of times the largest published batch, and few enough that `plan` can hold the length
of each."""


@dataclass(frozen=True)
class ResolvedBatch:
    """Samples per optimizer step; `global_batch_size` = micro_batch_size * grad_accum_steps * ranks."""

    global_batch_size: int
    """Samples per optimizer step over all ranks."""
    micro_batch_size: int
    """Samples per rank and micro-step."""
    grad_accum_steps: int
    """Micro-steps per optimizer step."""
    micro_batch_multiple: int = 1
    """What the number of micro-steps must be a multiple of."""

    @property
    def share(self) -> int:
        """Samples of one rank per optimizer step."""
        return self.micro_batch_size * self.grad_accum_steps

    def possible(self) -> list[int]:
        """Return the sizes of micro-batches, ascending from 1, into which a rank's share can be cut."""
        return [size for size in divisors(self.share) if self.share // size % self.micro_batch_multiple == 0]

    def at_most(self, micro_batch_size: int) -> "ResolvedBatch":
        """Return the same step in micro-batches of at most so many samples: the largest possible size.

        Args:
            micro_batch_size: At least 1.
        """
        size = max(size for size in self.possible() if size <= micro_batch_size)
        return replace(self, micro_batch_size=size, grad_accum_steps=self.share // size)

    def halved(self) -> "ResolvedBatch | None":
        """Return the same step in micro-batches of at most half the size; None where one sample is all there is."""
        return self.at_most(self.micro_batch_size // 2) if self.micro_batch_size > 1 else None


def divisors(number: int) -> list[int]:
    """Return what divides a number, ascending from 1 up to itself; the time is that of its square root."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    large = [number // size for size in reversed(small)]
    return small + large[small[-1] == large[0] :]


@dataclass(frozen=True)
class BatchRule:
    """What a strategy asks of the batch."""

    data_world_size: int
    """Ranks that see different data, at least 1."""
    num_micro_batches: int = 1
    """Fewest of a step that the strategy can do with: the stages of a pipeline."""
    micro_batch_multiple: int = 1
    """What their number must be a multiple of."""


def resolve_batch(
    batch: BatchSize, *, data_world_size: int, num_micro_batches: int = 1, micro_batch_multiple: int = 1
) -> ResolvedBatch:
    """Return what each rank does in one optimizer step.

    `global` is kept whatever the number of ranks: each takes an equal share of it, in micro-steps of at most
    `micro_batch_size` samples. With `per_device` the global batch grows with ranks and accumulation. With
    `micro_batch_size: auto` what would be taken without it is returned, from which the search goes down.

    Args:
        batch: Exactly one of `global` and `per_device` is given.
        data_world_size: Ranks that see different data, at least 1.
        num_micro_batches: Fewest of a step that the strategy can do with: the stages of a pipeline. Where `batch`
            leaves it open, four times as many are made if they can be: the bubble is then a fifth.
        micro_batch_multiple: What their number must be a multiple of.

    Raises:
        ConfigError: The global batch is more than `MAX_SAMPLES`, or cannot be dealt evenly to the ranks, or a share not
            to micro-steps; or these are too few, or no multiple.
    """
    resolved = find_batch(batch, BatchRule(data_world_size, num_micro_batches, micro_batch_multiple))
    if isinstance(resolved, Reason):
        raise error([resolved])
    return resolved


def find_batch(batch: BatchSize, rule: BatchRule) -> ResolvedBatch | Reason:
    """Return what each rank does in one optimizer step, or the reason why there is none; see `resolve_batch`."""
    resolved = _too_large(batch, rule.data_world_size) or _resolved(batch, rule)
    if isinstance(resolved, Reason):
        return resolved
    if resolved.grad_accum_steps < rule.num_micro_batches:
        return _too_few_micro_batches(batch, resolved, rule)
    if resolved.grad_accum_steps % rule.micro_batch_multiple:
        return _not_multiple(batch, resolved, rule.micro_batch_multiple)
    return replace(resolved, micro_batch_multiple=rule.micro_batch_multiple)


def _too_large(batch: BatchSize, data_world_size: int) -> Reason | None:
    size = batch.global_ or (batch.per_device or 1) * (batch.grad_accum_steps or 1) * data_world_size
    if size <= MAX_SAMPLES:
        return None
    keys = ("batch.global",) if batch.global_ else ("batch.per_device", "batch.grad_accum_steps")
    return Reason("batch.too_large", keys, {"global_batch_size": size, "max": MAX_SAMPLES})


def _too_few_micro_batches(batch: BatchSize, resolved: ResolvedBatch, rule: BatchRule) -> Reason:
    least, share = rule.num_micro_batches, resolved.global_batch_size // rule.data_world_size
    if batch.per_device is not None:
        key, limit = "batch.grad_accum_steps", least
    elif share >= least:
        key, limit = "batch.micro_batch_size", share // least
    else:
        key, limit = "batch.global", least * rule.data_world_size
    facts = {"num_micro_batches": resolved.grad_accum_steps, "min": least, "limit": limit}
    return Reason("batch.too_few_micro_batches", (key,), facts)


def _not_multiple(batch: BatchSize, resolved: ResolvedBatch, multiple: int) -> Reason:
    """Return the reason, with what to set so that the number of micro-batches is a multiple."""
    facts = {"num_micro_batches": resolved.grad_accum_steps, "multiple": multiple, "share": resolved.share}
    if batch.per_device is not None:
        key, below = "batch.grad_accum_steps", resolved.grad_accum_steps // multiple * multiple
        nearest = [below, below + multiple]
    else:
        key, sizes = "batch.micro_batch_size", replace(resolved, micro_batch_multiple=multiple).possible()
        nearest = sorted(sizes, key=lambda size: abs(size - resolved.micro_batch_size))[:1]
    return Reason("batch.micro_batches_not_multiple", (key,), {**facts, "nearest": nearest})


def _resolved(batch: BatchSize, rule: BatchRule) -> ResolvedBatch | Reason:
    num_ranks = rule.data_world_size
    if batch.per_device is not None:
        steps = batch.grad_accum_steps or 1
        return ResolvedBatch(batch.per_device * steps * num_ranks, batch.per_device, steps)
    assert batch.global_ is not None, "check.py refuses a batch without a size"
    facts: dict[str, Any] = {"global_batch_size": batch.global_, "data_world_size": num_ranks}
    share, rest = divmod(batch.global_, num_ranks)
    if rest:
        nearest = [size for size in (share * num_ranks, (share + 1) * num_ranks) if size]
        return Reason("batch.uneven_share", ("batch.global",), {**facts, "nearest": nearest})
    asked = batch.micro_batch_size
    if asked is None or asked == "auto":
        asked = _micro_batch_size(share, rule.num_micro_batches, rule.micro_batch_multiple)
    micro = min(asked, share)
    if share % micro:
        sizes = divisors(share)
        nearest = [max(size for size in sizes if size < micro), min(size for size in sizes if size > micro)]
        facts |= {"micro_batch_size": micro, "share": share, "nearest": nearest}
        return Reason("batch.micro_batch_not_divisor", ("batch.micro_batch_size", "batch.global"), facts)
    return ResolvedBatch(batch.global_, micro, share // micro)


def _micro_batch_size(share: int, num_micro_batches: int, multiple: int) -> int:
    """Return the largest size that makes enough micro-batches of a rank's share."""
    wanted = 4 * num_micro_batches if num_micro_batches > 1 else 1
    counts = {size: share // size for size in divisors(share)}
    return max((size for size, count in counts.items() if count >= wanted and count % multiple == 0), default=1)
