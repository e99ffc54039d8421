"""What kinds of tasks with one answer for each text differ in: outputs of the head, scores, columns of predictions.

Floor 4. `N` samples, `C` classes.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from paratune.config.task_sections import (
    ClassificationTask,
    MultiLabelTask,
    OrdinalTask,
    RegressionTask,
    Task,
    class_names,
)
from paratune.metrics.classification import classification_scores, confusion
from paratune.metrics.multi_label import multi_label_scores
from paratune.metrics.ordinal import ordinal_scores
from paratune.metrics.regression import regression_scores
from paratune.records.predictions import (
    NumberScale,
    joined_names,
    multi_label_columns,
    ordinal_columns,
    predicted_ranks,
    prediction_columns,
)

SequenceTask = ClassificationTask | MultiLabelTask | OrdinalTask | RegressionTask
Array = np.ndarray[Any, Any]
Scores = dict[str, float | None]


class AnswerKind(Protocol):
    """What follows from the kind of answer."""

    @property
    def problem_type(self) -> str:
        """What transformers calls it."""
        ...

    @property
    def heads(self) -> list[str]:
        """Names of the outputs; none for a number."""
        ...

    def scores(self, outputs: Array, labels: Array) -> Scores: ...

    def details(self, outputs: Array, labels: Array) -> dict[str, Any]:
        """As `protocol.TaskRecipe.details`."""
        ...

    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        """Return what was predicted of each row: `prediction` and scores."""
        ...

    def label_column(self, labels: Array) -> Any:
        """Return the labels as `prediction` would have them."""
        ...


@dataclass(frozen=True)
class Classes:
    """One of C classes."""

    names: list[str]
    problem_type: str = "single_label_classification"

    @property
    def heads(self) -> list[str]:
        return self.names

    def scores(self, outputs: Array, labels: Array) -> Scores:
        return classification_scores(outputs, labels)

    def details(self, outputs: Array, labels: Array) -> dict[str, Any]:
        counts = confusion(labels, outputs.argmax(axis=1), len(self.names))
        return {"confusion": counts}

    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        return prediction_columns(outputs, self.names, by_name=by_name)

    def label_column(self, labels: Array) -> Any:
        return [self.names[int(index)] for index in labels]


@dataclass(frozen=True)
class ClassSets:
    """Any number of C classes."""

    names: list[str]
    threshold: float
    separator: str
    problem_type: str = "multi_label_classification"

    @property
    def heads(self) -> list[str]:
        return self.names

    def scores(self, outputs: Array, labels: Array) -> Scores:
        return multi_label_scores(outputs, labels, self.threshold)

    def details(self, outputs: Array, labels: Array) -> dict[str, Any]:
        return {}

    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        how: dict[str, Any] = {"threshold": self.threshold, "separator": self.separator, "by_name": by_name}
        return multi_label_columns(outputs, self.names, **how)

    def label_column(self, labels: Array) -> Any:
        return joined_names(labels, self.names, self.separator)


@dataclass(frozen=True)
class Ranks:
    """One of C classes in an order, by C - 1 outputs: is it above the first, above the second, ..."""

    names: list[str]
    problem_type: str = "multi_label_classification"
    """For transformers, each output is a yes or no of its own: a pipeline shows their probabilities."""

    @property
    def heads(self) -> list[str]:
        return [f"above {name}" for name in self.names[:-1]]

    def scores(self, outputs: Array, labels: Array) -> Scores:
        return ordinal_scores(outputs, labels)

    def details(self, outputs: Array, labels: Array) -> dict[str, Any]:
        return {"confusion": confusion(labels, predicted_ranks(outputs), len(self.names))}

    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        return ordinal_columns(outputs, self.names, by_name=by_name)

    def label_column(self, labels: Array) -> Any:
        return [self.names[int(index)] for index in labels]


@dataclass(frozen=True)
class Number:
    """A number."""

    scale: NumberScale | None = None
    """On which it is reported."""
    problem_type: str = "regression"

    @property
    def heads(self) -> list[str]:
        return []

    def scores(self, outputs: Array, labels: Array) -> Scores:
        return regression_scores(outputs, labels, self.scale)

    def details(self, outputs: Array, labels: Array) -> dict[str, Any]:
        return {}

    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        return prediction_columns(outputs, [], scale=self.scale)

    def label_column(self, labels: Array) -> Any:
        return labels.astype(np.float64)


def answer_of(task: SequenceTask) -> AnswerKind:
    """Return what the kind of a task amounts to."""
    names = class_names(task)
    if isinstance(task, MultiLabelTask):
        return ClassSets(names, task.threshold, task.separator)
    if isinstance(task, OrdinalTask):
        return Ranks(names)
    return Classes(names) if isinstance(task, ClassificationTask) else Number(scale_of(task))


def scale_of(task: Task) -> NumberScale | None:
    """Return the scale on which a task reports its numbers; None where they are reported as they are."""
    if not isinstance(task, RegressionTask) or (task.round_to is None and task.range is None):
        return None
    return NumberScale(task.round_to, None if task.range is None else (task.range[0], task.range[1]))
