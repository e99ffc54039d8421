"""What of a run cannot be measured, and why."""

from paratune.config.batch_size import ResolvedBatch
from paratune.config.sections import MeasureOptions
from paratune.strategies.protocol import Layout


def why_no_noise(batch: ResolvedBatch, layout: Layout, *, compiles: bool) -> str | None:
    """Return why a step has no two micro-batches whose gradients can be compared; None where it has, or can have.

    Args:
        batch: Of a step on each rank.
        layout: Of the ranks.
        compiles: `train.compile`: a micro-batch of a new shape would be compiled in the middle of the run.
    """
    if batch.grad_accum_steps * layout.data_world_size > 1:
        return None
    half = batch.halved()
    if half is None:
        return "one sample a step: two micro-batches are needed to compare their gradients"
    if not compiles:
        return None  # `TrainBatches.compare_every` cuts it into two
    return (
        "one micro-batch a step: two are needed to compare their gradients, and train.compile leaves it whole; set "
        f"batch.micro_batch_size: {half.micro_batch_size}, or with batch.per_device batch.grad_accum_steps: 2"
    )


def why_no_profile(measure: MeasureOptions) -> str | None:
    """Return why no step is profiled; None where some are."""
    return "no step was profiled; set measure.profile_steps" if measure.profile_steps == 0 else None


def why_no_communication(measure: MeasureOptions, layout: Layout) -> str | None:
    """Return why it is not measured how long ranks exchange data; None where it is."""
    return "one process exchanges nothing" if layout.world_size == 1 else why_no_profile(measure)
