"""Computes the number of optimizer steps of a run and the steps of evaluations and checkpoints."""

from paratune.config.sections import Config
from paratune.errors import ConfigError


def num_steps(config: Config, per_epoch: int) -> int:
    """Return the optimizer steps of a run; `per_epoch` are those of one epoch."""
    if config.train.max_steps is not None:
        return config.train.max_steps
    assert config.train.epochs is not None
    return max(1, round(config.train.epochs * per_epoch))


def check_steps(config: Config, last: int) -> None:
    """Check that all configured steps are within the run, whose number of steps is known only with the data.

    Raises:
        ConfigError: Warm-up, evaluations or checkpoints would come after the end.
    """
    steps = {
        "train.warmup_steps": config.train.warmup_steps,
        "evaluate.steps": config.evaluate.steps,
        "checkpoint.steps": config.checkpoint.steps,
    }
    late = [f"{key}: {value}" for key, value in steps.items() if value is not None and value > last]
    if late:
        raise ConfigError(
            f"{', '.join(late)} is more than the {last} steps of this run; set it to at most that",
            code="config.never_due",
            late=late,
            last=last,
        )


def is_due(step: int, every: str, steps: int | None, per_epoch: int) -> bool:
    """Return whether an event that happens each epoch, each `steps` steps or never is due after a step, from 1."""
    if every == "never":
        return False
    return step % (per_epoch if every == "epoch" else steps or 1) == 0
