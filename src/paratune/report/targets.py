"""Time to quality: when a run first reached a score on its validation set, from its events alone."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from paratune import records
from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE, format_duration, format_number
from paratune.config.targets import ScoreTarget
from paratune.errors import ConfigError
from paratune.report.read import RunRecord, number_in
from paratune.report.rows import ReportRow, make_row

GROUP = "Time to quality"


@dataclass(frozen=True)
class Reached:
    """How far a run came."""

    step: int | None
    """Of the first evaluation that met the target; None where none did."""
    train_s: float | None
    """Wall time of the steps until then, of the rank that took longest."""
    total_s: float | None
    """With start-up, tokenization, evaluations (that one included) and checkpoints until then."""
    best: float | None
    """The best score of all evaluations; None where there is none of this metric."""
    was_resumed_later: bool = False
    """Whether later sessions are in the run's start-up too, so that `total_s` is not known."""


@dataclass(frozen=True)
class Evaluated:
    """What the evaluations of a run say of targets."""

    reached: tuple[Reached, ...]
    """Of each target."""
    metrics: frozenset[str]
    """By which it was evaluated on validation."""


def target_rows(runs: Sequence[RunRecord], targets: Sequence[ScoreTarget]) -> Iterator[ReportRow]:
    """Yield for each target the training time and the whole time until it was reached.

    Raises:
        ConfigError: No run was evaluated by a target's metric.
    """
    looked_at = [look_at(run, targets) for run in runs] if targets else []
    check_known(targets, looked_at)
    for at, target in enumerate(targets):
        found = [one.reached[at] for one in looked_at]
        for part, label in (("train_s", "Training until"), ("total_s", "Whole run until")):
            values = [getattr(one, part) for one in found]
            texts = [_text(one, value) for one, value in zip(found, values, strict=True)]
            sources = [
                "events: evaluation" if one.step is None else f"events: step, evaluation, up to step {one.step}"
                for one in found
            ]
            key = f"{part.removesuffix('_s')}_until_{target.metric}_{target.value:g}_s"
            yield make_row(runs, key, GROUP, f"{label} {target.text}", sources, values, texts)


def look_at(run: RunRecord, targets: Sequence[ScoreTarget]) -> Evaluated:
    """Read the events of a run, and return when it first met each target.

    Raises:
        CheckpointError: Its events are damaged.
    """
    ranks = [list(records.read_events(run.folder, rank)) for rank in records.event_ranks(run.folder)]
    scores = [event["scores"] for event in (ranks[0] if ranks else ()) if isinstance(event.get("scores"), dict)]
    names = {str(name) for each in scores for name in each}
    metrics = {name for name in names if any(_score(event, name) is not None for event in ranks[0])}
    return Evaluated(tuple(reached(run, ranks, target) for target in targets), frozenset(metrics))


def check_known(targets: Sequence[ScoreTarget], found: Sequence[Evaluated]) -> None:
    """Make sure that some run was evaluated by the metric of each target.

    Raises:
        ConfigError: None was.
    """
    for at, target in enumerate(targets):
        if all(one.reached[at].best is None for one in found):
            names = sorted({plain(name) for one in found for name in one.metrics})
            known = ", ".join(names) or "none: no run has a validation set"
            raise ConfigError(
                f"--target {target.metric}: no run was evaluated by it during training; known are {known}",
                code="target.no_scores",
                option="--target",
                value=target.metric,
            )


def reached(run: RunRecord, ranks: Sequence[Sequence[dict[str, Any]]], target: ScoreTarget) -> Reached:
    """Return when a run first met a target.

    Args:
        run: For its start-up.
        ranks: Events of each rank, the first one's first.
        target: The score.
    """
    scores = []
    for place, event in enumerate(ranks[0] if ranks else ()):
        score = _score(event, target.metric)
        if score is not None:
            scores.append((place, event, score))
    best = (max if target.rises else min)((score for *_, score in scores), default=None)
    met = next(((place, event) for place, event, score in scores if target.is_met(score)), None)
    if met is None:
        return Reached(None, None, None, best)
    place, event = met
    step = number_in(event.get("step"))
    if step is None:
        return Reached(None, None, None, best)
    train_s = _train_s(ranks, step)
    start = [run.number(f"summary.time.{part}_s") for part in ("startup", "tokenize")]
    pauses = [
        number_in(each.get("time_s")) for each in ranks[0][: place + 1] if each["event"] in ("evaluation", "checkpoint")
    ]
    was_resumed = any(each["event"] == "resume" for each in ranks[0][place + 1 :])
    known = [each for each in (train_s, *start, *pauses) if each is not None]
    total_s = sum(known) if len(known) == 1 + len(start) + len(pauses) and not was_resumed else None
    return Reached(int(step), train_s, total_s, best, was_resumed)


def _train_s(ranks: Sequence[Sequence[dict[str, Any]]], last: float) -> float | None:
    """Return the seconds of the steps up to `last`, as in `records.elapsed_s`; None where one is damaged."""
    walls: list[dict[float, float]] = []
    for own in ranks:
        walls.append({})
        for event in own:
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


def _text(found: Reached, value: float | None) -> str:
    if found.best is None:
        return f"{NOT_AVAILABLE}: not evaluated by it"
    if found.step is None:
        return f"not reached (best {format_number(found.best)})"
    if value is None and found.train_s is not None and found.was_resumed_later:
        return f"{NOT_AVAILABLE}: resumed later, and start-up is recorded of all sessions together"
    return format_duration(value)
