"""Goals such as `f1>=0.88 within 2h under 24GB for 20`: which options meet them, and short runs to decide the rest.

A goal has scores of the validation set, a limit for the time of all steps, for the memory of a device, and a price.
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
from paratune.planning.advice import span_text
from paratune.planning.figure_range import FigureRange
from paratune.planning.predict import Prediction

_EXAMPLE = '--goal "f1>=0.88 within 2h under 24GB"'
_PARTS = re.compile(r"\b(within|under|for)\b")
_NUMBER = r"([0-9]+\.?[0-9]*|\.[0-9]+)"
_SECONDS = {"s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 2**40}
_MAX_TIMED = 4
"""Most options that are timed by short runs."""
_TIMED_STEPS, _MIN_STEPS = 20, 50
_QUALITY_SHARE = 0.1
"""Share of the steps of the whole run that a short run for scores has."""
State = Literal["meets it", "may meet it", "does not"]


@dataclass(frozen=True)
class Goal:
    """The limits of a goal; None for those that are not given."""

    targets: tuple[ScoreTarget, ...] = ()
    within_s: float | None = None
    """Limit for the seconds of all training steps until the targets are met, or of the run."""
    under_bytes: float | None = None
    """Limit for the memory of one device."""
    price: float | None = None
    """Limit for the price of the devices during this time."""


@dataclass(frozen=True)
class GoalVerdict:
    """Whether an option meets the goal."""

    prediction: Prediction
    state: State
    reason: str


def parse_goal(text: str) -> Goal:
    """Return the goal from the text of `--goal`.

    Raises:
        ConfigError: The text has another form (`target.syntax`).
    """
    first, *rest = (part.strip() for part in _PARTS.split(text))
    limits: dict[str, str] = {}
    for word, value in zip(rest[::2], rest[1::2], strict=True):
        if word in limits:
            raise _syntax(f" {plain(text)!r} has {word} twice", word=word)
        limits[word] = value
    targets = tuple(parse_target(target, "--goal") for target in re.split(r",|\band\b", first) if target.strip())
    if not targets and not limits:
        raise _syntax(f" {plain(text)!r} has no condition")
    return Goal(
        targets=targets,
        within_s=_amount(limits, "within", _SECONDS, "a time, such as 2h, 90min or 30s"),
        under_bytes=_amount(limits, "under", _BYTES, "an amount of memory, such as 24GB or 24GiB"),
        price=_amount(limits, "for", {"": 1.0}, "a price, such as 20"),
    )


def _amount(limits: Mapping[str, str], word: str, units: Mapping[str, float], wanted: str) -> float | None:
    if word not in limits:
        return None
    match = re.fullmatch(rf"{_NUMBER}\s*([A-Za-z]*)", limits[word])
    unit = match[2].lower() if match else ""
    if match is None or unit not in units or float(match[1]) <= 0:
        raise _syntax(f": {word} {plain(limits[word])!r} is not {wanted}", value=word)
    return float(match[1]) * units[unit]


def _syntax(problem: str, **facts: Any) -> ConfigError:
    return ConfigError(f"--goal{problem}; such as {_EXAMPLE}", code="target.syntax", option="--goal", **facts)


def judge(goal: Goal, predictions: Sequence[Prediction], steps_until: Mapping[int, Sequence[int]]) -> list[GoalVerdict]:
    """Return for each option whether it meets the limits of memory, time and price.

    `steps_until` has the optimizer steps after which measured runs met the targets, by global batch size.
    """
    return [GoalVerdict(prediction, *_verdict(goal, prediction, steps_until)) for prediction in predictions]


def _verdict(goal: Goal, prediction: Prediction, steps_until: Mapping[int, Sequence[int]]) -> tuple[State, str]:
    if prediction.fits is False:
        return "does not", f"it does not fit: it lacks {prediction.shortage}"
    if goal.under_bytes is not None and prediction.memory.total > goal.under_bytes:
        return "does not", f"{format_bytes(prediction.memory.total)} a device is over {format_bytes(goal.under_bytes)}"
    span = seconds_to_targets(prediction, steps_until)
    if span is None:
        if goal.within_s is None and goal.price is None:
            return "meets it", f"{format_bytes(prediction.memory.total)} a device"
        why = prediction.why_no_time or "how many steps it takes is not known: train.max_steps, or --rows"
        return "may meet it", why
    limits = [("time", goal.within_s, span)]
    rate = prediction.machine.price_per_hour
    if rate is not None:
        limits.append(("price", goal.price, span.times(rate * prediction.setup.num_ranks / 3600)))
    states = [
        _compare_with_limit(quantity, limit, predicted) for quantity, limit, predicted in limits if limit is not None
    ]
    return max(states, key=lambda state: _ORDER[state[0]], default=("meets it", span_text(span)))


_ORDER: Mapping[State, int] = {"meets it": 0, "may meet it": 1, "does not": 2}


def _compare_with_limit(quantity: str, limit: float, predicted: FigureRange) -> tuple[State, str]:
    text, limit_text = span_text(predicted), format_duration(limit)
    if quantity == "price":
        text = f"{predicted.value:.3g} ({predicted.low:.3g} to {predicted.high:.3g})"
        limit_text = f"a price of {limit:g}"
    if predicted.low > limit:
        return "does not", f"{text} is above {limit_text}"
    if predicted.high > limit:
        return "may meet it", f"{text}: {limit_text} is in the interval"
    return "meets it", text


def seconds_to_targets(prediction: Prediction, steps_until: Mapping[int, Sequence[int]]) -> FigureRange | None:
    """Return the seconds until the targets are met, from measured runs with the same global batch; without such runs
    the seconds of the whole run."""
    steps = steps_until.get(prediction.setup.global_batch_size)
    if steps and prediction.step is not None:
        return FigureRange(
            prediction.step.value * math.fsum(steps) / len(steps),
            prediction.step.low * min(steps),
            prediction.step.high * max(steps),
        )
    return prediction.run


def goal_lines(
    goal: Goal, verdicts: Sequence[GoalVerdict], steps_until: Mapping[int, Sequence[int]], num_missed: int = 0
) -> Iterator[str]:
    """Yield sentences: how many options meet the goal, and what measured runs show.

    `steps_until` as for `judge`; `num_missed` measured runs never met the targets.
    """
    for state in _ORDER:
        in_state = sorted((verdict for verdict in verdicts if verdict.state == state), key=_by_time)
        shown = [f"{verdict.prediction.label} ({verdict.reason})" for verdict in in_state[:4]]
        more = f" and {len(in_state) - 4} more" if len(in_state) > 4 else ""
        if in_state:
            yield f"Goal: {len(in_state)} of {len(verdicts)} {_verb(state, len(in_state))}: {'; '.join(shown)}{more}."
    if goal.targets:
        names = " and ".join(target.text for target in goal.targets)
        if steps_until:
            spans = {size: dict.fromkeys((min(steps), max(steps))) for size, steps in sorted(steps_until.items())}
            batches = ", ".join(
                f"{' to '.join(map(str, span))} steps with a global batch of {size}" for size, span in spans.items()
            )
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
    """Return a matrix of short runs that measure the time of undecided options, and compare three learning rates.

    `base` is the path of the configuration, relative to the matrix; `overrides` are the values of `--set`, as sections.
    Half and twice of `learning_rate` are tried too.

    Raises:
        ConfigError: No option can meet the goal (`plan.nothing_to_write`).
    """
    undecided = sorted((verdict for verdict in verdicts if verdict.state != "does not"), key=_by_time)
    if not undecided:
        text = "--write-probes: no option can meet the goal, so there is nothing to measure"
        raise ConfigError(text, code="plan.nothing_to_write", option="--write-probes")
    tries: dict[str, Any] = {}
    for verdict in undecided[:_MAX_TIMED]:
        name = re.sub(r"[^A-Za-z0-9]+", "-", f"time {verdict.prediction.label}").strip("-")
        tries[name] = _option_settings(verdict.prediction) | {"probe": {"steps": _TIMED_STEPS}}
    best = undecided[0].prediction
    steps = max(_MIN_STEPS, round(_QUALITY_SHARE * (best.num_steps or 0)))
    for name, factor in (("half", 0.5), ("same", 1.0), ("twice", 2.0)):
        rate = {"train.learning_rate": learning_rate * factor}
        tries[f"quality-{name}-learning-rate"] = _option_settings(best) | _run_length_settings(best, steps) | rate
    return {"base": {"extends": base, **overrides}, "axes": {"try": tries}}


def _run_length_settings(prediction: Prediction, steps: int) -> dict[str, Any]:
    """Return the settings of a run of `steps` steps: the warm-up keeps its share, intervals are at most `steps`."""
    config = prediction.option.config
    settings: dict[str, Any] = {"train.max_steps": steps, "train.epochs": None}
    if config.train.warmup_steps:
        warmup = round(config.train.warmup_steps * steps / (prediction.num_steps or steps))
        settings["train.warmup_steps"] = min(max(1, warmup), steps)
    for name, section in (("evaluate", config.evaluate), ("checkpoint", config.checkpoint)):
        if section.steps is not None and section.steps > steps:
            settings[f"{name}.steps"] = steps
    return settings


def _option_settings(prediction: Prediction) -> dict[str, Any]:
    """Return the settings of an option in a matrix of runs."""
    config, setup = prediction.option.config, prediction.setup
    strategy = {"kind": setup.strategy.kind} | config.strategy.model_dump(mode="json", exclude_defaults=True)
    batch = {"batch.micro_batch_size": setup.micro_batch_size}
    if config.batch.per_device is not None:
        batch = {"batch.per_device": setup.micro_batch_size, "batch.grad_accum_steps": setup.grad_accum_steps}
    return {"nproc": setup.num_ranks, "strategy": strategy, "precision": setup.precision.name, **batch}
