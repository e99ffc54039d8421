"""Speeds of runs, samples/s or goodput, and ratios of rates, times and sizes, on the scale of their logarithms.

Speeds of several configurations are compared together: one variance, the order of runs, and the negative control.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from paratune.base.grouping import grouped
from paratune.base.text import listing, plain
from paratune.base.units import counted
from paratune.records.efficiency import NoiseKind, statistical_efficiency
from paratune.records.finished import RunRecord
from paratune.verdicts import special
from paratune.verdicts.estimate import Estimate, Side, change_of_means, common_sides, moments
from paratune.verdicts.finding import PLACEBO, MeasureComparison, change_of_log, why_no_times
from paratune.verdicts.groups import OF_A_STEP, SPEED, Group, NegativeControl, negative_control, why_one
from paratune.verdicts.order import OrderModel, order_model, run_time

GOODPUT = "goodput"
Rates = Sequence[float | None]  # of each run; None where it is unknown
BASELINE_FACTOR = 2.0
"""The baseline's own variance counts so many times where it is above the common one: it is in all comparisons. Chosen
by simulation: benchmarks/verdicts_202611.md, section Speed."""
OWN_QUANTILE = 0.999  # of the F distribution: a configuration that varies more has its own degrees of freedom, too
LEAST_FREEDOM = 0.5  # degrees of freedom that a regression leaves a configuration with a variance of its own


def ratio(measure: str, base: Group, other: Group, first: Rates, second: Rates) -> MeasureComparison:
    """Return the ratio of the geometric means of a figure over runs; None is a run for which it is unknown."""
    counts = len(first), len(second)
    figures = zip((*base.runs, *other.runs), (*first, *second), strict=True)
    unknown = [plain(run.name) for run, value in figures if not logs_of([value])]
    if unknown:
        reason = f"unknown for {listing(unknown, 3)}"
        return MeasureComparison(measure, True, None, None, counts, code="unknown_value", reason=reason)
    logs = logs_of(first), logs_of(second)
    a, b = statistics.fmean(logs[0]), statistics.fmean(logs[1])
    found = MeasureComparison(measure, True, math.exp(a), math.exp(b), counts, change=change_of_log(b - a))
    too_few = why_one(*counts, "run")
    if too_few is not None:
        return replace(found, code="one_run", reason=too_few)
    # Not paired by seed: the time of a run does not follow from its seed.
    return found.with_interval(change_of_means(*logs, scope="runs"))


def logs_of(values: Rates) -> list[float]:
    """Return the logarithms of the values that are known and above 0."""
    return [math.log(value) for value in values if value is not None and value > 0]


def compare_speeds(
    base: Group, others: Sequence[Group], rates: Sequence[tuple[Rates, Rates]], measured: Sequence[MeasureComparison]
) -> list[MeasureComparison]:
    """Return comparisons with the variances of all configurations together; those without rates stay as they are.

    `rates` has the baseline's rates and its own of each other configuration. Speed and goodput are together where the
    baseline has the same figures in both: its batch is the reference.
    """
    compared = list(measured)
    are_known = [all(len(side) > 1 and len(logs_of(side)) == len(side) for side in sides) for sides in rates]
    is_measured = [one.estimate is not None or one.code == "placebo" for one in measured]
    known = [place for place in range(len(measured)) if are_known[place] and is_measured[place]]
    for first, places in grouped((tuple(rates[place][0]), place) for place in known).items():
        measures = [measured[place].measure for place in places]
        groups = [base, *(others[place] for place in places)]
        of_base = SPEED if SPEED in measures else measures[0]
        speeds = speeds_of(groups, [first, *(rates[place][1] for place in places)], [of_base, *measures])
        for number, place in enumerate(places, start=1):
            one = replace(measured[place], control=speeds.control)
            if speeds.model is not None:
                unadjusted = one.estimate if speeds.model.has_to_adjust else None
                one = replace(one, order=speeds.model.effects[number], unadjusted=unadjusted)
            if one.estimate is not None:
                one = one.with_interval(speeds.change([(0, number)], speeds.pair_sides))
            compared[place] = one
    return compared


def changes_of(
    base: Group, others: Sequence[Group], measure: str, values: Sequence[tuple[Rates, Rates]], *, is_speed: bool
) -> list[MeasureComparison]:
    """Return the ratio of a figure to the baseline's for each configuration, with its interval and no outcome.

    `values` are those of the baseline and of each other one. Times and rates (`is_speed`) have the variances and the
    adjustment of verdicts on speed, all else has those of the two alone.
    """
    measured = [ratio(measure, base, other, *sides) for other, sides in zip(others, values, strict=True)]
    if is_speed:
        measured = compare_speeds(base, others, values, measured)
    whys = [why_no_times(base, other) for other in others]
    # Neighbours change times, rates and shares of them, but not the memory of a run.
    counts = [why is not None and (measure in OF_A_STEP if why == PLACEBO else "memory" not in measure) for why in whys]
    compared = zip(measured, whys, counts, strict=True)
    return [one.without_change(*why) if why is not None and is_told else one for one, why, is_told in compared]


@dataclass(frozen=True, eq=False)
class Speeds:
    """The logarithms of the rates of configurations with two runs or more, the baseline first."""

    logs: list[list[float]]  # without what the order of the runs explains, where the model has to adjust
    sides: list[Side]  # with one variance for those that vary alike
    pair_sides: list[Side]  # the same for the comparison of two of them; see `sides_of_pairs`
    model: OrderModel | None  # None where the times of a run are not recorded, or there are too few runs
    control: NegativeControl | None  # None where all configurations may differ

    def change(self, pairs: Sequence[tuple[int, int]], sides: Sequence[Side] | None = None) -> Estimate:
        """Return the mean over pairs of configurations of the change from the first to the second."""
        weight = 1 / len(pairs)
        of_places = [(sides or self.sides)[place] for pair in pairs for place in pair]
        scaled = tuple(replace(side, mean_square=side.mean_square * weight**2) for side in of_places)
        changes = [moments(self.logs[other])[0] - moments(self.logs[base])[0] for base, other in pairs]
        estimate = Estimate(math.fsum(changes) * weight, scaled, 0.0, 0, "runs")
        if self.control is not None and self.control.variance:
            shared = 2 * self.control.variance * weight
            estimate = replace(estimate, shared=shared, num_samples=self.control.freedom + 1)
        if self.model is None or not self.model.has_to_adjust:
            return estimate
        means = self.model.means
        apart = sum(means[other] - means[base] for base, other in pairs) * weight
        drift = float(apart @ self.model.covariance @ apart)
        return replace(estimate, drift=drift, drift_freedom=self.model.freedom)


def speeds_of(groups: Sequence[Group], rates: Sequence[Rates], measures: Sequence[str] | None = None) -> Speeds:
    """Return the speeds of configurations; all rates are known and above 0, and each has at least 2.

    `measures` are those of the rates, by default samples/s. Goodput and times of whole runs are in no negative control.
    """
    logs = [logs_of(some) for some in rates]
    times = [[time for run in group.runs if (time := run_time(run)) is not None] for group in groups]
    are_timed = all(len(some) == len(group.runs) for some, group in zip(times, groups, strict=True))
    model = order_model(logs, times) if are_timed else None
    sides = [Side(moments(some)[1], len(some), len(some) - 1) for some in logs]
    if model is not None and model.has_to_adjust:
        explained = [rows @ model.slopes for rows in model.columns]
        logs = [(np.asarray(some) - part).tolist() for some, part in zip(logs, explained, strict=True)]
        freedoms = [len(some) - 1 - part for some, part in zip(logs, model.leverages, strict=True)]
        if len(logs) == 2 or model.is_confounded or min(freedoms) < LEAST_FREEDOM:
            sides = [Side(model.mean_square, len(some), model.freedom, is_pooled=True) for some in logs]
        else:
            sides = [
                Side(moments(some)[1] * (len(some) - 1) / freedom, len(some), freedom)
                for some, freedom in zip(logs, freedoms, strict=True)
            ]
    pooled = common_sides(sides) if len(groups) > 2 and not sides[0].is_pooled else sides
    are_of_steps = [measure in OF_A_STEP for measure in measures or [SPEED] * len(groups)]
    classes = [group.step_class if counts else None for group, counts in zip(groups, are_of_steps, strict=True)]
    return Speeds(logs, pooled, sides_of_pairs(sides, pooled), model, negative_control(logs, classes))


def sides_of_pairs(sides: Sequence[Side], pooled: Sequence[Side]) -> list[Side]:
    """Return the sides for the comparison of two configurations, the baseline's first.

    With few runs a larger variance is often not recognised by a test. So a configuration has the larger one of the
    common variance and of its own; far above the common one it also has its own degrees of freedom. `sides` have each
    its own variance, `pooled` one variance for those that vary alike; both are equal where nothing is pooled.
    """
    alike = next((side for side in pooled if side.is_pooled), None)
    if alike is None or sides[0].is_pooled:
        return list(pooled)
    found = []
    for place, (side, shared) in enumerate(zip(sides, pooled, strict=True)):
        quantile = float(special.fdtri(side.freedom, alike.freedom, OWN_QUANTILE))
        own = side.mean_square * (1 if place else BASELINE_FACTOR)
        is_apart = not shared.is_pooled and side.mean_square > quantile * alike.mean_square
        larger = max(alike.mean_square, own)
        found.append(side if is_apart else replace(side, mean_square=larger, freedom=alike.freedom, is_pooled=True))
    return found


def speed_of(
    base: Group, other: Group, *, is_same_batch: bool
) -> tuple[MeasureComparison, tuple[Rates, Rates], list[str]]:
    """Return the ratio of samples/s, or of goodput where global batches differ, the rates of each run, and notes.

    Goodput is samples/s times efficiency.
    """
    first, second = ([run.summary.throughput.samples_per_s for run in side.runs] for side in (base, other))
    if is_same_batch:
        return ratio(SPEED, base, other, first, second), (first, second), []
    reference, kind = reference_batch_of(base.runs[0]), base.noise_kind
    goodputs: list[Rates] = []
    reasons, notes = [], []
    for side, rates in ((base.runs, first), (other.runs, second)):
        stand_in, _ = pooled_noise(side, kind)
        shares = [efficiency_of(run, stand_in, reference, kind) for run in side]
        known = zip(rates, shares, strict=True)
        goodputs.append([None if rate is None or share is None else rate * share for rate, share in known])
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
        unknown = ratio(GOODPUT, base, other, first, second).without_change("unknown_noise_scale", "; ".join(reasons))
        return unknown, (first, second), []
    return ratio(GOODPUT, base, other, *goodputs), (goodputs[0], goodputs[1]), notes


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


def pooled_noise(
    runs: Sequence[RunRecord], kind: NoiseKind = "plain"
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the noise scale of runs of one configuration together, and its 95% confidence interval over runs.

    It is their traces over their squared norms, a ratio of means: each run counts by its sampled steps, also a run
    without a known noise scale, because without the runs whose estimate is negative the result would be too large.
    None where no run has an estimate; no interval for fewer than two of them, and where the squared norm cannot be told
    from 0.

    Source: Fieller, Journal of the Royal Statistical Society B 16(2), 1954.
    """
    sums = [
        (noise.trace * noise.num_steps, noise.squared_norm * noise.num_steps)
        for noise in (run.noise(kind) for run in runs)
        if noise.trace is not None and noise.squared_norm is not None and noise.num_steps is not None
    ]
    if not sums:
        return None, None
    traces, norms = zip(*sums, strict=True)
    of_all = math.fsum(traces), math.fsum(norms)
    scale = of_all[0] / of_all[1] if of_all[1] > 0 and of_all[0] >= 0 else None
    if len(sums) < 2:
        return scale, None
    trace, norm = statistics.fmean(traces), statistics.fmean(norms)
    squared_t = float(special.stdtrit(len(sums) - 1, 0.975)) ** 2 / len(sums)
    a = norm**2 - squared_t * statistics.variance(norms)
    b = trace * norm - squared_t * statistics.covariance(traces, norms)
    c = trace**2 - squared_t * statistics.variance(traces)
    if norm <= 0 or a <= 0:
        return scale, None
    half = math.sqrt(max(0.0, b * b - a * c))
    return scale, (max(0.0, (b - half) / a), (b + half) / a)


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
