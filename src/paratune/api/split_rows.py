"""The rows of a split of a finished run, read again from its data files."""

from pathlib import Path
from typing import TYPE_CHECKING

from paratune.errors import CheckpointError
from paratune.records import RUN_FILE, predictions_file, read_json
from paratune.records.own import admit_data

if TYPE_CHECKING:
    import pyarrow as pa


def split_table(folder: Path, split: str) -> tuple[str, "pa.Table"]:
    """Return a name for messages and the rows of a split of a run, in the order of its predictions.

    A column that only some of its files have is null in the rows of the others.

    Raises:
        CheckpointError: The run has no predictions of the split or they are damaged, or its files changed or do not
            fit together.
        ConfigError: The run is not the user's, and its data is made by code.
        DataError: A file cannot be read.
    """
    import numpy as np
    import pyarrow as pa
    from pyarrow import parquet

    from paratune.config.sections import Data, FileReading
    from paratune.data.read import read_table

    saved = sorted(path.name.split(".")[1] for path in folder.glob(predictions_file("*")))
    if split not in saved:
        message = f"{folder} has no predictions of {split}; it has: {', '.join(saved) or 'none'}"
        raise CheckpointError(message, code="run.no_predictions", target=str(folder), split=split)
    try:
        data = read_json(folder / RUN_FILE)["config"]["data"]
        named = next((data[key][split] for key in ("extra", "predict") if split in (data.get(key) or {})), None)
        option = named or data.get(split) or data["train"]  # from which it was cut
        files = [option] if isinstance(option, str) else list(option)
        reading = Data.model_validate(FileReading.of(data)._asdict()).reading
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        message = f"{folder / RUN_FILE} is damaged: config.data is not that of a run ({error!r}); train the run again "
        raise CheckpointError(f"{message}with --overwrite", code="run.damaged", path=folder / RUN_FILE) from error
    admit_data(folder)
    path = folder / predictions_file(split)
    try:
        predictions = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        message = f"{path} is damaged: {error}; train the run again with --overwrite"
        raise CheckpointError(message, code="run.damaged", path=path) from error
    index = predictions.column("index").to_numpy()
    sources = predictions.column("source").to_pylist() if len(files) > 1 else files * len(index)
    file_of_row = np.asarray(sources, dtype=object)
    tables, order = [], []
    for file in files:
        table = read_table(file, reading)
        places = np.flatnonzero(file_of_row == file)
        if len(places) and index[places].max() >= table.num_rows:
            message = f"{file} does not have the rows of {path.name}: it changed after the run; name a file with these"
            raise CheckpointError(f"{message} rows", code="run.damaged", source=file, split=split)
        tables.append(table.take(pa.array(index[places])))
        order.append(places)
    try:
        rows = pa.concat_tables(tables, promote_options="permissive") if len(tables) > 1 else tables[0]
    except pa.ArrowException as error:
        message = f"the files of {split} of {folder} do not fit together: {error}; name one file with these rows"
        raise CheckpointError(message, code="run.several_files", target=str(folder), split=split) from error
    return f"{split} of {folder}", rows.take(pa.array(np.argsort(np.concatenate(order))))
