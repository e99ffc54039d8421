"""Reads the predictions of runs for the tables of a submission."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.config.glue import GLUE
from paratune.errors import CheckpointError
from paratune.hub.submission import TABLES, TablePredictions
from paratune.records import RUN_FILE, is_finished, predictions_file, read_run


def run_predictions(folder: Path) -> dict[str, TablePredictions]:
    """Return the predictions of a run for each table for which it has a set.

    Raises:
        CheckpointError: The run is not finished or not of a GLUE task, has no such set, or two for one table, or its
            record is damaged.
    """
    if not (folder / RUN_FILE).is_file():
        raise CheckpointError(f"{folder} is not a run: it has no {RUN_FILE}", code="run.not_a_run", folder=folder)
    if not is_finished(folder):
        message = f"{folder} is not finished; resume it with --resume"
        raise CheckpointError(message, code="run.not_finished", folder=folder)
    record = read_run(folder)
    try:
        task, data = record["task"].get("glue"), record["data"]
        data = {name: about for name, about in data.items() if about is not None}
    except (KeyError, TypeError, AttributeError) as error:
        message = f"{folder / RUN_FILE} is damaged: it is not the record of a run ({error!r})"
        raise CheckpointError(message, code="run.damaged") from error
    if task not in GLUE:
        message = f"{folder} is not a run of a GLUE task (task: {', '.join(GLUE)})"
        raise CheckpointError(message, code="run.other_task", folder=folder)
    sets = {
        name: [set_name for set_name in table.sets if set_name in data]
        for name, table in TABLES.items()
        if table.task == task
    }
    for name, set_names in sets.items():
        if len(set_names) > 1:
            message = (
                f"{folder} has {' and '.join(set_names)}, but {name} needs one of them; predict the right file with "
                f"`paratune predict` and give {name.removesuffix('.tsv')}=FILE"
            )
            raise CheckpointError(message, code="run.other_task", folder=folder, name=name)
    predictions = {
        name: _predicted(folder, set_names[0], data[set_names[0]]) for name, set_names in sets.items() if set_names
    }
    if not predictions:
        names = [set_name for table in TABLES.values() if table.task == task for set_name in table.sets]
        message = (
            f"{folder} has no set called {' or '.join(names)}; name the file of the test in data.predict, or predict "
            "it with `paratune predict` and give TABLE=FILE"
        )
        raise CheckpointError(message, code="run.no_predictions", folder=folder)
    return predictions


def _predicted(folder: Path, set_name: str, about: dict[str, Any]) -> TablePredictions:
    path = folder / predictions_file(set_name)
    try:
        table = pq.read_table(path, columns=["index", "prediction"])
    except (OSError, pa.ArrowException, KeyError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}", code="run.unreadable", path=path) from error
    dropped = about.get("num_dropped") or {}
    num_rows = about["num_rows"] + sum(dropped.values())
    return TablePredictions(str(path), table["index"].to_pylist(), table["prediction"].to_pylist(), num_rows)
