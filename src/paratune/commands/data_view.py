"""Reads and describes the data of a configuration, for `paratune data` and reports of matrices."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paratune.api.tokenizing import tokenizing_of
from paratune.commands.data_figures import data_view
from paratune.config.load import LoadedConfig
from paratune.config.sections import Config
from paratune.reports.data.figures import data_drawings
from paratune.reports.data.page import PAGE, write_figures


def read_splits(config: Config) -> tuple[Any, dict[str, Any], int]:
    """Return the recipe of the task, all splits with their tokens, and the maximum number of tokens of a sample.

    Rows with missing values are dropped and counted, for every value of `data.missing`.

    Raises:
        ConfigError, DataError: The tokenizer or the data cannot be read.
    """
    from paratune.tasks import make_recipe
    from paratune.tasks.extra_splits import load_extra_splits

    with tokenizing_of(config) as tokenizing:
        recipe, data = make_recipe(config.task), config.data.model_copy(update={"missing": "drop"})
        return (
            recipe,
            recipe.load_splits(data, tokenizing) | load_extra_splits(recipe, data, tokenizing),
            tokenizing.max_length,
        )


def draw_figures(
    loaded: LoadedConfig, splits: Mapping[str, Any], max_length: int, folder: Path
) -> list[dict[str, Any]]:
    """Write the figures, and return their entries of the description."""
    view = data_view(loaded.config, splits, max_length)
    rows = ", ".join(f"{count:,} {name}" for name, count in view.splits.items())
    sources = " + ".join(dict.fromkeys(split.source for split in splits.values()))
    title = f"Data of {loaded.config.run.name}"
    return write_figures(folder, list(data_drawings(view)), title=title, about=f"{sources}; rows: {rows}.")


def figure_lines(description: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield a line for each figure, and its note."""
    for figure in description["figures"]:
        yield f"{folder / figure['files'][0]} and .png"
        if figure["note"]:
            yield f"  {figure['note']}"
    yield str(folder / PAGE)
