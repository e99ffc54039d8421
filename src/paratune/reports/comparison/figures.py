"""Figures of configurations, each with its change and interval against the baseline."""

from dataclasses import replace

from paratune.reports.comparison.arrange import Compared, FigureRow
from paratune.reports.measures import GOODPUT, STEP_PARTS, Measure, named
from paratune.reports.systems.building import memory_kinds
from paratune.reports.systems.changes import changes
from paratune.verdicts import MeasureComparison
from paratune.verdicts.finding import Code
from paratune.verdicts.groups import SPEED
from paratune.verdicts.words import label_of

MEMORY = "peak_memory_largest_bytes"
OTHER_MEMORY: Code = "different_memory_kind"
COMPARED = (
    *named("samples_per_s", "tokens_per_s", "train_s", "epoch_s", "step_median_ms"), *STEP_PARTS,
    *named(MEMORY, "utilisation", "energy_j"),
)  # fmt: skip
"""The measures of a comparison besides scores, in their order."""


def figure_rows(compared: Compared) -> list[FigureRow]:
    """Return the figures of the configurations of a family of which at least one value is known."""
    verdicts = compared.verdicts
    rows = [FigureRow(measure, _changes(compared, measure)) for measure in COMPARED]
    # The estimate of the verdict is the one of samples/s; of goodput there may be one instead.
    speeds = (
        replace(verdict.speed, measure=finding.measure) if verdict.speed.measure == SPEED else finding
        for verdict, finding in zip(verdicts, rows[0].findings, strict=True)
    )
    rows[0] = FigureRow(rows[0].measure, tuple(speeds))
    known = (
        row for row in rows
        if any(finding.baseline is not None or finding.value is not None for finding in row.findings)
    )  # fmt: skip
    rows = [row for row in known if not _repeats(row, rows[0])]
    rows += [_scores(measure, compared) for measure in dict.fromkeys(f.measure for v in verdicts for f in v.quality)]
    goodput = [verdict.speed for verdict in verdicts if verdict.speed.measure == "goodput"]
    if len(goodput) == len(verdicts) and goodput:
        rows.insert(1, FigureRow(GOODPUT, tuple(goodput)))
    return rows


def _repeats(row: FigureRow, samples: FigureRow) -> bool:
    """Return whether tokens/s change as samples/s do; that is always so when the samples are the same."""
    both = [(finding.change, other.change) for finding, other in zip(row.findings, samples.findings, strict=True)]
    is_equal = all(a is not None and b is not None and abs(a - b) < 1e-3 for a, b in both)
    return row.measure.key == "tokens_per_s" and is_equal


def _changes(compared: Compared, measure: Measure) -> tuple[MeasureComparison, ...]:
    """Return a figure against that of the baseline; without a change when the runs are different experiments."""
    refused = {verdict.label for verdict in compared.verdicts if verdict.differs.refused}
    base = compared.base
    comparable = [other for other in compared.others if other.label not in refused]
    by_label = dict(zip((other.label for other in comparable), changes(measure, base, comparable), strict=True))
    found = []
    for other in compared.others:
        finding = by_label.get(other.label) or changes(measure, base, [other])[0]
        bare = MeasureComparison(measure.key, True, finding.baseline, finding.value, finding.num_runs)
        kinds = memory_kinds([*base.runs, *other.runs])
        if measure.key == MEMORY and len(kinds) > 1 and finding.change is not None:
            reason = f"different kinds of memory: {', '.join(kinds)}"
            finding = replace(bare, code=OTHER_MEMORY, reason=reason)
        elif other.label in refused:
            finding = replace(bare, reason="not the same experiment")
        found.append(finding)
    return tuple(found)


def _scores(measure: str, compared: Compared) -> FigureRow:
    by_verdict = [{finding.measure: finding for finding in verdict.quality} for verdict in compared.verdicts]
    absent = MeasureComparison(measure, False, None, None, (0, 0), reason="not all runs have it")
    findings = tuple(findings.get(measure, absent) for findings in by_verdict)
    return FigureRow(Measure(measure, label_of(measure), "Scores", "score"), findings)
