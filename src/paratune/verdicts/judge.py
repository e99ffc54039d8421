"""Verdicts: how much faster each configuration is than a baseline, and whether its quality is equal.

And main effects of the axes of a matrix. A matrix of strategy, precision and learning rate has one effect for each
value of an axis, in place of a comparison within each combination of the others. The effect is the mean, over the
combinations that have both values, of the difference of cell means: the least-squares effect of a balanced design.
Variances of cells are pooled where they are alike, and are Welch's elsewhere.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from statistics import fmean
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import plain
from paratune.config.metric_names import METRICS
from paratune.records.finished import RunRecord
from paratune.verdicts.finding import (
    NEED_RUNS,
    PLACEBO,
    Code,
    MeasureComparison,
    change_of_log,
    decide,
    why_no_times,
)
from paratune.verdicts.groups import SPEED, Differs, Group, Margin, default_margin, matched
from paratune.verdicts.scores import differences
from paratune.verdicts.sequential import LookHistory
from paratune.verdicts.speeds import Speeds, compare_speeds, logs_of, speed_of, speeds_of
from paratune.verdicts.words import comparison_notes, comparison_words, quality_words

Pairs = Sequence[tuple[int, int]]  # places of cells that differ only on an axis, the baseline's value first


@dataclass(frozen=True)
class Verdict:
    """A configuration compared with the baseline."""

    label: str
    baseline: str
    runs: tuple[str, ...]
    baseline_runs: tuple[str, ...]
    speed: MeasureComparison
    quality: tuple[MeasureComparison, ...]
    split: str | None  # the split whose scores are compared: test, or validation where a run has no test scores
    task: str
    differs: Differs
    num_compared: int  # configurations that are compared with this baseline; p-values are corrected for their number
    notes: tuple[str, ...] = ()

    @property
    def head(self) -> str:
        return f"{plain(self.label)} against {plain(self.baseline)}"

    @property
    def parts(self) -> list[tuple[str, bool | None]]:
        """Speed, quality and differences in words, each with whether it is better.

        True: shown to be better than the baseline; False: shown to be worse; None: equal, or not decided.
        """
        differs, speed, quality = self.differs, self.speed, self.quality
        if differs.refused:
            return [(f"no verdict: not the same experiment; they differ in {'; '.join(differs.refused)}", None)]
        known = (speed, *quality)
        parts = [(comparison_words(one, self.task), one.is_better if one.is_shown else None) for one in known]
        if not quality or all(score.outcome == "equal" for score in quality):
            words, (faster, is_faster) = quality_words(quality, self.task), parts[0]
            parts = [(f"{faster}, {words}", is_faster)] if quality else [(faster, is_faster), (words, None)]
        if differs.allowed:
            parts.append((f"they differ in {'; '.join(differs.allowed)}, which is what is compared", None))
        if differs.elsewhere:
            parts.append(("they ran on different machines, which changes times and memory too", None))
        if differs.unknown:
            parts.append((f"whether they trained the same thing is not recorded ({'; '.join(differs.unknown)})", None))
        return parts

    @property
    def sentence(self) -> str:
        return f"{self.head}: {'; '.join(text for text, _ in self.parts)}."

    @property
    def undecided(self) -> tuple[str, ...]:
        """The measures that are not decided, and that more runs could decide."""
        return tuple(one.measure for one in (self.speed, *self.quality) if one.code in NEED_RUNS)

    def as_dict(self) -> dict[str, Any]:
        return {
            **vars(self), "differs": asdict(self.differs), "speed": self.speed.as_dict(),
            "quality": [score.as_dict() for score in self.quality], "sentence": self.sentence,
            "undecided": list(self.undecided),
        }  # fmt: skip


def judge(
    groups: Sequence[Group], baseline: str, margins: Mapping[str, Margin] | None = None, *,
    differs: Mapping[str, Differs] | None = None, history: LookHistory | None = None,
) -> list[Verdict]:  # fmt: skip
    """Return a verdict of each group but the baseline's, in their order.

    Args:
        groups: Configurations; labels are unique, none is without runs, and no run is in two.
        baseline: Label of the one that the others are compared with.
        margins: By measure (`speed`, or a metric); `default_margin` for those that are absent. Metrics named here are
            judged too, besides the headline metrics of the task.
        differs: By label, how the experiment of a group differs from that of the baseline; absent: not at all.
        history: Earlier looks at these runs, of which p-values are corrected; none when None.
    """
    base = next(group for group in groups if group.label == baseline)
    others = [group for group in groups if group.label != baseline]
    differ = [(differs or {}).get(other.label, Differs()) for other in others]
    margins, history, task = margins or {}, history or LookHistory(), base.runs[0].task
    looks = [history.at(base.runs, other.runs) for other in others]
    # Of runs that trained something different there are figures and no change.
    refusals: dict[int, tuple[Code, str]] = {
        place: ("not_same_experiment", f"not the same experiment: they differ in {'; '.join(own.refused)}")
        for place, own in enumerate(differ)
        if own.refused
    }
    found = [speed_of(base, other, is_same_batch=not own.batch) for other, own in zip(others, differ, strict=True)]
    margin, measured = margins.get(SPEED) or default_margin(SPEED, task), []
    for place, (one, _, _) in enumerate(found):
        why = refusals.get(place) or why_no_times(base, others[place])
        if why == PLACEBO and one.code == "unknown_noise_scale":
            why = None
        one = replace(one, margin=margin.amount)
        measured.append(one if why is None else one.without_change(*why))
    together = compare_speeds(base, others, [rates for _, rates, _ in found], measured)
    speeds = decide(together, looks, history.num_planned)

    runs = [(*base.runs, *other.runs) for other in others]
    splits = [*map(shared_split, runs)]
    metrics = [metrics_of(some, split, [*margins]) for some, split in zip(runs, splits, strict=True)]
    scores: dict[tuple[int, str], MeasureComparison] = {}
    for metric in dict.fromkeys(chain.from_iterable(metrics)):
        margin = margins.get(metric) or default_margin(metric, task)
        places = [place for place, own in enumerate(metrics) if metric in own]
        # Those that trained the same thing on one split have a common variance.
        families = grouped(((place in refusals, splits[place]), place) for place in places)
        by_place: dict[int, MeasureComparison] = {}
        for (_, split), members in families.items():
            assert split is not None
            of_family = differences(base, [others[place] for place in members], split, metric, margin)
            for at, one in zip(members, of_family, strict=True):
                by_place[at] = one.without_change(*refusals[at]) if at in refusals else one
        decided = decide([by_place[place] for place in places], [looks[place] for place in places], history.num_planned)
        scores |= {(place, metric): score for place, score in zip(places, decided, strict=True)}

    verdicts = []
    for place, other in enumerate(others):
        quality = tuple(scores[place, metric] for metric in metrics[place])
        left_out = _left_out(base, other) if quality else ()
        verdicts.append(Verdict(
            label=other.label, baseline=baseline, runs=tuple(run.name for run in other.runs),
            baseline_runs=tuple(run.name for run in base.runs), speed=speeds[place], quality=quality,
            split=splits[place], task=task, differs=differ[place], num_compared=len(others),
            notes=(*found[place][2], *left_out, *comparison_notes(speeds[place], quality)),
        ))  # fmt: skip
    return verdicts


def shared_split(runs: Sequence[RunRecord]) -> str | None:
    """Return test, or validation where a run has no test scores; None where one has neither."""
    splits = ("test", "validation")
    return next((split for split in splits if all(run.summary.scores.get(split) for run in runs)), None)


def metrics_of(runs: Sequence[RunRecord], split: str | None, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that are compared: those of the task and the wanted ones, as far as all runs have them."""
    tasks = {run.task for run in runs if not run.is_foreign}
    if split is None or len(tasks) > 1:
        return ()
    known = METRICS.get(str(*tasks), ()) if tasks else tuple(dict.fromkeys(chain(*METRICS.values())))
    in_all = [name for name in known if all(run.score(split, name) is not None for run in runs)]
    headline = next((run.run.task.metrics for run in runs if run.run.task.metrics), [])
    first = headline or in_all[:1]
    return tuple(name for name in dict.fromkeys([*first, *wanted]) if name in in_all)


