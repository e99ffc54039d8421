"""Computes the work of each rank in an optimizer step from the options of the batch."""

import math
from dataclasses import dataclass, replace
from typing import Any

from paratune.config.feasibility.reason import Reason
from paratune.config.feasibility.words import error
from paratune.config.sections import BatchSize

MAX_SAMPLES = 2**24
"""Maximum number of samples of a step: hundreds of times the largest published batch, and few enough that `plan` can
hold the length of each."""


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
    """The number of micro-steps must be a multiple of this."""
    group_size: int = 1
    """The size of micro-batches must be a multiple of this."""

    @property
    def share(self) -> int:
        """Samples of one rank per optimizer step."""
        return self.micro_batch_size * self.grad_accum_steps

    def possible(self) -> list[int]:
        """Return the possible sizes of micro-batches for a rank's share, ascending from one group."""
        return [
            size
            for size in divisors(self.share)
            if size % self.group_size == 0 and self.share // size % self.micro_batch_multiple == 0
        ]

    def at_most(self, micro_batch_size: int) -> "ResolvedBatch":
        """Return the same step with the largest possible micro-batch of at most `micro_batch_size` samples.

        Where not even one group is that small, micro-batches have the smallest possible size.
        """
        sizes = self.possible()
        size = max((size for size in sizes if size <= micro_batch_size), default=sizes[0])
        return replace(self, micro_batch_size=size, grad_accum_steps=self.share // size)

    def halved(self) -> "ResolvedBatch | None":
        """Return the same step in micro-batches of at most half the size; None for one sample, or one group."""
        half = self.micro_batch_size // 2
        return self.at_most(half) if half >= self.possible()[0] else None


def divisors(number: int) -> list[int]:
    """Return the divisors of a number, ascending from 1 to the number; takes time in proportion to its square root."""
    small = [size for size in range(1, math.isqrt(number) + 1) if number % size == 0]
    large = [number // size for size in reversed(small)]
    return small + large[small[-1] == large[0] :]


@dataclass(frozen=True)
class BatchRule:
    """Requirements of a strategy on the batch."""

    data_world_size: int
    """Ranks that see different data, at least 1."""
    num_micro_batches: int = 1
    """Minimum number of micro-batches of a step: the stages of a pipeline."""
    micro_batch_multiple: int = 1
    """The number of micro-batches of a step must be a multiple of this."""
    group_size: int = 1
    """The size of micro-batches must be a multiple of this."""


def resolve_batch(
    batch: BatchSize,
    *,
    data_world_size: int,
    num_micro_batches: int = 1,
    micro_batch_multiple: int = 1,
    group_size: int = 1,
) -> ResolvedBatch:
    """Return the work of each rank in one optimizer step.

    `global` is the same for every number of ranks: each rank takes an equal share of it, in micro-steps of at most
    `micro_batch_size` samples. With `per_device` the global batch grows with ranks and accumulation. With
    `micro_batch_size: auto`, the result is that without it; the search for a smaller size starts there.

    Args:
        batch: Exactly one of `global` and `per_device` is set.
        data_world_size: As in `BatchRule`.
        num_micro_batches: As in `BatchRule`. Where `batch` sets no size and it is possible, a step has four times as
            many: the bubble is then a fifth.
        micro_batch_multiple: As in `BatchRule`.
        group_size: As in `BatchRule`.

    Raises:
        ConfigError: The global batch is more than `MAX_SAMPLES`, or is not a multiple of the ranks, or a share not of
            the micro-batch; or the number of micro-steps is too small, or not a multiple.
    """
    resolved = find_batch(batch, BatchRule(data_world_size, num_micro_batches, micro_batch_multiple, group_size))
    if isinstance(resolved, Reason):
        raise error([resolved])
    return resolved


def find_batch(batch: BatchSize, rule: BatchRule) -> ResolvedBatch | Reason:
    """Return the work of each rank in one optimizer step, or the reason why it is not possible; see `resolve_batch`."""
    resolved = _too_large(batch, rule.data_world_size) or _resolved(batch, rule)
    if isinstance(resolved, Reason):
        return resolved
    resolved = replace(resolved, group_size=rule.group_size)
    if resolved.micro_batch_size % rule.group_size:
        return _group_is_cut(batch, resolved, rule)
    if resolved.grad_accum_steps < rule.num_micro_batches:
        return _too_few_micro_batches(batch, resolved, rule)
    if resolved.grad_accum_steps % rule.micro_batch_multiple:
        return _not_multiple(batch, resolved, rule.micro_batch_multiple)
    return replace(resolved, micro_batch_multiple=rule.micro_batch_multiple)


def _group_is_cut(batch: BatchSize, resolved: ResolvedBatch, rule: BatchRule) -> Reason:
    """Return the reason, with the sizes of which each rank takes whole groups."""
    key, size, unit = "batch.global", resolved.global_batch_size, rule.group_size * rule.data_world_size
    if batch.per_device is not None:
        key, size, unit = "batch.per_device", batch.per_device, rule.group_size
    elif rule.num_micro_batches > 1:
        unit *= rule.num_micro_batches
    below = size // unit * unit
    facts = {
        "group_size": rule.group_size,
        "global_batch_size": resolved.global_batch_size,
        "data_world_size": rule.data_world_size,
        "nearest": [near for near in (below, below + unit) if near],
    }
    return Reason("batch.group", (key, "task.group_size"), facts)


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
    """Return the reason, with values for which the number of micro-batches is a multiple."""
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
    assert batch.global_ is not None, "config.check refuses a batch without a size"
    facts: dict[str, Any] = {"global_batch_size": batch.global_, "data_world_size": num_ranks}
    share, rest = divmod(batch.global_, num_ranks)
    if rest:
        nearest = [size for size in (share * num_ranks, (share + 1) * num_ranks) if size]
        return Reason("batch.uneven_share", ("batch.global",), {**facts, "nearest": nearest})
    size = batch.micro_batch_size
    if size is None or size == "auto":
        size = _micro_batch_size(share, rule)
    micro = min(size, share)
    if share % micro:
        sizes = divisors(share)
        nearest = [max(size for size in sizes if size < micro), min(size for size in sizes if size > micro)]
        facts |= {"micro_batch_size": micro, "share": share, "nearest": nearest}
        return Reason("batch.micro_batch_not_divisor", ("batch.micro_batch_size", "batch.global"), facts)
    return ResolvedBatch(batch.global_, micro, share // micro)


def _micro_batch_size(share: int, rule: BatchRule) -> int:
    """Return the largest size, in whole groups, with which a rank's share has enough micro-batches."""
    wanted = 4 * rule.num_micro_batches if rule.num_micro_batches > 1 else 1
    counts = {size: share // size for size in divisors(share) if size % rule.group_size == 0}
    fitting = [size for size, count in counts.items() if count >= wanted and count % rule.micro_batch_multiple == 0]
    return max(fitting, default=min(counts, default=1))
