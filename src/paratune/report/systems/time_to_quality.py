"""When the configurations of a matrix first reached a score on their validation sets."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.config.targets import ScoreTarget
from paratune.errors import CheckpointError
from paratune.report.read import RunRecord
from paratune.report.systems.building import Figured, Labels, build, names
from paratune.report.systems.configurations import Configuration
from paratune.report.systems.measures import Amount, ReportMeasure, score
from paratune.report.systems.model import Systems
from paratune.report.tabular import Column, Table, TableCell
from paratune.report.targets import Evaluated, Reached, check_known, look_at

Found = Mapping[str, Evaluated]
"""By the run's name."""


def target_tables(systems: Systems, targets: Sequence[ScoreTarget]) -> Iterator[Table]:
    """Yield the table of each target; reads the events of all runs but probes.

    Raises:
        ConfigError: No run was evaluated by the metric of a target.
    """
    members = [one for one in systems.measured if not one.is_probe]
    if not targets or not members:
        return
    found, damaged = _look(members, targets)
    check_known(targets, list(found.values()))
    for at, target in enumerate(targets):
        yield _table(systems, members, target, {name: one.reached[at] for name, one in found.items()}, damaged, at)


def _look(members: Sequence[Configuration], targets: Sequence[ScoreTarget]) -> tuple[Found, list[str]]:
    """Return what the evaluations of each run say, and what cannot be read."""
    found, damaged = {}, []
    for run in (run for one in members for run in one.runs):
        try:
            found[run.name] = look_at(run, targets)
        except CheckpointError as error:
            damaged.append(plain(error))
    return found, damaged


def _table(
    systems: Systems, members: Sequence[Configuration], target: ScoreTarget, found: Mapping[str, Reached],
    damaged: Sequence[str], number: int,
) -> Table:  # fmt: skip
    """Return how many runs of each configuration came to a score, when, and how far they came."""
    of = score("validation", target.metric)
    key = f"{target.metric}_{target.value:g}_s"
    source = "events: step, evaluation"
    train = ReportMeasure(f"train_until_{key}", "Training until then", "seconds", -1, source, lambda run: None)
    total = ReportMeasure(f"total_until_{key}", "Whole run until then", "seconds", -1, source, lambda run: None)
    best = ReportMeasure(f"best_{target.metric}", f"Best {of.label}", "score", of.better, "events: evaluation",
                   lambda run: None, is_quality=True)  # fmt: skip

    def times(measure: ReportMeasure, part: str) -> Figured:
        return Figured(measure, lambda one: _amount(measure, one, found, part), is_kept=True)

    met = [[found[run.name].step is not None for run in one.runs if run.name in found] for one in members]
    labels = [
        names("Configuration", "configuration", [one.label for one in members]),
        Labels(
            Column("Reached by", "reached_by", is_text=True),
            [_reached_by(each, one.runs) for each, one in zip(met, members, strict=True)],
        ),
    ]
    figures = [times(train, "train_s"), times(total, "total_s"), times(best, "best")]
    notes = [
        "By the evaluations during training; times are means of the runs that reached it, so that those of a "
        "configuration of which some did not are too short. The whole run is with start-up, evaluations and "
        "checkpoints until then.",
        *damaged,
    ]
    return build(systems, f"target-{number + 1}", f"Time to {target.text} on validation", labels, members, figures,
                 notes, compares=True)  # fmt: skip


def _reached_by(met: Sequence[bool], runs: Sequence[RunRecord]) -> TableCell:
    text = f"{sum(met)} of {len(met)} runs" if met else NOT_AVAILABLE
    return TableCell(text, runs=tuple(run.name for run in runs), source="events: evaluation")


def _amount(measure: ReportMeasure, one: Configuration, found: Mapping[str, Reached], part: str) -> Amount:
    """Return the mean of a time, or of a best score, over the runs that have one."""
    values = {
        run.name: float(value)
        for run in one.runs
        if run.name in found and (value := getattr(found[run.name], part)) is not None
    }
    late = part == "total_s" and any(found[run.name].was_resumed_later for run in one.runs if run.name in found)
    remark = "n/a of a run that was resumed later: start-up is recorded of all sessions together" if late else ""
    center = statistics.fmean(values.values()) if values else None
    return Amount(measure, values, center, len(one.runs), remark)
