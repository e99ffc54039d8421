"""What differs between kinds of tasks, from files to scores: one recipe for each.

Floor 4: brings data, models and metrics together, which do not know each other. `TASKS` names the recipe of each kind;
it is imported when it is asked for.
"""

import importlib
from typing import Any, Final

from paratune.config.task_sections import Task
from paratune.tasks.protocol import TaskRecipe

TASKS: Final[dict[str, str]] = {
    "classification": "paratune.tasks.sequence:SequenceRecipe",
    "mlm": "paratune.tasks.masked_lm:MaskedLMRecipe",
    "multi_label": "paratune.tasks.sequence:SequenceRecipe",
    "ordinal": "paratune.tasks.sequence:SequenceRecipe",
    "regression": "paratune.tasks.sequence:SequenceRecipe",
    "qa": "paratune.tasks.question_answering:QuestionAnsweringRecipe",
}
"""By the kind of `paratune.config.task_sections.Task`."""


def recipe_of(task: Task) -> TaskRecipe:
    """Return the recipe of a task, as the configuration describes it."""
    module, _, name = TASKS[task.kind].partition(":")
    made: Any = getattr(importlib.import_module(module), name)(task)
    recipe: TaskRecipe = made
    return recipe
