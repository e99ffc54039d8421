"""Computes the first and the last step of a run, and those of evaluations, checkpoints and samples of the noise."""

import logging
from pathlib import Path

from paratune.config.batch_size import ResolvedBatch
from paratune.config.sections import Config, MeasureOptions
from paratune.errors import CheckpointError, ConfigError, coded
from paratune.models.locate import locate
from paratune.records import read_json
from paratune.records.efficiency import MIN_SAMPLES
from paratune.strategies.protocol import Layout

log = logging.getLogger(__name__)

STATE_FILE = "trainer_state.json"
_KEY = "train.continue_trainer"


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
        message = f"{', '.join(late)} is more than the {last} steps of this run; set it to at most that"
        raise ConfigError(message, code="config.no_effect", late=late, last=last)


def is_due(step: int, every: str, steps: int | None, per_epoch: int) -> bool:
    """Return whether an event that happens each epoch, each `steps` steps or never is due after a step, from 1."""
    if every == "never":
        return False
    return step % (per_epoch if every == "epoch" else steps or 1) == 0


def first_step(config: Config, num_steps: int, steps_per_epoch: int, *, logs: bool = True) -> int:
    """Return the steps that were taken before this run: 0, or those of the Trainer with `train.continue_trainer`.

    Of its checkpoint only trainer_state.json is read. optimizer.pt and scheduler.pt are pickles, which are never read:
    the moments of the optimizer are new, and the schedule is a function of the step. `num_steps` includes the steps of
    the checkpoint; with `logs`, a warning names what differs from the Trainer.

    Raises:
        CheckpointError: trainer_state.json cannot be read, or has no step.
        ConfigError: `model.name` is not a checkpoint of the Trainer, or it has all steps of the run.
    """
    if not config.train.continue_trainer:
        return 0
    path = Path(locate(config.model.name)) / STATE_FILE
    if not path.is_file():
        message = (
            f"{_KEY}: {config.model.name} has no {STATE_FILE}; set model.name to a checkpoint of the Trainer, such as "
            "out/checkpoint-500, or leave the option out"
        )
        raise ConfigError(message, code="trainer.checkpoint", key=_KEY, value=config.model.name)
    state = read_json(path)
    step = state.get("global_step") if isinstance(state, dict) else None
    if type(step) is not int or step < 1:
        raise CheckpointError(f"{path} has no global_step: a number of steps from 1 on", code="run.damaged", path=path)
    if step >= num_steps:
        message = (
            f"{_KEY}: {config.model.name} is from step {step}, and the run has {num_steps} steps; set train.max_steps "
            "or train.epochs to the length of the whole training"
        )
        raise ConfigError(message, code="trainer.checkpoint", key=_KEY, step=step, num_steps=num_steps)
    planned, epoch = state.get("max_steps"), state.get("epoch")
    lines = [f"the moments of the optimizer are new: {path.parent.name} has them only in a pickle, which is not read"]
    if isinstance(planned, int) and planned != num_steps:
        lines.append(f"the Trainer planned {planned} steps, and this run has {num_steps}: the learning rate differs")
    if isinstance(epoch, int | float) and abs(epoch - step / steps_per_epoch) > 0.01:
        lines.append(f"the Trainer was at epoch {epoch:.2f}, which is {step / steps_per_epoch:.2f} here")
    lines.append("the order of the samples is that of paratune")
    if logs:
        log.warning("continuing after step %d: %s", step, "; ".join(lines), extra=coded("trainer.continued", step=step))
    return step


def noise_unavailable_reason(batch: ResolvedBatch, layout: Layout, *, compiles: bool) -> str | None:
    """Return why no step has two micro-batches whose gradients can be compared; None if steps have or can have them.

    `train.compile` would compile a micro-batch of a new shape during the run.
    """
    if batch.grad_accum_steps * layout.data_world_size > 1:
        return None
    half = batch.halved()
    if half is None:
        return "one sample, or one group of samples, a step: two micro-batches are needed to compare their gradients"
    if not compiles:
        return None  # `TrainBatches.compare_every` divides the micro-batch into two
    return (
        "one micro-batch a step: two are needed to compare their gradients, and train.compile does not divide it; set "
        f"batch.micro_batch_size: {half.micro_batch_size}, or with batch.per_device batch.grad_accum_steps: 2"
    )


def noise_interval(measure: MeasureOptions, num_steps: int) -> int | None:
    """Return the steps between two samples of the noise scale; None for no samples.

    With `auto` at most every 5th step is sampled, because a sampled step takes longer and may have more padding.
    """
    if measure.noise_scale_every != "auto":
        return measure.noise_scale_every
    return min(20, max(5, (num_steps - measure.warmup_steps) // MIN_SAMPLES))
