"""One answer for each text or pair of texts: a class, several, one of an order, or a number.

Floor 4. `N` samples, `C` classes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from paratune.config.sections import Columns, Data, ModelOptions
from paratune.config.task_sections import RegressionTask, class_names
from paratune.data.columns import Missing
from paratune.data.labels import absence_warnings, class_counts
from paratune.data.load import Split, load_split, load_splits
from paratune.data.loader import Collator
from paratune.data.tokens import Tokenizing
from paratune.models.load import Head, load_model
from paratune.models.task_model import TaskModel, set_output_bias
from paratune.precision import Precision
from paratune.records.predictions import prediction_names, write_predictions
from paratune.tasks.answers import SequenceTask, answer_of, scale_of
from paratune.tasks.protocol import Outputs, Scores


class SequenceRecipe:
    """See `protocol.TaskRecipe`."""

    def __init__(self, task: SequenceTask) -> None:
        self._task = task
        self._answer = answer_of(task)
        self.names = class_names(task)

    @property
    def task(self) -> SequenceTask:
        return self._task

    def load_splits(self, data: Data, how: Tokenizing) -> dict[str, Split]:
        return load_splits(data, self._task, how)

    def load_split(
        self, source: str, table: pa.Table, columns: Columns, how: Tokenizing, *, missing: Missing, require_labels: bool
    ) -> Split:
        return load_split(source, table, columns, self._task, how, missing=missing, require_labels=require_labels)

    def load_model(
        self, model: ModelOptions, tokenizer: Any, precision: Precision, seed: int, *, head_must_exist: bool = False
    ) -> TaskModel:
        head = Head(
            "AutoModelForSequenceClassification",
            num_outputs=max(1, len(self._answer.heads)),
            names=tuple(self._answer.heads),
            problem_type=self._answer.problem_type,
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
        train = splits.get("train")
        if isinstance(self._task, RegressionTask) and train is not None:
            assert train.labels is not None
            if train.labels.min() == train.labels.max():
                found.append(
                    f"train: all {len(train.labels)} targets are {train.labels[0]:g}, and there is nothing else to "
                    "learn; is data.columns.label the column that is meant?"
                )
        return found

    def settled(self, validation: tuple[Split, Outputs] | None) -> "SequenceRecipe":
        return self

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        assert split.labels is not None
        return self._answer.scores(outputs, split.labels)

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        assert split.labels is not None
        return self._answer.details(outputs, split.labels)

    def prediction_names(self) -> list[str]:
        return prediction_names(self.names, by_name=True, scale=scale_of(self._task))

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        return self._answer.columns(outputs, by_name=True)

    def why_no_document(self, split: Split) -> str | None:
        return f"{self._task.kind} has no JSON layout"

    def why_not_kept(self, split: Split) -> str | None:
        return None

    def document(self, split: Split, outputs: Outputs) -> Any:
        raise NotImplementedError(self.why_no_document(split))

    def write_predictions(self, folder: Path, split: Split, outputs: Outputs, tokenizer: Any) -> None:
        known = {} if split.labels is None else {"label": self._answer.label_column(split.labels)}
        columns = known | self._answer.columns(outputs, by_name=False)
        samples = split.samples
        write_predictions(
            folder, split.name, rows=samples.rows, ids=samples.ids, columns=columns, sources=samples.sources
        )
