"""Writes the tables of a submission to GLUE from the predictions of runs.

Source: the submission format on gluebenchmark.com/faq; row counts of the test sets: the data card of nyu-mll/glue.
"""

import math
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.atomic import replace_file
from paratune.base.text import listing
from paratune.config.glue import GLUE
from paratune.errors import CheckpointError, DataError, os_error_as
from paratune.records import is_finished, predictions_file
from paratune.records.finished import read_typed
from paratune.records.typed import RunFile

LOWEST, HIGHEST = 0.0, 5.0
"""Range of similarities in STS-B."""


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


def run_tables(folder: Path) -> dict[str, str]:
    """Return the text of each table for which a run has a set.

    Raises:
        CheckpointError: The run is not finished or not of a GLUE task, has no such set, or two for one table, or its
            record is damaged.
        DataError: A row has no prediction, or one that is invalid for the task.
    """
    record = read_typed(folder, RunFile)
    if not is_finished(folder):
        message = f"{folder} is not finished; resume it with --resume"
        raise CheckpointError(message, code="run.not_finished", folder=folder)
    task, data = record.task.glue, {name: about for name, about in record.data.items() if about is not None}
    num_rows = {name: int(about.num_rows or 0) + sum(about.num_dropped.values()) for name, about in data.items()}
    if task not in GLUE:
        message = f"{folder} is not a run of a GLUE task (task: {', '.join(GLUE)})"
        raise CheckpointError(message, code="task.unsupported", folder=folder)
    texts = {}
    for name, table in TABLES.items():
        sets = [set_name for set_name in table.sets if table.task == task and set_name in num_rows]
        if len(sets) > 1:
            message = f"{folder} has {' and '.join(sets)}, but {name} needs one of them; train with one in data.predict"
            raise CheckpointError(message, code="task.unsupported", folder=folder, name=name)
        if sets:
            path = folder / predictions_file(sets[0])
            try:
                columns = pq.read_table(path, columns=["index", "prediction"])
            except (OSError, pa.ArrowException, KeyError, UnicodeDecodeError) as error:
                raise CheckpointError(f"{path} cannot be read: {error}", code="run.damaged", path=path) from error
            rows = dict(zip(columns["index"].to_pylist(), columns["prediction"].to_pylist(), strict=True))
            texts[name] = table_text(name, [rows.get(row) for row in range(num_rows[sets[0]])], path)
    if not texts:
        names = [set_name for table in TABLES.values() if table.task == task for set_name in table.sets]
        message = f"{folder} has no set called {' or '.join(names)}; name the file of the test in data.predict"
        raise CheckpointError(message, code="run.no_predictions", folder=folder)
    return texts


def table_text(name: str, values: Sequence[Any], source: Path) -> str:
    """Return the text of a table; numbers are clipped to 0 to 5 and have three decimals.

    Args:
        name: Of the table, in `TABLES`.
        values: Class name or number of each row; None for a missing prediction.
        source: File of the predictions, for messages.

    Raises:
        DataError: A row has no prediction, or one that is invalid for the task.
    """
    if missing := [str(row) for row, value in enumerate(values) if value is None]:
        raise DataError(
            f"{source}: {len(missing)} of {len(values)} rows have no prediction: {listing(missing, 5)} (counted from "
            f"0); {name} needs one for every row, so correct the texts of these rows and predict again",
            code="submission.invalid",
            source=source,
            name=name,
        )
    table, lines = TABLES[name], ["index\tprediction"]
    classes = GLUE[table.task].classes  # none for numbers
    words = {label: str(index) if table.takes_ids else label for index, label in enumerate(classes)}
    for row, value in enumerate(values):
        if words and str(value) in (*words, *words.values()):
            lines.append(f"{row}\t{words.get(str(value), value)}")
        elif not words and isinstance(value, int | float) and math.isfinite(value):
            lines.append(f"{row}\t{min(max(value, LOWEST), HIGHEST):.3f}")
        else:
            allowed = f"classes: {', '.join(words)}" if words else "numbers"
            message = f"{source}: row {row} has the prediction {value!r}; {name} requires {allowed}"
            raise DataError(message, code="submission.invalid", source=source, row=row, value=value, name=name)
    return "\n".join(lines) + "\n"


def write_tables(path: Path, texts: Mapping[str, str]) -> None:
    """Write tables as a zip, equal for equal tables; the file is complete or absent.

    Raises:
        DataError: The file is not writable.
    """
    failed = os_error_as(DataError, f"{path} could not be written", code="output.not_writable", path=path)
    with failed, replace_file(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in TABLES:
            if name in texts:
                entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
                entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
                archive.writestr(entry, texts[name])
