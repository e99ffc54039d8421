"""Prediction files: what a model said of each row, as a table that reports and people read.

Floor 1: no torch.
"""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from paratune.errors import DataError
from paratune.records import predictions_file

SUFFIXES = (".csv", ".jsonl", ".parquet")


def prediction_names(names: list[str], *, by_name: bool = False) -> list[str]:
    """Return what the columns of `prediction_columns` are called."""
    return ["prediction", *(f"score_{name if by_name else index}" for index, name in enumerate(names))]


def prediction_columns(outputs: np.ndarray[Any, Any], names: list[str], *, by_name: bool = False) -> dict[str, Any]:
    """Return the columns that say what was predicted.

    Args:
        outputs: (N, C) logits, or (N, 1) predicted numbers.
        names: Class names in the order of their ids; empty for regression.
        by_name: Call scores `score_<class name>`.

    Returns:
        `prediction`: the class name, or the number; for classes `score_<class id>`: softmax probabilities, float32.
    """
    if not names:
        return {"prediction": outputs[:, 0].astype(np.float64)}
    shifted = np.exp(outputs - outputs.max(axis=1, keepdims=True))
    shares = shifted / shifted.sum(axis=1, keepdims=True)
    predicted = [names[index] for index in outputs.argmax(axis=1)]
    return dict(zip(prediction_names(names, by_name=by_name), [predicted, *shares.T], strict=True))


def write_predictions(
    folder: Path,
    split: str,
    *,
    rows: np.ndarray[Any, Any],
    ids: list[Any] | None,
    outputs: np.ndarray[Any, Any],
    labels: np.ndarray[Any, Any],
    names: list[str],
) -> None:
    """Write `predictions.<split>.parquet` of a run.

    Args:
        folder: The run.
        split: validation or test.
        rows: (N,) row numbers in the source, from 0.
        ids: Values of `columns.id`, when there is such a column.
        outputs: (N, C) or (N, 1).
        labels: (N,) class ids or targets.
        names: Class names; empty for regression.
    """
    label = [names[int(index)] for index in labels] if names else labels.astype(np.float64)
    columns = {
        "index": rows,
        **({"id": [str(value) for value in ids]} if ids is not None else {}),
        "label": label,
        **prediction_columns(outputs, names),
    }
    write_table(folder / predictions_file(split), pa.table(columns))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as CSV, JSON lines or Parquet by the suffix of `path`: aside, then renamed.

    Raises:
        DataError: The suffix is none of these, the place cannot be written to, or CSV cannot hold such columns.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: {path.suffix or 'no suffix'} is none of {', '.join(SUFFIXES)}")
    aside = path.with_name(f".{path.name}.tmp")
    try:
        if path.suffix == ".csv":
            pyarrow.csv.write_csv(table, aside)
        elif path.suffix == ".parquet":
            pyarrow.parquet.write_table(table, aside)
        else:
            _write_json_lines(aside, table)
        aside.replace(path)
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} could not be written: {error}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def _write_json_lines(path: Path, table: pa.Table) -> None:
    import json

    with path.open("w", encoding="utf-8") as file:
        for row in table.to_pylist():
            file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
