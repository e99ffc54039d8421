"""Checks the options of sentence embeddings against other sections."""

from collections.abc import Iterator
from typing import Final

from paratune.config.contradictions import no_effect, unused
from paratune.config.metric_names import EMBEDDING_SCORES
from paratune.config.plain import one_line
from paratune.config.problems import Problem
from paratune.config.sections import Config
from paratune.config.task_sections import EmbeddingTask, group_size
from paratune.errors import did_you_mean

_LOSSES_OF: Final[dict[str, tuple[str, ...]]] = {
    "group_size": ("multiple_negatives_ranking",),
    "scale": ("multiple_negatives_ranking",),
    "margin": ("triplet", "contrastive"),
    "score_range": ("cosine_similarity",),
}
"""The losses that an option of the task is for."""
_COLUMNS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "multiple_negatives_ranking": ((), ("label",)),
    "cosine_similarity": (("label",), ("negative",)),
    "triplet": (("negative",), ("label",)),
    "contrastive": (("label",), ("negative",)),
}
"""By loss, the required columns besides both texts, and the columns without effect."""
_MEANINGS: Final = {"label": "the similarity, a number", "negative": "the text that is not related"}


def check_embedding(config: Config) -> Iterator[Problem]:
    """Check the options of sentence embeddings."""
    task = config.task
    if not isinstance(task, EmbeddingTask):
        wanted = f"in {task.kind}; it is for task.kind: embedding"
        yield from unused(config, "data.columns.negative", wanted, "task.kind")
        return
    for name, losses in _LOSSES_OF.items():
        if task.loss not in losses:
            wanted = f"with task.loss: {task.loss}; it is for {' and '.join(losses)}"
            yield from unused(config, f"task.{name}", wanted, "task.loss")
    if task.score_range is not None and task.score_range[0] >= task.score_range[1]:
        message = f"task.score_range: {one_line(task.score_range)} must name a lower and then a higher score"
        yield Problem(message, ("task.score_range",), code="task.range")
    yield from _columns(config, task)
    yield from _group(config, task)
    yield from _other_sections(config, task)


def _columns(config: Config, task: EmbeddingTask) -> Iterator[Problem]:
    needed, without_effect = _COLUMNS[task.loss]
    for name in needed:
        if getattr(config.data.columns, name) is None:
            message = f"data.columns.{name} is required with task.loss: {task.loss}: the column of {_MEANINGS[name]}"
            yield Problem(message, (f"data.columns.{name}", "data.columns", "data"), code="config.required")
    for name in without_effect:
        yield from unused(config, f"data.columns.{name}", f"with task.loss: {task.loss}", "task.loss")


def _group(config: Config, task: EmbeddingTask) -> Iterator[Problem]:
    """Check that a group is in one micro-batch; with several processes, `find_batch` checks their shares, too."""
    size, batch = group_size(task), config.batch
    for key, value in (
        ("batch.global", batch.global_),
        ("batch.per_device", batch.per_device),
        ("batch.micro_batch_size", batch.micro_batch_size),
    ):
        if isinstance(value, int) and value % size:
            message = (
                f"{key}: {value} is not a multiple of task.group_size: {size}; the {size} samples of a group are each "
                f"other's negatives and must be in one micro-batch; nearest: {nearest(value, size)}"
            )
            yield Problem(message, (key, "task.group_size"), code="batch.group")


def nearest(value: int, size: int) -> str:
    """Return the nearest multiples of `size`, at least 1, as text: "16 or 32"."""
    below = value // size * size
    return " or ".join(str(number) for number in (below, below + size) if number)


def _other_sections(config: Config, task: EmbeddingTask) -> Iterator[Problem]:
    best, known = config.evaluate.best, (*EMBEDDING_SCORES[task.loss], "loss")
    if best is not None and not best.startswith("own_") and best not in known:
        message = (
            f"evaluate.best: {best} is not a metric of task.loss: {task.loss}{did_you_mean(best, known)}; allowed: "
            f"{', '.join(known)}"
        )
        yield Problem(message, ("evaluate.best", "task.loss"), code="metric.unknown")
    elif best == "accuracy" and config.data.columns.negative is None:
        wanted = "without data.columns.negative: it is the accuracy of triplets"
        yield no_effect("evaluate.best", best, wanted, "data.columns.negative")
    if (truncation := config.data.truncation) in ("only_first", "only_second"):
        yield no_effect("data.truncation", truncation, "in embedding, where each text is encoded alone", "task.kind")
    if config.train.freeze_encoder:
        message = "train.freeze_encoder: true leaves nothing to train in embedding, which has no head; use train.freeze"
        yield Problem(message, ("train.freeze_encoder", "task.kind"), code="config.conflict")
    if config.evaluate.slices and "label" in config.evaluate.slices:
        yield no_effect("evaluate.slices", "label", "in embedding, whose labels are numbers", "task.kind")
