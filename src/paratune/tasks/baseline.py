"""What one reaches without reading a text: the same answer for every sample.

Floor 4. `N` samples, `C` classes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from paratune.config.task_sections import QuestionAnsweringTask
from paratune.data.load import Split
from paratune.metrics.squad import raw_scores, squad_scores
from paratune.tasks.protocol import TaskRecipe

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class ConstantAnswer:
    """One answer for all samples."""

    predicts: str
    """What it is, in words."""
    value: str | float
    """The answer itself: the name of a class, or a number."""
    outputs: Array
    """(K,): what a model would have to give for each sample."""
    loss: Callable[[Array], float]
    """From the labels of a split, (N,), to the mean loss; infinite where a class occurs that training did not have."""


def _majority(labels: Array, names: list[str]) -> ConstantAnswer:
    counts = np.bincount(labels, minlength=len(names))
    with np.errstate(divide="ignore"):
        shares = np.log(counts / counts.sum())
    return ConstantAnswer("majority class", names[int(counts.argmax())], shares, lambda of: float(-shares[of].mean()))


def _mean(labels: Array, names: list[str]) -> ConstantAnswer:
    mean = float(labels.mean(dtype=np.float64))
    return ConstantAnswer(
        "training mean", mean, np.array([mean]), lambda of: float(np.square(of.astype(float) - mean).mean())
    )


CONSTANTS: Final[dict[str, Callable[[Array, list[str]], ConstantAnswer]]] = {
    "classification": _majority,
    "regression": _mean,
}
"""From the labels of the training set and the names of the classes, by kind of task; other kinds have none."""


def constant_baseline(kind: str, recipe: TaskRecipe, splits: Mapping[str, Split]) -> dict[str, Any] | None:
    """Return what summary.json has as `baseline`: the scores of the best constant answer, known from training alone.

    For classes it is the commonest one of the training set (of equally common ones the first), with the shares of the
    training set for the loss; for numbers the mean of the training targets; for questions of which some have no answer
    it is to answer none, which has no loss.

    Args:
        kind: Of the task.
        recipe: Computes the scores, as it does for the model.
        splits: With train; all others that have labels are scored.

    Returns:
        `predicts`, `value`, and `scores` by split; None for other kinds, and where every question has an answer.
    """
    if isinstance(recipe.task, QuestionAnsweringTask):
        return _no_answer(recipe.task, splits) if recipe.task.unanswerable else None
    train = splits["train"].labels
    if train is None or kind not in CONSTANTS:
        return None
    constant = CONSTANTS[kind](train, recipe.names)
    scores = {}
    for name, split in splits.items():
        if name != "train" and split.labels is not None:
            outputs = np.tile(constant.outputs, (len(split.labels), 1))
            loss = constant.loss(split.labels)
            scores[name] = {**recipe.scores(split, outputs), "loss": loss if np.isfinite(loss) else None}
    return {"predicts": constant.predicts, "value": constant.value, "scores": scores}


def _no_answer(task: QuestionAnsweringTask, splits: Mapping[str, Split]) -> dict[str, Any]:
    scores: dict[str, Any] = {}
    for name, split in splits.items():
        if name != "train" and (golds := split.samples.answers) is not None:
            texts = [[answer.text for answer in gold] for gold in golds]
            raw = raw_scores([""] * len(golds), texts, task.articles)
            scores[name] = {**squad_scores(raw, None, 0.0), "loss": None}
    return {"predicts": "no answer", "value": "", "scores": scores}
