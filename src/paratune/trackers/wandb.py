"""Weights & Biases: files for `wandb sync`, or, with mode: online, the server."""

import os
from collections.abc import Mapping
from typing import Any

from paratune.config.tracker_sections import WandB
from paratune.errors import require
from paratune.trackers.kept import keep_id, kept_id
from paratune.trackers.protocol import About, Status

NAME = "wandb"
EXIT_CODES: Mapping[Status, int] = {"finished": 0, "stopped": 75, "failed": 1}


class WandBTracker:
    """See `protocol.Tracker`."""

    def __init__(self, options: WandB) -> None:
        self._options = options
        self._run: Any = None

    def start(self, about: About) -> None:
        options = self._options
        if options.mode == "offline":
            os.environ["WANDB_ERROR_REPORTING"] = "false"  # the package reports its own errors over the network
        wandb = require("wandb", extra=NAME)
        known = kept_id(about.folder, NAME) if about.step > 0 else None
        # A run that goes on has its configuration; offline there is none to ask, and the same id puts them together.
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
        keep_id(about.folder, NAME, str(self._run.id))
        # By a figure of their own: the package takes no step that is below the last one, and a run that was killed
        # goes on from a checkpoint before it.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def result(self, values: Mapping[str, float]) -> None:
        self._run.summary.update(dict(values))

    def finish(self, status: Status) -> None:
        self._run.finish(exit_code=EXIT_CODES[status])
