"""Learning-rate schedules: plain functions of the step, so there is no scheduler state to save.

Source: the functions of transformers.optimization with the same names (`get_scheduler`), so that settings carry over.
"""

import math
from collections.abc import Callable
from typing import Final

from paratune.config.own_code import call_own_code, wrong_result
from paratune.config.section import OwnCode
from paratune.config.sections import Train

Factor = Callable[[Train, int, int], float]
"""Maps `train`, the steps taken since the end of the warm-up and the number of steps after it to the factor of the peak
learning rate, 0 to 1."""
INVERSE_SQRT_STEPS = 10_000
"""Time scale of `inverse_sqrt` without a warm-up, as in transformers."""
DECAY_RATIO = 0.1
"""Default of `train.decay_ratio`."""


def _constant(train: Train, step: int, num_steps: int) -> float:
    return 1.0


def _linear(train: Train, step: int, num_steps: int) -> float:
    return max(0.0, 1.0 - step / max(1, num_steps))


def _cosine(train: Train, step: int, num_steps: int) -> float:
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * step / max(1, num_steps))))


def _cosine_with_restarts(train: Train, step: int, num_steps: int) -> float:
    progress = step / max(1, num_steps)
    if progress >= 1.0:
        return 0.0
    return 0.5 * (1.0 + math.cos(math.pi * ((train.schedule_cycles or 1) * progress % 1.0)))


def _polynomial(train: Train, step: int, num_steps: int) -> float:
    return math.pow(_linear(train, step, num_steps), train.schedule_power or 1.0)


def _warmup_stable_decay(train: Train, step: int, num_steps: int) -> float:
    """Stay at 1, then fall to 0 along a half cosine in the last steps of the run, Hu et al. 2024 (arXiv:2404.06395)."""
    num_decay_steps = min(num_steps, decay_steps(train, num_steps))
    begin = num_steps - num_decay_steps
    return 1.0 if step < begin else _cosine(train, step - begin, num_decay_steps)


SCHEDULES: Final[dict[str, Factor]] = {
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_restarts": _cosine_with_restarts,
    "polynomial": _polynomial,
    "warmup_stable_decay": _warmup_stable_decay,
    "constant": _constant,
}
"""Schedules after the warm-up by the value of `train.schedule`; `inverse_sqrt` depends on the warm-up as well."""


def schedule_factor(train: Train, step: int, *, num_steps: int) -> float:
    """Return the factor of the peak learning rate at a step: 0 to 1; of an own schedule, at least 0.

    `step` is the number of steps already taken.
    """
    num_warmup_steps = warmup_steps(train, num_steps)
    if step < num_warmup_steps:
        return step / max(1, num_warmup_steps)
    if train.schedule == "inverse_sqrt":
        scale = num_warmup_steps or INVERSE_SQRT_STEPS
        return 1.0 / math.sqrt((step - num_warmup_steps + scale) / scale)
    if isinstance(train.schedule, OwnCode):
        return _own_factor(train.schedule, step - num_warmup_steps, num_steps - num_warmup_steps)
    end = train.schedule_end_ratio or 0.0
    factor = SCHEDULES[train.schedule](train, step - num_warmup_steps, num_steps - num_warmup_steps)
    return end + (1.0 - end) * factor


def _own_factor(own: OwnCode, step: int, num_steps: int) -> float:
    """Return the factor of the user's own function, called with step, num_steps and its options.

    Raises:
        ConfigError: The function cannot be imported, raises an error, or returns no finite number from 0.
    """
    key = "train.schedule.function"
    factor = call_own_code(own, key, step, num_steps)
    try:
        value = float(factor)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value < 0:
        raise wrong_result(own.function, key, f"{factor!r:.60} at step {step} of {num_steps}", "a number of at least 0")
    return value


def warmup_steps(train: Train, num_steps: int) -> int:
    """Return the number of warm-up steps that `train` asks for; a ratio is rounded up, as the Trainer does."""
    if train.warmup_ratio is not None:
        return math.ceil(train.warmup_ratio * num_steps)
    return train.warmup_steps or 0


def decay_steps(train: Train, num_steps: int) -> int:
    """Return the steps of the decay of `warmup_stable_decay`, rounded up; `num_steps` are those after the warm-up."""
    return math.ceil((train.decay_ratio or DECAY_RATIO) * num_steps)
