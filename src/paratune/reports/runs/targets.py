"""Time to quality: when a run first reached a score on its validation set, from its events."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
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

    metrics: frozenset[str] = frozenset()  # metrics of its evaluations on validation
    best: float | None = None  # best score of all evaluations; None without evaluations by the metric of the target
    step: int | None = None  # step of the first evaluation that met the target; None if none did
    train_s: float | None = None  # wall time of the steps until then, of the slowest rank
    total_s: float | None = None
    """With start-up, tokenization, evaluations (including that one) and checkpoints until then."""
    was_resumed_later: bool = False
    """Whether the run was resumed later: its start-up covers all sessions, so `total_s` is unknown."""


def target_measures(runs: Sequence[RunRecord], targets: Sequence[ScoreTarget]) -> Iterator[Measure]:
    """Yield the training time and the whole time until each target was reached.

    Raises:
        ConfigError: No run was evaluated by a target's metric.
    """
    evaluated = {run.name: evaluate_targets(run, targets) for run in runs} if targets else {}
    check_known(targets, list(evaluated.values()))
    for at, target in enumerate(targets):
        results = {name: by_target[at] for name, by_target in evaluated.items()}
        yield time_until("train", f"Training until {target.text}", target, results)
        yield time_until("total", f"Whole run until {target.text}", target, results)


def time_until(part: str, label: str, target: ScoreTarget, results: Mapping[str, TargetResult]) -> Measure:
    """Return the measure of the training time ("train") or the whole time ("total") until a target was reached."""
    key, source = f"{part}_until_{target.metric}_{target.value:g}_s", "events: step and evaluation, up to the target"
    read = lambda run: getattr(results.get(run.name), f"{part}_s", None)  # noqa: E731
    return Measure(GROUP, key, label, "s", -1, source, read=read, absent=lambda run: _absent(results[run.name]))


def evaluate_targets(run: RunRecord, targets: Sequence[ScoreTarget]) -> tuple[TargetResult, ...]:
    """Read the events of a run, and return when it first met each target.

    Raises:
        CheckpointError: Its events are damaged.
    """
    ranks = [list(records.read_events(run.folder, rank)) for rank in records.event_ranks(run.folder)]
    first, *_ = ranks or [[]]
    evaluations = [
        (at, number_in(event.get("step")), {str(name): number_in(value) for name, value in scores.items()})
        for at, event in enumerate(first)
        if event["event"] == "evaluation" and event.get("split") == "validation"
        and isinstance(scores := event.get("scores"), dict)
    ]  # fmt: skip
    metrics = frozenset(name for *_, scores in evaluations for name, score in scores.items() if score is not None)
    results = []
    for target in targets:
        known = [
            (at, step, score) for at, step, scores in evaluations if (score := scores.get(target.metric)) is not None
        ]
        best = (max if target.is_higher_better else min)((score for *_, score in known), default=None)
        place, step = next(((at, step) for at, step, score in known if target.is_met(score)), (0, None))
        if step is None:
            results.append(TargetResult(metrics, best))
            continue
        pauses = (item for item in first[: place + 1] if item["event"] in ("evaluation", "checkpoint"))
        train_s = _train_s(ranks, step)
        times = [train_s, run.summary.time.startup_s, run.summary.time.tokenize_s]
        times += [number_in(item.get("time_s")) for item in pauses]
        # The record has one start-up time for all sessions, so that the time until a resume is unknown.
        was_resumed = any(item["event"] == "resume" for item in first[place + 1 :])
        total_s = None if was_resumed or None in times else sum(time or 0.0 for time in times)
        results.append(TargetResult(metrics, best, int(step), train_s, total_s, was_resumed))
    return tuple(results)


def check_known(targets: Sequence[ScoreTarget], evaluated: Sequence[Sequence[TargetResult]]) -> None:
    """Check that some run was evaluated by the metric of each target.

    Raises:
        ConfigError: None was.
    """
    metrics = {name for by_target in evaluated for result in by_target for name in result.metrics}
    for target in targets:
        if target.metric not in metrics:
            known = ", ".join(sorted(map(plain, metrics))) or "none: no run has a validation set"
            text = f"--target {target.metric}: no run was evaluated by it during training; known are {known}"
            raise ConfigError(text, code="target.no_scores", option="--target", value=target.metric)


def _train_s(ranks: Sequence[Sequence[dict[str, Any]]], last: float) -> float | None:
    """Return the seconds of the steps up to `last`, as in `records.elapsed_s`; None when a step is damaged."""
    steps = [[event for event in events if event["event"] == "step"] for events in ranks]
    pairs = [[(number_in(event.get("step")), number_in(event.get("wall_ms"))) for event in events] for events in steps]
    known = [{step: ms for step, ms in of_rank if step is not None and ms is not None} for of_rank in pairs]
    if any(None in pair for of_rank in pairs for pair in of_rank):
        return None
    return records.elapsed_s({step: ms for step, ms in walls.items() if step <= last} for walls in known)


def _absent(result: TargetResult) -> str:
    """Return why a time until a target is unknown."""
    if result.best is None:
        return f"{NOT_AVAILABLE}: not evaluated by it"
    if result.step is None:
        return f"not reached (best {format_number(result.best)})"
    if result.was_resumed_later:
        return f"{NOT_AVAILABLE}: resumed later, and start-up is recorded of all sessions together"
    return NOT_AVAILABLE
