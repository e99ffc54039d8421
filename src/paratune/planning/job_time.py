"""The time of a whole job: steps, start-up, tokenizing, evaluations and checkpoints. No torch."""

from paratune.config.distil_section import teacher_names
from paratune.config.sections import Config
from paratune.errors import CheckpointError, ConfigError
from paratune.models.locate import teacher_folder
from paratune.planning.figure_range import FigureRange

_START_S = (25.0, 8.0, 120.0)
"""Imports, processes and the first collective: assumed. A cold shared file system takes minutes, a warm disk seconds
(benchmarks/startup_cpu_202611.md: 4 s for imports on a quiet machine)."""
_READ_BYTES_PER_S = (1e9, 0.1e9, 5e9)
"""Weights from storage, by each rank: assumed, from a shared file system to a local SSD."""
_WRITE_BYTES_PER_S = (0.5e9, 0.05e9, 3e9)
"""Checkpoints to storage: assumed, likewise."""
_TOKENS_PER_S = (1e6, 0.2e6, 5e6)
"""Of a fast tokenizer with all cores of a node, before its tokens are in the cache: assumed."""
_VALIDATION_SHARE = 0.1
"""Rows of a validation set in a separate file, which a plan does not read, as a share of the training rows:
assumed."""
_FORWARD_SPREAD = 1.5
"""Factor between an evaluated row and the forward pass of a trained one, either way: assumed."""
_TEACHER_SPREAD = 2.0
"""Most factor between the forward passes of a teacher and a student whose weights have the same size: assumed, because
embeddings are weights without arithmetic."""


def job_time(
    config: Config,
    run: FigureRange,
    *,
    num_steps: int,
    steps_per_epoch: float,
    num_samples: int,
    num_tokens: float,
    forward_share: float,
    weight_bytes: int,
    state_bytes: int,
    data_world_size: int = 1,
) -> FigureRange:
    """Return the seconds from the start of a job to its end, with an interval for `sbatch --time`.

    Args:
        config: Has the intervals of evaluations and checkpoints.
        run: Seconds of all steps.
        num_steps: Steps of the run.
        steps_per_epoch: Of whole batches.
        num_samples: Rows of the training set.
        num_tokens: Tokens of the training set.
        forward_share: Part of a step that is its forward pass.
        weight_bytes: Of the whole model, as each rank reads it.
        state_bytes: Of a checkpoint: weights and optimizer states of the whole model.
        data_world_size: Number of ranks that share the rows of a step.
    """
    num_epochs = num_steps / steps_per_epoch
    num_evaluations = _num_times(config.evaluate.every, config.evaluate.steps, num_epochs, num_steps)
    num_saves = _num_times(config.checkpoint.every, config.checkpoint.steps, num_epochs, num_steps)
    share = _validation_share(config, num_samples)
    epoch_forward = FigureRange(
        run.value / num_epochs, run.low / num_epochs / _FORWARD_SPREAD, run.high / num_epochs * _FORWARD_SPREAD
    ).times(forward_share)
    # One process applies the teachers of a distillation to all training rows.
    teachers = epoch_forward.times(data_world_size * _teacher_size(config, weight_bytes))
    parts = (
        run,
        FigureRange(*_START_S),
        _duration(weight_bytes, _READ_BYTES_PER_S),
        _duration(num_tokens * (1 + share), _TOKENS_PER_S),
        epoch_forward.times(num_evaluations * share),
        FigureRange(teachers.value, teachers.low, teachers.high * _TEACHER_SPREAD),
        _duration(num_saves * state_bytes + weight_bytes, _WRITE_BYTES_PER_S),
    )
    return FigureRange(*(sum(getattr(part, end) for part in parts) for end in ("value", "low", "high")))


def _num_times(every: str, steps: int | None, num_epochs: float, num_steps: int) -> int:
    """Return how often something happens in a run: at each epoch, every so many steps, or at the end alone."""
    if every == "epoch":
        return max(1, int(num_epochs))
    return max(1, num_steps // steps) if every == "steps" and steps else 1


def _teacher_size(config: Config, student_bytes: int) -> float:
    """Return the bytes of the weights of all teachers of a distillation, divided by those of the student.

    A teacher without weights here counts as one of the size of the student.
    """
    total = 0
    for name in teacher_names(config.distil) if config.distil is not None else ():
        try:
            files = list(teacher_folder(name).glob("*.safetensors"))
        except (CheckpointError, ConfigError):
            files = []
        total += sum(file.stat().st_size for file in files) or student_bytes
    return total / student_bytes if total else 0.0


def _validation_share(config: Config, num_samples: int) -> float:
    """Return the validation rows as a share of the training rows."""
    data = config.data
    share = None if data.split is None else data.split.validation_share
    if share is not None:
        return share / (1 - share)
    if data.validation is None:
        return 0.0
    limit = None if data.max_rows is None else data.max_rows.validation
    return _VALIDATION_SHARE if limit is None else min(_VALIDATION_SHARE, limit / num_samples)


def _duration(amount: float, rate: tuple[float, float, float]) -> FigureRange:
    value, low, high = rate
    return FigureRange(amount / value, amount / high, amount / low)
