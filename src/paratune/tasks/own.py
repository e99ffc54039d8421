"""`OwnRecipe`, the base of recipes outside the package (`task.kind: own`), and how such a recipe is made.

Dimensions: `N` samples of a split, `B` samples of a batch, `Q` sequences of a batch (B, if each sample is one), `C`
outputs of the head, `K` row outputs.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from paratune.batch import Batch
from paratune.config.metric_names import OWN_PREFIX
from paratune.config.own_code import RECIPE_KEY, call_own_code, own_code_errors, wrong_result
from paratune.config.section import OwnCode
from paratune.config.task_sections import OwnTask
from paratune.data.columns import Samples
from paratune.data.load import Split
from paratune.data.loader import ChangedBatches, Collate, Collator
from paratune.errors import ConfigError
from paratune.models.load import Head
from paratune.models.objectives import Objective, require_gradient
from paratune.tasks.protocol import Outputs, Scores, TaskRecipe


class OwnRecipe(TaskRecipe):
    """A task of your own: inherit from it, and write `row_losses` and `compute_scores`; override others as needed.

    The model has the head of transformers for sequences, with `task.num_outputs` outputs. Labels are numbers of
    `data.columns.label`, float32, or (N, 0) without such a column; override `select` for others.
    """

    _task: OwnTask

    def __init__(self, task: OwnTask) -> None:
        """Store the task. A subclass may have keyword arguments, which are `task.options`."""
        super().__init__(task)

    @property
    def task(self) -> OwnTask:
        return self._task

    def select(self, table: pa.Table, *, require_labels: bool = True, **options: Any) -> Samples:
        """Return the samples of a table; `paratune.data.columns.TableReader` describes the options.

        Without `data.columns.label`, labels are (N, 0) where losses and scores are computed, and None in predictions.
        """
        samples = super().select(table, require_labels=require_labels, **options)
        if not require_labels or samples.labels is not None:
            return samples
        return replace(samples, labels=np.zeros((len(samples), 0), dtype=np.float32))

    def row_losses(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the loss of each sample, (B,); it depends on this sample only.

        Args:
            outputs: Of the model, (B, C), or what `outputs` returns, at least float32.
            batch: With labels, from the collator.
        """
        raise NotImplementedError

    def compute_scores(self, split: Split, outputs: Outputs) -> Mapping[str, float | None]:
        """Return the scores by the names in `task.scores`; None where one is undefined.

        Args:
            split: With labels, where the data has some.
            outputs: (N, K), row outputs of all samples, in the order of the split.
        """
        raise NotImplementedError

    def outputs(self, logits: Tensor, batch: Batch) -> Tensor:
        """Return the outputs of the samples, (B, K), from those of the sequences, (Q, C)."""
        return logits

    def change_batch(self, batch: Batch, *, epoch: int | None, seed: int) -> Batch:
        """Return the padded batch with other tokens or labels.

        It is called in processes that prepare batches. The result may depend on `seed`, `epoch` and `batch.index` only,
        so that it is the same with any number of processes; `epoch` is None in evaluations. Filler rows have index -1.
        """
        return batch

    def collator(self, split: Split, tokenizer: Any, *, seed: int = 0) -> Collate:
        collator = Collator(split.store, split.labels, tokenizer.pad_token_id)
        if type(self).change_batch is OwnRecipe.change_batch:
            return collator
        return ChangedBatches(collator, partial(self._changed, seed=seed))

    def _changed(self, batch: Batch, *, epoch: int | None, seed: int) -> Batch:
        changed: Any = self.change_batch(batch, epoch=epoch, seed=seed)
        if isinstance(changed, Batch) and torch.equal(changed.index, batch.index):
            return changed
        returned = "a batch of other samples" if isinstance(changed, Batch) else type(changed).__name__
        wanted = "a Batch with the same samples (dataclasses.replace of the given one)"
        raise wrong_result(f"{self._task.recipe}.change_batch", RECIPE_KEY, returned, wanted)

    def make_head(self) -> Head:
        return Head("AutoModelForSequenceClassification", num_outputs=self._task.num_outputs)

    def make_objective(self) -> Objective:
        return Objective(partial(_row_losses, self), row_outputs=partial(_outputs, self))

    def scores(self, split: Split, outputs: Outputs) -> Scores:
        """Return `compute_scores` with the names own_NAME."""
        wanted = self._task.scores
        with _errors(self, "compute_scores"):
            found = dict(self.compute_scores(split, outputs))
            values = {OWN_PREFIX + name: None if value is None else float(value) for name, value in found.items()}
        if sorted(found) != sorted(wanted):
            where, expected = f"{self._task.recipe}.compute_scores", f"the names of task.scores: {wanted}"
            raise wrong_result(where, RECIPE_KEY, f"{sorted(found)}", expected)
        return {OWN_PREFIX + name: values[OWN_PREFIX + name] for name in wanted}

    def prediction_names(self) -> list[str]:
        if self._task.num_outputs == 1:
            return ["prediction"]
        return [f"output_{number}" for number in range(self._task.num_outputs)]

    def prediction_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        self.check_names(outputs.shape[1])
        return dict(zip(self.prediction_names(), outputs.T, strict=True))

    def check_names(self, num_outputs: int) -> None:
        """Raise a `ConfigError` where `prediction_names` does not have a name for each output of a sample."""
        names = self.prediction_names()
        if len(names) != num_outputs:
            wanted = f"a name for each of the {num_outputs} outputs of a sample, or override prediction_columns"
            raise wrong_result(f"{self._task.recipe}.prediction_names", RECIPE_KEY, f"{names}", wanted)

    def file_columns(self, split: Split, outputs: Outputs, tokenizer: Any) -> dict[str, Any]:
        known = {"label": split.labels} if split.labels is not None and split.labels.ndim == 1 else {}
        return {**known, **self.prediction_columns(split, outputs, tokenizer)}


