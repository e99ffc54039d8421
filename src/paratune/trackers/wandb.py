"""Sends metrics to Weights & Biases: files for `wandb sync`, or, with mode: online, the server."""

import os
from collections.abc import Mapping
from typing import Any

from paratune.config.optional_sections import WandB
from paratune.errors import require
from paratune.trackers.protocol import Status, TrackedRun, load_run_id, save_run_id

NAME = "wandb"
EXIT_CODES: Mapping[Status, int] = {"finished": 0, "stopped": 75, "failed": 1}


class WandBTracker:
    """See `protocol.Tracker`."""

    def __init__(self, options: WandB) -> None:
        self._options = options
        self._run: Any = None

    def start(self, about: TrackedRun) -> None:
        options = self._options
        if options.mode == "offline":
            os.environ["WANDB_ERROR_REPORTING"] = "false"  # the package sends its errors over the network
        wandb = require("wandb", extra="trackers")
        known = load_run_id(about, NAME)
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
        save_run_id(about, NAME, str(self._run.id))
        # `step` is a metric, because the package refuses steps below the last one, and a killed run resumes from an
        # earlier checkpoint.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def log_summary(self, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))

    def finish(self, status: Status) -> None:
        self._run.finish(exit_code=EXIT_CODES[status])
