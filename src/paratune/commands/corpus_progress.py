"""progress.html in the work folder of a corpus: how far its making is, written anew every few seconds.

What the page says is read from the files of the stages; the display tells which part of the work is being done.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from paratune.corpus.made import finished_stages, stages_at_work
from paratune.corpus.stage import STAGE_FILE
from paratune.errors import CheckpointError, ParatuneError, coded
from paratune.records import read_json
from paratune.report.corpus_page import CorpusProgress, StageLine, progress_html
from paratune.sweep.run import write_text

log = logging.getLogger(__name__)

PAGE = "progress.html"
EVERY_S = 5.0


class ProgressPage:
    """Writes the page while a block runs, and once more at its end."""

    def __init__(self, work: Path, stages: Sequence[str], *, every_s: float = EVERY_S) -> None:
        """Write nothing yet.

        Args:
            work: The folder of all stages, which exists.
            stages: Folders of the stages in their order.
            every_s: Seconds between two pages.
        """
        self._work, self._stages, self._every_s = work, stages, every_s
        self._began = time.monotonic()
        self._label, self._done, self._total = "", 0, 0
        self._label_began, self._first_done = self._began, 0
        self._counted: dict[tuple[Path, int], tuple[int, Counter[str]]] = {}
        self._first_seen: dict[str, tuple[int, float]] = {}
        self._over = threading.Event()
        self._can_write = True

    def hear(self, label: str, done: int, total: int) -> None:
        """Take note of an update of the display."""
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
        while not self._over.wait(self._every_s):
            self._write("running", is_over=False)

    def _write(self, state: str, *, is_over: bool) -> None:
        if not self._can_write:
            return
        try:
            found = self._look(state, is_over)
        except (ParatuneError, OSError):
            return  # a stage was made anew at this moment
        try:
            title = f"Corpus {self._work.resolve().name}"
            write_text(self._work / PAGE, progress_html(title, found, every_s=max(1, round(self._every_s))))
        except ParatuneError as error:
            # The work matters, not the page.
            self._can_write = False
            log.warning("%s is not written any more: %s", PAGE, error, extra=coded("corpus.page_not_written"))

    def _look(self, state: str, is_over: bool) -> CorpusProgress:
        lines = [*self._finished(), *self._at_work(is_over)]
        known = {line.name.partition("/")[0] for line in lines}
        waiting = [name.partition("_")[2] for name in self._stages if not (self._work / name / STAGE_FILE).exists()]
        return CorpusProgress(
            state=state,
            is_over=is_over,
            lines=[*lines, *(StageLine(name, "waits") for name in waiting if name not in known)],
            label=self._label,
            done=self._done,
            total=self._total,
            left_s=self._left_s(),
            elapsed_s=time.monotonic() - self._began,
            now=time.strftime("%Y-%m-%d %H:%M:%S"),
        )

    def _left_s(self) -> float | None:
        done = self._done - self._first_done
        each_s = (time.monotonic() - self._label_began) / done if done > 0 else None
        return None if each_s is None else each_s * (self._total - self._done)

    def _finished(self) -> Iterator[StageLine]:
        try:
            stages = finished_stages(self._work)
        except CheckpointError:
            return  # none
        for each in stages:
            state = "done, of an earlier run" if each.is_stale else "done"
            yield StageLine(each.name, state, each.totals["kept"], each.totals["dropped"])

    def _at_work(self, is_over: bool) -> Iterator[StageLine]:
        for name, folder in stages_at_work(self._work):
            kept, reasons = self._count(folder)
            now = kept + reasons.total()
            first, began = self._first_seen.setdefault(name, (now, time.monotonic()))
            seconds = time.monotonic() - began
            rows_per_s = (now - first) / seconds if now > first and not is_over else None
            yield StageLine(name, "stopped" if is_over else "at work", kept, dict(reasons), rows_per_s)

    def _count(self, folder: Path) -> tuple[int, Counter[str]]:
        """Return what the finished shards of a stage kept and dropped; each is read once."""
        kept, reasons = 0, Counter[str]()
        for path in folder.glob("counts-*.json"):
            key = path, path.stat().st_mtime_ns
            if key not in self._counted:
                counts = read_json(path)
                self._counted[key] = counts["kept"], Counter(counts["dropped"])
            kept += self._counted[key][0]
            reasons.update(self._counted[key][1])
        return kept, reasons
