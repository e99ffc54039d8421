"""Trackers: TensorBoard, MLflow and Weights & Biases, each behind the same four methods.

`start` imports the package, and starts a run in the tracker or continues that of an earlier session. `log` takes the
metrics of a step (counted from 1) and its time in Unix seconds, `log_summary` those of the finished run. `finish`
writes or sends all of them, and ends the run in the tracker. All are called in one thread, and any may block or raise.
No network, except for a server that the configuration names.
"""

import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paratune.config.optional_sections import MLflow, TensorBoard, WandB
from paratune.errors import CheckpointError, require
from paratune.records import read_json, write_json

Status = Literal["finished", "stopped", "failed"]
"""How a run ended; `stopped` by a signal, so that it can be resumed."""
_MAX_PARAMS = 100
"""Maximum number of parameters of MLflow per call."""
_MAX_VALUE = 500
"""Maximum length of a parameter's value in all versions of MLflow."""
_MLFLOW_STATUS: Mapping[Status, str] = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_NOT_ALLOWED = re.compile(r"[^\w./ -]")
_WANDB_EXIT_CODES: Mapping[Status, int] = {"finished": 0, "stopped": 75, "failed": 1}


@dataclass(frozen=True)
class TrackedRun:
    """The run of a tracker."""

    name: str
    folder: Path
    """Run folder; a tracker stores its run id there."""
    step: int
    """Number of steps before this session; above 0 for a resumed run."""
    config: Mapping[str, Any]
    """Resolved configuration, and hardware and software, by dotted key."""


def _known_run_id(about: TrackedRun, name: str) -> str | None:
    """Return the run id that an earlier session stored; None for a new run, and where it cannot be read."""
    try:
        stored = read_json(_id_file(about, name)) if about.step > 0 else None
    except CheckpointError:
        return None
    run = stored.get("run") if isinstance(stored, dict) else None
    return run if isinstance(run, str) and run else None


def _id_file(about: TrackedRun, name: str) -> Path:
    """Return the file with the run id of a tracker, so that a resumed run continues in the tracker."""
    return about.folder / f"tracker.{name}.json"


class TensorBoardTracker:
    """Event files of PyTorch's SummaryWriter."""

    def __init__(self, options: TensorBoard) -> None:
        self._options = options
        self._writer: Any = None
        self._step = 0

    def start(self, about: TrackedRun) -> None:
        module = require("torch.utils.tensorboard", extra="trackers")
        folder = Path(self._options.folder) if self._options.folder is not None else about.folder / "tensorboard"
        # Hides what an interrupted session wrote after the checkpoint.
        purge = {"purge_step": about.step + 1} if about.step > 0 else {}
        self._writer = module.SummaryWriter(log_dir=str(folder), **purge)
        self._step = about.step
        rows = "\n".join(f"| {key} | {value} |" for key, value in about.config.items())
        self._writer.add_text("config", f"| option | value |\n|---|---|\n{rows}", about.step)

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._step = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=at)

    def log_summary(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, self._step)

    def finish(self, status: Status) -> None:
        self._writer.add_text("status", status, self._step)
        self._writer.close()


class MLflowTracker:
    """A local SQLite file, or the server at `uri`; its telemetry is switched off.

    Uses the client with run ids, since the fluent functions depend on the thread.
    """

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
        known = _known_run_id(about, "mlflow")
        if known is not None:
            self._run = known
            self._client.update_run(known, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name(self._options.experiment)
        number = experiment.experiment_id if experiment else self._client.create_experiment(self._options.experiment)
        self._run = self._client.create_run(number, run_name=self._options.name or about.name).info.run_id
        write_json(_id_file(about, "mlflow"), {"run": self._run})
        # Parameters cannot be changed later: only the first session logs them.
        params = [self._entities.Param(_key(key), str(value)[:_MAX_VALUE]) for key, value in about.config.items()]
        for begin in range(0, len(params), _MAX_PARAMS):
            self._client.log_batch(self._run, params=params[begin : begin + _MAX_PARAMS])

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._step = step
        metrics = [self._entities.Metric(_key(name), value, int(1000 * at), step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def log_summary(self, values: Mapping[str, float]) -> None:
        self.log(self._step, time.time(), values)

    def finish(self, status: Status) -> None:
        self._client.set_terminated(self._run, status=_MLFLOW_STATUS[status])


def default_uri(folder: Path) -> str:
    """Return the database that runs in the same folder share."""
    return f"sqlite:///{folder.resolve().parent / 'mlflow.db'}"


def _key(name: str) -> str:
    """Return a name with the allowed characters of keys; names of classes may contain any character."""
    return _NOT_ALLOWED.sub("_", name)


class WandBTracker:
    """Files for `wandb sync`, or, with mode: online, the server."""

    def __init__(self, options: WandB) -> None:
        self._options = options
        self._run: Any = None

    def start(self, about: TrackedRun) -> None:
        options = self._options
        if options.mode == "offline":
            os.environ["WANDB_ERROR_REPORTING"] = "false"  # the package sends its errors over the network
        wandb = require("wandb", extra="trackers")
        known = _known_run_id(about, "wandb")
        # A resumed run has its configuration; offline, the same id joins the sessions.
        more: dict[str, Any] = {"id": known} if known is not None else {"config": dict(about.config)}
        if known is not None and options.mode == "online":
            more["resume"] = "allow"
        self._run = wandb.init(
            mode=options.mode,
            project=options.project,
            entity=options.entity,
            group=options.group,
            tags=options.tags or None,
            name=options.name or about.name,
            dir=options.folder or str(about.folder),
            settings=wandb.Settings(console="off", silent=True, disable_git=True),
            **more,
        )
        write_json(_id_file(about, "wandb"), {"run": str(self._run.id)})
        # `step` is a metric, because the package refuses steps below the last one, and a killed run resumes from an
        # earlier checkpoint.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def log_summary(self, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))

    def finish(self, status: Status) -> None:
        self._run.finish(exit_code=_WANDB_EXIT_CODES[status])


Tracker = TensorBoardTracker | MLflowTracker | WandBTracker
