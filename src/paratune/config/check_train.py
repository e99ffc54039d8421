"""Checks how the model is trained: length, schedule, trained weights, own code, strategy and distillation.

`Contradictions` collects problems of options that exclude each other, or that have no effect.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from paratune.config.choices import EFFECTIVE_WITH
from paratune.config.feasibility import excluded_settings
from paratune.config.optional_sections import distance_of, teacher_names
from paratune.config.own_code import CLASS_KEY, HEAD_KEY
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.section import Section
from paratune.config.sections import Config, FreezeOptions
from paratune.config.strategy_sections import (
    DeepSpeedOptions,
    OutsideStrategy,
    PipelineOptions,
    strategy_options,
)
from paratune.config.task_sections import ClassificationTask
from paratune.config.traits import strategy_traits

NOT_GIVEN: Final = object()


def given(config: Section, key: str, *, also_default: bool = False) -> Any:
    """Return the value of a dotted option; NOT_GIVEN if its section is null or lacks it, or if it is the default.

    Args:
        also_default: Return the default, too.
    """
    value: Any = config
    for name in key.split("."):
        fields = getattr(type(value), "model_fields", {})
        attribute = name if name in fields else f"{name}_"  # `global` and `class` are words of Python
        if attribute not in fields:
            return NOT_GIVEN
        value = getattr(value, attribute)
    # Not model_fields_set: the file of a run of a matrix, and that of `config show`, set every option.
    is_default = value == fields[attribute].get_default(call_default_factory=True)
    return NOT_GIVEN if is_default and not also_default else value


class Contradictions:
    """The problems between sections of one configuration that were found so far."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.problems: list[Problem] = []

    def add(self, message: str, *keys: str, code: str = "config.conflict", is_impossible: bool = False) -> None:
        """Add a problem; the first of its keys is the one to change."""
        self.problems.append(Problem(message, keys, code=code, is_impossible=is_impossible))

    def exclusive(self, key: str, *others: str) -> None:
        """Add a problem for each of `others` that is given although `key` is given."""
        value = given(self.config, key)
        for other in others:
            other_value = given(self.config, other)
            if not any(option is NOT_GIVEN or option is None for option in (value, other_value)):
                shown = f"{key}: {one_line(value)} and {other}: {one_line(other_value)}"
                self.add(f"{shown} are both given; keep one of them", key, other)

    def only_for(self, kinds: Sequence[str], key: str, value: object) -> bool:
        """Return whether the task is one of some kinds; otherwise add the problem of a value that is for these only."""
        if (kind := self.config.task.kind) not in kinds:
            message = f"{key}: {value} is for task.kind: {', '.join(kinds)}, and task.kind is {kind}; leave it out"
            self.add(message, key, "task.kind", code="task.unsupported")
        return kind in kinds

    def unused(self, keys: str | tuple[str, ...], circumstances: str, *causes: str) -> None:
        """Add a problem for each option that is given, and has no effect; see `no_effect`."""
        for key in (keys,) if isinstance(keys, str) else keys:
            if (value := given(self.config, key)) is not NOT_GIVEN:
                self.no_effect(key, value, circumstances, *causes)

    def no_effect(self, key: str, value: object, circumstances: str, *causes: str, is_impossible: bool = False) -> None:
        """Add the problem of an option without effect.

        Args:
            circumstances: Why it has no effect, such as "with train.freeze_encoder: true".
            causes: Keys of the options that cause this, the most likely cause first.
            is_impossible: As in `Problem`.
        """
        message = f"{key}: {one_line(value)} has no effect {circumstances}"
        self.add(message, key, *causes, code="config.no_effect", is_impossible=is_impossible)


ONE_ANSWER: Final = ("classification", "multi_label", "ordinal", "regression")
"""Kinds of tasks with one answer for each text."""
FREEZE_KEYS: Final = ("train.freeze_encoder", *(f"train.freeze.{name}" for name in FreezeOptions.model_fields))
"""Options that freeze weights."""
LOSS_KEYS: Final = ("task.loss.function", "task.class_weights", "task.label_smoothing", "task.focal_gamma")
"""Options of the loss: of the user's own one, and of the one of a classification."""


def _effective(found: Contradictions) -> None:
    for key, (other, allowed) in EFFECTIVE_WITH.items():
        value = given(found.config, other, also_default=True)
        value = getattr(value, "function", value)  # of the user's own schedule
        if value is not NOT_GIVEN and value not in allowed:
            names = " or ".join(map(one_line, allowed))
            found.unused(key, f"with {other}: {one_line(value)}; it is for {other}: {names}", other)


def _length(found: Contradictions) -> None:
    train, keys = found.config.train, ("train.epochs", "train.max_steps")
    if train.epochs is None and train.max_steps is None:
        message = "train.epochs or train.max_steps is required: how long to train"
        found.add(message, *keys, code="config.required")
    found.exclusive(*keys)
    found.exclusive("train.warmup_steps", "train.warmup_ratio")
    if train.warmup_steps and train.max_steps and train.warmup_steps > train.max_steps:
        message = f"train.warmup_steps is {train.warmup_steps}, more than train.max_steps: {train.max_steps}"
        keys = ("train.warmup_steps", "train.max_steps")
        found.add(f"{message}; the learning rate would never reach its peak", *keys, code="config.no_effect")


