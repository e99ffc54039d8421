"""Verdicts: how much faster each configuration is than a baseline, and whether its quality is equal."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from paratune.base.text import plain
from paratune.config.metric_names import METRICS
from paratune.records.finished import RunRecord
from paratune.verdicts.finding import Code, MeasureComparison, UncorrectedComparison, decide
from paratune.verdicts.groups import Differs, Group, matched
from paratune.verdicts.margins import SPEED, Margin, default_margin
from paratune.verdicts.rates import Rates, rates_of
from paratune.verdicts.ratios import ratio, without_change
from paratune.verdicts.scores import differences
from paratune.verdicts.sequential import FIRST_LOOK, LookHistory
from paratune.verdicts.speeds import compare_speeds
from paratune.verdicts.words import cluster_notes, order_notes, sentence_of


@dataclass(frozen=True)
class Verdict:
    """A configuration compared with the baseline."""

    label: str
    baseline: str
    runs: tuple[str, ...]
    baseline_runs: tuple[str, ...]
    speed: MeasureComparison
    quality: tuple[MeasureComparison, ...]
    split: str | None
    """The split whose scores are compared: test, or validation where a run has no test scores."""
    task: str
    differs: Differs
    num_compared: int
    """Configurations that are compared with this baseline; p-values are corrected for their number."""
    notes: tuple[str, ...] = ()
    sentence: str = ""
    """The verdict in words."""

    @property
    def undecided(self) -> tuple[str, ...]:
        """The measures that are not decided, and that more runs could decide."""
        return tuple(comparison.measure for comparison in (self.speed, *self.quality) if comparison.can_be_decided)

    def as_dict(self) -> dict[str, Any]:
        """Return it as plain data; unknown values are None."""
        return {**asdict(self), "undecided": list(self.undecided)}


def judge(
    groups: Sequence[Group],
    baseline: str,
    margins: Mapping[str, Margin] | None = None,
    *,
    differs: Mapping[str, Differs] | None = None,
    history: LookHistory | None = None,
) -> list[Verdict]:
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
    pairs = [
        _Pair(base, group, (differs or {}).get(group.label, Differs()), margins or {}, history or LookHistory())
        for group in groups
        if group.label != baseline
    ]
    rates = [(pair.rates.baseline, pair.rates.others) for pair in pairs]
    speeds = decide(compare_speeds(base, [pair.other for pair in pairs], rates, [pair.speed() for pair in pairs]))
    metrics = list(dict.fromkeys(metric for pair in pairs for metric in pair.metrics))
    scores: dict[tuple[str, str], MeasureComparison] = {}
    for metric in metrics:
        having = [pair for pair in pairs if metric in pair.metrics]
        decided = decide(_quality(base, having, metric))
        scores |= {(pair.other.label, metric): score for pair, score in zip(having, decided, strict=True)}
    return [pair.verdict(speed, scores, len(pairs)) for pair, speed in zip(pairs, speeds, strict=True)]


def judge_scores(
    base: Group, others: Sequence[Group], split: str, metric: str, margin: Margin, history: LookHistory
) -> list[MeasureComparison]:
    """Return the verdict on one score of each configuration against the baseline's; see `judge`."""
    measured = differences(base, others, split, metric, margin)
    return decide([_with_looks(one, base, other, history) for one, other in zip(measured, others, strict=True)])


def _with_looks(
    measured: UncorrectedComparison, base: Group, other: Group, history: LookHistory
) -> UncorrectedComparison:
    looks = history.at(*({run.name for run in group.runs} for group in (base, other))) or FIRST_LOOK
    return replace(measured, looks=looks, num_planned=history.num_planned)


def _quality(base: Group, pairs: Sequence["_Pair"], metric: str) -> list[UncorrectedComparison]:
    """Return the differences of a score; pairs that trained the same thing on one split have a common variance."""
    measured: dict[str, UncorrectedComparison] = {}
    for is_refused, split in dict.fromkeys((bool(pair.differs.refused), pair.split) for pair in pairs):
        family = [pair for pair in pairs if (bool(pair.differs.refused), pair.split) == (is_refused, split)]
        assert split is not None
        of_family = differences(base, [pair.other for pair in family], split, metric, family[0]._margin(metric))
        measured |= {pair.other.label: pair._unless_refused(one) for pair, one in zip(family, of_family, strict=True)}
    return [measured[pair.other.label] for pair in pairs]


