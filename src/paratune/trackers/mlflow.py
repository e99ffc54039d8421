"""Sends metrics to MLflow: a local SQLite file, or the server at `uri`. Its telemetry is switched off."""

import os
import re
import time as clock
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune.config.optional_sections import MLflow
from paratune.errors import require
from paratune.trackers.protocol import Status, TrackedRun, load_run_id, save_run_id

NAME = "mlflow"
MAX_PARAMS = 100
"""Maximum number of parameters per call."""
MAX_VALUE = 500
"""Maximum length of a parameter's value in all versions."""
STATUS: Mapping[Status, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_NOT_ALLOWED = re.compile(r"[^\w./ -]")


class MLflowTracker:
    """See `protocol.Tracker`. Uses the client with run ids, since the fluent functions depend on the thread."""

    def __init__(self, options: MLflow) -> None:
        self._options = options
        self._client: Any = None
        self._entities: Any = None
        self._run: str = ""
        self._step = 0

    def start(self, about: TrackedRun) -> None:
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        mlflow = require("mlflow", extra="trackers")
        self._entities = require("mlflow.entities", extra="trackers")
        self._client = mlflow.MlflowClient(tracking_uri=self._options.uri or default_uri(about.folder))
        self._step = about.step
        known = load_run_id(about, NAME)
        if known is not None:
            self._run = known
            self._client.update_run(known, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self._options.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self._options.experiment)
        self._run = self._client.create_run(number, run_name=self._options.name or about.name).info.run_id
        save_run_id(about, NAME, self._run)
        # Parameters cannot be changed later: only the first session logs them.
        params = [self._entities.Param(_key(key), str(value)[:MAX_VALUE]) for key, value in about.config.items()]
        for begin in range(0, len(params), MAX_PARAMS):
            self._client.log_batch(self._run, params=params[begin : begin + MAX_PARAMS])

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._step = step
        at = int(time * 1000)
        metrics = [self._entities.Metric(_key(name), value, at, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def log_summary(self, values: Mapping[str, float]) -> None:
        self.log(self._step, clock.time(), values)

    def finish(self, status: Status) -> None:
        self._client.set_terminated(self._run, status=STATUS[status])


def default_uri(folder: Path) -> str:
    """Return the database that runs in the same folder share."""
    return f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"


def _key(name: str) -> str:
    """Return a name with the allowed characters of keys; names of classes may contain any character."""
    return _NOT_ALLOWED.sub("_", name)
