"""The recipe of tasks with one answer for each text or pair of texts: one class, several classes, a rank, a number."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from paratune.config.task_sections import ClassificationTask, RegressionTask
from paratune.data.columns import Missing, Samples
from paratune.data.labels import absence_warnings, balanced_weights, class_counts
from paratune.data.load import Split
from paratune.data.loader import Collator
from paratune.data.text_windows import tokenize_text_windows
from paratune.data.token_store import TokenStore
from paratune.data.tokens import TokenizeOptions
from paratune.errors import CodedWarning, coded
from paratune.metrics.regression import training_grades
from paratune.models.load import Head
from paratune.models.objectives import OBJECTIVES, Objective, classification, own_loss, pooled
from paratune.models.task_model import TaskModel, set_output_bias
from paratune.records.predictions import prediction_names
from paratune.tasks.answers import SequenceTask, make_answer_kind, number_scale
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe


class SequenceRecipe(TaskRecipe):
    """Recipe of classification, multi-label and ordinal classification, and regression."""

    _task: SequenceTask

    def __init__(self, task: SequenceTask) -> None:
        super().__init__(task)
        self._answer = make_answer_kind(task)

    def resolve(self, parts: dict[str, tuple[str, Samples]], missing: Missing) -> dict[str, tuple[str, Samples]]:
        """Set balanced weights of classes, or the scale of grades of a regression, from the training set."""
        if "train" not in parts:
            return parts
        source, samples = parts["train"]
        assert samples.labels is not None
        if isinstance(self._task, ClassificationTask) and self._task.class_weights == "balanced":
            weights = balanced_weights(samples.labels, self.names, source)
            self._task = self._task.model_copy(update={"class_weights": weights})
        if isinstance(self._task, RegressionTask) and self._task.round_to is None and self._task.grades is None:
            self._task = self._task.model_copy(update={"grades": training_grades(samples.labels)})
            self._answer = make_answer_kind(self._task)
        return parts

    def make_tokens(self, samples: Samples, options: TokenizeOptions, source: str) -> TokenStore:
        """Return the tokens of samples, or the windows of their texts."""
        if self._task.windows is None:
            return super().make_tokens(samples, options, source)
        return tokenize_text_windows(samples, options, self._task.windows, source=source)

    def make_head(self) -> Head:
        return Head(
            "AutoModelForSequenceClassification",
            num_outputs=max(1, len(self._answer.heads)),
            names=tuple(self._answer.heads),
            problem_type=self._answer.problem_type,
        )

    def make_objective(self) -> Objective | None:
        objective, windows = self._loss_objective(), self._task.windows
        if windows is None:
            return objective
        return pooled(objective or OBJECTIVES[self._task.kind], windows.pooling)

    def _loss_objective(self) -> Objective | None:
        """Return the objective of a task with options of its loss; None for the usual one of the kind."""
        task = self._task
        if task.loss is not None:
            return own_loss(OBJECTIVES[task.kind], task.loss.function, task.loss.options)
        if not isinstance(task, ClassificationTask) or task.has_plain_loss:
            return None
        weights = task.class_weights
        assert weights != "balanced", "set by resolve, from the training data"
        if isinstance(weights, dict):
            by_name = {str(name): weight for name, weight in weights.items()}
            weights = [by_name[name] for name in self.names]
        return classification(class_weights=weights, label_smoothing=task.label_smoothing, focal_gamma=task.focal_gamma)

    def initialise(self, model: TaskModel, train: Split) -> None:
        if isinstance(self._task, RegressionTask) and self._task.start_at_mean:
            assert train.labels is not None
            set_output_bias(model, float(train.labels.mean()))

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> Collator:
        return Collator(split.store, split.labels, tokenizer.pad_token_id, split.teacher)

    def warnings(self, splits: Mapping[str, Split]) -> list[CodedWarning]:
        warnings: list[CodedWarning] = []
        for split in splits.values() if self.names else ():
            assert split.labels is not None
            for message in absence_warnings(split.name, class_counts(split.labels, self.names)):
                warnings.append((message, coded("data.class_absent", split=split.name)))
        train = splits.get("train")
        if isinstance(self._task, RegressionTask) and train is not None:
            assert train.labels is not None
            if train.labels.min() == train.labels.max():
                message = (
                    f"train: all {len(train.labels)} targets are {train.labels[0]:g}, so that the model can only learn "
                    "a constant; is data.columns.label the right column?"
                )
                warnings.append((message, coded("data.labels_constant", split="train")))
        return warnings

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        assert split.labels is not None
        return self._answer.scores(outputs, split.labels)

    def metric_input(self, outputs: Outputs, what: str) -> Outputs | None:
        if np.isnan(outputs).any():
            return None
        if what == "predictions":
            return self._answer.predicted(outputs)
        return outputs if what == "outputs" else self._answer.class_probabilities(outputs)

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        assert split.labels is not None
        return self._answer.details(outputs, split.labels)

    def prediction_names(self) -> list[str]:
        return prediction_names(self.names, by_name=True, scale=number_scale(self._task))

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        return self._answer.columns(outputs, by_name=True)

    def file_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        known = {} if split.labels is None else {"label": self._answer.label_column(split.labels)}
        return known | self._answer.columns(outputs, by_name=False)
