"""Sends metrics to Trackio: a database on this machine, or, with `space`, on the hub."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paratune.config.tracker_sections import Trackio
from paratune.errors import require
from paratune.trackers.protocol import Status, TrackedRun
from paratune.trackers.run_id import load_run_id, save_run_id

NAME = "trackio"
PLACES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_DATASET_ID", "TRACKIO_BUCKET_ID")
"""Variables that make the package send metrics to other places."""


class TrackioTracker:
    """See `protocol.Tracker`."""

    def __init__(self, options: Trackio) -> None:
        self._options = options
        self._run: Any = None
        self._step = 0

    def start(self, about: TrackedRun) -> None:
        options = self._options
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        if options.folder is not None:
            os.environ["TRACKIO_DIR"] = options.folder  # read when the package is imported
        if options.space is not None:
            self._begin(about, space_id=options.space, private=True)
            return
        for name in PLACES:
            os.environ.pop(name, None)
        with _hub_offline():
            self._begin(about)

    def _begin(self, about: TrackedRun, **place: Any) -> None:
        trackio = require("trackio", extra=NAME)
        options = self._options
        known = load_run_id(about, NAME)
        self._run = trackio.init(
            project=options.project,
            name=known or options.name or about.name,
            group=options.group,
            config=None if known is not None else {key: str(value) for key, value in about.config.items()},
            # A new run never continues an older one with its name: the package selects another name.
            resume="never" if known is None else "allow",
            embed=False,
            auto_log_gpu=False,
            **place,
        )
        save_run_id(about, NAME, str(self._run.name))
        self._step = about.step

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._step = step
        self._run.log(dict(values), step=step)

    def log_summary(self, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=self._step)

    def finish(self, status: Status) -> None:
        self._run.finish()


@contextmanager
def _hub_offline() -> Iterator[None]:
    """Make the hub offline in the block: the package requests the user name from the hub, also for a local run."""
    from huggingface_hub import constants

    before, constants.HF_HUB_OFFLINE = constants.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