def _left_out(base: Group, other: Group) -> Iterator[str]:
    """Yield notes on the runs of both sides whose seed the other side does not have, if seeds are compared in pairs."""
    seeds = [*base.by_seed], [*other.by_seed]
    for group, own, places in zip((base, other), seeds, matched(*seeds) or (), strict=False):
        shared = [own[place] for place in places]
        names = [plain(run.name) for run in group.runs if run.run.seed not in shared]
        if names:
            yield f"not in the scores, because the other side has no run of that seed: {', '.join(names)}"


@dataclass(frozen=True)
class FactorEffect:
    """The effect of a value of an axis on one measure, against the baseline's value."""

    axis: str
    level: str
    baseline: str
    comparison: MeasureComparison
    num_combinations: int  # combinations of the other axes that have both values

    def as_dict(self) -> dict[str, Any]:
        return {**vars(self), "comparison": self.comparison.as_dict()}


def factor_effects(
    cells: Sequence[Group], baseline: Mapping[str, str], margins: Mapping[str, Margin] | None = None, *,
    history: LookHistory | None = None,
) -> list[FactorEffect]:  # fmt: skip
    """Return the main effects of all axes with two values or more, on speed and on the scores that all runs have.

    `cells` have their `levels`; `baseline` is the value of each axis with which its others are compared. An axis that
    changes the global batch size has no effect on speed here: a sample is not worth the same then. `margins` and
    `history` are those of `judge`.
    """
    runs = [run for cell in cells for run in cell.runs]
    task, split = runs[0].task, shared_split(runs)
    margins, history = margins or {}, history or LookHistory()
    rates = [[run.summary.throughput.samples_per_s for run in cell.runs] for cell in cells]
    are_known = all(len(some) > 1 and len(logs_of(some)) == len(some) for some in rates)
    speeds = speeds_of(cells, rates) if are_known else None
    place_of = {frozenset(cell.levels.items()): place for place, cell in enumerate(cells)}
    effects: list[FactorEffect] = []
    for axis, base in baseline.items():
        pairs: dict[str, Pairs] = {}
        sides: list[tuple[Group, Group]] = []
        for level in dict.fromkeys(cell.levels[axis] for cell in cells):
            of_base = [(place, cell.levels) for place, cell in enumerate(cells) if cell.levels[axis] == base]
            others = [(place, place_of.get(frozenset({**own, axis: level}.items()))) for place, own in of_base]
            found = [(place, other) for place, other in others if other is not None]
            if level == base or not found:
                continue
            pairs[level] = found
            # All runs of a value: scores are averaged over the combinations of a seed, which both values have. Where a
            # pair of cells has no seed in common, all its runs count.
            of_values: tuple[list[RunRecord], list[RunRecord]] = [], []
            for pair in found:
                seeds = [{run.run.seed for run in cells[place].runs} for place in reversed(pair)]
                for place, of_other, of_value in zip(pair, seeds, of_values, strict=True):
                    own_runs = cells[place].runs
                    of_value.extend([run for run in own_runs if run.run.seed in of_other] or own_runs)
            sides.append((Group("0", tuple(of_values[0])), Group("1", tuple(of_values[1]))))
        looks = [history.at(first.runs, second.runs) for first, second in sides]
        for measure in (SPEED, *metrics_of(runs, split, [*margins])):
            margin = margins.get(measure) or default_margin(measure, task)
            if measure == SPEED:
                measured = [_speed(speeds, cells, rates, some, margin) for some in pairs.values()]
            else:
                measured = [differences(first, [second], split or "", measure, margin)[0] for first, second in sides]
            for level, comparison in zip(pairs, decide(measured, looks, history.num_planned), strict=True):
                effects.append(FactorEffect(axis, level, base, comparison, len(pairs[level])))
    return effects


