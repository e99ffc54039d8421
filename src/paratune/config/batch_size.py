"""Computes the work of each rank in an optimizer step from the options of the batch."""

import math
from dataclasses import dataclass, replace
from typing import Any

from paratune.config.problems import Problem, refuse
from paratune.config.sections import BatchSize
from paratune.config.traits import Traits

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

    def nearest_possible(self) -> list[int]:
        """Return the possible size of micro-batches that is nearest to the present one; empty if there is none."""
        return sorted(self.possible(), key=lambda size: abs(size - self.micro_batch_size))[:1]

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


def resolve_batch(batch: BatchSize, traits: Traits, *, data_world_size: int, group_size: int = 1) -> ResolvedBatch:
    """Return the work of each rank in one optimizer step.

    `global` is the same for every number of ranks: each rank takes an equal share of it, in micro-steps of at most
    `micro_batch_size` samples. With `per_device` the global batch grows with ranks and accumulation. With
    `micro_batch_size: auto`, the result is that without it; the search for a smaller size starts there.

    Args:
        batch: Exactly one of `global` and `per_device` is set.
        traits: Its `num_micro_batches` is the minimum number of a step, such as the stages of a pipeline. Where `batch`
            sets no size and it is possible, a step has four times as many: the bubble is then a fifth.
        data_world_size: Ranks that see different data, at least 1.
        group_size: The size of micro-batches must be a multiple of this; see `task_sections.group_size`.

    Raises:
        ConfigError: The global batch is more than `MAX_SAMPLES`, or is not a multiple of the ranks, or a share not of
            the micro-batch; or the number of micro-steps is too small, or not a multiple.
    """
    resolved = find_batch(batch, traits, data_world_size=data_world_size, group_size=group_size)
    if isinstance(resolved, Problem):
        refuse([resolved])
        raise AssertionError  # `refuse` raises
    return resolved


def find_batch(
    batch: BatchSize, traits: Traits, *, data_world_size: int, group_size: int = 1
) -> ResolvedBatch | Problem:
    """Return the work of each rank in one optimizer step, or the problem if it is not possible; see `resolve_batch`."""
    size = batch.global_ or (batch.per_device or 1) * (batch.grad_accum_steps or 1) * data_world_size
    if size > MAX_SAMPLES:
        keys = ("batch.global",) if batch.global_ else ("batch.per_device", "batch.grad_accum_steps")
        message = f"{keys[0]}: a step has {size} samples; at most {MAX_SAMPLES} are possible"
        facts: dict[str, Any] = {"global_batch_size": size, "max": MAX_SAMPLES}
        return Problem(message, keys, code="batch.too_large", facts=facts)
    found = _divided(batch, traits, data_world_size, group_size)
    if isinstance(found, Problem):
        return found
    num_micro_batches, is_per_device = found.grad_accum_steps, batch.per_device is not None
    if found.micro_batch_size % group_size:
        key, unit = "batch.per_device", group_size
        if not is_per_device:
            key, unit = "batch.global", group_size * data_world_size * traits.num_micro_batches
        below = (batch.per_device or size) // unit * unit
        near = [nearest for nearest in (below, below + unit) if nearest]
        if not is_per_device and size in near:  # the shares have whole groups, and only their micro-batches do not
            key, near = "batch.micro_batch_size", found.nearest_possible()
        message = f"{key}: a step has {size} samples on {data_world_size} ranks, in micro-batches of "
        message += f"{found.micro_batch_size}, not in whole groups of {group_size} (task.group_size)"
        message += f"; set {key} to {_either(near)}"
        facts = {"group_size": group_size, "global_batch_size": size, "data_world_size": data_world_size}
        return Problem(message, (key, "task.group_size"), code="batch.group", facts={**facts, "nearest": near})
    if num_micro_batches < (least := traits.num_micro_batches):
        key, advice, limit = "batch.global", "at least", least * data_world_size
        if is_per_device:
            key, advice, limit = "batch.grad_accum_steps", "at least", least
        elif found.share >= least:
            key, advice, limit = "batch.micro_batch_size", "at most", found.share // least
        plural = "es" * (num_micro_batches > 1)
        message = f"batch: a step has {num_micro_batches} micro-batch{plural}; {least} stages need {least} or more, "
        message += f"better {4 * least}; set {key} to {advice} {limit}"
        facts = {"num_micro_batches": num_micro_batches, "min": least, "limit": limit}
        return Problem(message, (key,), code="batch.too_few_micro_batches", facts=facts)
    if num_micro_batches % (multiple := traits.micro_batch_multiple):
        key, below = "batch.grad_accum_steps", num_micro_batches // multiple * multiple
        near = [below, below + multiple]
        if not is_per_device:
            key, near = "batch.micro_batch_size", found.nearest_possible()
        advice = f"set {key} to {_either(near)}"
        advice = advice if near else f"change batch.global, of which each replica's share is now {found.share}"
        message = f"batch: a step has {num_micro_batches} micro-batches; this schedule needs a multiple of {multiple}"
        facts = {"num_micro_batches": num_micro_batches, "multiple": multiple, "share": found.share, "nearest": near}
        return Problem(f"{message}; {advice}", (key,), code="batch.micro_batches_not_multiple", facts=facts)
    return found


def _divided(batch: BatchSize, traits: Traits, num_ranks: int, group_size: int) -> ResolvedBatch | Problem:
    """Return the samples of a rank in micro-steps, not yet checked against groups and the strategy."""
    rules = {"micro_batch_multiple": traits.micro_batch_multiple, "group_size": group_size}
    if batch.per_device is not None:
        steps = batch.grad_accum_steps or 1
        return ResolvedBatch(batch.per_device * steps * num_ranks, batch.per_device, steps, **rules)
    assert batch.global_ is not None, "config.check refuses a batch without a size"
    facts: dict[str, Any] = {"global_batch_size": batch.global_, "data_world_size": num_ranks}
    share, rest = divmod(batch.global_, num_ranks)
    if rest:
        near = [size for size in (share * num_ranks, (share + 1) * num_ranks) if size]
        message = f"batch.global is {batch.global_}, which {num_ranks} ranks cannot share evenly; nearest"
        facts["nearest"] = near
        return Problem(f"{message}: {_either(near)}", ("batch.global",), code="batch.uneven_share", facts=facts)
    sizes = divisors(share)
    if isinstance(batch.micro_batch_size, int):
        micro = min(batch.micro_batch_size, share)
    else:  # the largest size, in whole groups, with which the rank has enough micro-batches
        wanted = 4 * traits.num_micro_batches if traits.num_micro_batches > 1 else 1
        counts = {size: share // size for size in sizes if size % group_size == 0}
        enough = (size for size, n in counts.items() if n >= wanted and n % traits.micro_batch_multiple == 0)
        micro = max(enough, default=min(counts, default=1))
    if share % micro:
        near = [max(size for size in sizes if size < micro), min(size for size in sizes if size > micro)]
        message = f"batch.micro_batch_size is {micro}, which does not divide {share}, a rank's share of batch.global: "
        message += f"{batch.global_}; the nearest that do: {_either(near)}"
        facts |= {"micro_batch_size": micro, "share": share, "nearest": near}
        keys = ("batch.micro_batch_size", "batch.global")
        return Problem(message, keys, code="batch.micro_batch_not_divisor", facts=facts)
    return ResolvedBatch(batch.global_, micro, share // micro, **rules)


def _either(sizes: list[int]) -> str:
    return " or ".join(map(str, sizes))
