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
    goodputs, reasons, notes = [], [], []
    for side in (baseline, others):
        lender = next((run for run in side if run.number(_NOISE) is not None), None)
        goodputs.append(tuple(_goodput(run, lender, reference) for run in side))
        # At the reference batch a sample is worth one, whatever the noise is.
        lacking = [run for run in side if run.number(_NOISE) is None and run.number(_BATCH) != reference]
        if lender is None and lacking:
            reasons.append(
                "global batches differ, so that a sample is not worth the same in both, and no run like "
                f"{plain(lacking[0].name)} records the noise scale that goodput needs"
            )
        elif lender is not None and lacking:
            more = f"{len(lacking)} runs like it" if len(lacking) > 1 else plain(lacking[0].name)
            notes.append(f"the noise scale of {plain(lender.name)} stands for that of {more}, not measured there")
    if reasons:
        return Rates(GOODPUT, first, second, "; ".join(reasons))
    return Rates(GOODPUT, goodputs[0], goodputs[1], notes=tuple(notes))


def _goodput(run: Run, lender: Run | None, reference: float | None) -> float | None:
    """Return samples/s times efficiency, with the noise scale of a run that trained the same where it has none."""
    rate, batch = run.number(_RATE), run.number(_BATCH)
    if rate is None or batch is None or reference is None:
        return None
    if batch == reference:
        return rate
    own = run.number(_NOISE)
    noise = own if own is not None or lender is None else lender.number(_NOISE)
    return None if noise is None else rate * statistical_efficiency(noise, batch, reference)
