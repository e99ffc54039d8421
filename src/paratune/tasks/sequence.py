"""The recipes of tasks with one answer for each text: one class, several classes, a rank, a number, a choice.

Dimensions: `N` samples, `C` classes, `K` most choices of a question.
"""

from abc import abstractmethod
from collections.abc import Mapping
from string import ascii_uppercase
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa

from paratune.base.text import listing
from paratune.config.sections import named_columns
from paratune.config.task_sections import (
    ClassificationTask,
    MultiLabelTask,
    MultipleChoiceTask,
    OrdinalTask,
    RegressionTask,
    Task,
)
from paratune.data.columns import Missing, Samples, TableReader
from paratune.data.encode import TokenizeOptions
from paratune.data.labels import absence_warnings, balanced_weights, class_counts
from paratune.data.load import Split
from paratune.data.selection import choice_names, select, select_choices
from paratune.data.slices import num_tokens
from paratune.errors import CodedWarning, ConfigError, coded
from paratune.metrics import regression
from paratune.metrics.classification import choice_scores, classification_scores, confusion_record, multi_label_scores
from paratune.records.predictions import (
    NumberScale,
    predicted_ranks,
    prediction_columns,
    prediction_names,
    probabilities,
    softmax,
)
from paratune.records.scores import RATER_BIAS
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe

if TYPE_CHECKING:
    from paratune.data.loader import Collator
    from paratune.models.load import Head
    from paratune.models.objectives import Objective
    from paratune.models.task_model import TaskModel


class SequenceRecipe(TaskRecipe):
    """What the recipes of this module have in common, except that of multiple choice."""

    _task: ClassificationTask | MultiLabelTask | OrdinalTask | RegressionTask
    problem_type: ClassVar[str]
    """`problem_type` in the configuration of transformers."""

    def make_head(self) -> "Head":
        from paratune.models.load import Head

        loader, names = "AutoModelForSequenceClassification", tuple(self.heads())
        return Head(loader, num_outputs=max(1, len(names)), names=names, problem_type=self.problem_type)

    def heads(self) -> list[str]:
        """Return the names of the outputs; none for a number."""
        return self.names

    def make_objective(self) -> "Objective | None":
        from paratune.models.objectives import OBJECTIVES, own_loss, pooled

        task = self._task
        if task.loss is not None:
            objective: Objective | None = own_loss(OBJECTIVES[task.kind], task.loss.function, task.loss.options)
        else:
            objective = self.loss_objective()
        if task.windows is None:
            return objective
        return pooled(objective or OBJECTIVES[task.kind], task.windows.pooling)

    def loss_objective(self) -> "Objective | None":
        """Return the objective of a task with options of its loss; None for the usual one of the kind."""
        return None

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> "Collator":
        from paratune.data.loader import Collator

        return Collator(split.store, split.labels, tokenizer.pad_token_id, split.teacher)

    def warnings(self, splits: Mapping[str, Split]) -> list[CodedWarning]:
        return [
            (message, coded("data.class_absent", split=split.name))
            for split in splits.values()
            for message in absence_warnings(split.name, class_counts(_labels(split), self.names))
        ]

    def metric_input(self, outputs: Outputs, what: str) -> Outputs | None:
        if np.isnan(outputs).any():
            return None
        if what == "outputs":
            return outputs
        if what == "predictions":
            return self.predicted(outputs)
        columns = self.answer_columns(outputs, by_name=False)
        return np.stack([columns[f"score_{number}"] for number in range(len(self.names))], axis=1)

    @abstractmethod
    def predicted(self, outputs: Outputs) -> Outputs:
        """Return class ids (N,), 0 or 1 for each class (N, C), or reported numbers (N,)."""

    @abstractmethod
    def answer_columns(self, outputs: Outputs, *, by_name: bool) -> dict[str, Any]:
        """Return the columns of predictions: `prediction` and scores."""

    def label_column(self, labels: Outputs) -> Any:
        """Return the labels in the format of the column `prediction`."""
        return [self.names[int(index)] for index in labels]

    def prediction_names(self) -> list[str]:
        return prediction_names(self.names, by_name=True, scale=number_scale(self._task))

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        return self.answer_columns(outputs, by_name=True)

    def file_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        known = {} if split.labels is None else {"label": self.label_column(split.labels)}
        return known | self.answer_columns(outputs, by_name=False)


