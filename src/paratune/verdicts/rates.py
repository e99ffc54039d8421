"""How fast runs got on: samples/s, or goodput where global batches differ."""

from collections.abc import Sequence
from dataclasses import dataclass

from paratune.efficiency import statistical_efficiency
from paratune.text import plain
from paratune.verdicts.margins import SPEED
from paratune.verdicts.rows import Run

GOODPUT = "goodput"
_BATCH = "run.batch.global_batch_size"
_RATE = "summary.throughput.samples_per_s"
_NOISE = "summary.noise_scale.value"


@dataclass(frozen=True)
class Rates:
    """What is compared of speed, by run."""

    measure: str
    baseline: tuple[float | None, ...]
    others: tuple[float | None, ...]
    reason: str | None = None
    """Why these rates may not be compared."""
    notes: tuple[str, ...] = ()


def rates_of(baseline: Sequence[Run], others: Sequence[Run], *, is_same_batch: bool) -> Rates:
    """Return samples/s of each run; goodput, samples/s times efficiency, where global batches differ.

    Args:
        baseline: Runs of the baseline.
        others: Runs beside it.
        is_same_batch: Whether all have the same global batch size.
    """
    first, second = (tuple(run.number(_RATE) for run in side) for side in (baseline, others))
    if is_same_batch:
        return Rates(SPEED, first, second)
    reference = baseline[0].number(_BATCH)
    lender = next((run for run in (*baseline, *others) if run.number(_NOISE) is not None), None)
    if lender is None or reference is None:
        reason = (
            "global batches differ, so that a sample is not worth the same in both, and no run records the noise scale "
            "that goodput needs"
        )
        return Rates(GOODPUT, first, second, reason)
    lent = [run for run in (*baseline, *others) if run.number(_NOISE) is None]
    note = f"the noise scale of {plain(lender.name)} stands for that of {len(lent)} runs that did not measure it"
    return Rates(
        GOODPUT,
        tuple(_goodput(run, lender, reference) for run in baseline),
        tuple(_goodput(run, lender, reference) for run in others),
        notes=(note,) if lent else (),
    )


def _goodput(run: Run, lender: Run, reference: float) -> float | None:
    rate, batch, own, lent = run.number(_RATE), run.number(_BATCH), run.number(_NOISE), lender.number(_NOISE)
    noise = lent if own is None else own
    return (
        None
        if rate is None or batch is None or noise is None
        else rate * statistical_efficiency(noise, batch, reference)
    )
