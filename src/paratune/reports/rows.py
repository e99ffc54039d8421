"""Runs by measures: the rows of a table of runs, time to quality, and the results as a `pandas.DataFrame`."""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from paratune import records
from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_number
from paratune.config.metric_names import ScoreTarget
from paratune.errors import CheckpointError, ConfigError
from paratune.records.finished import RunRecord, number_in, steps_taken
from paratune.reports.amounts import scale_of
from paratune.reports.measures import MEASURES, Measure, cost, efficiency_measures, score, score_measures
from paratune.reports.tables.table import TableCell

if TYPE_CHECKING:
    import pandas

TARGETS_GROUP = "Time to quality"


@dataclass(frozen=True)
class TargetResult:
    """When a run reached a target."""

    best: float | None = None  # best score of all evaluations; None without evaluations by the metric of the target
    train_s: float | None = None  # wall time of the steps until then, of the slowest rank
    total_s: float | None = None  # with start-up, tokenization, evaluations (with that one) and checkpoints until then
    absent: str = NOT_AVAILABLE  # text of a time that is unknown, with the reason


def target_measures(
    runs: Sequence[RunRecord], targets: Sequence[ScoreTarget]
) -> Iterator[tuple[Measure, Measure, Measure]]:
    """Yield for each target the training time and the whole time until it was reached, and the best score of all
    evaluations; raises as `evaluate_targets`.
    """
    source = "events: step and evaluation, up to the target"
    for target, results in zip(targets, evaluate_targets(runs, targets), strict=True):
        key, read = f"until_{target.metric}_{target.value:g}_s", partial(_result, results=results)
        train, total = (
            Measure(TARGETS_GROUP, f"{part}_{key}", f"{label} until {target.text}", "s", -1, source,
                    read=partial(read, name=f"{part}_s"), absent=partial(read, name="absent"))
            for part, label in (("train", "Training"), ("total", "Whole run"))
        )  # fmt: skip
        best = score("validation", target.metric)
        yield train, total, replace(
            best, key=f"best_{target.metric}", label=f"Best {best.label}", source="events: evaluation",
            read=partial(read, name="best"),
        )  # fmt: skip


def _result(run: RunRecord, results: Mapping[str, TargetResult], name: str) -> Any:
    return getattr(results.get(run.name, TargetResult()), name)


def evaluate_targets(runs: Sequence[RunRecord], targets: Sequence[ScoreTarget]) -> list[dict[str, TargetResult]]:
    """Read the events of runs, and return for each target when each run first met it.

    Raises:
        ConfigError: No run was evaluated by a target's metric.
    """
    by_target: list[dict[str, TargetResult]] = [{} for _ in targets]
    notes, metrics = [], set[str]()
    for run in runs if targets else ():
        try:
            ranks = [list(records.read_events(run.folder, rank)) for rank in records.event_ranks(run.folder)]
        except CheckpointError as error:
            notes.append(plain(error))
            for results in by_target:
                results[run.name] = TargetResult(absent=f"{NOT_AVAILABLE}: its events are damaged")
            continue
        evaluations = [
            (at, number_in(event.get("step")), {str(name): number_in(value) for name, value in scores.items()})
            for at, event in enumerate(ranks[0] if ranks else ())
            if event["event"] == "evaluation" and event.get("split") == "validation"
            and isinstance(scores := event.get("scores"), dict)
        ]  # fmt: skip
        metrics |= {name for *_, scores in evaluations for name, score in scores.items() if score is not None}
        for target, results in zip(targets, by_target, strict=True):
            known = [(at, step, value) for at, step, by in evaluations if (value := by.get(target.metric)) is not None]
            results[run.name] = _first_met(run, target, known, ranks)
    for target in targets:
        if target.metric not in metrics:
            listed = ", ".join(sorted(map(plain, metrics))) or "; ".join(["none: no log has an evaluation", *notes])
            text = f"--target {target.metric}: no run was evaluated by it during training; known are {listed}"
            raise ConfigError(text, code="metric.unknown", option="--target", value=target.metric)
    return by_target


