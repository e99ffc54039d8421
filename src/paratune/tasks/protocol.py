"""`TaskRecipe`, the interface of a kind of task for training, evaluation and prediction.

Dimensions: `N` samples of a split, `K` row outputs.
"""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pyarrow as pa

from paratune.config.sections import Columns, Data, ModelOptions
from paratune.config.task_sections import Task, class_names
from paratune.data.columns import Missing, Samples, TableReader
from paratune.data.encode import TokenizeOptions
from paratune.data.load import Split, load_samples, parts_with_progress, samples_fingerprint
from paratune.data.selection import select
from paratune.data.token_store import TokenStore
from paratune.data.tokens import tokenize
from paratune.errors import CodedWarning
from paratune.records.predictions import write_predictions

if TYPE_CHECKING:
    from paratune.data.loader import Collate
    from paratune.models.load import Head
    from paratune.models.objectives import Objective
    from paratune.models.task_model import TaskModel
    from paratune.precision import Precision

Outputs = np.ndarray[Any, Any]
"""(N, K), row outputs of an evaluation, in the order of the split."""
Scores = dict[str, float | None]


class TaskRecipe(Protocol):
    """Reads the data of a kind of task, creates its model, and scores and writes its predictions.

    Recipes inherit from it. Methods with a body are what most tasks do; the others must be implemented.
    """

    names: list[str]
    """Names of the classes in the order of their ids; empty where there are no classes."""
    _task: Task

    def __init__(self, task: Task) -> None:
        """Store the task of the configuration."""
        self._task = task
        self.names = class_names(task)

    @property
    def task(self) -> Task:
        """The task of the configuration; options that depend on the data are set once data was read."""
        return self._task

    @property
    def group_size(self) -> int:
        """Number of consecutive samples that must be in one micro-batch."""
        return 1

    def check(self, options: TokenizeOptions) -> None:
        """Check the tokenizer before data is read.

        Raises:
            ConfigError: The task cannot use it.
        """
        return

    def select(self, table: pa.Table, *, options: TokenizeOptions, **how: Any) -> Samples:
        """Return the samples of a table from `read_table`; `how` are values of `paratune.data.columns.TableReader`."""
        return select(TableReader(table, **how), self.task)

    def resolve(self, parts: dict[str, tuple[str, Samples]], missing: Missing) -> dict[str, tuple[str, Samples]]:
        """Set options of the task that depend on the data, and return (source, samples) of each part that remain."""
        return parts

    def make_split(
        self, name: str, source: str, samples: Samples, options: TokenizeOptions, *, require_labels: bool = True
    ) -> Split:
        """Return samples as a split with tokens."""
        store = self.make_tokens(samples, options, source)
        return Split(name, source, samples, store, samples_fingerprint(samples, self.task))

    def make_tokens(self, samples: Samples, options: TokenizeOptions, source: str) -> TokenStore:
        """Return the tokens of samples, in the layout of the task (`paratune.data.encode.LAYOUTS`)."""
        return tokenize(samples, options, self.task, source=source)

    def load_splits(self, data: Data, options: TokenizeOptions) -> dict[str, Split]:
        """Return the splits that the configuration names or cuts from train, by name: train, validation, test.

        `progress` of the options counts the samples of all splits. Errors as in `load_split`; a part of the cut may be
        empty, which is a DataError, too.
        """
        self.check(options)
        selector = partial(self.select, columns=data.columns, options=options, missing=data.missing)
        parts = self.resolve(load_samples(data, self.task, selector), data.missing)
        return {
            name: self.make_split(name, source, samples, part_options)
            for name, source, samples, part_options in parts_with_progress(parts, options)
        }

    def load_split(
        self,
        source: str,
        table: pa.Table,
        columns: Columns,
        options: TokenizeOptions,
        *,
        missing: Missing,
        require_labels: bool,
    ) -> Split:
        """Return one file as a split, to evaluate or predict with a trained model; arguments as in `TableReader`.

        Raises:
            ConfigError: The task cannot use the tokenizer.
            DataError: The file or a column is wrong.
            Stopped: `options.stop` returned true.
        """
        self.check(options)
        samples = self.select(
            table, columns=columns, options=options, missing=missing, source=source, require_labels=require_labels
        )
        _, samples = self.resolve({"data": (source, samples)}, missing)["data"]
        return self.make_split("data", source, samples, options, require_labels=require_labels)

    def load_model(
        self, model: ModelOptions, tokenizer: Any, precision: "Precision", seed: int, **options: bool
    ) -> "TaskModel":
        """Return the model with the head of this task; see `paratune.models.load.load_model`."""
        from paratune.models.load import load_model

        return load_model(
            model, self.task.kind, self.make_head(), tokenizer, precision, seed, **options,
            objective=self.make_objective(),
        )  # fmt: skip

    def make_head(self) -> "Head":
        """Return the head of the task on the encoder."""
        ...

    def make_objective(self) -> "Objective | None":
        """Return the objective of the task; None for that of its kind in `paratune.models.objectives.OBJECTIVES`."""
        return None

    def initialise(self, model: "TaskModel", train: Split) -> None:
        """Set new weights from the training data where the task requires it; the same on every rank.

        Raises:
            ConfigError: The head of this architecture has no such weights.
        """
        return

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> "Collate":
        """Return the collator of a split; `seed` determines random choices that change in each epoch."""
        ...

    def warnings(self, splits: Mapping[str, Split]) -> list[CodedWarning]:
        """Return a sentence for each fact about the data that users should know before training."""
        return []

    def tuned(self, validation: tuple[Split, Outputs] | None) -> Self:
        """Return the recipe for a trained model, with options chosen by its outputs for the validation set, if any."""
        return self

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        """Return the metrics of the task without the loss; None where a value is undefined."""
        ...

    def metric_input(self, outputs: Outputs, what: str) -> Outputs | None:
        """Return what own metrics get for `OwnMetric.input`, (N,) or (N, C); None where an output is NaN.

        Only tasks with one answer for each text have it; the configuration refuses own metrics for others.
        """
        raise NotImplementedError(self.task.kind)

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        """Return entries of a split for summary.json next to its scores, such as `confusion`, as JSON values."""
        return {}

    def prediction_names(self) -> list[str]:
        """Return the names of the columns of `prediction_columns`."""
        ...

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return the columns of predictions by name, with a value for each of `split.samples`."""
        ...

    def document_problem(self, split: Split) -> str | None:
        """Return why predictions of a split cannot be written as one JSON document; None where they can."""
        return f"{self.task.kind} has no JSON layout"

    def document(self, split: Split, outputs: Outputs) -> Any:
        """Return the predictions in the usual JSON layout of the task."""
        raise NotImplementedError(self.document_problem(split))

    def write_predictions(self, folder: Path, split: Split, outputs: Outputs, tokenizer: Any) -> None:
        """Write the predictions of a split into the folder of a run; arguments as in `prediction_columns`."""
        samples, columns = split.samples, self.file_columns(split, outputs, tokenizer)
        write_predictions(
            folder, split.name, rows=samples.rows, ids=samples.ids, columns=columns, sources=samples.sources,
            clusters=samples.clusters,
        )  # fmt: skip

    def file_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return the columns of a file of predictions: labels where they are known, and `prediction_columns`."""
        return self.prediction_columns(split, outputs, tokenizer)
