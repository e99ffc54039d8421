"""Figures of configurations, each with its change and interval against the baseline."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paratune.records import ALL_PHASES
from paratune.reports.rows.speed import PHASE_NAMES, epoch_s, step_part_ms
from paratune.verdicts import ComparedRun, Group, MeasureComparison, Verdict, change_of
from paratune.verdicts.finding import Code
from paratune.verdicts.margins import SPEED
from paratune.verdicts.words import label_of

MEMORY = "peak_memory_largest_bytes"
OTHER_MEMORY: Code = "different_memory_kind"
Figure = Callable[[ComparedRun], float | None]


@dataclass(frozen=True)
class FigureRow:
    """A figure of all configurations of a family."""

    key: str
    """Name in JSON, with the unit last."""
    label: str
    findings: tuple[MeasureComparison, ...]
    """Comparison with the baseline for each other configuration, in order."""

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
        FigureRow(key, label, tuple(_change(base, other, key, figure, differs) for other, differs in others))
        for key, label, figure in _figures()
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
        rows.insert(1, FigureRow("goodput_samples_per_s", "Goodput (samples/s)", tuple(goodput)))
    return rows


def _repeats(row: FigureRow, samples: FigureRow) -> bool:
    """Return whether tokens/s change as samples/s do; that is always so when the samples are the same."""
    changes = [(finding.change, other.change) for finding, other in zip(row.findings, samples.findings, strict=True)]
    return row.key == "tokens_per_s" and all(a is not None and b is not None and abs(a - b) < 1e-3 for a, b in changes)


def _change(base: Group, other: Group, key: str, figure: Figure, is_refused: bool) -> MeasureComparison:
    """Return a figure and that of the baseline; without a change when the runs are different experiments."""
    finding = change_of(base, other, key, figure)
    without_change = MeasureComparison(key, True, finding.baseline, finding.value, finding.num_runs)
    kinds = {str(run.get("summary.memory.kind")) for run in (*base.runs, *other.runs)}
    if key == MEMORY and len(kinds) > 1 and finding.change is not None:
        reason = f"different kinds of memory: {', '.join(sorted(kinds))}"
        return replace(without_change, code=OTHER_MEMORY, reason=reason)
    return replace(without_change, reason="not the same experiment") if is_refused else finding


def _scores(measure: str, verdicts: Sequence[Verdict]) -> FigureRow:
    by_verdict = [{findings.measure: findings for findings in verdict.quality} for verdict in verdicts]
    absent = MeasureComparison(measure, False, None, None, (0, 0), reason="not all runs have it")
    return FigureRow(measure, label_of(measure), tuple(findings.get(measure, absent) for findings in by_verdict))


def _figures() -> Iterator[tuple[str, str, Figure]]:
    """Yield key, label and source of each figure, in the order of the table."""
    yield "samples_per_s", "Samples/s", _at("summary.throughput.samples_per_s")
    yield "tokens_per_s", "Real tokens/s", _at("summary.throughput.tokens_per_s")
    yield "train_s", "Training time (s)", _at("summary.time.train_s")
    yield "epoch_s", "Time per epoch (s)", epoch_s
    yield "step_median_ms", "Median step (ms)", _at("summary.step_ms.median")
    for phase in ALL_PHASES:
        yield f"{phase}_mean_ms", f"{PHASE_NAMES[phase]} (ms)", partial(step_part_ms, phase=phase)
    yield MEMORY, "Peak memory", _at("summary.memory.largest_bytes")
    yield "utilisation", "Utilisation (share)", _at("summary.utilisation.mean")
    yield "energy_j", "Energy (J)", _at("summary.utilisation.energy_j")


def _at(source: str) -> Figure:
    return lambda run: run.number(source)
