"""Reads the data of a configuration, for `paratune data`, and draws it, for `--figures` and reports of matrices."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune.api.tokenizing import tokenizing_of
from paratune.config.load import LoadedConfig, allow_code
from paratune.config.own_code import RECIPE_KEY, importable_parts, named_code
from paratune.config.permission import is_allowed, require_allowed
from paratune.config.sections import Config, Data, data_sources, text_columns
from paratune.config.task_sections import OwnTask, Task, class_names
from paratune.data.labels import as_number
from paratune.errors import ConfigError, DataError, did_you_mean
from paratune.reports.data.figures import MAX_GROUPS, DataView, data_drawings
from paratune.reports.data.page import write_figures
from paratune.reports.output import PAGE

KINDS = ("classification", "ordinal", "regression")
"""Kinds of tasks whose rows have one label that can be drawn."""


def check_kind(task: Task) -> None:
    """Raise an error for a task that these figures do not cover.

    Raises:
        ConfigError: The task has no single label for each row.
    """
    if task.kind not in KINDS:
        message = (
            f"--figures needs one label for each text ({', '.join(KINDS)}), and task.kind is "
            f"{task.kind}; paratune data without --figures describes the data in words"
        )
        raise ConfigError(message, code="task.unsupported", option="--figures", kind=task.kind)


def data_view(config: Config, splits: Mapping[str, Any], max_length: int) -> DataView:
    """Return the values to draw: the rows of all splits, with columns that training does not read.

    Raises:
        DataError: A column that `data.figures` names is not in a file, or has too many values to distinguish.
    """
    data, options = config.data, config.data.figures
    rows = _Rows(data, splits)
    clouds = options.word_clouds if options.word_clouds is not None else text_columns(data.columns)
    groups = None
    if options.by is not None:
        groups = [value if value.strip() else "(empty)" for value in rows.texts(options.by, "by")]
        if len(set(groups)) > MAX_GROUPS:
            message = (
                f"data.figures.by names {options.by}, which has {len(set(groups))} different values; a figure can "
                f"show {MAX_GROUPS}"
            )
            raise DataError(message, code="data.too_many_groups", key="data.figures.by")
    samples = [split.samples for split in splits.values()]
    return DataView(
        splits={name: split.num_rows for name, split in splits.items()},
        labels=np.concatenate([split.labels for split in splits.values()]),
        label=str(data.columns.label),
        classes=class_names(config.task),
        words=np.concatenate([_num_words(part) for part in samples]),
        tokens=np.concatenate([split.store.full_sample_lengths for split in splits.values()]),
        max_length=max_length,
        groups=groups,
        by=options.by,
        numeric=rows.numeric(without=_codes(config)),
        texts={name: [text for text in rows.texts(name, "word_clouds") if text.strip()] for name in clouds},
        min_texts=options.min_texts,
        stop_words=_stop_words(options.stop_words),
    )


class _Rows:
    """The rows of all splits, with all columns of their files."""

    def __init__(self, data: Data, splits: Mapping[str, Any]) -> None:
        from paratune.data.read import read_table

        self._parts: list[tuple[str, pa.Table]] = []
        self._places: list[tuple[int, int]] = []
        numbers: dict[str, int] = {}
        for split in splits.values():
            samples = split.samples
            files = samples.sources if samples.sources is not None else [split.source] * len(samples)
            for file, row in zip(files, samples.rows.tolist(), strict=True):
                if file not in numbers:
                    numbers[file] = len(self._parts)
                    self._parts.append((file, read_table(file, revision=data.hub_revision)))
                self._places.append((numbers[file], row))

    def values(self, column: str) -> list[Any]:
        """Return the values of a column, None in rows of files that do not have it."""
        parts = [table.column(column).to_pylist() if column in table.column_names else None for _, table in self._parts]
        return [None if (values := parts[part]) is None else values[row] for part, row in self._places]

    def texts(self, column: str, option: str) -> list[str]:
        """Return the values of a column as texts; "" for missing values.

        Raises:
            DataError: No file has the column.
        """
        known = dict.fromkeys(name for _, table in self._parts for name in table.column_names)
        if column not in known:
            message = (
                f"data.figures.{option} names {column}{did_you_mean(column, known)}, which is not a column of "
                f"{', '.join(file for file, _ in self._parts)} (columns: {', '.join(map(repr, known))})"
            )
            raise DataError(message, code="data.column_missing", key=f"data.figures.{option}", column=column)
        return ["" if value is None else str(value) for value in self.values(column)]

    def numeric(self, *, without: set[str]) -> dict[str, Any]:
        """Return the columns of numbers, arrays (rows,), with NaN for empty fields."""
        columns = {}
        for name in dict.fromkeys(name for _, table in self._parts for name in table.column_names):
            if name in without:
                continue
            numbers = [_number_or_nan(value) for value in self.values(name)]
            if all(number is not None for number in numbers):
                columns[name] = np.array(numbers, dtype=np.float64)
        return columns


def _codes(config: Config) -> set[str]:
    """Return the columns whose numbers are not quantities: ids, and labels of more than two unordered classes."""
    columns = config.data.columns
    is_code = config.task.kind == "classification" and len(class_names(config.task)) > 2
    return {name for name in (columns.id, columns.label if is_code else None) if name is not None}


def _number_or_nan(value: Any) -> float | None:
    """Return a value as a number; NaN if it is empty or not finite, None if it is not a number."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return float("nan")
    number = as_number(value)
    return number if number is None or np.isfinite(number) else float("nan")


def _num_words(samples: Any) -> Any:
    pairs = samples.text_pairs or [""] * len(samples)
    words = [len(text.split()) + len(pair.split()) for text, pair in zip(samples.texts, pairs, strict=True)]
    return np.array(words, dtype=np.int64)


def _stop_words(own: list[str]) -> list[str]:
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    return [*ENGLISH_STOP_WORDS, "did", "does", "doing", *own]


def readable(loaded: LoadedConfig, *, run_code: bool) -> tuple[Config, list[str]]:
    """Return what can be read of a configuration, and its code of the user that is not imported.

    Args:
        run_code: Whether its code is imported.

    Raises:
        ConfigError: Nothing can be read without its code.
    """
    if run_code:
        allow_code(loaded)
    config = importable_parts(loaded.config)
    code = [item for item in named_code(loaded.values) if not is_allowed(item.name)]
    if isinstance(config.task, OwnTask):
        require_allowed(config.task.recipe, RECIPE_KEY)
    if next(data_sources(config.data), None) is None and code:
        require_allowed(code[-1].name, code[-1].key)
    return config, list(map(str, code))


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
    loaded: LoadedConfig, config: Config, splits: Mapping[str, Any], max_length: int, folder: Path
) -> list[dict[str, Any]]:
    """Write the figures, and return their entries of the description; `config` is from `readable`."""
    view = data_view(config, splits, max_length)
    rows = ", ".join(f"{count:,} {name}" for name, count in view.splits.items())
    sources = " + ".join(dict.fromkeys(split.source for split in splits.values()))
    title = f"Data of {loaded.config.run.name}"
    return write_figures(folder, list(data_drawings(view)), title=title, about=f"{sources}; rows: {rows}.")


def figure_lines(description: Mapping[str, Any], folder: Path) -> Iterator[str]:
    """Yield a line for each figure, and its note."""
    for figure in description["figures"]:
        yield figure["note"] or str(folder / figure["file"])
    yield str(folder / PAGE)
