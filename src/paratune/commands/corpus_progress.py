"""progress.html in the work folder of a corpus: the progress of all stages, updated every few seconds.

The counts are read from the files of the stages; the progress bar gives the part of the work that runs now.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from paratune.corpus.finished import finished_stages, unfinished_stages
from paratune.corpus.stage import STAGE_FILE
from paratune.errors import CheckpointError, ParatuneError, coded
from paratune.records import read_json
from paratune.reports.corpus.page import StageLine, progress_html
from paratune.sweeps.run import write_text

log = logging.getLogger(__name__)

PAGE = "progress.html"
UPDATE_S = 5.0


class ProgressPage:
    """Updates the page while a block runs, and at its end."""

    def __init__(self, work: Path, stages: Sequence[str], *, update_s: float = UPDATE_S) -> None:
        """Create the page; the `with` block begins to write it."""
        self._work, self._stages, self._update_s = work, stages, update_s
        self._began = time.monotonic()
        self._label, self._done, self._total = "", 0, 0
        self._label_began, self._first_done = self._began, 0
        self._counted: dict[tuple[Path, int], tuple[int, Counter[str]]] = {}
        self._first_seen: dict[str, tuple[int, float]] = {}
        self._over = threading.Event()
        self._can_write = True

    def store_update(self, label: str, done: int, total: int) -> None:
        """Store an update of the progress bar."""
        if label != self._label:
            self._label, self._label_began, self._first_done = label, time.monotonic(), done
        self._done, self._total = done, total

    def __enter__(self) -> "ProgressPage":
        self._thread = threading.Thread(target=self._keep_writing, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._over.set()
        self._thread.join()
        state = "finished" if kind is None else f"stopped: {error}" if isinstance(error, ParatuneError) else "stopped"
        self._write(state, is_over=True)

    def _keep_writing(self) -> None:
        self._write("running", is_over=False)
        while not self._over.wait(self._update_s):
            self._write("running", is_over=False)

    def _write(self, state: str, *, is_over: bool) -> None:
        if not self._can_write:
            return
        try:
            lines = self._lines(is_over)
        except (ParatuneError, OSError):
            return  # a stage was deleted at this moment
        try:
            title = f"Corpus {self._work.resolve().name}"
            task = (self._label, self._done, self._total, self._left_s())
            every_s = None if is_over else max(1, round(self._update_s))
            elapsed_s = time.monotonic() - self._began
            text = progress_html(title, lines, task, state=state, elapsed_s=elapsed_s, every_s=every_s)
            write_text(self._work / PAGE, text)
        except ParatuneError as error:
            # The corpus is more important than the page.
            self._can_write = False
            log.warning("%s is no longer updated: %s", PAGE, error, extra=coded("corpus.page_not_written"))

    def _lines(self, is_over: bool) -> list[StageLine]:
        lines = [*self._finished(), *self._running(is_over)]
        known = {line.name.partition("/")[0] for line in lines}
        waiting = [name.partition("_")[2] for name in self._stages if not (self._work / name / STAGE_FILE).exists()]
        return [*lines, *(StageLine(name, "waiting") for name in waiting if name not in known)]

    def _left_s(self) -> float | None:
        done = self._done - self._first_done
        if done <= 0:
            return None
        return (time.monotonic() - self._label_began) / done * (self._total - self._done)

    def _finished(self) -> Iterator[StageLine]:
        try:
            stages = finished_stages(self._work)
        except CheckpointError:
            return  # no stage is finished
        for stage in stages:
            state = "done, by an earlier run" if stage.is_stale else "done"
            yield StageLine(stage.name, state, stage.totals["kept"], stage.totals["dropped"])

    def _running(self, is_over: bool) -> Iterator[StageLine]:
        for name, folder in unfinished_stages(self._work):
            num_kept, reasons = self._count(folder)
            now = num_kept + reasons.total()
            first, began = self._first_seen.setdefault(name, (now, time.monotonic()))
            seconds = time.monotonic() - began
            rows_per_s = (now - first) / seconds if now > first and not is_over else None
            yield StageLine(name, "stopped" if is_over else "running", num_kept, dict(reasons), rows_per_s)

    def _count(self, folder: Path) -> tuple[int, Counter[str]]:
        """Return how many rows the finished shards of a stage kept and dropped; each file is read once."""
        num_kept, reasons = 0, Counter[str]()
        for path in folder.glob("counts-*.json"):
            key = path, path.stat().st_mtime_ns
            if key not in self._counted:
                counts = read_json(path)
                self._counted[key] = counts["kept"], Counter(counts["dropped"])
            num_kept += self._counted[key][0]
            reasons.update(self._counted[key][1])
        return num_kept, reasons
