"""When the configurations of a matrix first reached a score on their validation sets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.config.targets import ScoreTarget
from paratune.errors import CheckpointError
from paratune.reports.measures import score
from paratune.reports.runs.targets import TargetResult, check_known, evaluate_targets, time_until
from paratune.reports.systems.building import build, names
from paratune.reports.systems.configurations import Configuration
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Column, Table, TableCell


def target_tables(systems: Systems, targets: Sequence[ScoreTarget]) -> Iterator[Table]:
    """Yield the table of each target; reads the events of all runs except probes.

    Raises:
        ConfigError: No run was evaluated by the metric of a target.
    """
    members = [member for member in systems.measured if not member.is_probe]
    if not targets or not members:
        return
    evaluated: dict[str, tuple[TargetResult, ...]] = {}
    damaged: list[str] = []
    for run in (run for member in members for run in member.runs):
        try:
            evaluated[run.name] = evaluate_targets(run, targets)
        except CheckpointError as error:
            damaged.append(plain(error))
    check_known(targets, list(evaluated.values()))
    for at, target in enumerate(targets):
        results = {name: found[at] for name, found in evaluated.items()}
        yield _table(systems, members, target, results, damaged, at)


def _table(
    systems: Systems, members: Sequence[Configuration], target: ScoreTarget, results: Mapping[str, TargetResult],
    damaged: Sequence[str], number: int,
) -> Table:  # fmt: skip
    """Return how many runs of each configuration reached a score, when, and their best scores."""
    of_score = score("validation", target.metric)
    measures = [
        time_until("train", "Training until then", target, results),
        time_until("total", "Whole run until then", target, results),
        replace(
            of_score, key=f"best_{target.metric}", label=f"Best {of_score.label}", source="events: evaluation",
            read=lambda run: getattr(results.get(run.name), "best", None),
        ),
    ]  # fmt: skip
    labels = [
        names("Configuration", "configuration", [member.label for member in members]),
        (Column("Reached by", "reached_by", is_text=True), [_reached_by(member, results) for member in members]),
    ]
    notes = [
        "From the evaluations during training. Times are means over the runs that reached the score, so they are too "
        "short when some runs did not. The whole run includes start-up, evaluations and checkpoints until then.",
        *damaged,
    ]
    if any(result.was_resumed_later for result in results.values()):
        notes.append("The whole run is n/a for a run that was resumed later: its start-up covers all sessions.")
    title = f"Time to {target.text} on validation"
    place = f"target-{number + 1}"
    return build(systems, place, title, labels, members, measures, notes, compares=True, shows_all=True)


def _reached_by(member: Configuration, results: Mapping[str, TargetResult]) -> TableCell:
    steps = [results[run.name].step for run in member.runs if run.name in results]
    text = f"{len(steps) - steps.count(None)} of {len(steps)} runs" if steps else NOT_AVAILABLE
    return TableCell(text, runs=tuple(run.name for run in member.runs), source="events: evaluation")
