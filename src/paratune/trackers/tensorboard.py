"""Writes TensorBoard event files with PyTorch's SummaryWriter. No network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paratune.config.optional_sections import TensorBoard
from paratune.errors import require
from paratune.trackers.protocol import Status, TrackedRun

FOLDER = "tensorboard"


class TensorBoardTracker:
    """See `protocol.Tracker`."""

    def __init__(self, options: TensorBoard) -> None:
        self._options = options
        self._writer: Any = None
        self._step = 0

    def start(self, about: TrackedRun) -> None:
        module = require("torch.utils.tensorboard", extra="trackers")
        folder = Path(self._options.folder) if self._options.folder is not None else about.folder / FOLDER
        # Hides what an interrupted session wrote after the checkpoint.
        purge = {"purge_step": about.step + 1} if about.step > 0 else {}
        self._writer = module.SummaryWriter(log_dir=str(folder), **purge)
        self._step = about.step
        rows = "\n".join(f"| {key} | {value} |" for key, value in about.config.items())
        self._writer.add_text("config", f"| option | value |\n|---|---|\n{rows}", about.step)

    def log(self, step: int, time: float, values: Mapping[str, float]) -> None:
        self._step = step
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=time)

    def log_summary(self, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, self._step)

    def finish(self, status: Status) -> None:
        self._writer.add_text("status", status, self._step)
        self._writer.close()
