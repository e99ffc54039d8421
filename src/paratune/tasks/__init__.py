"""Task recipes: one for each kind of task, with all that differs between kinds, from reading files to scores.

A recipe combines data, models and metrics, which do not import each other. `TASKS` has the recipe of each kind by its
full name; `make_recipe` imports it.
"""

import importlib
from typing import Any, Final

from paratune.config.own_code import source_hash
from paratune.config.task_sections import Task
from paratune.tasks.protocol import TaskRecipe

TASKS: Final[dict[str, str]] = {
    "classification": "paratune.tasks.sequence:SequenceRecipe",
    "mlm": "paratune.tasks.masked_lm:MaskedLMRecipe",
    "multi_label": "paratune.tasks.sequence:SequenceRecipe",
    "ordinal": "paratune.tasks.sequence:SequenceRecipe",
    "regression": "paratune.tasks.sequence:SequenceRecipe",
    "qa": "paratune.tasks.question_answering:QuestionAnsweringRecipe",
    "token_classification": "paratune.tasks.words:TokenClassificationRecipe",
}
"""Recipe by the kind of `paratune.config.task_sections.Task`."""


def experiment_code(task: Task) -> dict[str, dict[str, Any]]:
    """Return the code outside paratune that changes what is trained, by option: `function`, `options` and `sha256`.

    The hash is that of the file that defines the function; None where it has no Python source.

    Raises:
        ConfigError: The code cannot be imported.
    """
    loss = getattr(task, "loss", None)
    if loss is None:
        return {}
    return {"task.loss": {**loss.model_dump(), "sha256": source_hash(loss.function, "task.loss.function")}}


def make_recipe(task: Task) -> TaskRecipe:
    """Return the recipe of a task of the configuration."""
    module, _, name = TASKS[task.kind].partition(":")
    recipe: TaskRecipe = getattr(importlib.import_module(module), name)(task)
    return recipe
