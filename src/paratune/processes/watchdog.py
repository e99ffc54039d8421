"""The watchdog, a thread in each rank that detects hangs, saves evidence and ends the process.

Ranks read each other's heartbeats from small files, because the network may hang. Clocks of different machines are not
compared: each watchdog measures how long it has seen no change. Native code that blocks the interpreter of a rank also
blocks this thread: other ranks report it, and the timer of faulthandler, which needs no interpreter, writes the stacks.
Another thread does all disk access, since a disk that hangs would block the watchdog.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paratune.base import atomic
from paratune.errors import EXIT_HUNG, coded
from paratune.processes.activity import BUSY_SHARE, SIGN_BYTES, WorkMeter, read_work
from paratune.processes.diagnosis import WAITING, HangDiagnosis, diagnose
from paratune.processes.heartbeat import Heartbeat, current_heartbeat, process_state, read_heartbeat, write_heartbeat
from paratune.processes.place import note_exit_code
from paratune.processes.progress import RankProgress, current
from paratune.records import SCHEMA_VERSION, EventLog, read_json, write_json

log = logging.getLogger(__name__)

HEARTBEATS = ".heartbeat"
"""Folder next to the run folders, deleted when no run is active."""
EVIDENCE = "hang"
"""Folder in the run folder with stacks and hang.json."""
HANG_FILE = "hang.json"
LONGEST_POLL_S, SHORTEST_POLL_S = 5.0, 0.1
FIRST_SHARE, LONGEST_FIRST_S = 1 / 8, 10.0
"""Share of the timeout, and seconds at most, after which a rank writes heartbeats although its run has no folder; a run
that fails early leaves no files."""
SILENT_POLLS = 4
"""Polls without a new heartbeat after which a rank counts as silent."""
DISK_S = 20.0
"""Seconds for writing evidence to the disk, besides the time in which ranks wait for each other."""
BUSY_FACTOR = 4
"""Factor of the timeout for a call that keeps a core busy without moving bytes, such as a compilation or an endless
loop."""
UNHEARD_FACTOR = 4
"""Factor of the timeout if a rank has no heartbeat: its machine may have another disk at the same path."""


@dataclass
class _LastHeartbeat:
    """Last heartbeat of a rank, with the local times when `num_written` and `num_beats` last changed."""

    beat: Heartbeat
    written_at: float
    beaten_at: float


class Watchdog:
    """Watches all ranks of a run from one of them."""

    def __init__(
        self,
        rank_progress: RankProgress,
        rank: int,
        world_size: int,
        folder: Path,
        timeout_s: float,
        *,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """Create a watchdog, which ends the run after `timeout_s` seconds without progress of any rank."""
        self._rank_progress, self._folder, self._timeout_s, self._end = rank_progress, folder, timeout_s, end
        self._rank, self._world_size = rank, world_size
        self._poll_s = min(LONGEST_POLL_S, max(SHORTEST_POLL_S, timeout_s / 8))
        self._beats = folder.parent / HEARTBEATS / folder.name
        self._num_written = 0
        self._seen: dict[int, _LastHeartbeat] = {}
        self._made: list[Path] = []
        self._is_made = False
        self._shares = world_size > 1
        self._is_closed = False
        self._has_reported = False
        self._meter = WorkMeter()
        self._measured_work = 0
        """`RankProgress.num_works` of the measured call; 0 for none."""
        self._sign_bytes = 0
        """Bytes of the meter at the last sign of progress."""
        self._looked_at_work = self._moved = 0.0
        self._disk_thread: threading.Thread | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._began = self._looked = time.monotonic()
        self._arm()
        self._thread.start()

    def close(self) -> None:
        """Stop watching, and delete the heartbeat of this rank."""
        self._is_closed = True
        self._rank_progress.news.set()
        self._thread.join()
        if self._disk_thread is not None:
            self._disk_thread.join(DISK_S)
        faulthandler.cancel_dump_traceback_later()
        self._delete_heartbeats([self._rank])

    def _delete_heartbeats(self, ranks: Iterable[int]) -> None:
        """Delete the heartbeats of ranks, and empty folders."""
        for rank in ranks:
            path = self._file_of(rank)
            for file in (path, *path.parent.glob(f".{path.name}.*{atomic.SUFFIX}")):
                with suppress(OSError):
                    file.unlink()
        for folder in (self._beats, self._beats.parent, *self._made):
            with suppress(OSError):  # other ranks still have files
                folder.rmdir()

    def _make_folder(self) -> None:
        self._is_made = True
        missing = [path for path in (self._folder.parent, *self._folder.parent.parents) if not path.exists()]
        try:
            self._beats.mkdir(parents=True, exist_ok=True)
            self._own_file().unlink(missing_ok=True)
        except OSError as error:
            log.warning(
                "ranks cannot watch each other: %s: %s", self._beats, error.strerror, extra=coded("hang.not_watched")
            )
            self._shares = False
        else:
            self._made = missing

    def _own_file(self) -> Path:
        return self._file_of(self._rank)

    def _file_of(self, rank: int) -> Path:
        return self._beats / f"rank{rank:04d}.json"

    def _watch(self) -> None:
        while True:
            self._rank_progress.news.wait(self._poll_s)
            self._rank_progress.news.clear()
            if self._is_closed:
                return
            self._skip_suspended_time()
            self._arm()
            self._look_at_work()
            beat = self._record_own()
            self._run_with_timeout(partial(self._exchange, beat), self._poll_s)
            if self._is_hung():
                self._end_run()
                return

    def _run_with_timeout(self, work: Callable[[], None], wait_s: float) -> bool:
        """Run a function that accesses the disk in another thread, and return whether it finished in time; do not start
        it while an earlier one waits for the disk."""
        if self._disk_thread is not None:
            self._disk_thread.join(wait_s)
            if self._disk_thread.is_alive():
                return False
        self._disk_thread = threading.Thread(target=work, name="watchdog's disk", daemon=True)
        self._disk_thread.start()
        self._disk_thread.join(wait_s)
        return not self._disk_thread.is_alive()

    def _skip_suspended_time(self) -> None:
        """Exclude the time in which this thread did not run, such as in a suspended job."""
        now = time.monotonic()
        away_s = now - self._looked
        self._looked = now
        # The clock continues while a job is suspended (SIGSTOP, scontrol suspend).
        if away_s > SILENT_POLLS * self._poll_s:
            lost_s = away_s - self._poll_s
            self._began += lost_s
            for seen in list(self._seen.values()):
                seen.written_at += lost_s
                seen.beaten_at += lost_s

    def _arm(self) -> None:
        """Make faulthandler write the stacks if this thread stops running.

        It does not end the process, since a suspended job looks the same to the timer.
        """
        with suppress(OSError, ValueError, RuntimeError):  # stderr without a descriptor
            late_s = self._timeout_s + 10 * self._poll_s
            faulthandler.dump_traceback_later(late_s, file=sys.__stderr__ or sys.stderr)

    def _look_at_work(self) -> None:
        """Count signs of progress of a call that reports none, unless it waits for another rank."""
        rank_progress, now = self._rank_progress, time.monotonic()
        if rank_progress.work is None or rank_progress.detail.startswith(WAITING):
            self._measured_work = 0
            return
        readings, elapsed_s = read_work(), now - self._looked_at_work
        self._looked_at_work = now
        if self._measured_work != rank_progress.num_works:
            self._measured_work, self._sign_bytes, self._moved = rank_progress.num_works, 0, now
            self._meter.reset(readings)
            return
        cpu_before_s = self._meter.cpu_s
        self._meter.add(readings)
        rank_progress.work_bytes = self._meter.num_bytes
        is_busy = self._meter.cpu_s - cpu_before_s >= BUSY_SHARE * elapsed_s
        if self._meter.num_bytes - self._sign_bytes >= SIGN_BYTES:
            self._sign_bytes, self._moved = self._meter.num_bytes, now
            rank_progress.num_signs += 1
        elif is_busy and now - self._moved <= (BUSY_FACTOR - 1) * self._timeout_s:
            rank_progress.num_signs += 1

    def _record_own(self, *, as_evidence: bool = False) -> Heartbeat:
        """Record and return the heartbeat of this rank, without disk access."""
        self._num_written += 1
        beat = current_heartbeat(
            self._rank_progress, self._rank, self._world_size, self._num_written, as_evidence=as_evidence
        )
        self._record(beat)
        return beat

    def _exchange(self, beat: Heartbeat) -> None:
        self._write(beat)
        self._read_others()

    def _write(self, beat: Heartbeat) -> None:
        if self._shares and self._is_due():
            if not self._is_made:
                self._make_folder()
            with suppress(OSError):
                write_heartbeat(self._own_file(), beat)

    def _is_due(self) -> bool:
        """Return whether this rank writes heartbeats: its run has a folder, or has started long enough ago."""
        first_s = min(FIRST_SHARE * self._timeout_s, LONGEST_FIRST_S)
        return self._rank_progress.run_folder is not None or time.monotonic() - self._began >= first_s

    def _read_others(self) -> None:
        for rank in range(self._world_size) if self._shares else ():
            if rank != self._rank and (beat := read_heartbeat(self._file_of(rank))) is not None:
                self._record(beat)

    def _record(self, beat: Heartbeat) -> None:
        now, seen = time.monotonic(), self._seen.get(beat.rank)
        if seen is None or beat.pid != seen.beat.pid:
            self._seen[beat.rank] = _LastHeartbeat(beat, now, now)
            return
        seen.written_at = now if beat.num_written != seen.beat.num_written else seen.written_at
        seen.beaten_at = now if beat.num_beats != seen.beat.num_beats else seen.beaten_at
        seen.beat = beat

    def _is_hung(self) -> bool:
        """Return whether no rank has made progress within the timeout."""
        is_heard = len(self._seen) == self._world_size
        allowed_s = self._timeout_s * (1 if is_heard or not self._shares else UNHEARD_FACTOR)
        last = max([self._began, *(seen.beaten_at for seen in list(self._seen.values()))])
        return time.monotonic() - last > allowed_s

    def _silent(self) -> dict[int, str | None]:
        """Return the ranks without new heartbeats, with the state of their process."""
        states: dict[int, str | None] = {}
        own = self._seen[self._rank].beat
        for rank, seen in list(self._seen.items()):
            if time.monotonic() - seen.written_at > SILENT_POLLS * self._poll_s:
                is_here = seen.beat.host == own.host
                states[rank] = (process_state(seen.beat.pid) or "gone") if is_here else None
        return states

    def _end_run(self) -> None:
        """Save evidence, report the hang from the lowest rank that responds, and end the process."""
        silent = self._silent()  # before writing stacks, which takes time on the other ranks, too
        is_saved = self._run_with_timeout(lambda: self._save_evidence(silent), 10 * self._poll_s + DISK_S)
        if not is_saved and not self._has_reported:
            self._report_disk()
        faulthandler.cancel_dump_traceback_later()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        self._end(EXIT_HUNG)

    def _save_evidence(self, silent: dict[int, str | None]) -> None:
        folder = self._evidence_folder()
        self._write_stacks(folder)
        self._write(self._record_own(as_evidence=True))
        reporter = min(rank for rank in self._seen if rank not in silent)
        if reporter == self._rank:
            self._wait_for(lambda: all(self._has_evidence(rank) for rank in self._seen if rank not in silent))
            self._report(folder, silent)
        else:
            self._wait_for(lambda: self._is_reported(folder))
        # Also of stopped ranks: the next session would count them as active.
        self._delete_heartbeats([self._rank, *silent])
        note_exit_code(EXIT_HUNG)

    def _is_reported(self, folder: Path | None) -> bool:
        """Return whether another rank has reported this hang; the file may be of an earlier one."""
        if folder is None:
            return False
        with suppress(Exception):
            ranks = read_json(folder / HANG_FILE)["ranks"]
            return any((entry["rank"], entry["pid"]) == (self._rank, os.getpid()) for entry in ranks)
        return False

    def _report_disk(self) -> None:
        """Report on stderr that the disk of the run does not respond, with the stacks."""
        beat = self._seen[self._rank].beat
        text = (
            f"rank {self._rank} (process {beat.pid} on {beat.host}; last at {beat.where()}) waits for the "
            f"disk of {self._folder.parent}: look at the file server and the mount"
        )
        diagnosis = HangDiagnosis("disk", (self._rank,), text)
        with suppress(OSError):
            os.write(2, f"\n{hang_message(diagnosis, {self._rank: beat}, self._timeout_s, None)}\n".encode())
        with suppress(Exception):  # stderr without a descriptor
            faulthandler.dump_traceback(all_threads=True)

    def _has_evidence(self, rank: int) -> bool:
        """Return whether a rank has detected the hang and written its evidence."""
        self._read_others()
        return self._seen[rank].beat.is_evidence

    def _wait_for(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 6 * self._poll_s
        while time.monotonic() < deadline and not done():
            time.sleep(self._poll_s / 4)

    def _evidence_folder(self) -> Path | None:
        run_folder = self._rank_progress.run_folder
        folder = (
            run_folder / EVIDENCE
            if run_folder is not None
            else self._folder.with_name(f"{self._folder.name}.{EVIDENCE}")
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # a full disk may be the cause of the hang
            return None
        return folder

    def _write_stacks(self, folder: Path | None) -> None:
        if folder is None:
            faulthandler.dump_traceback(all_threads=True)
            return
        stacks = folder / f"stacks.rank{self._rank:04d}.txt"
        with suppress(OSError), stacks.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)

    def _report(self, folder: Path | None, silent: dict[int, str | None]) -> None:
        self._read_others()
        self._has_reported = True
        beats = {rank: seen.beat for rank, seen in self._seen.items()}
        diagnosis = diagnose(beats, self._world_size, silent)
        text = hang_message(diagnosis, beats, self._timeout_s, folder)
        with suppress(OSError):
            os.write(2, f"\n{text}\n".encode())
        if self._rank_progress.run_folder is not None:
            with suppress(Exception):
                events = EventLog(self._rank_progress.run_folder, self._rank)
                events.add("failure", error="Hung", message=diagnosis.text)
                events.close()
        with suppress(Exception):  # the disk may be full or missing
            if folder is not None:
                (folder / HANG_FILE).unlink(missing_ok=True)
                for rank in silent:  # of an earlier hang
                    (folder / f"stacks.rank{rank:04d}.txt").unlink(missing_ok=True)
                write_json(folder / HANG_FILE, _hang_record(diagnosis, beats, self._timeout_s))


def hang_message(diagnosis: HangDiagnosis, beats: dict[int, Heartbeat], timeout_s: float, folder: Path | None) -> str:
    """Return the message at the end of a run that hangs."""
    lines = [f"no rank made progress for {timeout_s:g} s (run.hang_timeout_s): {diagnosis.text}."]
    for rank in sorted(beats):
        beat = beats[rank]
        last = f"; in {beat.last}" if beat.waits else f"; last {beat.last}" if beat.last is not None else ""
        lines.append(f"  rank {rank} ({beat.host}, process {beat.pid}): {beat.where()}, {beat.for_s:.0f} s{last}")
    evidence = f"Stacks and collectives of all ranks are in {folder}; " if folder is not None else ""
    lines.append(f"{evidence}--resume continues from the newest checkpoint (docs/howto/hangs.md)")
    return "\n".join(lines)


def _hang_record(diagnosis: HangDiagnosis, beats: dict[int, Heartbeat], timeout_s: float) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "time": round(time.time(), 3),
        "timeout_s": timeout_s,
        "cause": diagnosis.cause,
        "missing_ranks": list(diagnosis.ranks),
        "message": diagnosis.text,
        "ranks": [asdict(beats[rank]) for rank in sorted(beats)],
    }


@contextmanager
def watching(
    rank_progress: RankProgress, rank: int, world_size: int, folder: Path, timeout_s: float | None
) -> Iterator[None]:
    """Watch this run during the block; without a timeout, do nothing."""
    if timeout_s is None:
        yield
        return
    watchdog = Watchdog(rank_progress, rank, world_size, folder, timeout_s)
    watchdog.start()
    try:
        with current(rank_progress):
            yield
    finally:
        watchdog.close()
