"""Loads the sets of `data.extra`, which are scored at the end, and of `data.predict`, which have no labels."""

from dataclasses import replace

from paratune.config.sections import Data
from paratune.data.load import Split
from paratune.data.read import read_table
from paratune.data.sources import mark_pseudo, refuse_pseudo
from paratune.data.tokens import TokenizeOptions
from paratune.errors import ConfigError, DataError
from paratune.tasks.protocol import TaskRecipe


def load_extra_splits(recipe: TaskRecipe, data: Data, options: TokenizeOptions) -> dict[str, Split]:
    """Return the sets of `data.extra`, then those of `data.predict`, by name.

    Raises:
        ConfigError: The task has no predictions.
        DataError: A file or a column is wrong.
        Stopped: `options.stop` returned true.
    """
    if data.predict and not recipe.prediction_names():
        raise ConfigError(
            f"data.predict: {', '.join(data.predict)}: this kind of task has no predictions; remove the option",
            code="config.no_effect",
            key="data.predict",
        )
    splits = {name: _load(recipe, data, options, name, source) for name, source in (data.extra | data.predict).items()}
    for name in data.predict:
        if reason := recipe.predictions_problem(splits[name]):
            raise DataError(
                f"data.predict.{name}: {reason}; correct the file, or use row numbers with data.columns.id: null",
                code="data.predict_unfit",
                key=f"data.predict.{name}",
            )
    return splits


def _load(recipe: TaskRecipe, data: Data, options: TokenizeOptions, name: str, source: str) -> Split:
    table = read_table(source, revision=data.hub_revision if source.startswith("hub:") else None)
    labelled = name in data.extra
    split = recipe.load_split(source, table, data.columns, options, missing=data.missing, require_labels=labelled)
    if labelled:
        refuse_pseudo(mark_pseudo(split.samples, table), f"data.extra.{name}", source)
    return replace(split, name=name)