class ClassificationRecipe(SequenceRecipe):
    """Recipe of one of C classes."""

    _task: ClassificationTask
    problem_type = "single_label_classification"

    def resolve(self, parts: dict[str, tuple[str, Samples]], missing: Missing) -> dict[str, tuple[str, Samples]]:
        """Set balanced weights of classes from the training set."""
        if "train" in parts and self._task.class_weights == "balanced":
            source, samples = parts["train"]
            assert samples.labels is not None
            weights = balanced_weights(samples.labels, self.names, source)
            self._task = self._task.model_copy(update={"class_weights": weights})
        return parts

    def loss_objective(self) -> "Objective | None":
        task, weights = self._task, self._task.class_weights
        if task.has_plain_loss:
            return None
        from paratune.models.objectives import classification

        assert weights != "balanced", "set by resolve, from the training data"
        if isinstance(weights, dict):
            by_name = {str(name): weight for name, weight in weights.items()}
            weights = [by_name[name] for name in self.names]
        return classification(class_weights=weights, label_smoothing=task.label_smoothing, focal_gamma=task.focal_gamma)

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        return classification_scores(outputs, _labels(split))

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        return {"confusion": confusion_record(_labels(split), self.predicted(outputs), len(self.names))}

    def predicted(self, outputs: Outputs) -> Outputs:
        return np.asarray(outputs.argmax(axis=1))

    def answer_columns(self, outputs: Outputs, *, by_name: bool) -> dict[str, Any]:
        return prediction_columns(outputs, self.names, by_name=by_name)


class MultiLabelRecipe(SequenceRecipe):
    """Recipe of any number of C classes."""

    _task: MultiLabelTask
    problem_type = "multi_label_classification"

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        return multi_label_scores(outputs, _labels(split), self._task.threshold)

    def predicted(self, outputs: Outputs) -> Outputs:
        return (probabilities(outputs.astype(np.float64)) >= self._task.threshold).astype(np.int64)

    def answer_columns(self, outputs: Outputs, *, by_name: bool) -> dict[str, Any]:
        texts = self.label_column(self.predicted(outputs))
        names = prediction_names(self.names, by_name=by_name)
        return dict(zip(names, [texts, *probabilities(outputs).T], strict=True))

    def label_column(self, labels: Outputs) -> Any:
        return [self._task.separator.join(self.names[at] for at in np.flatnonzero(row)) for row in labels]


class OrdinalRecipe(SequenceRecipe):
    """Recipe of one of C ordered classes, by C - 1 outputs: "above the first class", "above the second class", ..."""

    _task: OrdinalTask
    problem_type = "multi_label_classification"
    """For transformers, the outputs are independent classes: a pipeline shows the probability of each."""

    def heads(self) -> list[str]:
        return [f"above {name}" for name in self.names[:-1]]

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        return regression.ordinal_scores(outputs, _labels(split))

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        return {"confusion": confusion_record(_labels(split), self.predicted(outputs), len(self.names))}

    def predicted(self, outputs: Outputs) -> Outputs:
        return predicted_ranks(outputs)

    def answer_columns(self, outputs: Outputs, *, by_name: bool) -> dict[str, Any]:
        return prediction_columns(outputs, self.names, by_name=by_name, is_ordinal=True)


