"""Time to quality: when a run first reached a score on its validation set, from its events."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_number
from paratune.config.targets import ScoreTarget
from paratune.errors import ConfigError
from paratune.records.finished import RunRecord, number_in
from paratune.reports.measures import Measure

GROUP = "Time to quality"


@dataclass(frozen=True)
class TargetResult:
    """When a run reached a target."""

    step: int | None
    """Step of the first evaluation that met the target; None if none did."""
    train_s: float | None
    """Wall time of the steps until then, of the slowest rank."""
    total_s: float | None
    """With start-up, tokenization, evaluations (including that one) and checkpoints until then."""
    best: float | None
    """Best score of all evaluations; None without evaluations by this metric."""
    was_resumed_later: bool = False
    """Whether the run was resumed later: its start-up covers all sessions, so `total_s` is unknown."""


@dataclass(frozen=True)
class TargetResults:
    """Results of a run for all targets."""

    reached: tuple[TargetResult, ...]
    """Result for each target."""
    metrics: frozenset[str]
    """Metrics of its evaluations on validation."""


def target_measures(runs: Sequence[RunRecord], targets: Sequence[ScoreTarget]) -> Iterator[Measure]:
    """Yield the training time and the whole time until each target was reached.

    Raises:
        ConfigError: No run was evaluated by a target's metric.
    """
    evaluated = {run.name: evaluate_targets(run, targets) for run in runs} if targets else {}
    check_known(targets, list(evaluated.values()))
    for at, target in enumerate(targets):
        results = {name: result.reached[at] for name, result in evaluated.items()}
        for part, label in (("train_s", "Training until"), ("total_s", "Whole run until")):
            yield Measure(
                f"{part.removesuffix('_s')}_until_{target.metric}_{target.value:g}_s",
                f"{label} {target.text}", GROUP, "s", -1, "events: step and evaluation, up to the target",
                partial(_until, results=results, part=part), absent=partial(_absent, results=results),
            )  # fmt: skip


def evaluate_targets(run: RunRecord, targets: Sequence[ScoreTarget]) -> TargetResults:
    """Read the events of a run, and return when it first met each target.

    Raises:
        CheckpointError: Its events are damaged.
    """
    ranks = [list(records.read_events(run.folder, rank)) for rank in records.event_ranks(run.folder)]
    scores = [event["scores"] for event in (ranks[0] if ranks else ()) if isinstance(event.get("scores"), dict)]
    names = {str(name) for event_scores in scores for name in event_scores}
    metrics = {name for name in names if any(_score(event, name) is not None for event in ranks[0])}
    return TargetResults(tuple(reached(run, ranks, target) for target in targets), frozenset(metrics))


def check_known(targets: Sequence[ScoreTarget], evaluated: Sequence[TargetResults]) -> None:
    """Check that some run was evaluated by the metric of each target.

    Raises:
        ConfigError: None was.
    """
    for at, target in enumerate(targets):
        if all(result.reached[at].best is None for result in evaluated):
            names = sorted({plain(name) for result in evaluated for name in result.metrics})
            known = ", ".join(names) or "none: no run has a validation set"
            raise ConfigError(
                f"--target {target.metric}: no run was evaluated by it during training; known are {known}",
                code="target.no_scores",
                option="--target",
                value=target.metric,
            )


def reached(run: RunRecord, ranks: Sequence[Sequence[dict[str, Any]]], target: ScoreTarget) -> TargetResult:
    """Return when a run first met a target, from the events of its ranks; those of rank 0 come first."""
    scores = []
    for place, event in enumerate(ranks[0] if ranks else ()):
        score = _score(event, target.metric)
        if score is not None:
            scores.append((place, event, score))
    best = (max if target.is_higher_better else min)((score for *_, score in scores), default=None)
    first = next(((place, event) for place, event, score in scores if target.is_met(score)), None)
    step = None if first is None else number_in(first[1].get("step"))
    if first is None or step is None:
        return TargetResult(None, None, None, best)
    place, _ = first
    train_s = _train_s(ranks, step)
    start = [run.summary.time.startup_s, run.summary.time.tokenize_s]
    pauses = [
        number_in(item.get("time_s")) for item in ranks[0][: place + 1] if item["event"] in ("evaluation", "checkpoint")
    ]
    # The record has one start-up time for all sessions, so that the time until a resume is unknown.
    was_resumed = any(item["event"] == "resume" for item in ranks[0][place + 1 :])
    known = [item for item in (train_s, *start, *pauses) if item is not None]
    total_s = sum(known) if len(known) == 1 + len(start) + len(pauses) and not was_resumed else None
    return TargetResult(int(step), train_s, total_s, best, was_resumed)


def _train_s(ranks: Sequence[Sequence[dict[str, Any]]], last: float) -> float | None:
    """Return the seconds of the steps up to `last`, as in `records.elapsed_s`; None when a step is damaged."""
    walls: list[dict[float, float]] = []
    for events in ranks:
        walls.append({})
        for event in events:
            if event["event"] != "step":
                continue
            step, wall_ms = number_in(event.get("step")), number_in(event.get("wall_ms"))
            if step is None or wall_ms is None:
                return None
            if step <= last:
                walls[-1][step] = wall_ms
    return records.elapsed_s(walls)


def _score(event: dict[str, Any], metric: str) -> float | None:
    scores = event.get("scores")
    if event["event"] != "evaluation" or event.get("split") != "validation" or not isinstance(scores, dict):
        return None
    return number_in(scores.get(metric))


def _until(run: RunRecord, results: Mapping[str, TargetResult], part: str) -> float | None:
    value: float | None = getattr(results[run.name], part)
    return value


def _absent(run: RunRecord, results: Mapping[str, TargetResult]) -> str:
    """Return why a time until a target is unknown."""
    result = results[run.name]
    if result.best is None:
        return f"{NOT_AVAILABLE}: not evaluated by it"
    if result.step is None:
        return f"not reached (best {format_number(result.best)})"
    if result.was_resumed_later:
        return f"{NOT_AVAILABLE}: resumed later, and start-up is recorded of all sessions together"
    return NOT_AVAILABLE
