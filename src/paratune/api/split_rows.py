"""The rows of a split of a finished run, read again from its data files."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paratune.errors import CheckpointError
from paratune.records import predictions_file, read_run
from paratune.records.own import admit_data

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, eq=False)
class FileRows:
    """The rows of a split that are in one file."""

    file: str
    table: "pa.Table"
    """The whole file."""
    places: np.ndarray[Any, Any]
    """(N,), int64: places of the rows in the split."""
    rows: np.ndarray[Any, Any]
    """(N,), int64: their numbers in the file."""


def rows_by_file(folder: Path, run: Mapping[str, Any], split: str) -> Iterator[FileRows]:
    """Yield the rows of a split with saved predictions, for each of its files.

    Raises:
        CheckpointError: The predictions are damaged, or a file has fewer rows than at the time of the run.
        ConfigError: The run is not the user's, and its data is made by code.
        DataError: A file cannot be read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    from paratune.data.read import read_table

    data = run["config"]["data"]
    files = files_of(data, split)
    admit_data(folder)
    path = folder / predictions_file(split)
    try:
        predictions = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise CheckpointError(
            f"{path} is damaged: {error}; train the run again with --overwrite", code="run.damaged", path=path
        ) from error
    index = predictions.column("index").to_numpy()
    row_files = np.asarray(
        predictions.column("source").to_pylist() if len(files) > 1 else files * len(index), dtype=object
    )
    for file in files:
        table = read_table(file, revision=data.get("hub_revision") if file.startswith("hub:") else None)
        places = np.flatnonzero(row_files == file)
        rows = index[places]
        if len(rows) and rows.max() >= table.num_rows:
            raise file_changed(file, split)
        yield FileRows(file, table, places, rows)


def files_of(data: Mapping[str, Any], split: str) -> list[str]:
    """Return the files of a split: its own, or those of the training data, from which it was cut."""
    named = next((data[key][split] for key in ("extra", "predict") if split in (data.get(key) or {})), None)
    option = named or data.get(split) or data["train"]
    return [option] if isinstance(option, str) else list(option)


def file_changed(file: str, split: str) -> CheckpointError:
    """Return the error for a file that does not have the rows of a split any more."""
    message = (
        f"{file} does not have the rows of predictions.{split}.parquet: it changed after the run; name a file with "
        "these rows"
    )
    return CheckpointError(message, code="run.damaged", source=file, split=split)


def split_table(folder: Path, split: str) -> tuple[str, "pa.Table"]:
    """Return a name for messages and the rows of a split of a run, in the order of its predictions.

    Raises:
        CheckpointError: The run has no predictions of the split, several files for it, or a file that changed.
        DataError: The file cannot be read.
    """
    import pyarrow as pa

    saved = sorted(path.name.split(".")[1] for path in folder.glob(predictions_file("*")))
    if split not in saved:
        message = f"{folder} has no predictions of {split}; it has: {', '.join(saved) or 'none'}"
        raise CheckpointError(message, code="run.no_predictions", target=str(folder), split=split)
    run = read_run(folder)
    files = files_of(run["config"]["data"], split)
    if len(files) > 1:
        message = (
            f"the rows of {split} of {folder} are in {len(files)} files, {files[0]} and others; name one file with "
            "these rows"
        )
        raise CheckpointError(message, code="run.several_files", target=str(folder), split=split)
    (part,) = rows_by_file(folder, run, split)
    return f"{split} of {folder}", part.table.take(pa.array(part.rows))
