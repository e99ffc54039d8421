"""Sets beside train, validation and test: `data.extra`, scored at the end, and `data.predict`, which has no labels.

Floor 4.
"""

from dataclasses import replace

from paratune.config.sections import Data
from paratune.data.load import Split
from paratune.data.read import read_table
from paratune.data.sources import is_pseudo, refuse_pseudo
from paratune.data.tokens import Tokenizing
from paratune.errors import ConfigError, DataError
from paratune.tasks.protocol import TaskRecipe


def load_further(recipe: TaskRecipe, data: Data, how: Tokenizing) -> dict[str, Split]:
    """Return the sets of `data.extra`, then those of `data.predict`, by name.

    Raises:
        ConfigError: The task predicts nothing of a row.
        DataError: Something is wrong with a file or a column.
        Stopped: `how.stop` said so.
    """
    if data.predict and not recipe.prediction_names():
        raise ConfigError(
            f"data.predict: {', '.join(data.predict)}: this kind of task predicts nothing of a row",
            code="config.no_effect",
            key="data.predict",
        )
    found = {name: _load(recipe, data, how, name, source) for name, source in (data.extra | data.predict).items()}
    for name in data.predict:
        if reason := recipe.why_not_kept(found[name]):
            raise DataError(
                f"data.predict.{name}: {reason}; mend the file, or count rows with data.columns.id: null",
                code="data.predict_unfit",
                key=f"data.predict.{name}",
            )
    return found


def _load(recipe: TaskRecipe, data: Data, how: Tokenizing, name: str, source: str) -> Split:
    table = read_table(source, revision=data.hub_revision if source.startswith("hub:") else None)
    labelled = name in data.extra
    found = recipe.load_split(source, table, data.columns, how, missing=data.missing, require_labels=labelled)
    if labelled:
        refuse_pseudo(found.samples.marked(is_pseudo(table)[found.samples.rows]), f"data.extra.{name}", source)
    return replace(found, name=name)
