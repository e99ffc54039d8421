"""Trackio: a database on this machine, or, with `space`, one on the hub."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paratune.config.tracker_sections import Trackio
from paratune.errors import require
from paratune.trackers.kept import keep_id, kept_id
from paratune.trackers.protocol import About, Status

NAME = "trackio"
PLACES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_DATASET_ID", "TRACKIO_BUCKET_ID")
"""Variables by which the package sends figures elsewhere without being told to."""


class TrackioTracker:
    """See `protocol.Tracker`."""

    def __init__(self, options: Trackio) -> None:
        self._options = options
        self._run: Any = None
        self._step = 0

    def start(self, about: About) -> None:
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

    def _begin(self, about: About, **place: Any) -> None:
        trackio = require("trackio", extra=NAME)
        options = self._options
        known = kept_id(about.folder, NAME) if about.step > 0 else None
        self._run = trackio.init(
            project=options.project,
            name=known or options.name or about.name,
            group=options.group,
            config=None if known is not None else {key: str(value) for key, value in about.config.items()},
            # A new run never goes into an older one of its name: the package finds another name then.
            resume="never" if known is None else "allow",
            embed=False,
            auto_log_gpu=False,
            **place,
        )
        keep_id(about.folder, NAME, str(self._run.name))
        self._step = about.step

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._step = step
        self._run.log(dict(values), step=step)

    def result(self, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=self._step)

    def finish(self, status: Status) -> None:
        self._run.finish()


@contextmanager
def _hub_offline() -> Iterator[None]:
    """Have nothing asked of the hub in the block: the package looks up who is logged in there, also for a local run.

    All that a run itself wants of the hub it has by now.
    """
    from huggingface_hub import constants

    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before
