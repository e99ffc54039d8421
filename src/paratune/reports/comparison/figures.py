"""Figures of configurations, each with its change and interval against the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paratune.reports.measures import GOODPUT, STEP_PARTS, Measure, named
from paratune.verdicts import Group, MeasureComparison, Verdict, change_of
from paratune.verdicts.finding import Code
from paratune.verdicts.margins import SPEED
from paratune.verdicts.words import label_of

MEMORY = "peak_memory_largest_bytes"
OTHER_MEMORY: Code = "different_memory_kind"
COMPARED = (
    *named("samples_per_s", "tokens_per_s", "train_s", "epoch_s", "step_median_ms"), *STEP_PARTS,
    *named(MEMORY, "utilisation", "energy_j"),
)  # fmt: skip
"""The measures of a comparison besides scores, in their order."""


@dataclass(frozen=True)
class FigureRow:
    """A figure of all configurations of a family."""

    measure: Measure
    findings: tuple[MeasureComparison, ...]
    """Comparison with the baseline for each other configuration, in order."""

    @property
    def key(self) -> str:
        return self.measure.key

    @property
    def is_known(self) -> bool:
        return any(finding.baseline is not None or finding.value is not None for finding in self.findings)


def figure_rows(groups: Sequence[Group], baseline: str, verdicts: Sequence[Verdict]) -> list[FigureRow]:
    """Return the rows of the configurations of a family in which at least one value is known.

    `verdicts` are those on all configurations but the baseline, in order.
    """
    base = next(group for group in groups if group.label == baseline)
    refused = {verdict.label for verdict in verdicts if verdict.differs.refused}
    others = [(group, group.label in refused) for group in groups if group.label != baseline]
    rows = [
        FigureRow(measure, tuple(_change(base, other, measure, differs) for other, differs in others))
        for measure in COMPARED
    ]
    # The estimate of the verdict may be pooled over configurations and adjusted for the order of runs.
    speeds = [
        replace(verdict.speed, measure=finding.measure) if verdict.speed.measure == SPEED else finding
        for verdict, finding in zip(verdicts, rows[0].findings, strict=True)
    ]
    rows[0] = replace(rows[0], findings=tuple(speeds))
    rows = [row for row in rows if row.is_known and not _repeats(row, rows[0])]
    measures = dict.fromkeys(finding.measure for verdict in verdicts for finding in verdict.quality)
    rows += [_scores(measure, verdicts) for measure in measures]
    goodput = [verdict.speed for verdict in verdicts if verdict.speed.measure == "goodput"]
    if len(goodput) == len(verdicts) and goodput:
        rows.insert(1, FigureRow(GOODPUT, tuple(goodput)))
    return rows


def _repeats(row: FigureRow, samples: FigureRow) -> bool:
    """Return whether tokens/s change as samples/s do; that is always so when the samples are the same."""
    changes = [(finding.change, other.change) for finding, other in zip(row.findings, samples.findings, strict=True)]
    return row.key == "tokens_per_s" and all(a is not None and b is not None and abs(a - b) < 1e-3 for a, b in changes)


def _change(base: Group, other: Group, measure: Measure, is_refused: bool) -> MeasureComparison:
    """Return a figure and that of the baseline; without a change when the runs are different experiments."""
    finding = change_of(base, other, measure.key, measure.of)
    without_change = MeasureComparison(measure.key, True, finding.baseline, finding.value, finding.num_runs)
    kinds = {str(run.summary.memory.kind) for run in (*base.runs, *other.runs)}
    if measure.key == MEMORY and len(kinds) > 1 and finding.change is not None:
        reason = f"different kinds of memory: {', '.join(sorted(kinds))}"
        return replace(without_change, code=OTHER_MEMORY, reason=reason)
    return replace(without_change, reason="not the same experiment") if is_refused else finding


def _scores(measure: str, verdicts: Sequence[Verdict]) -> FigureRow:
    by_verdict = [{findings.measure: findings for findings in verdict.quality} for verdict in verdicts]
    absent = MeasureComparison(measure, False, None, None, (0, 0), reason="not all runs have it")
    return FigureRow(
        Measure(measure, label_of(measure), "Scores", "score"),
        tuple(findings.get(measure, absent) for findings in by_verdict),
    )
