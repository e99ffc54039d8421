"""Which texts a run was trained, chosen and tested with, as far as that can still be told."""

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import TypeAdapter, ValidationError

from paratune.config.sections import Data, Task
from paratune.data.duplicates import text_hashes
from paratune.data.load import load_samples, samples_fingerprint
from paratune.errors import CheckpointError, DataError, MissingDependency
from paratune.records import RUN_FILE, TRAIN_TEXTS_FILE, read_json

log = logging.getLogger(__name__)
Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True)
class Seen:
    """The texts of one split of a run."""

    hashes: Hashes
    """Of `paratune.data.duplicates.text_hashes`."""
    unknown: str | None
    """Why they are not all known, or not known to be the same; None where they are."""


def seen_texts(run: Path | None) -> dict[str, Seen]:
    """Return the texts of train, validation and test; a split that the run did not have is left out.

    Training texts are those that the run kept; validation and test are read again from where its configuration says.

    Raises:
        CheckpointError: The run's record is damaged.
    """
    nothing = np.zeros(0, dtype=np.uint64)
    if run is None:
        reason = "it is not a run, so what it was trained and chosen with is not known"
        return {name: Seen(nothing, reason) for name in ("train", "validation", "test")}
    record = read_json(run / RUN_FILE)
    try:
        about = {name: each for name, each in record["data"].items() if each is not None}
        data, task = Data.model_validate(record["config"]["data"]), record["config"]["task"]
        kind: Task = TypeAdapter(Task).validate_python(task)
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise CheckpointError(f"{run / RUN_FILE} is damaged: it is no record of a run ({error!r})") from error
    found = {"train": _train(run)}
    if data.split is None:
        data = data.model_copy(update={"train": None})
    others = [name for name in about if name != "train"]
    try:
        parts = load_samples(data, kind) if others else {}
    except (DataError, MissingDependency, OSError) as error:
        return found | {name: Seen(nothing, f"its file cannot be read again: {error}") for name in others}
    for name in others:
        if name not in parts:
            continue
        samples = parts[name][1]
        same = samples_fingerprint(samples, kind) == about[name].get("fingerprint")
        changed = None if same else "its file is not what it was when the run was trained"
        found[name] = Seen(text_hashes(samples), changed)
    return found


def _train(run: Path) -> Seen:
    path = run / TRAIN_TEXTS_FILE
    if not path.is_file():
        return Seen(np.zeros(0, dtype=np.uint64), f"{TRAIN_TEXTS_FILE} is not in the run")
    try:
        return Seen(pq.read_table(path).column("hash").to_numpy(), None)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise CheckpointError(f"{path} is damaged: {error}; delete it to do without") from error