def _weights(found: Contradictions) -> None:
    config, model = found.config, found.config.model
    if model.name.startswith("demo:"):
        found.unused("model.revision", f"with model.name: {model.name}", "model.name")
    if model.tokenizer is None:
        wanted = "without model.tokenizer; the tokenizer of the model has model.revision"
        found.unused("model.tokenizer_revision", wanted, "model.tokenizer")
    found.exclusive("train.continue_trainer", "model.from_scratch")
    found.exclusive("model.keep_layers", "model.from_scratch")
    found.exclusive("model.resize_vocabulary", "model.from_scratch")  # which has the vocabulary of the tokenizer
    found.exclusive(f"{HEAD_KEY}.function", CLASS_KEY)
    for key, name in ((HEAD_KEY, model.head and model.head.function), (CLASS_KEY, model.class_)):
        if name is not None:
            found.only_for(ONE_ANSWER, key, name)
    if config.train.freeze_encoder:
        keys = (*FREEZE_KEYS[1:], "train.layer_decay", "train.activation_checkpointing")
        found.unused(keys, "with train.freeze_encoder: true", "train.freeze_encoder")
    found.exclusive("model.adapter.kind", *FREEZE_KEYS, "model.from_scratch")  # an adapter freezes the encoder itself
    found.exclusive("model.quantize_base", "model.from_scratch")
    found.exclusive("model.quantize_base", "model.adapter.dora")  # which computes with the weights of the base
    if model.adapter is None and not any(given(config, key) is not NOT_GIVEN for key in FREEZE_KEYS):
        found.unused(
            "model.quantize_base", "without model.adapter or train.freeze: no weight is frozen", "model.adapter"
        )
    if model.adapter is not None and model.adapter.save == "adapter" and config.task.kind == "mlm":
        message = "model.adapter.save: adapter cannot be combined with task.kind: mlm, whose head has weights of others"
        found.add(f"{message}; use merged", "model.adapter.save", "task.kind")
    if model.adapter is not None and model.adapter.save == "adapter" and model.resize_vocabulary:
        message = (
            "model.adapter.save: adapter cannot be combined with model.resize_vocabulary: the base model is smaller"
        )
        found.add(f"{message}; use merged", "model.adapter.save", "model.resize_vocabulary")


def _strategy(found: Contradictions) -> None:
    """Check for settings that the strategy excludes; `feasibility` has the rules that need more than the file."""
    config, strategy, options = found.config, found.config.strategy, strategy_options(found.config.strategy)
    traits = strategy_traits(strategy.kind, options)
    for reason in excluded_settings(config, traits) if traits else ():
        found.add(reason.message, *reason.keys, code=reason.code, is_impossible=True)
    for key, value in options.items() if config.device == "cpu" else ():
        if "offload" in key and value is True:
            wanted = "with device: cpu, where all states are in host memory"
            found.no_effect(f"strategy.{key}", True, wanted, "device", is_impossible=True)
    dtype = "fp32" if isinstance(strategy, OutsideStrategy) else options.get("param_dtype", "fp32")
    if dtype not in ("fp32", config.precision):  # forward and backward compute in it
        message = f"strategy.param_dtype: {dtype} needs precision: {dtype}, and it is {config.precision}"
        message += f"; set precision: {dtype}, or leave strategy.param_dtype out"
        found.add(message, "strategy.param_dtype", "precision", code="precision.conflict", is_impossible=True)
    found.exclusive("strategy.bucket_cap_mb", "strategy.reduce_bucket_size", "strategy.allgather_bucket_size")
    if isinstance(strategy, DeepSpeedOptions) and dtype != "fp32" and strategy.stage == 0:
        message = f"strategy.param_dtype: {dtype} cannot be combined with strategy.stage: 0; use stage 1, 2 or 3"
        keys = ("strategy.param_dtype", "strategy.stage")
        found.add(message, *keys, code="precision.conflict", is_impossible=True)
    if isinstance(strategy, PipelineOptions):
        num_stages = strategy.stages * (traits.stages_per_rank if traits else 1)
        if isinstance(strategy.balance, list) and len(strategy.balance) != num_stages:
            message = f"strategy.balance: {one_line(strategy.balance)} names {len(strategy.balance)} stages"
            message += f", and strategy.stages times the chunks of each rank is {num_stages}"
            found.add(message, "strategy.balance", "strategy.stages")


def _distil(found: Contradictions) -> None:
    distil, task = found.config.distil, found.config.task
    if distil is None:
        return
    if not found.only_for(ONE_ANSWER, "distil", one_line(distil.teacher)):
        return
    kind = distance_of(distil, task.kind)
    if kind == "kl" and not isinstance(task, ClassificationTask):
        message = f"distil.distance: kl is for task.kind: classification, and task.kind is {task.kind}"
        found.add(f"{message}; use mse", "distil.distance", "task.kind")
    if kind != "kl":
        found.unused("distil.temperature", "without distil.distance: kl", "distil.distance")
    if distil.weight == 1:
        found.unused(LOSS_KEYS, "with distil.weight: 1, which leaves out the labels", "distil.weight")
    names = teacher_names(distil)
    if repeated := [name for name, count in Counter(names).items() if count > 1]:
        message = f"distil.teacher: {repeated[0]} is named twice; an ensemble needs different models"
        found.add(message, "distil.teacher", code="config.invalid_value")


TRAIN_CHECKS: Final = (_effective, _length, _weights, _strategy, _distil)
