"""Batches and scores of the splits of a run, for its evaluations and its summary."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

from paratune.batch import Batch
from paratune.data.loader import Collate, EvalBatches, eval_batches
from paratune.data.workers import BatchesAhead
from paratune.engine.evaluate import Evaluation
from paratune.errors import DataError, coded
from paratune.models.packed import BatchLayout
from paratune.processes.progress import working
from paratune.strategies.protocol import Layout
from paratune.tasks.own_metrics import own_scores
from paratune.tasks.protocol import TaskRecipe
from paratune.training.prepare import Prepared, make_collator, worker_settings
from paratune.verdicts.scoring import CannotTell
from paratune.verdicts.slices import scored_task, slice_records

log = logging.getLogger(__name__)

Scores = dict[str, float | None]


class SplitEvaluations:
    """Batches and scores of all splits, in one process."""

    def __init__(self, prepared: Prepared, layout: Layout, batch_layout: BatchLayout) -> None:
        self._prepared = prepared
        self._layout = layout
        self._batch_layout = batch_layout
        self._collators: dict[str, Collate] = {}
        """One for each split and all its evaluations: a collator caches masks and counts."""
        self.recipe = prepared.recipe
        """After `choose_on_validation`, with the values chosen on the validation set."""

    def batches(self, split: str) -> tuple[int, Iterator[Batch]]:
        """Return the number of this rank's batches of a split, and the batches."""
        if split not in self._collators:
            self._collators[split] = make_collator(self._prepared, split, self._batch_layout)
        batches = eval_batches(
            self._collators[split],
            batch_size=self._prepared.config.evaluate.batch_size,
            data_rank=self._layout.data_rank,
            data_world_size=self._layout.data_world_size,
            group_size=self.recipe.group_size,
        )
        return len(batches), self._prefetched(batches)

    def _prefetched(self, batches: EvalBatches) -> Iterator[Batch]:
        with closing(BatchesAhead(batches.step, range(len(batches)), worker_settings(self._prepared))) as ahead:
            for step in ahead:
                yield from step

    def score(self, split: str, evaluation: Evaluation) -> Scores:
        """Return the scores and the loss of a split; empty for a split without labels."""
        if split not in self._prepared.labelled:
            return {}
        with working(f"compute the scores of {split}"):
            part = self._prepared.splits[split]
            scores = self.recipe.scores(part, evaluation.outputs)
            scores |= own_scores(self._prepared.config.evaluate.metrics, self.recipe, part, evaluation.outputs)
        return {**scores, "loss": evaluation.loss}

    def choose_on_validation(self, validation: Evaluation | None) -> None:
        """Choose open values of the task on the validation set, such as the threshold for no answer."""
        split = self._prepared.splits.get("validation")
        self.recipe = self.recipe.tuned(None if validation is None or split is None else (split, validation.outputs))


def sliced_scores(prepared: Prepared, recipe: TaskRecipe, folder: Path, splits: Iterable[str]) -> dict[str, Any]:
    """Return `summary.slices`, from the prediction files that the run has just written; empty without slices."""
    slices = {split: _split_slices(prepared, recipe, folder, split) for split in splits if split in prepared.slices}
    return {"slices": slices} if slices else {}


def _split_slices(prepared: Prepared, recipe: TaskRecipe, folder: Path, split: str) -> dict[str, Any]:
    task = scored_task(folder.name, folder, recipe.task.kind, recipe.names, recipe.task.model_dump())
    try:
        return slice_records(task, split, prepared.config.evaluate.slices, prepared.slices[split])
    except (CannotTell, DataError) as error:  # the run itself is finished
        log.warning("no scores of slices of %s: %s", split, error, extra=coded("run.no_slices", split=split))
        return {}
