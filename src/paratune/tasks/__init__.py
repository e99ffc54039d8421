"""Task recipes: one for each kind of task, with all that differs between kinds, from reading files to scores.

A recipe combines data, models and metrics, which do not import each other. `TASKS` has the recipe of each kind by its
full name; `make_recipe` imports it.
"""

import importlib
from typing import Final

from paratune.config.task_sections import OwnTask, Task
from paratune.tasks.own import make_own_recipe
from paratune.tasks.protocol import TaskRecipe

TASKS: Final[dict[str, str]] = {
    "classification": "paratune.tasks.sequence:ClassificationRecipe",
    "embedding": "paratune.tasks.embedding:EmbeddingRecipe",
    "mlm": "paratune.tasks.masked_lm:MaskedLMRecipe",
    "multi_label": "paratune.tasks.sequence:MultiLabelRecipe",
    "multiple_choice": "paratune.tasks.choices:MultipleChoiceRecipe",
    "ordinal": "paratune.tasks.sequence:OrdinalRecipe",
    "regression": "paratune.tasks.sequence:RegressionRecipe",
    "qa": "paratune.tasks.question_answering:QuestionAnsweringRecipe",
    "token_classification": "paratune.tasks.words:TokenClassificationRecipe",
}
"""Recipe by the kind of `paratune.config.task_sections.Task`."""


def make_recipe(task: Task) -> TaskRecipe:
    """Return the recipe of a task of the configuration.

    Raises:
        ConfigError: The recipe of an own task cannot be imported, or is none.
    """
    if isinstance(task, OwnTask):
        return make_own_recipe(task)
    module, _, name = TASKS[task.kind].partition(":")
    recipe: TaskRecipe = getattr(importlib.import_module(module), name)(task)
    return recipe
