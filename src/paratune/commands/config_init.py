"""Reads the files of `paratune config init`, guesses a configuration, and checks that a run accepts it."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from paratune.base.scratch import scratch_folder
from paratune.commands.data_figures import read_splits
from paratune.config.feasibility import DEMO_MODEL
from paratune.config.layers import Layer, merge
from paratune.config.load import check_text
from paratune.config.overrides import drop_superseded_settings
from paratune.config.plain import flatten, nested, yaml_lines
from paratune.config.sections import Config, FileReading, MaxRows, named_columns
from paratune.console import stdout_for_results
from paratune.data.columns import Samples, TableReader, dropped_text, values_with_names
from paratune.data.guess import OptionGuess, guess_options
from paratune.data.guess_columns import begins_with_row, with_parts
from paratune.data.load import load_samples
from paratune.data.questions import drop_misplaced
from paratune.data.read import read_table
from paratune.data.tables import ENCODING
from paratune.errors import ConfigError, DataError, Fault, ParatuneError
from paratune.models.locate import locate

_ROWS = 32  # of each part, tokenized for the check
_ORDER = ("task", "data", "model", "train", "batch", "evaluate", "strategy")  # of the sections of the file


def read_and_guess(
    sources: dict[str, str], columns: dict[str, str | None], task: str | None, model: str, given: Layer
) -> tuple[OptionGuess, dict[str, pa.Table]]:
    """Return the options for the data files and the model, and the tables; all that are missing are reported at once.

    A file without a header is read again. `given` are the settings of --set.
    """
    reading = FileReading.of(given.values.get("data") or {})
    try:
        tables = _read(sources, model, reading)
        guess = _guess(sources, tables, columns, task)
    except DataError as error:
        by_number = [name for name in columns.values() if name is not None]
        is_number = bool(by_number) and all(re.fullmatch(r"[\d,]+", name) for name in by_number)
        is_row = error.code == "data.no_header" or (error.code == "data.column_missing" and is_number)
        if not is_row and error.code != "data.column_twice":
            raise
        reading = reading._replace(header=False)
        tables = _read(sources, model, reading)
        if not is_row and not begins_with_row(tables["train"]):
            raise
        guess = _guess(sources, tables, columns, task)
        guess.put("data.header", False, "line 1 is a row; columns are named by number")
    if found := {table.schema.metadata.get(ENCODING) for table in tables.values() if table.schema.metadata} - {None}:
        encoding = min(found).decode()
        again = _read(sources, model, reading._replace(encoding=encoding))
        if all(again[name].equals(table) for name, table in tables.items()):  # no other file has another encoding
            guess.put("data.encoding", encoding, "not UTF-8")
    guess.put("model.name", model)
    guess.put("train.learning_rate", 5e-5 if model == DEMO_MODEL else 2e-5)
    guess.put("train.warmup_ratio", 0.1)
    # An epoch has at least 8 steps.
    size = next((size for size in (32, 16, 8) if tables["train"].num_rows >= 10 * size), 4)
    guess.put("batch.global", size)
    # Fewer than 100 steps teach a small model little: its first scores would be those of a guess.
    epochs = 3 if guess.kind == "mlm" else min(20, max(3, 100 * size // tables["train"].num_rows))
    guess.put("train.epochs", epochs, "few rows: about 100 steps" if epochs > 3 else None)
    if guess.kind == "embedding" and "task.loss" not in guess.values and size < 16:  # a batch has whole groups of 16
        guess.put("task.group_size", size, "the size of a batch")
    merged = flatten(merge(drop_superseded_settings(Layer(nested(guess.values)), given), given).values)
    guess.values = {key: merged[key] for key in [*guess.values, *merged] if key in merged}
    guess.reasons |= dict.fromkeys(flatten(given.values), "--set")
    return guess, tables


def _read(sources: dict[str, str], model: str, reading: FileReading) -> dict[str, pa.Table]:
    faults: list[Fault] = []
    tables: dict[str, pa.Table] = {}
    for name, source in [*sources.items(), ("model", model)]:
        try:
            if name == "model":
                locate(source)
            else:
                tables[name] = read_table(source, reading)
        except ParatuneError as error:
            faults.extend(error.faults)
    if faults:
        kind = DataError if sources.keys() - tables else ConfigError
        raise kind(f"{len(faults)} {'problem' if len(faults) == 1 else 'problems'}", code=faults[0].code, faults=faults)
    return tables


def _guess(
    sources: dict[str, str], tables: dict[str, pa.Table], columns: dict[str, str | None], task: str | None
) -> OptionGuess:
    """Return the guess for the tables; a test file without labels is a set to predict, and not a part of the data."""
    labelled = dict(tables)
    while True:
        guess = guess_options(
            labelled["train"],
            sources["train"],
            task=task,
            columns=columns,
            others=[table for name, table in labelled.items() if name != "train"],
            separate_validation="validation" in labelled,
            separate_test="test" in labelled,
        )
        if "test" not in labelled or _has_labels(labelled["test"], labelled["train"], guess):
            break
        del labelled["test"]
    guess.values = {f"data.{name}": sources[name] for name in labelled} | guess.values
    if len(labelled) < len(tables):
        guess.put("data.predict", {"unlabelled": sources["test"]}, "the test file has no labels")
    return guess


def check(guess: OptionGuess, tables: Mapping[str, pa.Table], path: Path) -> str:
    """Load the values, read all rows and tokenize some, as a run does; return what was checked.

    Rows with missing values, and questions with odd answers, set `data.missing`; what a run would refuse is an error.
    """
    config = check_text(short_text(guess.values, guess.reasons, ""), path)
    parts = _load_samples(config, tables)
    if parts is None:  # too few contexts for parts of whole contexts
        del guess.values["data.split.group_by"]
        config = check_text(short_text(guess.values, guess.reasons, ""), path)
        parts = _load_samples(config, tables) or {}
    dropped = dict(sum((Counter(samples.num_dropped) for _, samples in parts.values()), Counter[str]()))
    if dropped:
        guess.put("data.missing", "drop", dropped_text(dropped))
    rows = ", ".join(f"{len(samples)} {name}" for name, (_, samples) in parts.items())
    name = config.model.name
    if not Path(locate(name)).is_dir():
        return f"rows read: {rows}; not tokenized, because {name} is not a folder here (paratune data {path} does it)"
    few = config.data.model_copy(update={"max_rows": MaxRows(train=_ROWS, validation=_ROWS, test=_ROWS), "predict": {}})
    with scratch_folder() as folder, stdout_for_results():
        data = few.model_copy(update={"cache_dir": str(folder)})
        _, splits, _, limit = read_splits(config.model_copy(update={"data": data}))
    longest = max(int(split.store.full_sample_lengths.max()) for split in splits.values())
    return f"rows read: {rows}; up to {_ROWS} of each tokenized by {name}: at most {longest} of {limit} tokens"


def _load_samples(config: Config, tables: Mapping[str, pa.Table]) -> dict[str, tuple[str, Samples]] | None:
    """Return all rows that can be used; None where parts of whole groups are empty."""
    data, task = config.data.model_copy(update={"missing": "drop"}), config.task
    for source in data.predict.values():
        TableReader(tables["test"], data.columns, "drop", source, require_labels=False)
    try:
        parts = load_samples(data, task)
    except DataError as error:
        if error.code == "data.split_empty" and data.split is not None and data.split.group_by is not None:
            return None
        raise
    if task.kind == "qa":  # training learns the positions of answers
        source, samples = parts["train"]
        parts["train"] = source, drop_misplaced(samples, "drop", source=source)
    return parts


def _has_labels(test: pa.Table, train: pa.Table, guess: OptionGuess) -> bool:
    """Return whether a table has labels: the columns, with values, and not only one that the training data lacks."""
    label = named_columns(guess.values.get("data.columns.label"))
    test, train = with_parts(test, label), with_parts(train, label)
    if not {*label} <= {*test.column_names}:
        return False
    if len(label) != 1 or guess.kind in ("qa", "token_classification"):
        return True
    values, known = (
        {str(value) for value in values_with_names(table, label[0]) if value not in (None, "")}
        for table in (test, train)
    )
    return len(values) > 1 or bool(values & known)


def short_text(values: Mapping[str, Any], reasons: Mapping[str, str], head: str) -> str:
    """Return a configuration file with these values only, by dotted key; reasons are comments, `head` is the first."""
    in_order = sorted(values.items(), key=lambda pair: [*_ORDER, pair[0].split(".")[0]].index(pair[0].split(".")[0]))
    lines = yaml_lines(nested(dict(in_order)), lambda key: reasons.get(key, ""))
    return "\n".join([f"# {head}", *(line.removesuffix("  # ") for line in lines)]) + "\n"
