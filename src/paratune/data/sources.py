"""Several files as one set of samples, each row knowing its file; rows whose label a model gave are told apart.

Floor 3, without torch.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.config.sections import Data
from paratune.config.task_sections import Task
from paratune.data.columns import Samples, select
from paratune.data.labels import first_rows
from paratune.data.read import read_table
from paratune.errors import DataError

PSEUDO = "pseudo"
"""Column whose true values mark labels that a model gave; `paratune pseudo-label` writes it."""

IntArray = npt.NDArray[np.int64]
Selector = Callable[..., Samples]
"""Takes the samples from a table; called with it, and `source` and `group_by` by name."""


def sources_of(source: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the files that an option of the configuration names."""
    if source is None:
        return ()
    return (source,) if isinstance(source, str) else tuple(source)


def sources_text(source: str | Sequence[str]) -> str:
    """Return the files as records and messages name them: "a.csv + b.csv"."""
    return " + ".join(sources_of(source))


def selector_of(data: Data, task: Task) -> Selector:
    """Return what takes the samples of most tasks from a table."""

    def selected(table: pa.Table, *, source: str, group_by: str | None) -> Samples:
        return select(table, data.columns, task, data.missing, source=source, group_by=group_by)

    return selected


def read_samples(
    source: str | Sequence[str], data: Data, selector: Selector, *, group_by: str | None = None
) -> Samples:
    """Read one file or several, one after the other; each must have all columns that the configuration names.

    Args:
        source: As in the configuration.
        data: Its section, for the revision on the hub.
        selector: Takes the samples from a table.
        group_by: Column whose values say what belongs together in a split.

    Raises:
        DataError: Something is wrong with a file or a column.
    """
    files = sources_of(source)
    parts = []
    for file in files:
        table = read_table(file, revision=data.hub_revision)
        samples = selector(table, source=file, group_by=group_by)
        parts.append(samples.marked(is_pseudo(table)[samples.rows]))
    return parts[0] if len(parts) == 1 else _joined(parts, files)


def is_pseudo(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Return which rows have a label that a model gave, (num_rows,).

    A column `pseudo` that holds anything but true, false and nothing is a column of the user's own, and marks no row.
    """
    none = np.zeros(table.num_rows, dtype=np.bool_)
    if table.column_names.count(PSEUDO) != 1:
        return none
    texts = ["" if value is None else str(value).lower() for value in table.column(PSEUDO).to_pylist()]
    return np.array([text == "true" for text in texts]) if set(texts) <= {"true", "false", ""} else none


def refuse_pseudo(samples: Samples, option: str, source: str) -> None:
    """Make sure that nothing is evaluated on labels that a model gave.

    Args:
        samples: Of one set.
        option: What names its file, for the message.
        source: The file.

    Raises:
        DataError: A row has such a label.
    """
    if samples.pseudo is not None and samples.pseudo.any():
        rows = samples.rows[samples.pseudo].tolist()
        raise DataError(
            f"{source} ({option}) has {len(rows)} pseudo-labelled rows: {first_rows(rows)}; a score on labels that "
            "a model predicted only measures how far two models agree. Name the file in data.train",
            code="data.pseudo_labels",
            source=source,
            option=option,
        )


def split_off_pseudo(samples: Samples) -> tuple[IntArray, IntArray]:
    """Return the positions of the samples that may be cut into parts, and of those that are for training alone."""
    positions = np.arange(len(samples), dtype=np.int64)
    if samples.pseudo is None:
        return positions, positions[:0]
    return positions[~samples.pseudo], positions[samples.pseudo]


def source_records(samples: Samples) -> list[dict[str, Any]]:
    """Return what `run.json` says of each of several files; nothing of a single one."""
    if samples.file_of is None:
        return []
    pseudo = np.zeros(len(samples), dtype=np.bool_) if samples.pseudo is None else samples.pseudo
    return [
        {
            "source": file,
            "num_rows": int((samples.file_of == number).sum()),
            "num_pseudo": int(pseudo[samples.file_of == number].sum()),
        }
        for number, file in enumerate(samples.files)
    ]


def _joined(parts: Sequence[Samples], files: tuple[str, ...]) -> Samples:
    def chain(values: Sequence[list[str] | None]) -> list[str] | None:
        return None if values[0] is None else [item for each in values if each is not None for item in each]

    texts = chain([part.texts for part in parts])
    assert texts is not None
    labels: Any = [part.labels for part in parts]
    return Samples(
        texts,
        chain([part.text_pairs for part in parts]),
        None if labels[0] is None else np.concatenate(labels),
        chain([part.ids for part in parts]),
        np.concatenate([part.rows for part in parts]),
        chain([part.groups for part in parts]),
        _summed([part.num_dropped for part in parts]),
        pseudo=np.concatenate([part.pseudo for part in parts if part.pseudo is not None]),
        file_of=np.repeat(np.arange(len(parts)), [len(part) for part in parts]).astype(np.int64),
        files=files,
        answers=None if parts[0].answers is None else [gold for part in parts for gold in part.answers or ()],
    )


def _summed(counts: Sequence[Mapping[str, int]]) -> dict[str, int]:
    keys = dict.fromkeys(key for each in counts for key in each)
    return {key: sum(each.get(key, 0) for each in counts) for key in keys}
