"""Writes the tables of a submission to GLUE.

Source: the submission format on gluebenchmark.com/faq; row counts of the test sets: the data card of nyu-mll/glue.
"""

import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paratune.base.atomic import replace_file
from paratune.config.glue import GLUE
from paratune.errors import DataError

HEADER = "index\tprediction"
LOWEST, HIGHEST = 0.0, 5.0
"""Range of similarities in STS-B."""
_SHOWN = 5
_DATE = (1980, 1, 1, 0, 0, 0)


@dataclass(frozen=True)
class SubmissionTable:
    """The format of one file of a submission."""

    task: str
    """Name in `GLUE`."""
    num_rows: int
    """Number of rows of the official test set."""
    sets: tuple[str, ...] = ("test",)
    """Possible names of the set in a run of the task."""
    takes_ids: bool = False
    """Whether classes are written as official ids instead of names."""

    @property
    def words(self) -> dict[str, str] | None:
        """Return the text in the table for each class; None for numbers."""
        names = GLUE[self.task].classes
        return {name: str(index) if self.takes_ids else name for index, name in enumerate(names)} or None


TABLES: Final[dict[str, SubmissionTable]] = {
    "CoLA.tsv": SubmissionTable("cola", 1063, takes_ids=True),
    "SST-2.tsv": SubmissionTable("sst2", 1821, takes_ids=True),
    "MRPC.tsv": SubmissionTable("mrpc", 1725, takes_ids=True),
    "STS-B.tsv": SubmissionTable("stsb", 1379),
    "QQP.tsv": SubmissionTable("qqp", 390965, takes_ids=True),
    "MNLI-m.tsv": SubmissionTable("mnli", 9796, ("test", "test_matched")),
    "MNLI-mm.tsv": SubmissionTable("mnli", 9847, ("test_mismatched",)),
    "QNLI.tsv": SubmissionTable("qnli", 5463),
    "RTE.tsv": SubmissionTable("rte", 3000),
    "WNLI.tsv": SubmissionTable("wnli", 146, takes_ids=True),
    "AX.tsv": SubmissionTable("mnli", 1104, ("ax", "diagnostic")),
}
"""Tables by file name, in the order of the benchmark."""


@dataclass(frozen=True)
class TablePredictions:
    """Predictions for a test set."""

    source: str
    """Source of the predictions, for messages."""
    rows: Sequence[int]
    """Row of each prediction in the test set, from 0."""
    values: Sequence[Any]
    """Class names, or numbers; None for a missing prediction."""
    num_rows: int | None = None
    """Number of rows of the test set, if known."""


def table_text(name: str, predicted: TablePredictions) -> str:
    """Return the text of a table; numbers are clipped to 0 to 5 and have three decimals.

    Raises:
        DataError: Rows are missing or duplicate, or a prediction is invalid for the task.
    """
    missing = {row for row, value in zip(predicted.rows, predicted.values, strict=True) if value is None}
    rows = dict(zip(predicted.rows, predicted.values, strict=True))
    last = max(max(rows, default=-1) + 1, predicted.num_rows or 0)
    missing |= set(range(last)) - set(rows)
    if missing:
        raise DataError(
            f"{predicted.source}: {len(missing)} of {last} rows have no prediction: {_some(sorted(missing))} (counted "
            f"from 0); {name} needs one for every row, so correct the texts of these rows and predict again",
            code="submission.rows",
            source=predicted.source,
            last=last,
            name=name,
        )
    if len(rows) < len(predicted.rows):
        message = f"{predicted.source}: {len(predicted.rows) - len(rows)} rows are duplicate; predict again"
        raise DataError(message, code="submission.rows", source=predicted.source)
    words = TABLES[name].words
    written = [_written(rows[row], words, name, predicted.source, row) for row in range(last)]
    return "\n".join([HEADER, *(f"{row}\t{word}" for row, word in enumerate(written))]) + "\n"


def _written(value: Any, words: dict[str, str] | None, name: str, source: str, row: int) -> str:
    if words is not None and str(value) in (*words, *words.values()):
        return words.get(str(value), str(value))
    number = _number(value) if words is None else None
    if number is not None:
        return f"{min(max(number, LOWEST), HIGHEST):.3f}"
    allowed = "numbers" if words is None else f"classes: {', '.join(words)}"
    message = f"{source}: row {row} has the prediction {value!r}; {name} requires {allowed}"
    raise DataError(message, code="submission.value", source=source, row=row, value=value, name=name)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def write_tables(path: Path, texts: Mapping[str, str]) -> None:
    """Write tables as a zip, equal for equal tables; the file is complete or absent.

    Raises:
        DataError: The file is not writable.
    """
    try:
        with replace_file(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
            for name in TABLES:
                if name in texts:
                    entry = zipfile.ZipInfo(name, _DATE)
                    entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                    archive.writestr(entry, texts[name])
    except OSError as error:
        message = f"{path} could not be written: {error.strerror or error}"
        raise DataError(message, code="output.not_writable", path=path) from error


def _some(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - _SHOWN} more" if len(numbers) > _SHOWN else ""
    return ", ".join(map(str, numbers[:_SHOWN])) + more
