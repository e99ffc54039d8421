"""Computes the scores by `evaluate.slices` for the summary of a run."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paratune.errors import DataError, coded
from paratune.tasks.protocol import TaskRecipe
from paratune.training.prepare import Prepared
from paratune.verdicts.rows import CannotTell
from paratune.verdicts.slices import ScoredTask, slice_records

log = logging.getLogger(__name__)


def sliced_scores(prepared: Prepared, recipe: TaskRecipe, folder: Path, splits: Iterable[str]) -> dict[str, Any]:
    """Return `summary.slices`, from the prediction files that the run has just written; empty without slices."""
    slices = {split: _split_slices(prepared, recipe, folder, split) for split in splits if split in prepared.slices}
    return {"slices": slices} if slices else {}


def _split_slices(prepared: Prepared, recipe: TaskRecipe, folder: Path, split: str) -> dict[str, Any]:
    task = ScoredTask(folder.name, folder, recipe.task.kind, recipe.names, recipe.task.model_dump())
    try:
        return slice_records(task, split, prepared.config.evaluate.slices, prepared.slices[split])
    except (CannotTell, DataError) as error:  # the run itself is finished
        log.warning("no scores of slices of %s: %s", split, error, extra=coded("run.no_slices", split=split))
        return {}
