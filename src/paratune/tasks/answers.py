"""Answer kinds: what differs between tasks with one answer for each text (outputs of the head, scores, predictions).

Dimensions: `N` samples, `C` classes.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

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
from paratune.metrics.regression import grade_scale, regression_scores
from paratune.records.predictions import (
    NumberScale,
    joined_names,
    multi_label_columns,
    ordinal_columns,
    predicted_ranks,
    predicted_sets,
    prediction_columns,
)

SequenceTask = ClassificationTask | MultiLabelTask | OrdinalTask | RegressionTask
Array = np.ndarray[Any, Any]
Scores = dict[str, float | None]


@dataclass(frozen=True)
class AnswerKind(ABC):
    """The methods of a recipe that depend on the kind of answer."""

    names: list[str]
    """Names of the classes; empty for a number."""
    problem_type: ClassVar[str]
    """`problem_type` in the configuration of transformers."""

    @property
    def heads(self) -> list[str]:
        """Names of the outputs; empty for a number."""
        return self.names

    @abstractmethod
    def scores(self, outputs: Array, labels: Array) -> Scores: ...

    def details(self, outputs: Array, labels: Array) -> dict[str, Any]:
        """As `protocol.TaskRecipe.details`."""
        return {}

    @abstractmethod
    def predicted(self, outputs: Array) -> Array:
        """Return class ids (N,), 0 or 1 for each class (N, C), or reported numbers (N,)."""

    def class_probabilities(self, outputs: Array) -> Array:
        """Return the probabilities of classes, (N, C), as in prediction files."""
        columns = self.columns(outputs, by_name=False)
        return np.stack([columns[f"score_{number}"] for number in range(len(self.names))], axis=1)

    @abstractmethod
    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        """Return the columns of predictions: `prediction` and scores."""

    def label_column(self, labels: Array) -> Any:
        """Return the labels in the format of the column `prediction`."""
        return [self.names[int(index)] for index in labels]


@dataclass(frozen=True)
class Classes(AnswerKind):
    """One of C classes."""

    problem_type: ClassVar[str] = "single_label_classification"

    def scores(self, outputs: Array, labels: Array) -> Scores:
        return classification_scores(outputs, labels)

    def details(self, outputs: Array, labels: Array) -> dict[str, Any]:
        return {"confusion": confusion(labels, outputs.argmax(axis=1), len(self.names)).record()}

    def predicted(self, outputs: Array) -> Array:
        return np.asarray(outputs.argmax(axis=1))

    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        return prediction_columns(outputs, self.names, by_name=by_name)


@dataclass(frozen=True)
class ClassSets(AnswerKind):
    """Any number of C classes."""

    threshold: float
    separator: str
    problem_type: ClassVar[str] = "multi_label_classification"

    def scores(self, outputs: Array, labels: Array) -> Scores:
        return multi_label_scores(outputs, labels, self.threshold)

    def predicted(self, outputs: Array) -> Array:
        return predicted_sets(outputs, self.threshold).astype(np.int64)

    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        return multi_label_columns(
            outputs, self.names, threshold=self.threshold, separator=self.separator, by_name=by_name
        )

    def label_column(self, labels: Array) -> Any:
        return joined_names(labels, self.names, self.separator)


@dataclass(frozen=True)
class LabelRanks(AnswerKind):
    """One of C ordered classes, by C - 1 outputs: "above the first class", "above the second class", ..."""

    problem_type: ClassVar[str] = "multi_label_classification"
    """For transformers, the outputs are independent classes: a pipeline shows the probability of each."""

    @property
    def heads(self) -> list[str]:
        return [f"above {name}" for name in self.names[:-1]]

    def scores(self, outputs: Array, labels: Array) -> Scores:
        return ordinal_scores(outputs, labels)

    def details(self, outputs: Array, labels: Array) -> dict[str, Any]:
        return {"confusion": confusion(labels, predicted_ranks(outputs), len(self.names)).record()}

    def predicted(self, outputs: Array) -> Array:
        return predicted_ranks(outputs)

    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        return ordinal_columns(outputs, self.names, by_name=by_name)


@dataclass(frozen=True)
class Number(AnswerKind):
    """A number."""

    scale: NumberScale | None = None
    """Scale of reported numbers."""
    grades: NumberScale | None = None
    """Scale of grades, for agreement and kappa."""
    problem_type: ClassVar[str] = "regression"

    def scores(self, outputs: Array, labels: Array) -> Scores:
        return regression_scores(outputs, labels, self.grades)

    def predicted(self, outputs: Array) -> Array:
        raw = outputs[:, 0].astype(np.float64)
        return raw if self.scale is None else self.scale.reported(raw)

    def columns(self, outputs: Array, *, by_name: bool) -> dict[str, Any]:
        return prediction_columns(outputs, [], scale=self.scale)

    def label_column(self, labels: Array) -> Any:
        return labels.astype(np.float64)


def make_answer_kind(task: SequenceTask) -> AnswerKind:
    """Return the answer kind of a task."""
    names = class_names(task)
    if isinstance(task, MultiLabelTask):
        return ClassSets(names, task.threshold, task.separator)
    if isinstance(task, OrdinalTask):
        return LabelRanks(names)
    if isinstance(task, ClassificationTask):
        return Classes(names)
    return Number(names, number_scale(task), scale_of_grades(task))


def number_scale(task: Task) -> NumberScale | None:
    """Return the scale to which a task rounds or limits its predictions; None where it does neither."""
    if not isinstance(task, RegressionTask) or (task.round_to is None and task.range is None):
        return None
    return NumberScale(task.round_to, None if task.range is None else (task.range[0], task.range[1]))


def scale_of_grades(task: Task) -> NumberScale | None:
    """Return the scale on which a regression computes agreement and kappa; None where it is unknown."""
    return grade_scale(task.round_to, task.range, task.grades) if isinstance(task, RegressionTask) else None
