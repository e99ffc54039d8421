"""When the configurations of a matrix first reached a score on their validation sets."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.config.targets import ScoreTarget
from paratune.errors import CheckpointError
from paratune.reports.runs.read import RunRecord
from paratune.reports.runs.targets import TargetResult, TargetResults, check_known, evaluate_targets
from paratune.reports.systems.building import FigureColumn, build, names
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.measures import Amount, ReportMeasure, score
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Column, Table, TableCell

Found = Mapping[str, TargetResults]
"""By the run's name."""


def target_tables(systems: Systems, targets: Sequence[ScoreTarget]) -> Iterator[Table]:
    """Yield the table of each target; reads the events of all runs except probes.

    Raises:
        ConfigError: No run was evaluated by the metric of a target.
    """
    members = [member for member in systems.measured if not member.is_probe]
    if not targets or not members:
        return
    evaluated, damaged = _evaluate_runs(members, targets)
    check_known(targets, list(evaluated.values()))
    for at, target in enumerate(targets):
        results = {name: member.reached[at] for name, member in evaluated.items()}
        yield _table(systems, members, target, results, damaged, at)


def _evaluate_runs(members: Sequence[Configuration], targets: Sequence[ScoreTarget]) -> tuple[Found, list[str]]:
    """Return the results of each run, and messages on damaged events."""
    evaluated, damaged = {}, []
    for run in (run for member in members for run in member.runs):
        try:
            evaluated[run.name] = evaluate_targets(run, targets)
        except CheckpointError as error:
            damaged.append(plain(error))
    return evaluated, damaged


def _table(
    systems: Systems, members: Sequence[Configuration], target: ScoreTarget, results: Mapping[str, TargetResult],
    damaged: Sequence[str], number: int,
) -> Table:  # fmt: skip
    """Return how many runs of each configuration reached a score, when, and their best scores."""
    score_measure = score("validation", target.metric)
    key = f"{target.metric}_{target.value:g}_s"
    source = "events: step, evaluation"
    train = ReportMeasure(f"train_until_{key}", "Training until then", "seconds", -1, source)
    total = ReportMeasure(f"total_until_{key}", "Whole run until then", "seconds", -1, source)
    label, better = f"Best {score_measure.label}", score_measure.better
    best = ReportMeasure(f"best_{target.metric}", label, "score", better, "events: evaluation", is_quality=True)

    def times(measure: ReportMeasure, part: str) -> FigureColumn:
        return FigureColumn(measure, lambda member: _amount(measure, member, results, part), is_always_shown=True)

    met = [[results[run.name].step is not None for run in member.runs if run.name in results] for member in members]
    labels = [
        names("Configuration", "configuration", [member.label for member in members]),
        (
            Column("Reached by", "reached_by", is_text=True),
            [_reached_by(reached, member.runs) for reached, member in zip(met, members, strict=True)],
        ),
    ]
    figures = [times(train, "train_s"), times(total, "total_s"), times(best, "best")]
    notes = [
        "From the evaluations during training. Times are means over the runs that reached the score, so they are too "
        "short when some runs did not. The whole run includes start-up, evaluations and checkpoints until then.",
        *damaged,
    ]
    return build(systems, f"target-{number + 1}", f"Time to {target.text} on validation", labels, members, figures,
                 notes, compares=True)  # fmt: skip


def _reached_by(met: Sequence[bool], runs: Sequence[RunRecord]) -> TableCell:
    text = f"{sum(met)} of {len(met)} runs" if met else NOT_AVAILABLE
    return TableCell(text, runs=tuple(run.name for run in runs), source="events: evaluation")


def _amount(
    measure: ReportMeasure, configuration: Configuration, results: Mapping[str, TargetResult], part: str
) -> Amount:
    """Return the mean of a time or of a best score over the runs that have one."""
    values = {
        run.name: float(value)
        for run in configuration.runs
        if run.name in results and (value := getattr(results[run.name], part)) is not None
    }
    late = part == "total_s" and any(
        results[run.name].was_resumed_later for run in configuration.runs if run.name in results
    )
    remark = "n/a for a run that was resumed later: its start-up covers all sessions" if late else ""
    center = statistics.fmean(values.values()) if values else None
    return Amount(measure, values, center, len(configuration.runs), remark)
