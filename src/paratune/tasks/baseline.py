"""Constant baselines: the scores of the same answer for every sample.

Dimensions: `N` samples, `K` choices.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from paratune.config.glue import headline_metrics
from paratune.config.task_sections import MultipleChoiceTask, QuestionAnsweringTask, Task
from paratune.data.load import Split
from paratune.metrics.squad import raw_scores, squad_scores
from paratune.records.constant import CONSTANT, LABEL_DEVIATION, compare_with_constant
from paratune.tasks.protocol import TaskRecipe

Array = np.ndarray[Any, Any]


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
    train, names = splits["train"].labels, recipe.names
    value: str | float
    if isinstance(recipe.task, MultipleChoiceTask):
        return _most_frequent_place(recipe, splits)
    if train is None or kind not in ("classification", "ordinal", "regression"):
        return None
    if kind == "classification":
        counts = np.bincount(train, minlength=len(names))
        with np.errstate(divide="ignore"):
            outputs = np.log(counts / counts.sum())
        predicts, value = "majority class", names[int(counts.argmax())]
    elif kind == "ordinal":
        median = int(np.median(train))
        # Certain answers to "is it above class k?"; their loss means nothing.
        outputs = np.where(np.arange(len(names) - 1) < median, 20.0, -20.0)
        predicts, value = "median class", names[median]
    else:
        outputs = np.atleast_1d(train.mean(axis=0, dtype=np.float64))
        predicts, value = "training mean", float(outputs.mean())
    has_loss = getattr(recipe.task, "loss", None) is None and getattr(recipe.task, "has_plain_loss", True)
    scores = {}
    for name, split in splits.items():
        if name == "train" or split.labels is None:
            continue
        loss = np.inf  # also where a class does not occur in training
        if has_loss and kind == "classification":
            loss = float(-outputs[split.labels].mean())
        elif has_loss and kind == "regression":
            loss = float(np.square(split.labels.reshape(len(split.labels), -1).astype(float) - outputs).mean())
        found = recipe.scores(split, np.tile(outputs, (len(split.labels), 1)))
        scores[name] = {**found, "loss": loss if np.isfinite(loss) else None}
    return {"predicts": predicts, "value": value, "scores": scores}


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
