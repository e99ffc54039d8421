"""Joins several files into one set of samples, and marks pseudo-labelled rows.

Imports no torch.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.config.sections import Data
from paratune.config.task_sections import MultipleChoiceTask, Task, TokenClassificationTask
from paratune.data.choices import select_choices
from paratune.data.columns import VALUES_OF_SAMPLES, IntArray, Samples, TableReader, select
from paratune.data.labels import first_rows
from paratune.data.read import read_table
from paratune.data.word_table import select_words
from paratune.errors import DataError

PSEUDO = "pseudo"
"""Column whose true values mark pseudo-labels; `paratune pseudo-label` writes it."""

Selector = Callable[..., Samples]
"""From a table, and `source` and `group_by` as keywords, to samples."""


def source_files(source: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the files that an option of the configuration names."""
    if source is None:
        return ()
    return (source,) if isinstance(source, str) else tuple(source)


def sources_text(source: str | Sequence[str]) -> str:
    """Return the files as one text for records and messages: "a.csv + b.csv"."""
    return " + ".join(source_files(source))


def default_selector(data: Data, task: Task) -> Selector:
    """Return the selector of tasks with one label, a list of tags, or choices, for each row."""

    def selected(table: pa.Table, *, source: str, group_by: str | None) -> Samples:
        reader = TableReader(table, data.columns, data.missing, source, group_by)
        if isinstance(task, TokenClassificationTask):
            return select_words(reader, task)
        return select_choices(reader, task)[0] if isinstance(task, MultipleChoiceTask) else select(reader, task)

    return selected


def read_samples(
    source: str | Sequence[str], data: Data, selector: Selector, *, group_by: str | None = None
) -> Samples:
    """Return the samples of one or several files; each must have all columns that the configuration names.

    Raises:
        DataError: A file or a column is wrong.
    """
    files = source_files(source)
    parts = []
    for file in files:
        table = read_table(file, revision=data.hub_revision)
        parts.append(mark_pseudo(selector(table, source=file, group_by=group_by), table))
    return parts[0] if len(parts) == 1 else joined_samples(parts, files)


def mark_pseudo(samples: Samples, table: pa.Table) -> Samples:
    """Return the samples of a table with `pseudo` from its column."""
    return replace(samples, pseudo=is_pseudo(table)[samples.rows])


def is_pseudo(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows have a pseudo-label, (num_rows,).

    A column `pseudo` with other values than true, false and null has another meaning, and marks no row.
    """
    none = np.zeros(table.num_rows, dtype=np.bool_)
    if table.column_names.count(PSEUDO) != 1:
        return none
    texts = ["" if value is None else str(value).lower() for value in table.column(PSEUDO).to_pylist()]
    return np.array([text == "true" for text in texts]) if set(texts) <= {"true", "false", ""} else none


def refuse_pseudo(samples: Samples, option: str, source: str) -> None:
    """Raise a DataError where a row of an evaluation set has a pseudo-label; `option` names its file, `source`."""
    if samples.pseudo is not None and samples.pseudo.any():
        rows = samples.rows[samples.pseudo].tolist()
        raise DataError(
            f"{source} ({option}) has {len(rows)} pseudo-labelled rows: {first_rows(rows)}; scores on pseudo-labels "
            "only measure how far two models agree. Name the file in data.train",
            code="data.pseudo_labels",
            source=source,
            option=option,
        )


def split_off_pseudo(samples: Samples) -> tuple[IntArray, IntArray]:
    """Return the positions of samples without pseudo-labels, and of those with pseudo-labels (for training only)."""
    positions = np.arange(len(samples), dtype=np.int64)
    if samples.pseudo is None:
        return positions, positions[:0]
    return positions[~samples.pseudo], positions[samples.pseudo]


def source_records(samples: Samples) -> list[dict[str, Any]]:
    """Return the entries of several files in `run.json`; an empty list for a single file."""
    if samples.file_index is None:
        return []
    pseudo = np.zeros(len(samples), dtype=np.bool_) if samples.pseudo is None else samples.pseudo
    return [
        {
            "source": file,
            "num_rows": int((samples.file_index == number).sum()),
            "num_pseudo": int(pseudo[samples.file_index == number].sum()),
        }
        for number, file in enumerate(samples.files)
    ]


def joined_samples(parts: Sequence[Samples], files: tuple[str, ...]) -> Samples:
    """Return the samples of several files with these names, in their order; `rows` restarts in each."""

    def joined(values: Sequence[Any]) -> Any:
        if values[0] is None or isinstance(values[0], np.ndarray):
            return None if values[0] is None else np.concatenate(values)
        return list(chain.from_iterable(values))

    fields: dict[str, Any] = {name: joined([getattr(part, name) for part in parts]) for name in VALUES_OF_SAMPLES}
    fields["num_dropped"] = dict(sum((Counter(part.num_dropped) for part in parts), Counter()))
    fields["file_index"] = np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.int64)
    return Samples(**fields, files=files)
