"""Finds the texts with which a run was trained, validated and tested, if they are still known."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from paratune.config.sections import Data
from paratune.config.task_sections import Task
from paratune.data.columns import Samples
from paratune.data.duplicates import read_text_hashes, text_hashes
from paratune.data.load import load_samples, samples_fingerprint
from paratune.data.sources import default_selector, read_samples
from paratune.errors import CheckpointError, DataError, MissingDependency
from paratune.records import RUN_FILE, TRAIN_TEXTS_FILE, read_run
from paratune.records.own import admit_data

Hashes = npt.NDArray[np.uint64]
UNREADABLE = (DataError, MissingDependency, OSError)


@dataclass(frozen=True)
class SeenTexts:
    """The texts of one split of a run."""

    hashes: Hashes
    """The result of `paratune.data.duplicates.text_hashes`."""
    unknown: str | None
    """Why texts are unknown or may have changed; None if all are known."""


def seen_texts(run: Path | None) -> dict[str, SeenTexts]:
    """Return the texts of the sets train, validation, test and `data.extra` of a run.

    Training texts are read from the run folder, the others again from the files of its configuration.

    Raises:
        CheckpointError: The run's record is damaged.
        ConfigError: The run is not the user's, and its data is made by code.
    """
    nothing = np.zeros(0, dtype=np.uint64)
    if run is None:
        reason = "it is not a run, so its training and validation texts are unknown"
        return {name: SeenTexts(nothing, reason) for name in ("train", "validation", "test")}
    record = read_run(run)
    try:
        about = {name: facts for name, facts in record["data"].items() if facts is not None}
        data, task = Data.model_validate(record["config"]["data"]), record["config"]["task"]
        kind: Task = TypeAdapter(Task).validate_python(task)
    except (KeyError, TypeError, AttributeError, ValidationError) as error:
        raise CheckpointError(
            f"{run / RUN_FILE} is damaged: it is not the record of a run ({error!r})", code="run.damaged"
        ) from error
    admit_data(run)
    hashes = read_text_hashes(run / TRAIN_TEXTS_FILE)
    train = SeenTexts(nothing, f"{TRAIN_TEXTS_FILE} is not in the run") if hashes is None else SeenTexts(hashes, None)
    texts = {"train": train} | _parts(data, kind, about)
    return texts | {name: _extra(name, data, kind, about[name]) for name in data.extra if name in about}


def _parts(data: Data, task: Task, about: Mapping[str, Any]) -> dict[str, SeenTexts]:
    """Return the texts of validation and test of a run; a `test` in `data.predict` is another set."""
    names = [
        name
        for name in ("validation", "test")
        if name in about and (getattr(data, name) or (data.split is not None and getattr(data.split, name)))
    ]
    if data.split is None:
        data = data.model_copy(update={"train": None})
    try:
        parts = load_samples(data, task) if names else {}
    except UNREADABLE as error:
        return {name: _unreadable(error) for name in names}
    return {name: _seen(parts[name][1], task, about[name]) for name in names}


def _extra(name: str, data: Data, task: Task, about: Mapping[str, Any]) -> SeenTexts:
    try:
        samples = read_samples(data.extra[name], data, default_selector(data, task))
    except UNREADABLE as error:
        return _unreadable(error)
    return _seen(samples, task, about)


def _seen(samples: Samples, task: Task, about: Mapping[str, Any]) -> SeenTexts:
    same = samples_fingerprint(samples, task) == about.get("fingerprint")
    return SeenTexts(text_hashes(samples), None if same else "its file has changed since the run was trained")


def _unreadable(error: Exception) -> SeenTexts:
    return SeenTexts(np.zeros(0, dtype=np.uint64), f"its file cannot be read again: {error}")
