"""The facts about the data that `paratune doctor CONFIG` checks. Files are read whole, a sample is tokenized."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from paratune.base.units import GIB, format_bytes
from paratune.config.plain import one_line
from paratune.config.sections import Config, Data, data_sources, named_columns
from paratune.config.sources import local_path, path_and_split
from paratune.config.task_sections import (
    ClassTask,
    EmbeddingTask,
    MaskedLMTask,
    MultiLabelTask,
    QuestionAnsweringTask,
    RegressionTask,
    Task,
    class_names,
)
from paratune.data.columns import Samples, TableReader, select
from paratune.data.duplicates import overlaps, repeats
from paratune.data.labels import as_number, class_counts
from paratune.data.load import load_samples, samples_fingerprint
from paratune.data.long_texts import cut_long_texts
from paratune.data.questions import drop_misplaced, select_questions
from paratune.data.read import read_table
from paratune.data.slices import column_values
from paratune.data.sources import Selector, default_selector
from paratune.doctor.setup import DataFacts, SourceError, SplitFacts
from paratune.errors import DataError, ParatuneError, did_you_mean, nearest_name

MAX_BYTES = GIB
"""Maximum size of all files together, to read them within a minute."""
NUM_TOKENIZED = 400
"""Number of rows of a split that are tokenized."""
MIN_ID_ROWS = 10
"""Minimum number of rows to decide that a column contains ids."""
MAX_CLASSES = 50
"""Maximum number of distinct labels that are listed."""
_ID = re.compile(r"(?=.*\d)[\w.:/#@-]{1,64}", re.ASCII)


def data_facts(config: Config, tokenizer: Any, model_limit: int | None) -> DataFacts:
    """Return the facts about the data of a configuration.

    Args:
        tokenizer: Of the model; None if it cannot be loaded, which leaves lengths unknown.
        model_limit: Maximum number of tokens of the model; None without a limit.
    """
    max_length = config.data.max_length or model_limit
    if too_large := _too_large(config.data):
        return DataFacts(max_length=max_length, model_limit=model_limit, too_large=too_large)
    errors: list[SourceError] = []
    id_columns: dict[str, tuple[str, str, str]] = {}
    text_columns: tuple[str, ...] = ()
    on_hub = tuple(named for named in data_sources(config.data) if named[1].startswith("hub:"))
    for key, source in data_sources(config.data):
        labelled = not key.startswith("data.predict.")
        if source.startswith("hub:"):  # reading it could download it
            continue
        table = _read(key, source, errors)
        if table is None:
            continue
        column_errors = list(_column_errors(table, config.data, source, labelled=labelled))
        errors += column_errors
        for option, example in _id_columns(table, config.data) if not column_errors else ():
            id_columns.setdefault(option, (option, source, example))
        if key == "data.train" and not text_columns:
            text_columns = _text_columns(table, config.data)
        if not column_errors and not id_columns:
            errors += _value_errors(table, config, source, labelled=labelled)
    if errors or id_columns or on_hub:
        ids = tuple(id_columns.values())
        return DataFacts((), (), tuple(errors), ids, text_columns, max_length, model_limit, on_hub=on_hub)
    if not any(getattr(config.data, name) for name in ("train", "validation", "test")):  # all are own code
        return DataFacts((), (), (), (), text_columns, max_length, model_limit)
    try:
        parts = load_samples(_tolerant(config.data), config.task, _selector(config))
        if isinstance(config.task, QuestionAnsweringTask) and "train" in parts:
            source, samples = parts["train"]
            parts["train"] = source, drop_misplaced(samples, "drop", source=source)
    except ParatuneError as error:
        return DataFacts((), (), (SourceError("value", "data.train", str(error)),), (), text_columns)
    if errors := list(_slice_errors(config, parts)):
        return DataFacts((), (), tuple(errors), (), text_columns)
    lengths = partial(_lengths, config=config, tokenizer=tokenizer)
    splits = tuple(
        _split_facts(name, source, samples, config.task, lengths(samples), max_length)
        for name, (source, samples) in parts.items()
    )
    shared = overlaps({name: samples for name, (_, samples) in parts.items()})
    pairs = tuple((overlap.first, overlap.second, overlap.num_rows, overlap.num_rows_of_second) for overlap in shared)
    is_text = not isinstance(config.task, MaskedLMTask)
    return DataFacts(splits, pairs if is_text else (), (), (), text_columns, max_length, model_limit)


def _too_large(data: Data) -> tuple[str, ...]:
    sizes = {}
    for _, source in data_sources(data):
        path = local_path(source)
        if path is not None and (file := path_and_split(path)[0]).is_file():
            sizes[source] = file.stat().st_size
    if sum(sizes.values()) <= MAX_BYTES:
        return ()
    return tuple(f"{source} ({format_bytes(size)})" for source, size in sizes.items())


def _read(key: str, source: str, errors: list[SourceError]) -> pa.Table | None:
    try:
        return read_table(source)
    except ParatuneError as error:
        nearest = re.search(r"; did you mean (.+?)\?", str(error))
        near = Path(source).with_name(nearest[1]) if nearest else None
        errors.append(SourceError("file", key, str(error), f"{key}: {near}" if near else ""))
        return None


def _column_errors(table: pa.Table, data: Data, source: str, *, labelled: bool) -> Iterator[SourceError]:
    columns, names = data.columns, table.column_names
    needed = [("text", name) for name in named_columns(columns.text)]
    needed += [("text_pair", name) for name in named_columns(columns.text_pair)]
    needed += [("choices", name) for name in named_columns(columns.choices)]
    needed += [("id", columns.id)] if columns.id is not None else []
    if labelled:
        needed += [(key, name) for key in ("label", "answer_start") if (name := getattr(columns, key)) is not None]
    for key, name in needed:
        if name in names:
            continue
        nearest = nearest_name(name, names)
        line = f"data.columns.{key}: {nearest}" if nearest and isinstance(getattr(columns, key), str) else ""
        message = f"{source} has no column {name}{did_you_mean(name, names)} (it has: {', '.join(map(repr, names))})"
        yield SourceError("column", f"data.columns.{key}", message, line)


def _id_columns(table: pa.Table, data: Data) -> Iterator[tuple[str, str]]:
    for key in ("text", "text_pair"):
        named = named_columns(getattr(data.columns, key))
        if len(named) == 1 and (example := _id_example(table.column(named[0]).to_pylist())) is not None:
            yield f"data.columns.{key}", example


def _id_example(values: Sequence[Any]) -> str | None:
    """Return the first value if all values look like ids: different, and single words with a digit, or numbers."""
    present = [str(value).strip() for value in values if value is not None and str(value).strip()]
    if len(present) < MIN_ID_ROWS or len(set(present)) < len(present):
        return None
    return present[0] if all(_ID.fullmatch(value) for value in present) else None


def _text_columns(table: pa.Table, data: Data) -> tuple[str, ...]:
    """Return the columns with texts of several words, the longest texts first."""
    words = {}
    for name in dict.fromkeys(table.column_names):
        kind = table.schema.field(name).type if table.column_names.count(name) == 1 else None
        if (
            name == data.columns.label
            or kind is None
            or not (pa.types.is_string(kind) or pa.types.is_large_string(kind))
        ):
            continue
        values = [value for value in table.column(name).slice(0, 200).to_pylist() if value]
        words[name] = sum(len(value.split()) for value in values) / max(1, len(values))
    return tuple(sorted((name for name in words if words[name] >= 3), key=lambda name: -words[name]))


def _slice_errors(config: Config, parts: Mapping[str, tuple[str, Samples]]) -> Iterator[SourceError]:
    """Yield the columns of `evaluate.slices` that a scored set lacks, or that have too many values for slices."""
    key, names, seen = "evaluate.slices", config.evaluate.slices, set()
    scored = [part for name, part in parts.items() if name != "train" and name not in config.data.predict]
    for source, samples in () if config.measure.probe else scored:
        for name in names:
            try:
                column_values(samples, source, [name])
            except DataError as error:
                if str(error) not in seen:  # else two sets of one file
                    near = re.search(r"did you mean (.+?)\?", str(error))
                    shown = [
                        near[1] if near and column == name else column for column in names if near or column != name
                    ]
                    yield SourceError("column", key, str(error), f"{key}: {one_line(shown)}")
                seen.add(str(error))


def _tolerant(data: Data) -> Data:
    return data.model_copy(update={"missing": "drop"})


def _selector(config: Config) -> Selector:
    """Return the function that selects samples from a table, and counts rows with missing values."""
    if not isinstance(config.task, QuestionAnsweringTask):
        return default_selector(_tolerant(config.data), config.task)
    may_lack_answers = config.task.unanswerable is not False

    def selected(table: pa.Table, *, source: str, group_by: str | None) -> Samples:
        reader = TableReader(table, config.data.columns, "drop", source, group_by)
        return select_questions(reader, too_long=lambda texts: [False] * len(texts), may_lack_answers=may_lack_answers)

    return selected


def _value_errors(table: pa.Table, config: Config, source: str, *, labelled: bool) -> list[SourceError]:
    columns, task = config.data.columns, config.task
    is_class = isinstance(task, ClassTask | RegressionTask)
    try:
        if is_class:
            select(TableReader(table, columns, "drop", source, require_labels=False), task)
        if labelled:
            _selector(config)(table, source=source, group_by=None)
    except DataError as error:
        if (is_class and labelled and "task.labels" in str(error)) or "targets" in str(error):
            key = "task.labels" if isinstance(task, ClassTask) else "data.columns.label"
            return [SourceError("label", key, str(error), _label_line(table, config))]
        named = re.search(r"\((data\.columns\.text\w*)\) contains", str(error))
        texts = _text_columns(table, config.data) if named else ()
        line = f"{named[1]}: {texts[0]}" if named and texts else ""
        return [SourceError("value", named[1] if named else "data.train", str(error), line)]
    return []


def _label_line(table: pa.Table, config: Config) -> str:
    """Return a configuration line with all values of the column as labels, or for a regression if they are numbers."""
    task, column = config.task, config.data.columns.label
    assert column is not None
    values = {value for value in table.column(column).to_pylist() if value is not None and str(value).strip()}
    if isinstance(task, MultiLabelTask) or any(isinstance(value, list) for value in values):
        return ""
    distinct = sorted(values, key=str)
    labels = one_line([value if type(value) is int else str(value) for value in distinct[: MAX_CLASSES + 1]])
    if isinstance(task, RegressionTask):
        if len(distinct) > MAX_CLASSES:
            return ""
        return f"task: {{kind: classification, labels: {labels}}}"
    if len(distinct) > MAX_CLASSES:
        return "task: {kind: regression}" if all(as_number(value) is not None for value in distinct) else ""
    return f"task.labels: {labels}"


def _split_facts(
    name: str, source: str, samples: Samples, task: Task, lengths: Sequence[int] | None, max_length: int | None
) -> SplitFacts:
    labels, names = samples.labels, class_names(task)
    counts: Mapping[str, int] | None = class_counts(labels, names) if labels is not None and names else None
    is_index = False
    if labels is not None and isinstance(task, RegressionTask) and len(labels) >= MIN_ID_ROWS:
        is_index = bool((np.diff(labels.astype(np.float64)) == 1).all())
    known = lengths is not None and max_length is not None and len(lengths) > 0
    return SplitFacts(
        name=name,
        source=source,
        num_rows=len(samples),
        fingerprint=samples_fingerprint(samples, task),
        num_dropped=samples.num_dropped,
        labels=counts,
        label_counts_rows=is_index,
        num_conflicting=repeats(samples).num_conflicting_rows if labels is not None else 0,
        share_truncated=float((np.asarray(lengths) > max_length).mean()) if known else None,
        p95_length=int(np.quantile(lengths, 0.95)) if known and lengths is not None else None,
    )


def _lengths(samples: Samples, config: Config, tokenizer: Any) -> list[int] | None:
    """Return the numbers of tokens of some rows; None for tasks that cut windows and truncate nothing."""
    task = config.task
    joins_texts = isinstance(task, MaskedLMTask) and task.windows == "joined"
    if tokenizer is None or isinstance(task, QuestionAnsweringTask) or joins_texts or len(samples) == 0:
        return None
    rows = np.unique(np.linspace(0, len(samples) - 1, min(NUM_TOKENIZED, len(samples))).astype(np.int64))
    texts = [samples.texts[row] for row in rows]
    pairs = None if samples.text_pairs is None else [samples.text_pairs[row] for row in rows]
    if samples.choices is not None:
        longest = [max(samples.choices[row], key=len) for row in rows]
        pairs = longest if pairs is None else [pair + choice for pair, choice in zip(pairs, longest, strict=True)]
    if isinstance(task, EmbeddingTask):  # each text is a sequence: the longest one of a row counts
        columns = [column for column in (samples.texts, samples.text_pairs, samples.negatives) if column is not None]
        texts, pairs = [max((column[row] for column in columns), key=len) for row in rows], None
    if config.data.max_length is not None:
        texts, pairs = cut_long_texts(texts, pairs, tokenizer, config.data.max_length)
    return [len(ids) for ids in tokenizer(texts, pairs, truncation=False, verbose=False)["input_ids"]]
