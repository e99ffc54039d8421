"""What of a run cannot be measured, and why."""

from paratune.config.batch_size import ResolvedBatch
from paratune.config.sections import MeasureOptions
from paratune.models.batch_layout import BatchLayout
from paratune.strategies.protocol import Layout


def why_no_noise(batch_layout: BatchLayout, batch: ResolvedBatch, layout: Layout) -> str | None:
    """Return why the gradients of a step's micro-batches do not tell how noisy they are; None where they do."""
    if batch_layout.kind == "bucketed":
        return (
            "bucketed micro-batches are sorted by length, so that they differ by more than noise; batch.layout: packed "
            "or padded leaves them in random order"
        )
    if batch.grad_accum_steps * layout.data_world_size > 1:
        return None
    half = batch.halved()
    if half is None:
        return "one sample a step: two micro-batches are needed to compare their gradients"
    return (
        "one micro-batch a step: two are needed to compare their gradients; set batch.micro_batch_size: "
        f"{half.micro_batch_size}, or with batch.per_device batch.grad_accum_steps: 2"
    )


def why_no_profile(measure: MeasureOptions) -> str | None:
    """Return why no step is profiled; None where some are."""
    return "no step was profiled; set measure.profile_steps" if measure.profile_steps == 0 else None


def why_no_communication(measure: MeasureOptions, layout: Layout) -> str | None:
    """Return why it is not measured how long ranks exchange data; None where it is."""
    return "one process exchanges nothing" if layout.world_size == 1 else why_no_profile(measure)
