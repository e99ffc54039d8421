"""One answer for each text or pair of texts: classes or a number.

Floor 4. `N` samples, `C` classes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from paratune.config.sections import ClassificationTask, Columns, Data, Model, RegressionTask, Task, class_names
from paratune.data.columns import Missing
from paratune.data.labels import absence_warnings, class_counts
from paratune.data.load import Split, load_split, load_splits
from paratune.data.loader import Collator
from paratune.data.tokens import Tokenizing
from paratune.metrics.scores import scores
from paratune.models.load import Head, load_model
from paratune.models.task_model import TaskModel, set_output_bias
from paratune.precision import Precision
from paratune.predictions import Scale, prediction_columns, prediction_names, write_predictions
from paratune.tasks.protocol import Outputs, Scores

_PROBLEM_TYPES = {"classification": "single_label_classification", "regression": "regression"}
"""What transformers calls them."""


class SequenceRecipe:
    """See `protocol.Recipe`."""

    def __init__(self, task: ClassificationTask | RegressionTask) -> None:
        self._task = task
        self.names = class_names(task)
        self._scale = scale_of(task)

    def load_splits(self, data: Data, how: Tokenizing) -> dict[str, Split]:
        return load_splits(data, self._task, how)

    def load_split(
        self, source: str, table: pa.Table, columns: Columns, how: Tokenizing, *, missing: Missing, require_labels: bool
    ) -> Split:
        return load_split(source, table, columns, self._task, how, missing=missing, require_labels=require_labels)

    def load_model(
        self, model: Model, tokenizer: Any, precision: Precision, seed: int, *, head_must_exist: bool = False
    ) -> TaskModel:
        head = Head(
            "AutoModelForSequenceClassification",
            num_outputs=max(1, len(self.names)),
            names=tuple(self.names),
            problem_type=_PROBLEM_TYPES[self._task.kind],
        )
        return load_model(model, self._task.kind, head, tokenizer, precision, seed, head_must_exist=head_must_exist)

    def initialise(self, model: TaskModel, train: Split) -> None:
        if isinstance(self._task, RegressionTask) and self._task.start_at_mean:
            assert train.labels is not None
            set_output_bias(model, float(train.labels.mean()))

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> Collator:
        return Collator(split.store, split.labels, tokenizer.pad_token_id)

    def warnings(self, splits: Mapping[str, Split]) -> list[str]:
        found: list[str] = []
        for split in splits.values() if self.names else ():
            assert split.labels is not None
            found += absence_warnings(split.name, class_counts(split.labels, self.names))
        return found

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        assert split.labels is not None
        options = {} if self.names else {"scale": self._scale}
        return scores(self._task.kind, outputs, split.labels, **options)

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        if not self.names:
            return {}
        from paratune.metrics.classification import confusion

        assert split.labels is not None
        return {"confusion": confusion(split.labels, outputs.argmax(axis=1), len(self.names))}

    def prediction_names(self) -> list[str]:
        return prediction_names(self.names, by_name=True, scale=self._scale)

    def prediction_columns(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        return prediction_columns(outputs, self.names, by_name=True, scale=self._scale)

    def write_predictions(self, folder: Path, split: Split, outputs: Outputs) -> None:
        assert split.labels is not None
        write_predictions(
            folder,
            split.name,
            rows=split.samples.rows,
            ids=split.samples.ids,
            outputs=outputs,
            labels=split.labels,
            names=self.names,
            scale=self._scale,
        )


def scale_of(task: Task) -> Scale | None:
    """Return the scale on which a task reports its numbers; None where they are reported as they are."""
    if not isinstance(task, RegressionTask) or (task.round_to is None and task.range is None):
        return None
    return Scale(task.round_to, None if task.range is None else (task.range[0], task.range[1]))
