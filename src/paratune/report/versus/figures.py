"""Figures of configurations beside those of a baseline, each with its change and interval."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from paratune.records import ALL_PHASES
from paratune.report.speed_rows import PHASE_NAMES, epoch_s, step_parts_ms
from paratune.verdicts import ComparedRun, Group, MeasureComparison, Verdict, change_of
from paratune.verdicts.words import label_of

Figure = Callable[[ComparedRun], float | None]


@dataclass(frozen=True)
class FigureRow:
    """One figure of all configurations of a family."""

    key: str
    """Its name in JSON, with the unit last."""
    label: str
    unit: str
    """bytes, or empty."""
    findings: tuple[MeasureComparison, ...]
    """Against the baseline, of each other configuration in order."""

    @property
    def is_known(self) -> bool:
        return any(each.baseline is not None or each.value is not None for each in self.findings)


def figure_rows(groups: Sequence[Group], baseline: str, verdicts: Sequence[Verdict]) -> list[FigureRow]:
    """Return the rows of which something is known.

    Args:
        groups: All configurations of a family.
        baseline: Label of the one that the others are held against.
        verdicts: Of the others, in order.
    """
    base = next(group for group in groups if group.label == baseline)
    refused = {verdict.label for verdict in verdicts if verdict.differs.refused}
    others = [(group, group.label in refused) for group in groups if group.label != baseline]
    rows = [
        FigureRow(key, label, unit, tuple(_change(base, other, key, figure, differs) for other, differs in others))
        for key, label, unit, figure in _figures()
    ]
    rows = [row for row in rows if row.is_known and not _repeats(row, rows[0])]
    measures = dict.fromkeys(found.measure for verdict in verdicts for found in verdict.quality)
    rows += [_scores(measure, verdicts) for measure in measures]
    goodput = [verdict.speed for verdict in verdicts if verdict.speed.measure == "goodput"]
    if len(goodput) == len(verdicts) and goodput:
        rows.insert(1, FigureRow("goodput_samples_per_s", "Goodput (samples/s)", "", tuple(goodput)))
    return rows


def _repeats(row: FigureRow, samples: FigureRow) -> bool:
    """Return whether the tokens/s change as the samples/s do, as they must where the samples are the same."""
    changes = [(one.change, other.change) for one, other in zip(row.findings, samples.findings, strict=True)]
    return row.key == "tokens_per_s" and all(a is not None and b is not None and abs(a - b) < 1e-3 for a, b in changes)


def _change(base: Group, other: Group, key: str, figure: Figure, is_refused: bool) -> MeasureComparison:
    """Return a figure beside the baseline's; of what trained something different, without the change."""
    found = change_of(base, other, key, figure)
    if not is_refused:
        return found
    return MeasureComparison(key, True, found.baseline, found.value, found.num_runs, reason="not the same experiment")


def _scores(measure: str, verdicts: Sequence[Verdict]) -> FigureRow:
    by_verdict = [{found.measure: found for found in verdict.quality} for verdict in verdicts]
    absent = MeasureComparison(measure, False, None, None, (0, 0), reason="not all runs have it")
    return FigureRow(measure, label_of(measure), "", tuple(found.get(measure, absent) for found in by_verdict))


def _figures() -> Iterator[tuple[str, str, str, Figure]]:
    """Yield key, label, unit and source of each figure, in the order of the table."""
    yield "samples_per_s", "Samples/s", "", _at("summary.throughput.samples_per_s")
    yield "tokens_per_s", "Real tokens/s", "", _at("summary.throughput.tokens_per_s")
    yield "train_s", "Training time (s)", "", _at("summary.time.train_s")
    yield "epoch_s", "Time per epoch (s)", "", epoch_s
    yield "step_median_ms", "Median step (ms)", "", _at("summary.step_ms.median")
    for phase in ALL_PHASES:
        yield f"{phase}_mean_ms", f"{PHASE_NAMES[phase]} (ms)", "", partial(_phase, phase)
    yield "peak_memory_largest_bytes", "Peak memory", "bytes", _at("summary.memory.largest_bytes")
    yield "utilisation", "Utilisation (share)", "", _at("summary.utilisation.mean")
    yield "energy_j", "Energy (J)", "", _at("summary.utilisation.energy_j")


def _at(source: str) -> Figure:
    return lambda run: run.number(source)


def _phase(phase: str, run: ComparedRun) -> float | None:
    return step_parts_ms(run)[phase]
