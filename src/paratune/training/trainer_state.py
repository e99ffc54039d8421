"""Reads at which step a checkpoint of Hugging Face's Trainer was saved, to continue its training.

Only trainer_state.json is read. optimizer.pt and scheduler.pt are pickles, which are never read: the moments of the
optimizer start anew, and the schedule is a function of the step.
"""

import logging
from pathlib import Path

from paratune.config.sections import Config
from paratune.errors import CheckpointError, ConfigError, coded
from paratune.models.locate import locate
from paratune.records import read_json

log = logging.getLogger(__name__)

STATE_FILE = "trainer_state.json"
_KEY = "train.continue_trainer"


def first_step(config: Config, num_steps: int, steps_per_epoch: int, *, logs: bool = True) -> int:
    """Return the steps that were taken before this run: 0, or those of the checkpoint with `train.continue_trainer`.

    Args:
        num_steps: Steps of the whole run, those of the checkpoint included.

    Raises:
        CheckpointError: trainer_state.json cannot be read, or has no step.
        ConfigError: `model.name` is not a checkpoint of the Trainer, or it has all steps of the run.
    """
    if not config.train.continue_trainer:
        return 0
    path = Path(locate(config.model.name)) / STATE_FILE
    if not path.is_file():
        raise ConfigError(
            f"{_KEY}: {config.model.name} has no {STATE_FILE}; set model.name to a checkpoint of the Trainer, such as "
            "out/checkpoint-500, or leave the option out",
            code="trainer.no_state",
            key=_KEY,
            value=config.model.name,
        )
    state = read_json(path)
    step = state.get("global_step") if isinstance(state, dict) else None
    if type(step) is not int or step < 1:
        raise CheckpointError(f"{path} has no global_step: a number of steps from 1 on", code="run.damaged", path=path)
    if step >= num_steps:
        raise ConfigError(
            f"{_KEY}: {config.model.name} is from step {step}, and the run has {num_steps} steps; set train.max_steps "
            "or train.epochs to the length of the whole training",
            code="trainer.past_end",
            key=_KEY,
            step=step,
            num_steps=num_steps,
        )
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
