"""The scores by `evaluate.slices` that a run leaves in its summary."""

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from paratune.errors import DataError, coded
from paratune.tasks.protocol import TaskRecipe
from paratune.train.prepare import Prepared
from paratune.verdicts.rows import CannotTell
from paratune.verdicts.slices import ScoredTask, slice_records

log = logging.getLogger(__name__)


def sliced_scores(prepared: Prepared, recipe: TaskRecipe, folder: Path, splits: Iterable[str]) -> dict[str, Any]:
    """Return `summary.slices`, from the prediction files that the run has just written; empty without slices.

    Args:
        prepared: Has the value of each row.
        recipe: Of the kept model.
        folder: Of the run.
        splits: Those with predictions.
    """
    found = {split: _of_split(prepared, recipe, folder, split) for split in splits if split in prepared.slices}
    return {"slices": found} if found else {}


def _of_split(prepared: Prepared, recipe: TaskRecipe, folder: Path, split: str) -> dict[str, Any]:
    task = ScoredTask(folder.name, folder, recipe.task.kind, recipe.names, recipe.task.model_dump())
    try:
        return slice_records(task, split, prepared.config.evaluate.slices, prepared.slices[split])
    except (CannotTell, DataError) as error:  # the run itself is done
        log.warning("no scores of slices of %s: %s", split, error, extra=coded("run.no_slices", split=split))
        return {}