class RegressionRecipe(SequenceRecipe):
    """Recipe of a number, or of K targets."""

    _task: RegressionTask
    problem_type = "regression"
    _OF_TARGETS = ("rmse", "mae", "r2", "pearson", "qwk")

    def heads(self) -> list[str]:
        return self._task.targets or []

    def select(self, table: pa.Table, *, options: TokenizeOptions, **how: Any) -> Samples:
        reader = TableReader(table, **how)
        names = named_columns(reader.columns.label)
        self._raters = names if self._task.raters else []
        targets = self._task.targets or (names if len(names) > 1 and not self._raters else None)
        if reader.require_labels and not self._raters and len(names) != len(targets or names):
            message = f"{reader.source}: data.columns.label names {len(names)} columns, and the model has the targets "
            raise ConfigError(f"{message}{listing(targets or ())}; name a column for each", code="config.invalid_value")
        self._task = self._task.model_copy(update={"targets": targets})
        return select(reader, self._task)

    def resolve(self, parts: dict[str, tuple[str, Samples]], missing: Missing) -> dict[str, tuple[str, Samples]]:
        """Set the scale of grades, for agreement and kappa, from the training set."""
        if "train" in parts and self._task.round_to is None and self._task.grades is None:
            train = parts["train"][1]
            labels = train.labels if train.ratings is None else train.ratings[np.isfinite(train.ratings)]
            assert labels is not None
            self._task = self._task.model_copy(update={"grades": regression.training_grades(labels)})
        return parts

    def initialise(self, model: "TaskModel", train: Split) -> None:
        from paratune.models.task_model import set_output_bias

        if self._task.start_at_mean:
            # Along the last axis, NumPy adds pairwise: float32 is exact enough for a million rows.
            set_output_bias(model, np.ascontiguousarray(_labels(train).T).mean(axis=-1))

    def warnings(self, splits: Mapping[str, Split]) -> list[CodedWarning]:
        if "train" not in splits or np.all(spreads := np.ptp(labels := _labels(splits["train"]), axis=0)):
            return []
        value = np.atleast_2d(labels.T)[np.argmin(spreads), 0]
        message = (
            f"train: all {len(labels)} targets are {value:g}, so that the model can only learn a constant; is "
            "data.columns.label the right column?"
        )
        return [(message, coded("data.labels_constant", split="train"))]

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        """Return the scores; of several targets their means, None where one of them is undefined."""
        task = self._task
        scale = regression.grade_scale(task.round_to, task.range, task.grades)
        labels_NK = _labels(split).reshape(outputs.shape)
        scores = [regression.regression_scores(*pair, scale) for pair in zip(outputs.T, labels_NK.T, strict=True)]
        if len(scores) == 1:
            return scores[0]
        values = {name: [own[name] for own in scores] for name in scores[0]}
        means = {name: None if None in own else float(np.asarray(own).mean()) for name, own in values.items()}
        by_target = [*zip(self.heads(), scores, strict=True)]
        return means | {f"{name}_{target}": own[name] for name in self._OF_TARGETS for target, own in by_target}

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        # The error of several targets is their mean.
        errors, task = (outputs.T - _labels(split).T).mean(axis=0), self._task
        found: dict[str, Any] = {"length_bias": regression.length_bias(errors, num_tokens(split))}
        if (ratings := split.samples.ratings) is not None and np.isfinite(outputs).all():
            scale = regression.grade_scale(task.round_to, task.range, task.grades)
            found["raters"] = regression.rater_scores(outputs, ratings, self._raters, scale)
        return found

    def predicted(self, outputs: Outputs) -> Outputs:
        raw, scale = (outputs if self.heads() else outputs[:, 0]).astype(np.float64), number_scale(self._task)
        return raw if scale is None else scale.reported(raw)

    def prediction_names(self) -> list[str]:
        return [*self.answer_columns(np.zeros((1, len(self.heads()) or 1)), by_name=True)]

    def answer_columns(self, outputs: Outputs, *, by_name: bool) -> dict[str, Any]:
        has_scale = number_scale(self._task) is not None
        reported = self._by_target("reported", self.predicted(outputs)) if has_scale else {}
        return self._by_target("prediction", outputs.astype(np.float64)) | reported

    def _by_target(self, name: str, values: Outputs) -> dict[str, Any]:
        """Return (N,) or (N, K) values as columns: `name`, or for each target `name_target`."""
        names = [f"{name}_{target}" for target in self.heads()] or [name]
        return dict(zip(names, values.reshape(-1, len(names)).T, strict=True))

    def file_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        labels = split.labels
        known = {} if labels is None else self._by_target("label", labels.astype(np.float64))
        if (ratings := split.samples.ratings) is not None:
            biases = zip(self._raters, regression.rater_errors(ratings).T, strict=True)
            known |= {f"{RATER_BIAS}{name}": pa.array(own, from_pandas=True) for name, own in biases}
        return known | self.answer_columns(outputs, by_name=False)


