"""Constant baselines: the scores of the same answer for every sample.

Dimensions: `N` samples, `C` classes, `K` outputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from paratune.config.glue import headline_metrics
from paratune.config.task_sections import ClassificationTask, MultipleChoiceTask, QuestionAnsweringTask, Task
from paratune.data.load import Split
from paratune.metrics.squad import raw_scores, squad_scores
from paratune.records.constant import CONSTANT, LABEL_DEVIATION, compare_with_constant
from paratune.tasks.protocol import TaskRecipe

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ConstantAnswer:
    """One answer for all samples."""

    predicts: str
    value: str | float
    """Name of a class, or a number."""
    outputs: Array
    """(K,): the outputs of a model that gives this answer."""
    loss: Callable[[Array], float]
    """From the labels of a split, (N,), to the mean loss; infinite where a class does not occur in training."""


def _majority(labels: Array, names: list[str]) -> ConstantAnswer:
    counts = np.bincount(labels, minlength=len(names))
    with np.errstate(divide="ignore"):
        shares = np.log(counts / counts.sum())
    return ConstantAnswer(
        "majority class", names[int(counts.argmax())], shares, lambda split_labels: float(-shares[split_labels].mean())
    )


def _mean(labels: Array, names: list[str]) -> ConstantAnswer:
    mean = float(labels.mean(dtype=np.float64))
    return ConstantAnswer(
        "training mean",
        mean,
        np.array([mean]),
        lambda split_labels: float(np.square(split_labels.astype(float) - mean).mean()),
    )


def _median(labels: Array, names: list[str]) -> ConstantAnswer:
    median = int(np.median(labels))
    # Certain answers to "is it above class k?"; their loss says nothing.
    outputs = np.where(np.arange(len(names) - 1) < median, 20.0, -20.0)
    return ConstantAnswer("median class", names[median], outputs, lambda split_labels: np.inf)


CONSTANTS: Final[dict[str, Callable[[Array, list[str]], ConstantAnswer]]] = {
    "classification": _majority,
    "ordinal": _median,
    "regression": _mean,
}
"""By kind of task: from the labels of the training set and the names of classes to the constant answer."""


def constant_baseline(kind: str, recipe: TaskRecipe, splits: Mapping[str, Split]) -> dict[str, Any] | None:
    """Return the entry `baseline` of summary.json: the scores of the constant answer that is best in training.

    For classes, it is the most frequent class of the training set (the first of several), with the shares of the
    classes as probabilities for the loss, which is None where the task has weights or another option of the loss. For
    numbers, it is the mean of the training targets, and for ordered classes the median class, without a loss. For
    choices, it is the place that is most often right. For questions of which some have no answer, it is "no answer",
    which has no loss.

    Args:
        kind: Kind of the task.
        recipe: Computes the scores, as for the model.
        splits: Splits with train; all others with labels are scored.

    Returns:
        `predicts`, `value`, and `scores` by split; None for other kinds, and where every question has an answer.
    """
    if isinstance(recipe.task, QuestionAnsweringTask):
        return _no_answer(recipe.task, splits) if recipe.task.unanswerable else None
    train = splits["train"].labels
    if isinstance(recipe.task, MultipleChoiceTask):
        return _most_frequent_place(recipe, splits)
    if train is None or kind not in CONSTANTS:
        return None
    constant = CONSTANTS[kind](train, recipe.names)
    has_loss = getattr(recipe.task, "loss", None) is None
    if isinstance(recipe.task, ClassificationTask):
        has_loss = has_loss and recipe.task.has_plain_loss
    scores = {}
    for name, split in splits.items():
        if name != "train" and split.labels is not None:
            outputs = np.tile(constant.outputs, (len(split.labels), 1))
            loss = constant.loss(split.labels) if has_loss else np.inf
            scores[name] = {**recipe.scores(split, outputs), "loss": loss if np.isfinite(loss) else None}
    return {"predicts": constant.predicts, "value": constant.value, "scores": scores}


def outcome_record(
    task: Task, scores: Mapping[str, Any], baseline: Mapping[str, Any] | None, labels: Array | None
) -> dict[str, Any]:
    """Return what later commands, which have the model folder alone, must know: whether the model is of use, and, from
    the training labels, what a small effect on a score is.
    """
    compared = compare_with_constant(scores, baseline, headline_metrics(task))
    is_score = task.kind in ("regression", "ordinal") and labels is not None
    deviation = float(np.std(labels, dtype=np.float64)) if is_score else None  # type: ignore[arg-type]
    return {CONSTANT: compared and compared.model_dump(), LABEL_DEVIATION: deviation}


def _most_frequent_place(recipe: TaskRecipe, splits: Mapping[str, Split]) -> dict[str, Any]:
    """Return the baseline of multiple choice: the place that is most often right in training, among the choices of a
    question; the loss is that of the shares of the places.
    """
    counts = {name: split.store.num_sequences for name, split in splits.items()}
    labels = splits["train"].labels
    assert labels is not None
    right_K = np.bincount(labels, minlength=max(int(count.max()) for count in counts.values()))
    scores: dict[str, Any] = {}
    for name, split in splits.items():
        if name != "train" and split.labels is not None:
            is_choice_NK = np.arange(len(right_K)) < counts[name][:, None]
            weights_NK = np.where(is_choice_NK, right_K, 0)
            weights_N = weights_NK[np.arange(len(weights_NK)), split.labels]
            loss = float(-np.log(weights_N / weights_NK.sum(axis=1)).mean()) if weights_N.all() else None
            scores[name] = {**recipe.scores(split, np.where(is_choice_NK, right_K, -np.inf)), "loss": loss}
    return {"predicts": "most frequent place", "value": int(right_K.argmax()), "scores": scores}


def _no_answer(task: QuestionAnsweringTask, splits: Mapping[str, Split]) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    for name, split in splits.items():
        if name != "train" and (golds := split.samples.answers) is not None:
            texts = [[answer.text for answer in gold] for gold in golds]
            raw = raw_scores([""] * len(golds), texts, task.articles)
            scores[name] = {**squad_scores(raw, None, 0.0), "loss": None}
    return {"predicts": "no answer", "value": "", "scores": scores}
