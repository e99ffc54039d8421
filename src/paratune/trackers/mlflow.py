"""MLflow: a local SQLite file, or the server that `uri` names. The package's telemetry is switched off."""

import os
import re
import time as clock
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from paratune.config.tracker_sections import MLflow
from paratune.errors import require
from paratune.trackers.kept import keep_id, kept_id
from paratune.trackers.protocol import About, Status

NAME = "mlflow"
MAX_PARAMS = 100
"""Parameters that one call may hold."""
MAX_VALUE = 500
"""Characters of a parameter's value that every version takes."""
STATUS: Mapping[Status, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_NOT_ALLOWED = re.compile(r"[^\w./ -]")
T = TypeVar("T")


class MLflowTracker:
    """See `protocol.Tracker`. Calls of the client say which run they are of; the fluent ones go by the thread."""

    def __init__(self, options: MLflow) -> None:
        self._options = options
        self._client: Any = None
        self._entities: Any = None
        self._run: str = ""
        self._step = 0

    def start(self, about: About) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        mlflow = require("mlflow", extra=NAME)
        self._entities = require("mlflow.entities", extra=NAME)
        self._client = mlflow.MlflowClient(tracking_uri=self._options.uri or default_uri(about.folder))
        self._step = about.step
        known = kept_id(about.folder, NAME) if about.step > 0 else None
        if known is not None:
            self._run = known
            self._client.update_run(known, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self._options.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self._options.experiment)
        self._run = self._client.create_run(number, run_name=self._options.name or about.name).info.run_id
        keep_id(about.folder, NAME, self._run)
        # Those of an earlier session cannot be changed: they are told once.
        params = [self._entities.Param(_key(key), str(value)[:MAX_VALUE]) for key, value in about.config.items()]
        for part in _parts(params, MAX_PARAMS):
            self._client.log_batch(self._run, params=part)

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._step = step
        at = int(time * 1000)
        metrics = [self._entities.Metric(_key(name), value, at, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def result(self, values: Mapping[str, float]) -> None:
        self.log(self._step, clock.time(), values)

    def finish(self, status: Status) -> None:
        self._client.set_terminated(self._run, status=STATUS[status])


def default_uri(folder: Path) -> str:
    """Return the file that the runs beside each other share."""
    return f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"


def _key(name: str) -> str:
    """Return a name in the characters that keys may have: a metric of a class may be called anything."""
    return _NOT_ALLOWED.sub("_", name)


def _parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]
