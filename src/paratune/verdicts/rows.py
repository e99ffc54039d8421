"""The rows on which a run was scored, from its prediction file.

When a score cannot be computed from the file, `CannotTell` has the reason, and the interval is over seeds alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.base.text import plain
from paratune.records import predictions_file
from paratune.records.finished import RunRecord
from paratune.records.predictions import CLUSTER


class CannotTell(Exception):
    """A score cannot be computed; the message is the reason, and follows a colon in a sentence."""


@dataclass(frozen=True, eq=False)
class PredictionRows:
    """The columns of a prediction file."""

    run: str
    columns: Mapping[str, npt.NDArray[Any]]

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        """Return a column, (N,).

        Raises:
            CannotTell: There is no such column.
        """
        if name not in self.columns:
            raise CannotTell(f"the predictions of {plain(self.run)} have no column {name}")
        return self.columns[name]

    def numbers(self, name: str) -> npt.NDArray[np.float64]:
        """Return a column of numbers, (N,).

        Raises:
            CannotTell: There is no such column, or it has other values.
        """
        try:
            values = np.asarray(self[name], dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise CannotTell(f"column {name} in the predictions of {plain(self.run)} has no numbers") from error
        if not np.isfinite(values).all():
            raise CannotTell(f"column {name} in the predictions of {plain(self.run)} has rows without a number")
        return values

    @property
    def clusters(self) -> npt.NDArray[np.int64] | None:
        """The cluster of each row, (N,), numbered from 0; None where rows count as independent."""
        if CLUSTER not in self.columns:
            return None
        return np.asarray(np.unique(self.columns[CLUSTER], return_inverse=True)[1], dtype=np.int64)

    def texts(self, name: str) -> list[str]:
        """Return a column as texts, (N,)."""
        return ["" if value is None else str(value) for value in self[name].tolist()]

    def is_same_as(self, other: "PredictionRows") -> bool:
        """Return whether both have the same rows, labels and clusters, in the same order."""
        names = [name for name in ("source", "index", "label", "num_hidden", CLUSTER) if name in self.columns]
        return all(name in other.columns and np.array_equal(self[name], other[name]) for name in names)


def read_rows(run: RunRecord, split: str) -> PredictionRows:
    """Read the prediction file of a split.

    Raises:
        CannotTell: There is no file, it is damaged, or it has no rows.
    """
    import pyarrow as pa
    from pyarrow import parquet

    path = run.folder / predictions_file(split)
    if not path.is_file():
        raise CannotTell(f"{plain(run.name)} has no {path.name}")
    try:
        table = parquet.read_table(path)
        columns = {name: table.column(name).to_numpy() for name in table.column_names}
    except (OSError, pa.ArrowException, ValueError) as error:
        raise CannotTell(f"{path.name} of {plain(run.name)} cannot be read ({plain(error)[:80]})") from error
    if not table.num_rows or "index" not in columns:
        raise CannotTell(f"{path.name} of {plain(run.name)} has no rows")
    if table.num_rows == 1:
        raise CannotTell(f"{path.name} of {plain(run.name)} has a single row, from which no interval can be computed")
    return PredictionRows(run.name, columns)