def make_own_recipe(task: OwnTask) -> TaskRecipe:
    """Return the recipe that a configuration names.

    Raises:
        ConfigError: It cannot be imported, raises an error, or does not inherit from `TaskRecipe`.
    """
    recipe = call_own_code(OwnCode.model_construct(function=task.recipe, options=task.options), RECIPE_KEY, task)
    if TaskRecipe not in type(recipe).__mro__:
        returned = f"an object of type {type(recipe).__name__}"
        raise wrong_result(task.recipe, RECIPE_KEY, returned, "an object of a subclass of OwnRecipe")
    made: TaskRecipe = recipe
    for method in _GUARDED & set(dir(type(made))):
        setattr(made, method, partial(_guarded, made, method))
    return made


_GUARDED: Final = frozenset({"select", "make_split", "change_batch", "prediction_names", "prediction_columns"})
"""Methods that paratune calls directly; errors of the others are replaced where they are called."""


def _guarded(recipe: TaskRecipe, method: str, *arguments: Any, **options: Any) -> Any:
    """Call the method of the class, which the partial in the object replaces. A lambda could not be sent to workers."""
    with _errors(recipe, method):
        return getattr(type(recipe), method)(recipe, *arguments, **options)


def _outputs(recipe: OwnRecipe, logits: Tensor, batch: Batch) -> Tensor:
    """Return the outputs of the samples. Not part of the forward pass, which also runs for trial batches."""
    with _errors(recipe, "outputs"):
        outputs = recipe.outputs(logits, batch)
    if not (isinstance(outputs, Tensor) and outputs.ndim == 2 and len(outputs) == len(batch.row_weight)):
        raise _wrong_shape(recipe, "outputs", outputs, f"({len(batch.row_weight)}, K)")
    if type(recipe).prediction_columns is OwnRecipe.prediction_columns:  # now, and not after the training
        recipe.check_names(outputs.shape[1])
    return outputs


def _row_losses(recipe: OwnRecipe, logits: Tensor, batch: Batch) -> Tensor:
    with _errors(recipe, "row_losses"):
        losses = recipe.row_losses(_outputs(recipe, logits, batch), batch)
    if not (isinstance(losses, Tensor) and losses.shape == batch.row_weight.shape and losses.is_floating_point()):
        raise _wrong_shape(recipe, "row_losses", losses, f"({len(batch.row_weight)},)")
    require_gradient(losses, logits, f"{recipe.task.recipe}.row_losses", RECIPE_KEY)
    return losses


def _errors(recipe: TaskRecipe, method: str) -> AbstractContextManager[None]:
    task = recipe.task
    assert isinstance(task, OwnTask)
    return own_code_errors(task.recipe, RECIPE_KEY, method=method)


def _wrong_shape(recipe: OwnRecipe, method: str, value: Any, wanted: str) -> ConfigError:
    returned = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor | np.ndarray) else type(value).__name__
    return wrong_result(f"{recipe.task.recipe}.{method}", RECIPE_KEY, returned, f"a floating-point tensor {wanted}")