def _first_met(
    run: RunRecord, target: ScoreTarget, known: Sequence[tuple[int, float | None, float]],
    ranks: Sequence[Sequence[dict[str, Any]]],
) -> TargetResult:  # fmt: skip
    """Return when a run first met a target; `known` has place in the events, step and score of its evaluations."""
    best = (max if target.is_higher_better else min)((score for *_, score in known), default=None)
    place, last = next(((at, step) for at, step, score in known if target.is_met(score)), (0, None))
    steps = [[event for event in events if event["event"] == "step"] for events in ranks]
    if last is None:
        unmet = f"{NOT_AVAILABLE}: not evaluated by it" if best is None else f"not reached (best {format_number(best)})"
        lacks = len(steps[0] if steps else ()) < (steps_taken(run) or 0)  # the lost part may have met it
        return TargetResult(best, absent=f"{NOT_AVAILABLE}: its event log lacks steps" if lacks else unmet)
    pairs = [[(number_in(event.get("step")), number_in(event.get("wall_ms"))) for event in events] for events in steps]
    known_ms = [{step: ms for step, ms in own if step is not None and ms is not None and step <= last} for own in pairs]
    train_s = None if any(None in pair for own in pairs for pair in own) else records.elapsed_s(known_ms)
    # The record has one start-up time for all sessions, so that the time until a resume is unknown.
    if any(item["event"] == "resume" for item in ranks[0][place + 1 :]):
        why = "resumed later, and start-up is recorded of all sessions together"
        return TargetResult(best, train_s, absent=f"{NOT_AVAILABLE}: {why}")
    pauses = (item for item in ranks[0][: place + 1] if item["event"] in ("evaluation", "checkpoint"))
    times = [train_s, run.summary.time.startup_s, run.summary.time.tokenize_s]
    times += [number_in(item.get("time_s")) for item in pauses]
    return TargetResult(best, train_s, None if None in times else sum(time or 0.0 for time in times))


@dataclass(frozen=True)
class ReportRow:
    """A measure of all runs: its label with the unit, and one cell for each run, whose `runs` is the run's name."""

    measure: Measure
    label: str
    cells: tuple[TableCell, ...]

    @property
    def shown(self) -> bool:
        """Whether tables show it; CSV and JSON have all rows."""
        values = [cell.value for cell in self.cells]
        is_shown = {"data": False, "differs": len(set(values)) > 1, "nonzero": any(values)}
        return is_shown.get(self.measure.show, any(cell.is_known for cell in self.cells))


def row_of(measure: Measure, runs: Sequence[RunRecord]) -> ReportRow:
    """Return a measure of runs."""
    values = [measure.of(run) for run in runs]
    scale = scale_of(measure.unit, values)
    side = {1: " ↑", -1: " ↓"}.get(measure.better, "") if measure.is_quality else ""
    cells = []
    for run, value in zip(runs, values, strict=True):
        text = scale.text(value) if value is not None or measure.absent is None else measure.absent(run)
        cells.append(TableCell(text, value, (run.name,), measure.source))
    return ReportRow(measure, scale.label(measure.label) + side, tuple(cells))


def build_rows(
    runs: Sequence[RunRecord], *, reference: RunRecord | None = None, targets: Sequence[ScoreTarget] = (),
    price: float | None = None,
) -> tuple[ReportRow, ...]:  # fmt: skip
    """Return the rows of a table of runs, in their order; the runs are in the order of the columns.

    The statistical efficiency is against the reference batch of `reference`, of the first run when None. Rows show when
    runs reached the `targets`, and what they cost with a `price` of a device-hour.

    Raises:
        ConfigError: No run was evaluated by a target's metric.
    """
    measures = [*MEASURES.values(), *efficiency_measures(runs, reference or runs[0])]
    measures += [measure for train, total, _ in target_measures(runs, targets) for measure in (train, total)]
    measures += cost(price) if price is not None else []
    measures += score_measures(runs)
    groups = list(dict.fromkeys(measure.group for measure in measures))
    return tuple(row_of(measure, runs) for measure in sorted(measures, key=lambda item: groups.index(item.group)))


def results(
    runs: Mapping[str, RunRecord | None], columns: Sequence[Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Return a line for each run with all measures, in the units of their names; unknown values are None.

    `runs` has the records by name, None for a run without one. `columns` has those of each run that come first, such as
    the values of axes; they replace measures of their name. Probes have no scores.
    """
    found = [run for run in runs.values() if run is not None]
    measures = [*MEASURES.values(), *score_measures(found)]
    unknown = dict.fromkeys(measure.key for measure in measures)
    lines = []
    for own, run in zip(columns or [{} for _ in runs], runs.values(), strict=True):
        shown = [measure for measure in measures if not (measure.is_quality and own.get("kind") == "probe")]
        known = {} if run is None else {measure.key: measure.of(run) for measure in shown}
        lines.append({**own, **unknown, **known, **own})
    return lines


def results_frame(
    runs: Mapping[str, RunRecord | None], columns: Sequence[Mapping[str, Any]] | None = None
) -> "pandas.DataFrame":
    """Return `results` as a table."""
    import pandas as pd

    # Whole numbers stay whole beside missing values.
    return pd.DataFrame(results(runs, columns), index=pd.Index(runs, name="run")).convert_dtypes()


def results_csv(lines: Sequence[Mapping[str, Any]]) -> str:
    """Return lines with the same columns as CSV, the units last in their names; unknown values are empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    for row in (*map(list, lines[:1]), *(line.values() for line in lines)):
        cells: list[Any] = []
        for cell in row:  # a spreadsheet would read a text that starts with one of these as a formula (OWASP)
            is_formula = isinstance(cell, str) and cell[:1] in {"=", "+", "-", "@", "\t", "\r", "\n"}
            cells.append(("'" * is_formula + plain(cell)) if isinstance(cell, str) else cell)
        writer.writerow(cells)
    return file.getvalue()
