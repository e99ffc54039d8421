"""Reads the data of a configuration, for `paratune data`, and what `--figures` draws of it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from paratune.api.tokenizing import tokenizing_of
from paratune.config.load import LoadedConfig, allow_code
from paratune.config.metric_names import has_targets
from paratune.config.own_code import RECIPE_KEY, importable_parts, named_code
from paratune.config.permission import is_allowed, require_allowed
from paratune.config.sections import Config, Data, data_sources, named_columns, text_columns
from paratune.config.task_sections import OwnTask, Task, class_names
from paratune.data.columns import with_paths
from paratune.data.labels import as_number
from paratune.errors import ConfigError, DataError, did_you_mean
from paratune.reports.data import MAX_GROUPS, DataView

KINDS = ("classification", "ordinal", "regression")
"""Kinds of tasks whose rows have one label that can be drawn."""


def check_kind(task: Task, label: str | list[str] | None) -> None:
    """Raise an error for a task that these figures do not cover."""
    several = " of several targets" * has_targets(label, getattr(task, "raters", None))
    if task.kind not in KINDS or several:
        message = f"--figures needs one label for each text ({', '.join(KINDS)}), and task.kind is {task.kind}{several}"
        message += "; paratune data without --figures describes the data in words"
        raise ConfigError(message, code="task.unsupported", option="--figures", kind=task.kind)


def data_view(config: Config, splits: Mapping[str, Any], max_length: int) -> DataView:
    """Return the values to draw: the rows of all splits, with columns that training does not read."""
    data, options = config.data, config.data.figures
    columns = _all_columns(data, splits)

    def texts(name: str, option: str) -> list[str]:
        """Return the values of a column as texts; "" for missing values."""
        if name not in columns:
            message = f"data.figures.{option} names {name}{did_you_mean(name, columns)}, which is not a column of the "
            message += f"data ({', '.join(map(repr, columns))})"
            raise DataError(message, code="data.column_missing", key=f"data.figures.{option}", column=name)
        return ["" if value is None else str(value) for value in columns[name]]

    groups = None
    if options.by is not None:
        groups = [value if value.strip() else "(empty)" for value in texts(options.by, "by")]
        if len(set(groups)) > MAX_GROUPS:
            message = f"data.figures.by names {options.by}, which has {len(set(groups))} different values; a figure "
            message += f"can show {MAX_GROUPS}"
            raise DataError(message, code="data.too_many_values", key="data.figures.by")
    from sklearn.feature_extraction.text import ENGLISH_STOP_WORDS

    # Ids, and labels of more than two unordered classes, are numbers that are not quantities.
    is_code = config.task.kind == "classification" and len(class_names(config.task)) > 2
    without = (data.columns.id, data.columns.label if is_code else None)
    numbers = {name: [*map(_number_or_nan, values)] for name, values in columns.items() if name not in without}
    clouds = options.word_clouds if options.word_clouds is not None else text_columns(data.columns)
    samples = [split.samples for split in splits.values()]
    return DataView(
        splits={name: split.num_rows for name, split in splits.items()},
        labels=np.concatenate([split.labels for split in splits.values()]),
        label=" + ".join(named_columns(data.columns.label)),
        classes=class_names(config.task),
        words=np.concatenate([_num_words(part) for part in samples]),
        tokens=np.concatenate([split.store.full_sample_lengths for split in splits.values()]),
        max_length=max_length,
        groups=groups,
        by=options.by,
        numeric={name: np.array(values, np.float64) for name, values in numbers.items() if None not in values},
        texts={name: [text for text in texts(name, "word_clouds") if text.strip()] for name in clouds},
        min_texts=options.min_texts,
        stop_words=[*ENGLISH_STOP_WORDS, "did", "does", "doing", *options.stop_words],
    )


def _all_columns(data: Data, splits: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the rows of all splits with all columns of their files; None in rows of files without a column."""
    from paratune.data.read import read_table

    places: list[tuple[str, int]] = []
    for split in splits.values():
        sources = split.samples.sources
        files = sources if sources is not None else [split.source] * len(split.samples)
        places += zip(files, split.samples.rows.tolist(), strict=True)
    paths = [name for name in (data.figures.by, *(data.figures.word_clouds or text_columns(data.columns))) if name]
    tables = {file: with_paths(read_table(file, data.reading), paths).to_pydict() for file in dict(places)}
    names = dict.fromkeys(name for table in tables.values() for name in table)
    return {name: [tables[file][name][row] if name in tables[file] else None for file, row in places] for name in names}


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


def readable(loaded: LoadedConfig, *, run_code: bool) -> tuple[Config, list[str]]:
    """Return what can be read of a configuration, and its code of the user that is not imported.

    Args:
        run_code: Whether its code is imported.
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


def read_splits(config: Config) -> tuple[Any, dict[str, Any], Any, int]:
    """Return the recipe of the task, all splits with their tokens, the tokenizer, and the most tokens of a sample.

    Rows with missing values are dropped and counted, for every value of `data.missing`.
    """
    from paratune.tasks import load_extra_splits, make_recipe

    with tokenizing_of(config) as tokenizing:
        recipe, data = make_recipe(config.task), config.data.model_copy(update={"missing": "drop"})
        splits = recipe.load_splits(data, tokenizing) | load_extra_splits(recipe, data, tokenizing)
        return recipe, splits, tokenizing.tokenizer, tokenizing.max_length
