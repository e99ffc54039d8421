"""A goal in one line, which ways can reach it, and the short probes that settle what a prediction cannot.

`f1>=0.88 within 2h under 24GB for 20`: scores of the validation set, time of all steps, memory of a device, price.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from paratune.base.text import plain
from paratune.base.units import GIB, KIB, MIB, format_bytes, format_duration
from paratune.config.targets import ScoreTarget, parse_target
from paratune.errors import ConfigError
from paratune.plan.advice import span_text
from paratune.plan.predict import FigureRange, Prediction

_FORM = '--goal "f1>=0.88 within 2h under 24GB"'
_PARTS = re.compile(r"\b(within|under|for)\b")
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 2**40}
_MOST_TIMED = 4
"""Ways that probes time, at most."""
_TIMED_STEPS, _LEAST_STEPS = 20, 50
_QUALITY_SHARE = 0.1
"""Of the steps of a run, that a probe of its quality takes."""
State = Literal["meets it", "may meet it", "does not"]


@dataclass(frozen=True)
class Goal:
    """What is wanted; None where nothing is said."""

    targets: tuple[ScoreTarget, ...] = ()
    within_s: float | None = None
    """Seconds of all training steps until the targets are met, or of the run."""
    under_bytes: float | None = None
    """Of one device."""
    price: float | None = None
    """Of the devices, for as long."""


@dataclass(frozen=True)
class GoalVerdict:
    """Of one way."""

    prediction: Prediction
    state: State
    reason: str


def parse_goal(text: str) -> Goal:
    """Return what `--goal` says.

    Raises:
        ConfigError: It says something else; the text says what is allowed.
    """
    first, *rest = (part.strip() for part in _PARTS.split(text))
    said: dict[str, str] = {}
    for word, value in zip(rest[::2], rest[1::2], strict=True):
        if word in said:
            raise ConfigError(
                f"--goal {plain(text)!r} has {word} twice; such as {_FORM}",
                code="target.syntax",
                option="--goal",
                word=word,
            )
        said[word] = value
    targets = tuple(parse_target(each, "--goal") for each in re.split(r",|\band\b", first) if each.strip())
    if not targets and not said:
        raise ConfigError(
            f"--goal {plain(text)!r} has no condition; such as {_FORM}", code="target.syntax", option="--goal"
        )
    return Goal(
        targets=targets,
        within_s=_amount(said, "within", _SECONDS, "a time, such as 2h, 90min or 30s"),
        under_bytes=_amount(said, "under", _BYTES, "an amount of memory, such as 24GB or 24GiB"),
        price=_amount(said, "for", {"": 1.0}, "a price, such as 20"),
    )


def _amount(said: Mapping[str, str], word: str, units: Mapping[str, float], wanted: str) -> float | None:
    if word not in said:
        return None
    found = re.fullmatch(rf"{_NUMBER}\s*([A-Za-z]*)", said[word])
    unit = found[2].lower() if found else ""
    if found is None or unit not in units or float(found[1]) <= 0:
        raise ConfigError(
            f"--goal: {word} {plain(said[word])!r} is not {wanted}; such as {_FORM}",
            code="target.syntax",
            option="--goal",
            value=word,
        )
    return float(found[1]) * units[unit]


def judge(goal: Goal, predictions: Sequence[Prediction], steps_until: Mapping[int, Sequence[int]]) -> list[GoalVerdict]:
    """Say of each way whether it meets the goal, as far as memory, time and price go.

    Args:
        goal: What is wanted.
        predictions: Of all ways.
        steps_until: Optimizer steps after which measured runs had met the targets, by their global batch.
    """
    return [GoalVerdict(each, *_judged(goal, each, steps_until)) for each in predictions]


def _judged(goal: Goal, each: Prediction, steps_until: Mapping[int, Sequence[int]]) -> tuple[State, str]:
    if each.fits is False:
        return "does not", f"it does not fit: {format_bytes(-(each.room_bytes or 0))} short"
    if goal.under_bytes is not None and each.memory.total > goal.under_bytes:
        return "does not", f"{format_bytes(each.memory.total)} a device is over {format_bytes(goal.under_bytes)}"
    span = needed(each, steps_until)
    if span is None:
        if goal.within_s is None and goal.price is None:
            return "meets it", f"{format_bytes(each.memory.total)} a device"
        return "may meet it", each.why_no_time or "how many steps it takes is not known: train.max_steps, or --rows"
    limits = [("time", goal.within_s, span)]
    rate = each.machine.price_per_hour
    if rate is not None:
        limits.append(("price", goal.price, span.times(rate * each.setup.num_ranks / 3600)))
    states = [_within(what, limit, found) for what, limit, found in limits if limit is not None]
    return max(states, key=lambda state: _ORDER[state[0]], default=("meets it", span_text(span)))


_ORDER: Mapping[State, int] = {"meets it": 0, "may meet it": 1, "does not": 2}


def _within(what: str, limit: float, found: FigureRange) -> tuple[State, str]:
    text = span_text(found) if what == "time" else f"{found.value:.3g} ({found.low:.3g} to {found.high:.3g})"
    said = format_duration(limit) if what == "time" else f"a price of {limit:g}"
    if found.low > limit:
        return "does not", f"{text} is above {said}"
    if found.high > limit:
        return "may meet it", f"{text}: {said} lies in the interval"
    return "meets it", text


def needed(each: Prediction, steps_until: Mapping[int, Sequence[int]]) -> FigureRange | None:
    """Return the seconds until the targets are met, as measured runs with the same global batch met them; else of the
    whole run."""
    steps = steps_until.get(each.setup.global_batch_size)
    if steps and each.step is not None:
        return FigureRange(each.step.value * _mean(steps), each.step.low * min(steps), each.step.high * max(steps))
    return each.run


def _mean(steps: Sequence[int]) -> float:
    return math.fsum(steps) / len(steps)


def goal_lines(
    goal: Goal, verdicts: Sequence[GoalVerdict], steps_until: Mapping[int, Sequence[int]], num_missed: int = 0
) -> Iterator[str]:
    """Yield what the goal comes to, in words.

    Args:
        goal: What is wanted.
        verdicts: Of all ways.
        steps_until: As `judge` takes it.
        num_missed: Measured runs that never met the targets.
    """
    for state in _ORDER:
        found = sorted((each for each in verdicts if each.state == state), key=_by_time)
        shown = [f"{each.prediction.label} ({each.reason})" for each in found[:4]]
        more = f" and {len(found) - 4} more" if len(found) > 4 else ""
        if found:
            yield f"Goal: {len(found)} of {len(verdicts)} {_verb(state, len(found))}: {'; '.join(shown)}{more}."
    if goal.targets:
        names = " and ".join(target.text for target in goal.targets)
        if steps_until:
            batches = ", ".join(
                f"{min(steps)} to {max(steps)} steps with a global batch of {size}" if min(steps) != max(steps)
                else f"{steps[0]} steps with a global batch of {size}"
                for size, steps in sorted(steps_until.items())
            )  # fmt: skip
            missed = f"; {num_missed} more never did, which these times leave out" if num_missed else ""
            yield f"Measured runs reached {names} after {batches}{missed}."
        elif num_missed:
            yield f"No measured run reached {names} (of {num_missed}): times are those of the whole run."
        else:
            yield (
                f"A prediction does not include whether {names} is reached: times are those of the whole run. Probes "
                "would (--write-probes FILE.yaml), or runs that were measured (--measured RUNS)."
            )


def _verb(state: State, number: int) -> str:
    if number == 1:
        return state
    return {"meets it": "meet it", "may meet it": "may meet it", "does not": "do not"}[state]


def _by_time(verdict: GoalVerdict) -> float:
    span = verdict.prediction.run or verdict.prediction.step
    return math.inf if span is None else span.value


def probe_matrix(
    base: str, overrides: Mapping[str, Any], verdicts: Sequence[GoalVerdict], *, learning_rate: float
) -> dict[str, Any]:
    """Return a matrix of runs that settles what is open: times of the ways in question, and the learning rate.

    Args:
        base: The configuration, relative to the matrix.
        overrides: Its `--set`, as sections.
        verdicts: Of all ways.
        learning_rate: Of the configuration; half and twice as much are tried beside it.

    Raises:
        ConfigError: No way is left to probe.
    """
    open_ = sorted((each for each in verdicts if each.state != "does not"), key=_by_time)
    if not open_:
        raise ConfigError(
            "--write-probes: no way can meet the goal, so there is nothing to probe",
            code="plan.nothing_to_write",
            option="--write-probes",
        )
    tries: dict[str, Any] = {}
    for each in open_[:_MOST_TIMED]:
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"time {each.prediction.label}").strip("-")
        tries[name] = _settings(each.prediction) | {"probe": {"steps": _TIMED_STEPS}}
    best = open_[0].prediction
    steps = max(_LEAST_STEPS, round(_QUALITY_SHARE * (best.num_steps or 0)))
    for name, factor in (("half", 0.5), ("same", 1.0), ("twice", 2.0)):
        rate = {"train.learning_rate": learning_rate * factor}
        tries[f"quality-{name}-learning-rate"] = _settings(best) | _length(best, steps) | rate
    return {"base": {"extends": base, **overrides}, "axes": {"try": tries}}


def _length(each: Prediction, steps: int) -> dict[str, Any]:
    """Return the settings of a run of so many steps: a warm-up of the same share, and nothing due after its end."""
    config = each.option.config
    found: dict[str, Any] = {"train.max_steps": steps, "train.epochs": None}
    if config.train.warmup_steps:
        warmup = round(config.train.warmup_steps * steps / (each.num_steps or steps))
        found["train.warmup_steps"] = min(max(1, warmup), steps)
    for name, section in (("evaluate", config.evaluate), ("checkpoint", config.checkpoint)):
        if section.steps is not None and section.steps > steps:
            found[f"{name}.steps"] = steps
    return found


def _settings(each: Prediction) -> dict[str, Any]:
    """Return the settings of a way in a matrix of runs."""
    config, setup = each.option.config, each.setup
    strategy = {"kind": setup.strategy.kind} | config.strategy.model_dump(mode="json", exclude_defaults=True)
    batch = {"batch.micro_batch_size": setup.micro_batch_size}
    if config.batch.per_device is not None:
        batch = {"batch.per_device": setup.micro_batch_size, "batch.grad_accum_steps": setup.grad_accum_steps}
    return {"nproc": setup.num_ranks, "strategy": strategy, "precision": setup.precision.name, **batch}
