"""Options that exclude each other, and options that have an effect only with some values of another one."""

from typing import Any, Final

from paratune.config.strategy_sections import STAGES

INSTEAD_OF: Final[dict[str, tuple[str, ...]]] = {
    "train.epochs": ("train.max_steps",),
    "train.max_steps": ("train.epochs",),
    "train.warmup_steps": ("train.warmup_ratio",),
    "train.warmup_ratio": ("train.warmup_steps",),
    "batch.global": ("batch.per_device", "batch.grad_accum_steps"),
    "batch.per_device": ("batch.global", "batch.micro_batch_size"),
    "model.name": ("model.revision",),
    "data.validation": ("data.split.validation", "data.split.folds", "data.split.fold"),
    "data.split.validation": ("data.validation",),
    "data.test": ("data.split.test",),
    "data.split.test": ("data.test",),
}
"""By option: the options that say the same in another way, which it replaces where it is set later."""
SCHEDULES_OF: Final = {
    "schedule_cycles": ("cosine_with_restarts",),
    "schedule_power": ("polynomial",),
    "schedule_end_ratio": ("linear", "cosine", "cosine_with_restarts", "polynomial", "warmup_stable_decay"),
    "decay_ratio": ("warmup_stable_decay",),
}
"""Schedules that have an option."""
EFFECTIVE_WITH: Final[dict[str, tuple[str, tuple[Any, ...]]]] = {
    **{f"train.{name}": ("train.schedule", schedules) for name, schedules in SCHEDULES_OF.items()},
    **{f"train.{name}": ("train.optimizer", ("adamw", "adamw_8bit")) for name in ("betas", "eps")},
    **{f"strategy.{name}": ("strategy.stage", stages) for name, stages in STAGES.items()},
    "strategy.offload_optimizer": ("strategy.stage", (1, 2, 3)),
    "strategy.offload_parameters": ("strategy.stage", (3,)),
    "strategy.cpu_adam": ("strategy.offload_optimizer", (True,)),
    "strategy.chunks": ("strategy.schedule", ("interleaved",)),
    "evaluate.steps": ("evaluate.every", ("steps",)),
    "evaluate.best": ("evaluate.every", ("epoch", "steps")),
    "evaluate.patience": ("evaluate.every", ("epoch", "steps")),
    "checkpoint.steps": ("checkpoint.every", ("steps",)),
    "data.head_tokens": ("data.truncation", ("head_tail",)),
    "data.columns.answer_start": ("task.kind", ("qa",)),
    "data.columns.choices": ("task.kind", ("multiple_choice",)),
    "data.columns.negative": ("task.kind", ("embedding",)),
    "task.strict": ("task.scheme", ("iob2",)),
    "task.null_threshold": ("task.unanswerable", (True, None)),
    "task.group_size": ("task.loss", ("multiple_negatives_ranking",)),
    "task.scale": ("task.loss", ("multiple_negatives_ranking",)),
    "task.margin": ("task.loss", ("triplet", "contrastive")),
    "task.score_range": ("task.loss", ("cosine_similarity",)),
}
"""Options that have an effect only with some values of another option."""
