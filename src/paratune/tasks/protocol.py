"""What training, evaluating and predicting ask of a kind of task.

Floor 4. `N` samples of a split, `K` numbers kept of each.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from paratune.config.sections import Columns, Data, ModelOptions
from paratune.config.task_sections import Task
from paratune.data.columns import Missing
from paratune.data.load import Split
from paratune.data.loader import Collate
from paratune.data.tokens import Tokenizing
from paratune.models.task_model import TaskModel
from paratune.precision import Precision

Outputs = np.ndarray[Any, Any]
"""(N, K), in the order of the split: what an evaluation kept."""
Scores = dict[str, float | None]


class TaskRecipe(Protocol):
    """How a kind of task reads its data, makes its model, and says how good it is."""

    @property
    def task(self) -> Task:
        """What is asked for; where it leaves something to the data, as the data that was read has it."""
        ...

    @property
    def names(self) -> list[str]:
        """Names of the classes in the order of their ids; none where there are no classes."""
        ...

    def load_splits(self, data: Data, how: Tokenizing) -> dict[str, Split]:
        """Return the splits that the configuration names or cuts, in the order train, validation, test.

        Raises:
            DataError: Something is wrong with a file, a column or the cut.
            Stopped: `how.stop` said so.
        """
        ...

    def load_split(
        self, source: str, table: pa.Table, columns: Columns, how: Tokenizing, *, missing: Missing, require_labels: bool
    ) -> Split:
        """Return one file as a split, for a model that is already trained; without labels when they are not required.

        Raises:
            DataError: Something is wrong with the file or a column.
        """
        ...

    def load_model(
        self, model: ModelOptions, tokenizer: Any, precision: Precision, seed: int, *, head_must_exist: bool = False
    ) -> TaskModel:
        """Return the model with the head of this task; see `paratune.models.load.load_model`."""
        ...

    def initialise(self, model: TaskModel, train: Split) -> None:
        """Set new weights as the task asks for, from the training data; the same on every rank.

        Raises:
            ConfigError: The head of this architecture has no such weights.
        """
        ...

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> Collate:
        """Return what makes batches of a split; `seed` decides what is drawn anew in each epoch."""
        ...

    def warnings(self, splits: Mapping[str, Split]) -> list[str]:
        """Return a sentence for all in the data that somebody should know before training."""
        ...

    def settled(self, validation: tuple[Split, Outputs] | None) -> "TaskRecipe":
        """Return the recipe by which a trained model is applied: with what is chosen on its validation set.

        Args:
            validation: The split and what the kept model says of it; None where there is no such split.
        """
        ...

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        """Return the metrics of the task but the loss; None where a value is undefined."""
        ...

    def details(self, split: Split, outputs: Outputs) -> dict[str, Any]:
        """Return what summary.json has of a split beside its scores, such as `confusion`; JSON values."""
        ...

    def prediction_names(self) -> list[str]:
        """Return what the columns of `prediction_columns` are called."""
        ...

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        """Return the columns that say what was predicted, a value for each of `split.samples`, by their names.

        Args:
            split: What was predicted.
            outputs: Of the model.
            tokenizer: By which the split was made; says which words token ids are.
        """
        ...

    def why_no_document(self, split: Split) -> str | None:
        """Say why predictions of a split cannot be written as one JSON document; None where they can."""
        ...

    def why_not_kept(self, split: Split) -> str | None:
        """Say why `write_predictions` could not keep every prediction of a split; None where it can."""
        ...

    def document(self, split: Split, outputs: Outputs) -> Any:
        """Return the predictions in the JSON layout that the task is known for."""
        ...

    def write_predictions(self, folder: Path, split: Split, outputs: Outputs, tokenizer: Any) -> None:
        """Write what a run keeps of a split, into its folder; `split.labels` is None where there are no labels.

        `tokenizer` is as for `prediction_columns`.
        """
        ...
