"""The batch size of a run: from what was said to what each rank does."""

from dataclasses import dataclass, replace

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
    """Return what divides a number, from 1 up to itself."""
    return [size for size in range(1, number + 1) if number % size == 0]


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
        ConfigError: The global batch cannot be dealt evenly to the ranks, or a share not to micro-steps; or these are
            too few, or no multiple.
    """
    resolved = _resolved(batch, data_world_size, num_micro_batches, micro_batch_multiple)
    if resolved.grad_accum_steps < num_micro_batches:
        found = f"{resolved.grad_accum_steps} micro-batch{'es' * (resolved.grad_accum_steps > 1)}"
        share = resolved.global_batch_size // data_world_size
        what = (
            f"set batch.grad_accum_steps to {num_micro_batches} or more"
            if batch.per_device is not None
            else f"set batch.micro_batch_size to at most {share // num_micro_batches}"
            if share >= num_micro_batches
            else f"set batch.global to at least {num_micro_batches * data_world_size}"
        )
        raise ConfigError(
            f"batch: a step has {found}, and a pipeline of {num_micro_batches} stages needs as many as it has stages, "
            f"better four times as many; {what}",
            code="batch.pipeline",
            key="batch",
            num_micro_batches=num_micro_batches,
        )
    if resolved.grad_accum_steps % micro_batch_multiple:
        raise ConfigError(
            f"batch: a step has {resolved.grad_accum_steps} micro-batches, and this schedule takes multiples of "
            f"{micro_batch_multiple}; {_nearest_multiple(batch, resolved, micro_batch_multiple)}",
            code="batch.pipeline",
            key="batch",
            grad_accum_steps=resolved.grad_accum_steps,
            micro_batch_multiple=micro_batch_multiple,
        )
    return replace(resolved, micro_batch_multiple=micro_batch_multiple)


def _nearest_multiple(batch: BatchSize, resolved: ResolvedBatch, multiple: int) -> str:
    """Return what to set so that the number of micro-batches is a multiple."""
    if batch.per_device is not None:
        below = resolved.grad_accum_steps // multiple * multiple
        return f"set batch.grad_accum_steps to {below} or {below + multiple}"
    sizes = replace(resolved, micro_batch_multiple=multiple).possible()
    if not sizes:
        return f"set batch.global so that each replica's share of it, now {resolved.share}, is such a multiple"
    return f"set batch.micro_batch_size to {min(sizes, key=lambda size: abs(size - resolved.micro_batch_size))}"


def _resolved(batch: BatchSize, data_world_size: int, num_micro_batches: int, multiple: int) -> ResolvedBatch:
    if batch.per_device is not None:
        steps = batch.grad_accum_steps or 1
        return ResolvedBatch(batch.per_device * steps * data_world_size, batch.per_device, steps)
    assert batch.global_ is not None, "check.py refuses a batch without a size"
    share, rest = divmod(batch.global_, data_world_size)
    if rest:
        near = _either([size for size in (share * data_world_size, (share + 1) * data_world_size) if size])
        raise ConfigError(
            f"batch.global is {batch.global_}, which {data_world_size} ranks cannot share evenly; "
            f"the nearest sizes that they can: {near}",
            code="batch.not_divisible",
            key="batch.global",
            value=batch.global_,
        )
    asked = batch.micro_batch_size
    if asked is None or asked == "auto":
        asked = _micro_batch_size(share, num_micro_batches, multiple)
    micro = min(asked, share)
    if share % micro:
        sizes = divisors(share)
        whose = "one rank" if data_world_size == 1 else f"each of {data_world_size} ranks"
        near = _either([max(size for size in sizes if size < micro), min(size for size in sizes if size > micro)])
        raise ConfigError(
            f"batch.micro_batch_size is {micro}, which does not divide the {share} samples that {whose} takes of "
            f"batch.global: {batch.global_}; the nearest that do: {near}",
            code="batch.not_divisible",
            key="batch.micro_batch_size",
            value=micro,
            batch=batch.global_,
        )
    return ResolvedBatch(batch.global_, micro, share // micro)


def _micro_batch_size(share: int, num_micro_batches: int, multiple: int) -> int:
    """Return the largest size that makes enough micro-batches of a rank's share."""
    wanted = 4 * num_micro_batches if num_micro_batches > 1 else 1
    counts = {size: share // size for size in divisors(share)}
    return max((size for size, count in counts.items() if count >= wanted and count % multiple == 0), default=1)


def _either(sizes: list[int]) -> str:
    return " or ".join(str(size) for size in sizes)
