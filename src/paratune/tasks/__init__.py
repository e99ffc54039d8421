"""Task recipes: one for each kind of task, with all that differs between kinds, from reading files to scores.

A recipe combines data, models and metrics, which do not import each other. `TASKS` has the recipe of each kind by its
full name; `make_recipe` imports it.
"""

import importlib
from dataclasses import replace
from typing import Final

from paratune.config.sections import Data
from paratune.config.task_sections import OwnTask, QuestionAnsweringTask, Task
from paratune.data.encode import TokenizeOptions
from paratune.data.load import Split, mark_pseudo, refuse_pseudo
from paratune.data.read import read_table
from paratune.errors import ConfigError, DataError
from paratune.tasks.protocol import TaskRecipe

TASKS: Final[dict[str, str]] = {
    "classification": "paratune.tasks.sequence:ClassificationRecipe",
    "embedding": "paratune.tasks.embedding:EmbeddingRecipe",
    "mlm": "paratune.tasks.masked_lm:MaskedLMRecipe",
    "multi_label": "paratune.tasks.sequence:MultiLabelRecipe",
    "multiple_choice": "paratune.tasks.sequence:MultipleChoiceRecipe",
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
        from paratune.tasks.own import make_own_recipe

        return make_own_recipe(task)
    module, _, name = TASKS[task.kind].partition(":")
    recipe: TaskRecipe = getattr(importlib.import_module(module), name)(task)
    return recipe


def load_extra_splits(recipe: TaskRecipe, data: Data, options: TokenizeOptions) -> dict[str, Split]:
    """Return the sets of `data.extra`, then those of `data.predict`, by name.

    Raises:
        ConfigError: The task has no predictions.
        DataError: A file or a column is wrong.
        Stopped: `options.stop` returned true.
    """
    if data.predict and not recipe.prediction_names():
        message = f"data.predict: {', '.join(data.predict)}: this kind of task has no predictions; remove the option"
        raise ConfigError(message, code="config.no_effect", key="data.predict")
    splits: dict[str, Split] = {}
    for name, source in (data.extra | data.predict).items():
        table = read_table(source, data.reading)
        labelled = name in data.extra
        split = recipe.load_split(source, table, data.columns, options, missing=data.missing, require_labels=labelled)
        splits[name] = replace(split, name=name)
        if labelled:
            refuse_pseudo(mark_pseudo(split.samples, table), f"data.extra.{name}", source)
    for name in data.predict:
        # Files of answers are by id.
        if isinstance(recipe.task, QuestionAnsweringTask) and (reason := recipe.document_problem(splits[name])):
            message = f"data.predict.{name}: {reason}; correct the file, or use row numbers with data.columns.id: null"
            raise DataError(message, code="data.predict_unfit", key=f"data.predict.{name}")
    return splits