class MultipleChoiceRecipe(TaskRecipe):
    """Recipe of one right choice among several for each text, at most K."""

    _task: MultipleChoiceTask
    """Once data was read, with the format of its labels."""
    _choice_names: list[str] | None = None

    def select(self, table: pa.Table, *, options: TokenizeOptions, **how: Any) -> Samples:
        reader = TableReader(table, **how)
        samples, label_format = select_choices(reader, self._task)
        # Files are read in the order train, validation, test: all have the format of the training data.
        self._task = self._task.model_copy(update={"label_format": label_format})
        self._choice_names = choice_names(reader.columns)
        return samples

    def make_head(self) -> "Head":
        from paratune.models.load import Head

        return Head("AutoModelForMultipleChoice")  # it has one output for each sequence

    def load_model(self, *arguments: Any, **options: Any) -> "TaskModel":
        from paratune.models.task_model import freeze_output_bias

        model = super().load_model(*arguments, **options)
        freeze_output_bias(model)
        return model

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> "Collator":
        from paratune.data.loader import Collator

        most_choices = int(split.store.num_sequences.max())
        return Collator(split.store, split.labels, tokenizer.pad_token_id, row_size=most_choices)

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        return choice_scores(outputs, _labels(split))

    def prediction_names(self) -> list[str]:
        return ["prediction", "scores"]

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return the predicted choice in the format of the labels, and the list of the probabilities of the choices."""
        counts = split.store.num_sequences.tolist()
        shares = [row[:count].tolist() for row, count in zip(softmax(outputs), counts, strict=True)]
        return {"prediction": self._shown(split, outputs.argmax(axis=1)), "scores": shares}

    def _shown(self, split: Split, places: Outputs) -> list[Any]:
        """Return the choices at these places, (N,), in the format of the labels; the index where no label was read."""
        how, choices = self._task.label_format or "index", split.samples.choices
        assert choices is not None
        if how == "text":
            return [row[place] for row, place in zip(choices, places.tolist(), strict=True)]
        if how == "name" and self._choice_names is not None:
            return [self._choice_names[place] for place in places.tolist()]
        if how == "letter":
            # A to Z, then AA, AB and so on; labels have single letters.
            letters = ["", *ascii_uppercase]
            return [letters[place // 26] + ascii_uppercase[place % 26] for place in places.tolist()]
        return [place + (how == "number") for place in places.tolist()]

    def file_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        known = {} if split.labels is None else {"label": self._shown(split, split.labels)}
        return known | self.prediction_columns(split, outputs, tokenizer)


def _labels(split: Split) -> Any:
    assert split.labels is not None
    return split.labels


def number_scale(task: Task) -> NumberScale | None:
    """Return the scale to which a task rounds or limits its predictions; None where it does neither."""
    if not isinstance(task, RegressionTask) or (task.round_to is None and task.range is None):
        return None
    return NumberScale(task.round_to, None if task.range is None else (task.range[0], task.range[1]))