def shared_split(runs: Sequence[RunRecord]) -> str | None:
    """Return test, or validation where a run has no test scores; None where one has neither."""
    splits = ("test", "validation")
    return next((split for split in splits if all(run.summary.scores.get(split) for run in runs)), None)


def metrics_of(runs: Sequence[RunRecord], split: str | None, wanted: Sequence[str]) -> tuple[str, ...]:
    """Return the metrics that are compared: those of the task and the wanted ones, as far as all runs have them."""
    if split is None or len({run.run.task.kind for run in runs}) > 1:
        return ()
    known = METRICS.get(str(runs[0].run.task.kind), ())
    in_all = [name for name in known if all(run.score(split, name) is not None for run in runs)]
    headline = runs[0].run.task.metrics
    first = headline or in_all[:1]
    return tuple(name for name in dict.fromkeys([*first, *wanted]) if name in in_all)


@dataclass(frozen=True)
class _Pair:
    """A group compared with the baseline."""

    base: Group
    other: Group
    differs: Differs
    margins: Mapping[str, Margin]
    history: LookHistory

    @property
    def task(self) -> str:
        return str(self.base.runs[0].run.task.kind)

    @cached_property
    def split(self) -> str | None:
        return shared_split((*self.base.runs, *self.other.runs))

    @cached_property
    def metrics(self) -> tuple[str, ...]:
        return metrics_of((*self.base.runs, *self.other.runs), self.split, [*self.margins])

    @cached_property
    def rates(self) -> Rates:
        is_same_batch = not self.differs.batch
        return rates_of(self.base.runs, self.other.runs, is_same_batch=is_same_batch, kind=self.base.noise_kind)

    def speed(self) -> UncorrectedComparison:
        rates = self.rates
        measured = ratio(rates.measure, self.base, self.other, rates.baseline, rates.others)
        finding = replace(measured.finding, margin=self._margin(SPEED).of(1.0))
        if rates.reason is not None and not self.differs.refused:
            return UncorrectedComparison(_bare(finding, rates.reason, "unknown_noise_scale"))
        if self.base.cannot_differ(self.other):
            return self._unless_refused(UncorrectedComparison(without_change(finding)))
        return self._unless_refused(UncorrectedComparison(finding, measured.estimate))

    def _margin(self, measure: str) -> Margin:
        return self.margins.get(measure) or default_margin(measure, self.task)

    def _unless_refused(self, measured: UncorrectedComparison) -> UncorrectedComparison:
        """Return what was measured, with its looks; no change where the runs trained something different."""
        if not self.differs.refused:
            return _with_looks(measured, self.base, self.other, self.history)
        reason = f"not the same experiment: they differ in {'; '.join(self.differs.refused)}"
        return UncorrectedComparison(_bare(measured.finding, reason, "not_same_experiment"))

    def verdict(
        self, speed: MeasureComparison, scores: Mapping[tuple[str, str], MeasureComparison], num_compared: int
    ) -> Verdict:
        verdict = Verdict(
            label=self.other.label,
            baseline=self.base.label,
            runs=tuple(run.name for run in self.other.runs),
            baseline_runs=tuple(run.name for run in self.base.runs),
            speed=speed,
            quality=tuple(scores[self.other.label, metric] for metric in self.metrics),
            split=self.split,
            task=self.task,
            differs=self.differs,
            num_compared=num_compared,
            notes=(*self.rates.notes, *order_notes(speed), *self._left_out()),
        )
        verdict = replace(verdict, notes=(*verdict.notes, *cluster_notes(verdict.quality)))
        return replace(verdict, sentence=sentence_of(verdict))

    def _left_out(self) -> Iterator[str]:
        seeds = [*self.base.by_seed], [*self.other.by_seed]
        for group, own_seeds, places in zip((self.base, self.other), seeds, matched(*seeds) or (), strict=False):
            shared = [own_seeds[place] for place in places]
            names = [plain(run.name) for run in group.runs if run.run.seed not in shared]
            if names and self.metrics:
                yield f"not in the scores, because the other side has no run of that seed: {', '.join(names)}"


def _bare(finding: MeasureComparison, reason: str, code: Code) -> MeasureComparison:
    """Return the figures of both sides without a change."""
    return MeasureComparison(
        finding.measure, finding.is_ratio, finding.baseline, finding.value, finding.num_runs, margin=finding.margin,
        code=code, reason=reason, split=finding.split,
    )  # fmt: skip
