"""Speed of runs: samples/s, or goodput where global batches differ."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from paratune.base.text import plain
from paratune.base.units import counted
from paratune.records.efficiency import NoiseKind, statistical_efficiency
from paratune.records.finished import RunRecord
from paratune.verdicts import special
from paratune.verdicts.groups import SPEED

GOODPUT = "goodput"


@dataclass(frozen=True)
class ComparedRates:
    """The rates of each run that are compared."""

    measure: str
    baseline: tuple[float | None, ...]
    others: tuple[float | None, ...]
    reason: str | None = None
    """Why these rates may not be compared."""
    notes: tuple[str, ...] = ()


def rates_of(
    baseline: Sequence[RunRecord], others: Sequence[RunRecord], *, is_same_batch: bool, kind: NoiseKind = "plain"
) -> ComparedRates:
    """Return samples/s of each run; goodput, samples/s times efficiency, where global batches differ."""
    first, second = (tuple(run.summary.throughput.samples_per_s for run in side) for side in (baseline, others))
    if is_same_batch:
        return ComparedRates(SPEED, first, second)
    reference = reference_batch_of(baseline[0])
    goodputs, reasons, notes = [], [], []
    for side, rates in ((baseline, first), (others, second)):
        stand_in = pooled_noise(side, kind)
        shares = [efficiency_of(run, stand_in, reference, kind) for run in side]
        known = zip(rates, shares, strict=True)
        goodputs.append(tuple(None if rate is None or share is None else rate * share for rate, share in known))
        # At the reference batch the efficiency is 1 with any noise scale.
        lacking = [
            run for run in side if run.noise(kind).value is None and run.run.batch.global_batch_size != reference
        ]
        if stand_in is None and lacking:
            why = lacking[0].noise(kind).reason
            reasons.append(
                "global batches differ, so a sample is not worth the same in both, and the noise scale that goodput "
                f"needs is n/a for runs like {plain(lacking[0].name)}{f' ({plain(why)})' if why else ''}"
            )
        elif lacking:
            whose = plain(lacking[0].name) if len(lacking) == 1 else counted(len(lacking), "run")
            notes.append(f"the noise scale of all runs together is used for {whose}, whose own cannot be estimated")
    if reasons:
        return ComparedRates(GOODPUT, first, second, "; ".join(reasons))
    return ComparedRates(GOODPUT, goodputs[0], goodputs[1], notes=tuple(notes))


def reference_batch_of(baseline: RunRecord) -> float | None:
    """Return m0, the batch of which efficiency is 1: `measure.reference_batch` of the baseline, else its global batch.

    Source: Qiao et al., Pollux, OSDI 2021, whose m0 is the batch size with which a user submits a job.
    """
    own: float | None = baseline.setting("measure.reference_batch")
    return baseline.run.batch.global_batch_size if own is None else own


def noise_kind(runs: Iterable[RunRecord]) -> NoiseKind:
    """Return the noise scale that goodput uses in a comparison: the preconditioned one if all runs have it.

    One kind for all runs, because the two kinds of one run differ. For adaptive optimizers such as Adam the
    preconditioned one is that of the efficiency of Pollux.

    Source: Qiao et al., Pollux, OSDI 2021, section 3.1; AdaptDL uses it for Adam and AdamW since version 0.2.8.
    """
    values = [run.noise("preconditioned").value for run in runs]
    return "preconditioned" if values and None not in values else "plain"


def _sums(runs: Sequence[RunRecord], kind: NoiseKind) -> list[tuple[float, float]]:
    """Return the sums of traces and of squared norms of each run that has them."""
    return [
        (noise.trace * noise.num_steps, noise.squared_norm * noise.num_steps)
        for noise in (run.noise(kind) for run in runs)
        if noise.trace is not None and noise.squared_norm is not None and noise.num_steps is not None
    ]


def pooled_noise(runs: Sequence[RunRecord], kind: NoiseKind = "plain") -> float | None:
    """Return the noise scale of runs of one configuration together: their traces over their squared norms.

    Each run counts by its sampled steps, also a run without a known noise scale: without the runs whose estimate is
    negative, the result would be too large. None where no run has an estimate.
    """
    sums = _sums(runs, kind)
    trace, norm = math.fsum(trace for trace, _ in sums), math.fsum(norm for _, norm in sums)
    return trace / norm if norm > 0 and trace >= 0 else None


def noise_interval(runs: Sequence[RunRecord], kind: NoiseKind = "plain") -> tuple[float, float] | None:
    """Return the 95% confidence interval of `pooled_noise`, a ratio of means over runs.

    None for fewer than two runs with an estimate, and where the squared norm cannot be told from 0.

    Source: Fieller, Journal of the Royal Statistical Society B 16(2), 1954.
    """
    sums = _sums(runs, kind)
    if len(sums) < 2:
        return None
    traces, norms = zip(*sums, strict=True)
    trace, norm = statistics.fmean(traces), statistics.fmean(norms)
    squared_t = float(special.stdtrit(len(sums) - 1, 0.975)) ** 2 / len(sums)
    a = norm**2 - squared_t * statistics.variance(norms)
    b = trace * norm - squared_t * statistics.covariance(traces, norms)
    c = trace**2 - squared_t * statistics.variance(traces)
    if norm <= 0 or a <= 0:
        return None
    half = math.sqrt(max(0.0, b * b - a * c))
    return max(0.0, (b - half) / a), (b + half) / a


def efficiency_of(
    run: RunRecord, stand_in: float | None, reference: float | None, kind: NoiseKind = "plain"
) -> float | None:
    """Return the statistical efficiency of a run: by its own noise scale, else by `stand_in`; 1 at the reference batch.

    `stand_in` is the noise scale of all runs of its configuration together, `reference` is m0, samples of a step.
    """
    batch, own = run.run.batch.global_batch_size, run.noise(kind).value
    if batch is None or reference is None:
        return None
    if batch == reference:
        return 1.0
    noise = stand_in if own is None else own
    return None if noise is None else statistical_efficiency(noise, batch, reference)
