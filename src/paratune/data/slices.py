"""Values by which a split is sliced: a column of its file, or the number of tokens of each row.

Imports no torch.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from paratune.base.text import listing
from paratune.config.sections import AS_FOUND, FileReading
from paratune.data.columns import Samples, with_paths
from paratune.data.load import Split
from paratune.data.read import read_table
from paratune.errors import DataError, did_you_mean
from paratune.records.scores import BUILT_IN, LABEL, LENGTH, MAX_SLICES

Values = npt.NDArray[Any]
"""(N,): texts of a column, or int64 numbers of tokens."""
_NO_VALUE = "(none)"


def slice_values(split: Split, names: Sequence[str], reading: FileReading = AS_FOUND) -> dict[str, Values]:
    """Return the values of each row of a split by name, in the order of its samples; without `label`.

    Arguments and errors as in `column_values`.
    """
    columns = column_values(split.samples, split.source, names, reading)
    return {name: num_tokens(split) if name == LENGTH else columns[name] for name in names if name != LABEL}


def num_tokens(split: Split) -> Values:
    """Return the tokens of each row before truncation, (N,) int64; the sum over the sequences of a row."""
    store = split.store
    return np.bincount(store.examples, weights=store.full_lengths, minlength=split.num_rows).astype(np.int64)


def column_values(
    samples: Samples, source: str, names: Sequence[str], reading: FileReading = AS_FOUND
) -> dict[str, Values]:
    """Return the values of columns by name, in the order of samples; without `label` and `length`.

    The files of the samples, or `source`, are read again.

    Raises:
        DataError: A column is absent, or it or the label has more than `MAX_SLICES` values, see `refuse_many`.
    """
    if LABEL in names and samples.labels is not None and samples.labels.ndim == 1:
        refuse_many(LABEL, samples.labels, source=source)
    names = [name for name in names if name not in BUILT_IN]
    values_by_name = _values(samples, source, names, reading) if names else {}
    for name, values in values_by_name.items():
        refuse_many(name, values, source=source)
    return values_by_name


def _values(samples: Samples, source: str, names: Sequence[str], reading: FileReading) -> dict[str, Values]:
    files = samples.files or (source,)
    file_index = np.zeros(len(samples), dtype=np.int64) if samples.file_index is None else samples.file_index
    columns = {name: np.empty(len(samples), dtype=object) for name in names}
    for number, file in enumerate(files):
        table = read_table(file, reading)
        places = np.flatnonzero(file_index == number)
        for name in names:
            columns[name][places] = column_texts(table, name, samples.rows[places].tolist(), source=file)
    return columns


def cluster_numbers(split: Split, column: str | None, reading: FileReading = AS_FOUND) -> npt.NDArray[np.int64] | None:
    """Return the cluster of each row of a split, (N,); None where rows are independent.

    Rows of a cluster have equal values of a column or, where `column` is None, are questions about one passage. Errors
    as in `column_texts`.
    """
    samples = split.samples
    if column is not None:
        values: Sequence[str] = _values(samples, split.source, [column], reading)[column].tolist()
    elif samples.answers is not None and samples.text_pairs is not None:
        values = samples.text_pairs
    else:
        return None
    numbers: dict[str, int] = {}
    return np.asarray([numbers.setdefault(value, len(numbers)) for value in values], dtype=np.int64)


def column_texts(table: pa.Table, name: str, rows: Iterable[int], *, source: str) -> list[str]:
    """Return the values of a column in some rows as texts; "(none)" for null, NaN and blank values."""
    table = with_paths(table, [name])
    if name not in table.column_names:
        message = (
            f"{source} has no column {name} to slice by{did_you_mean(name, [*table.column_names, *BUILT_IN])}; "
            f"it has: {listing(map(repr, table.column_names))}; {' and '.join(BUILT_IN)} are always there"
        )
        raise DataError(message, code="data.column_missing", source=source, name=name)
    values = table.column(name).to_pylist()
    return [_text(values[row]) for row in rows]


def refuse_many(name: str, values: Values, *, source: str) -> None:
    """Raise a DataError where the label, or a column with another value in each row, has more than `MAX_SLICES`."""
    count = len(set(values.tolist()))
    if count > MAX_SLICES and (name == LABEL or count == len(values)):
        message = (
            f"{source}: column {name} has {count:,} distinct values in {len(values):,} rows, so that slices say "
            f"nothing (allowed: {MAX_SLICES}, or a column that repeats values); add a column with groups or ranges"
        )
        facts: dict[str, Any] = {"source": source, "name": name, "num_values": count, "limit": MAX_SLICES}
        raise DataError(message, code="data.too_many_values", **facts)


def _text(value: Any) -> str:
    if value is None or value != value:  # NaN differs from itself
        return _NO_VALUE
    if isinstance(value, float) and value.is_integer():
        return f"{value:.0f}"
    return str(value).strip() or _NO_VALUE
