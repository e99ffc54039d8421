"""Builds and writes tables with the prediction of a model for each row."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

from paratune.base.atomic import replace_file
from paratune.errors import DataError
from paratune.records import predictions_file

CLUSTER = "cluster"  # column with a number for rows that belong together, such as questions about one passage
SUFFIXES = (".csv", ".jsonl", ".parquet")


@dataclass(frozen=True)
class NumberScale:
    step: float | None = None  # values are rounded to its multiples; None: no rounding
    limits: tuple[float, float] | None = None  # multiples of `step` if it is set; None: no limits

    def reported(self, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the reported numbers, float64: clipped to the limits, then rounded to the nearest step, ties up."""
        reported = np.asarray(values, dtype=np.float64)
        if self.limits is not None:
            reported = np.clip(reported, *self.limits)
        if self.step is not None:
            # At most 10 decimals: 3 * 0.1 is 0.30000000000000004.
            reported = np.round(np.floor(reported / self.step + 0.5) * self.step, 10)
        return reported


def prediction_names(names: list[str], *, by_name: bool = False, scale: NumberScale | None = None) -> list[str]:
    scores = [f"score_{name if by_name else index}" for index, name in enumerate(names)]
    return ["prediction", *(["reported"] if scale else []), *scores]


def softmax(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the probabilities of (N, C) logits, in their dtype."""
    shifted = np.exp(logits - logits.max(axis=1, keepdims=True))
    # Over sorted values: rows with the same logits in another order have the same probabilities, to the last digit.
    shares: np.ndarray[Any, Any] = shifted / np.sort(shifted, axis=1).sum(axis=1, keepdims=True)
    return shares


def probabilities(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the logistic function of logits of any shape, without overflow."""
    shares: np.ndarray[Any, Any] = 0.5 * (1 + np.tanh(logits / 2))
    return shares


def predicted_ranks(logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the class ids from C - 1 answers to "is it above class k?": the number of positive answers.

    `logits` is (N, C - 1); a value above 0 is a probability above one half.

    Source: Niu et al., Ordinal Regression with Multiple Output CNN, CVPR 2016, equation 3.
    """
    ranks: np.ndarray[Any, Any] = (logits > 0).sum(axis=1)
    return ranks


def prediction_columns(
    outputs: np.ndarray[Any, Any], names: list[str], *, by_name: bool = False, is_ordinal: bool = False
) -> dict[str, Any]:
    """Return the columns with the predicted class, from logits.

    Args:
        outputs: (N, C) logits of classes, or with `is_ordinal` (N, C - 1) of answers to "is it above class k?".
        names: Class names in the order of their ids.
        by_name: Whether columns of scores are `score_<class name>` and not `score_<class id>`.
        is_ordinal: The probability of class k is then P(above k - 1) - P(above k) (Frank and Hall, ECML 2001). Where
            the answers contradict each other (above the third but not above the second), the later probability is first
            reduced to the earlier one, so that no class has a negative probability and the sum is 1.

    Returns:
        `prediction`: the class name; `score_...`: probabilities, of the dtype of the logits.
    """
    if is_ordinal:
        above = np.minimum.accumulate(probabilities(outputs), axis=1)
        edges = np.concatenate([np.ones_like(above[:, :1]), above, np.zeros_like(above[:, :1])], axis=1)
        ranks, shares = predicted_ranks(outputs), -np.diff(edges, axis=1)
    else:
        ranks, shares = outputs.argmax(axis=1), softmax(outputs)
    predicted = [names[rank] for rank in ranks]
    return dict(zip(prediction_names(names, by_name=by_name), [predicted, *shares.T], strict=True))


def write_predictions(
    folder: Path,
    split: str,
    *,
    rows: np.ndarray[Any, Any],
    ids: list[Any] | None,
    columns: dict[str, Any],
    sources: list[str] | None = None,
    clusters: np.ndarray[Any, Any] | None = None,
) -> None:
    """Write `predictions.<split>.parquet` of a run.

    Args:
        rows: (N,) row numbers in the source, from 0.
        ids: Values of `columns.id`, if there is such a column.
        clusters: (N,), the number of each row's cluster; None for independent rows.
    """
    named: dict[str, Any] = {} if sources is None else {"source": sources}
    named |= {"id": [str(value) for value in ids]} if ids is not None else {}
    named |= {} if clusters is None else {CLUSTER: clusters}
    write_table(folder / predictions_file(split), pa.table({"index": rows, **named, **columns}))


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table atomically as CSV, JSON lines or Parquet, by the suffix of `path`.

    Raises:
        DataError: The suffix is another one, the file cannot be written, or the format does not allow such columns.
    """
    if path.suffix not in SUFFIXES:
        raise DataError(
            f"{path}: {path.suffix or 'no suffix'} is not one of {', '.join(SUFFIXES)}", code="output.format", path=path
        )
    try:
        with replace_file(path) as temporary:
            if path.suffix == ".csv":
                # Lists and structures as JSON text, because CSV has only text and numbers.
                for number, field in enumerate(table.schema):
                    if pa.types.is_nested(field.type):
                        values = table.column(number).to_pylist()
                        texts = [
                            value if value is None else json.dumps(value, ensure_ascii=False, default=str)
                            for value in values
                        ]
                        table = table.set_column(number, field.name, pa.array(texts, type=pa.string()))
                pyarrow.csv.write_csv(table, temporary)
            elif path.suffix == ".parquet":
                pyarrow.parquet.write_table(table, temporary)
            else:
                with temporary.open("w", encoding="utf-8") as file:
                    for row in table.to_pylist():
                        file.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path} could not be written: {error}", code="output.not_writable", path=path) from error
