"""Reasons why a measurement is not available in a run."""

from paratune.config.batch_size import ResolvedBatch
from paratune.config.sections import MeasureOptions
from paratune.records.efficiency import MIN_SAMPLES
from paratune.strategies.protocol import Layout


def noise_unavailable_reason(batch: ResolvedBatch, layout: Layout, *, compiles: bool) -> str | None:
    """Return why no step has two micro-batches whose gradients can be compared; None if steps have or can have them.

    `train.compile` would compile a micro-batch of a new shape during the run.
    """
    if batch.grad_accum_steps * layout.data_world_size > 1:
        return None
    half = batch.halved()
    if half is None:
        return "one sample, or one group of samples, a step: two micro-batches are needed to compare their gradients"
    if not compiles:
        return None  # `TrainBatches.compare_every` divides the micro-batch into two
    return (
        "one micro-batch a step: two are needed to compare their gradients, and train.compile does not divide it; set "
        f"batch.micro_batch_size: {half.micro_batch_size}, or with batch.per_device batch.grad_accum_steps: 2"
    )


def noise_interval(measure: MeasureOptions, num_steps: int) -> int | None:
    """Return the steps between two samples of the noise scale; None for no samples.

    With `auto` at most every 5th step is sampled, because a sampled step takes longer and may have more padding.
    """
    if measure.noise_scale_every != "auto":
        return measure.noise_scale_every
    return min(20, max(5, (num_steps - measure.warmup_steps) // MIN_SAMPLES))


def profile_unavailable_reason(measure: MeasureOptions) -> str | None:
    """Return why no step is profiled; None if steps are profiled."""
    return "no step was profiled; set measure.profile_steps" if measure.profile_steps == 0 else None


def communication_unavailable_reason(measure: MeasureOptions, layout: Layout) -> str | None:
    """Return why the time of communication is not measured; None if it is."""
    return "a single process does not communicate" if layout.world_size == 1 else profile_unavailable_reason(measure)