def _speed(
    speeds: Speeds | None, cells: Sequence[Group], rates: Sequence[Sequence[float | None]], pairs: Pairs,
    margin: Margin,
) -> MeasureComparison:  # fmt: skip
    """Return the comparison of the rates of two values; `speeds` is None where a cell has one run or no rate."""
    counts = tuple(sum(len(rates[pair[side]]) for pair in pairs) for side in (0, 1))
    bare = MeasureComparison(SPEED, True, None, None, (counts[0], counts[1]), margin=margin.amount)
    groups = [(cells[base], cells[other]) for base, other in pairs]
    if any(len({run.run.batch.global_batch_size for run in (*a.runs, *b.runs)}) > 1 for a, b in groups):
        return bare.without_change("not_same_experiment", "the global batch size differs")
    known = [[logs_of(rates[pair[side]]) for pair in pairs] for side in (0, 1)]
    whys = {why_no_times(first, second) for first, second in groups}
    is_placebo = whys == {PLACEBO}
    if tuple(sum(map(len, side)) for side in known) != counts:
        lost = PLACEBO if is_placebo else ("unknown_value", "a rate is not recorded")
        return bare.without_change(*lost)
    means = [fmean(fmean(logs) for logs in side) for side in known]
    change = change_of_log(means[1] - means[0])
    found = replace(bare, baseline=math.exp(means[0]), value=math.exp(means[1]), change=change)
    if disturbed := next(filter(None, whys - {PLACEBO}), PLACEBO if is_placebo else None):
        return found.without_change(*disturbed)
    if speeds is None:
        return replace(found, code="one_run", reason="one run in a combination")
    return replace(found, control=speeds.control).with_interval(speeds.change(pairs))
