"""Checks the section `train`: the length, the schedule and the weights that are trained."""

from collections import Counter
from collections.abc import Callable, Iterator

from paratune.config.contradictions import exclusive, unused
from paratune.config.distil_section import Distil, distance_of, teacher_names
from paratune.config.problems import Problem
from paratune.config.sections import Config, FreezeOptions
from paratune.config.strategy_sections import strategy_options
from paratune.config.task_sections import ClassificationTask, ClassTask, RegressionTask
from paratune.config.traits import strategy_traits


def _length(config: Config) -> Iterator[Problem]:
    train = config.train
    keys = ("train.epochs", "train.max_steps")
    if train.epochs is None and train.max_steps is None:
        yield Problem("train.epochs or train.max_steps is required: how long to train", keys, code="config.required")
    yield from exclusive(config, "train.epochs", "train.max_steps")


def _continued(config: Config) -> Iterator[Problem]:
    """Check for settings without a checkpoint of the Trainer to continue."""
    yield from exclusive(config, "train.continue_trainer", "model.from_scratch")
    if config.baseline is not None:
        wanted = f"with baseline: {config.baseline.kind}, which has no steps"
        yield from unused(config, "train.continue_trainer", wanted, "baseline")


def _warmup(config: Config) -> Iterator[Problem]:
    train = config.train
    yield from exclusive(config, "train.warmup_steps", "train.warmup_ratio")
    if train.warmup_steps and train.max_steps and train.warmup_steps > train.max_steps:
        message = (
            f"train.warmup_steps is {train.warmup_steps}, more than train.max_steps: {train.max_steps}; "
            "the learning rate would never reach its peak"
        )
        yield Problem(message, ("train.warmup_steps", "train.max_steps"), code="config.never_due")


SCHEDULES_OF = {
    "schedule_cycles": ("cosine_with_restarts",),
    "schedule_power": ("polynomial",),
    "schedule_end_ratio": ("linear", "cosine", "cosine_with_restarts", "polynomial", "warmup_stable_decay"),
    "decay_ratio": ("warmup_stable_decay",),
}
"""Schedules that have an option."""


def _schedule(config: Config) -> Iterator[Problem]:
    train = config.train
    for name, schedules in SCHEDULES_OF.items():
        if train.schedule not in schedules:
            chosen = train.schedule if isinstance(train.schedule, str) else train.schedule.function
            wanted = f"with train.schedule: {chosen}; it is for {', '.join(schedules)}"
            yield from unused(config, f"train.{name}", wanted, "train.schedule")


FREEZE_KEYS = ("train.freeze_encoder", *(f"train.freeze.{name}" for name in FreezeOptions.model_fields))
"""Options that freeze weights."""
LOSS_KEYS = ("task.class_weights", "task.label_smoothing", "task.focal_gamma")
"""Options of the loss of a classification."""


def _freeze(config: Config) -> Iterator[Problem]:
    """Check for options without effect where the encoder is frozen."""
    if config.train.freeze_encoder:
        keys = (*FREEZE_KEYS[1:], "train.layer_decay")
        yield from unused(config, keys, "with train.freeze_encoder: true", "train.freeze_encoder")


def _adapter(config: Config) -> Iterator[Problem]:
    """Check for settings that an adapter excludes: it freezes the encoder itself."""
    adapter = config.model.adapter
    if adapter is None:
        return
    yield from exclusive(config, "model.adapter.kind", *FREEZE_KEYS, "model.from_scratch")
    if adapter.save == "adapter" and config.task.kind == "mlm":
        message = (
            "model.adapter.save: adapter cannot be combined with task.kind: mlm, whose head shares weights with the "
            "embeddings; use merged"
        )
        yield Problem(message, ("model.adapter.save", "task.kind"), code="config.conflict")


def _kept_layers(config: Config) -> Iterator[Problem]:
    """Check that the layers to keep are loaded, in their order, each of them once."""
    kept = config.model.keep_layers
    if kept is None:
        return
    yield from exclusive(config, "model.keep_layers", "model.from_scratch")
    if kept != sorted(set(kept)):
        message = f"model.keep_layers: {kept} must ascend, and name each layer once"
        yield Problem(message, ("model.keep_layers",), code="config.invalid_value")


def _distil(config: Config) -> Iterator[Problem]:
    """Check for tasks and settings that a distillation does not support."""
    distil, task = config.distil, config.task
    if distil is None:
        return
    if not isinstance(task, ClassTask | RegressionTask):
        message = (
            f"distil is for tasks with one answer for each text, and task.kind is {task.kind}; leave distil out, or "
            "use classification, multi_label, ordinal or regression"
        )
        yield Problem(message, ("distil", "task.kind"), code="task.unsupported")
        return
    kind = distance_of(distil, task.kind)
    if kind == "kl" and not isinstance(task, ClassificationTask):
        wanted = "which compares the probabilities of one class among several; use mse"
        message = f"distil.distance: kl does not fit task.kind: {task.kind}, {wanted}"
        yield Problem(message, ("distil.distance", "task.kind"), code="config.conflict")
    if kind != "kl":
        yield from unused(config, "distil.temperature", "without distil.distance: kl", "distil.distance")
    if distil.weight == 1:
        keys = ("task.loss.function", *LOSS_KEYS)
        yield from unused(config, keys, "with distil.weight: 1, which leaves out the labels", "distil.weight")
    yield from _hidden_states(config, distil)
    names = teacher_names(distil)
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        message = f"distil.teacher: {repeated[0]} is named twice; an ensemble needs different models"
        yield Problem(message, ("distil.teacher",), code="config.invalid_value")


def _hidden_states(config: Config, distil: Distil) -> Iterator[Problem]:
    """Check the layers whose states are learned, and what cannot be combined with them."""
    hidden = distil.hidden
    if hidden is None:
        return
    for key, layers in (("layers", hidden.layers), ("teacher_layers", hidden.teacher_layers)):
        if layers != sorted(set(layers)):
            message = f"distil.hidden.{key}: {layers} must ascend, and name each layer once"
            yield Problem(message, (f"distil.hidden.{key}",), code="config.invalid_value")
    if len(hidden.layers) != len(hidden.teacher_layers):
        message = (
            f"distil.hidden: {len(hidden.layers)} layers and {len(hidden.teacher_layers)} teacher_layers; each layer "
            "of the student learns from one of the teacher"
        )
        yield Problem(message, ("distil.hidden.layers", "distil.hidden.teacher_layers"), code="config.conflict")
    if len(teacher_names(distil)) > 1:
        message = "distil.hidden is for one teacher, and distil.teacher names several; name one, or leave hidden out"
        yield Problem(message, ("distil.hidden", "distil.teacher"), code="config.conflict")
    if config.train.compile:
        message = "distil.hidden cannot be combined with train.compile: true, which hides the states of layers"
        yield Problem(message, ("distil.hidden", "train.compile"), code="config.conflict")
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    if traits is not None and traits.cuts_blocks:
        message = (
            f"distil.hidden cannot be combined with strategy.kind: {config.strategy.kind}, which divides the layers "
            "among processes; use another strategy, or leave hidden out"
        )
        yield Problem(message, ("distil.hidden", "strategy.kind"), code="config.conflict")


TRAIN_CHECKS: tuple[Callable[[Config], Iterator[Problem]], ...] = (
    _length,
    _warmup,
    _continued,
    _schedule,
    _freeze,
    _adapter,
    _kept_layers,
    _distil,
)
"""Checks of the section, for `config.check`."""
