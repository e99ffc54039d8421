"""The thread of each rank that notices when nobody gets on, keeps the evidence and ends the process.

Ranks see each other through small files, because a network that hangs tells nothing. No clock is compared with that
of another machine: what counts is how long this thread has seen no change. A rank whose interpreter is held in native
code cannot run this thread: the others name it, and faulthandler's timer, which needs no interpreter, writes stacks.
What touches the disk is done in a thread beside it: one that does not answer would hold the watching thread as well.
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
from paratune.hangs.beat import Beat, beat_now, process_state, read_beat, write_beat
from paratune.hangs.pulse import Pulse, current
from paratune.hangs.verdict import WAITING, HangVerdict, judge
from paratune.hangs.work import BUSY_SHARE, SIGN_BYTES, WorkMeter, read_work
from paratune.processes.place import note_exit_code
from paratune.records import SCHEMA_VERSION, EventLog, read_json, write_json

log = logging.getLogger(__name__)

HEARTBEATS = ".heartbeat"
"""Folder beside the run folders; gone when no run is at work."""
EVIDENCE = "hang"
"""Folder in the run folder."""
VERDICT_FILE = "hang.json"
LONGEST_POLL_S, SHORTEST_POLL_S = 5.0, 0.1
FIRST_SHARE, LONGEST_FIRST_S = 1 / 8, 10.0
"""Of the time that is allowed, and at most, after which a rank begins to write even if its run has no folder yet: a run
that fails at once leaves none behind."""
SILENT_POLLS = 4
"""Looks without a sign of a rank's thread from which on it counts as silent."""
DISK_S = 20.0
"""Seconds that the disk has to take the evidence, beside the time in which ranks wait for each other."""
BUSY_FACTOR = 4
"""How much longer is waited for a call that keeps a core busy and moves no bytes, such as a compilation: an endless
loop looks the same."""
UNHEARD_FACTOR = 4
"""How much longer is waited where a rank was never heard: its machine may have another disk under the same path."""


@dataclass
class _Seen:
    """What was last seen of a rank, and when that last changed, by this process' clock."""

    beat: Beat
    written_at: float
    beaten_at: float


class Watchdog:
    """Watches all ranks of a run from one of them."""

    def __init__(
        self,
        pulse: Pulse,
        rank: int,
        world_size: int,
        folder: Path,
        timeout_s: float,
        *,
        end: Callable[[int], None] = os._exit,
    ) -> None:
        """Begin nothing yet.

        Args:
            pulse: Of this rank.
            rank: That of this process.
            world_size: Ranks of the run.
            folder: The run folder, which need not be there yet.
            timeout_s: After so many seconds without progress of any rank the run is ended.
            end: Ends the process; tests have a milder one.
        """
        self._pulse, self._folder, self._timeout_s, self._end = pulse, folder, timeout_s, end
        self._rank, self._world_size = rank, world_size
        self._poll_s = min(LONGEST_POLL_S, max(SHORTEST_POLL_S, timeout_s / 8))
        self._beats = folder.parent / HEARTBEATS / folder.name
        self._num_written = 0
        self._seen: dict[int, _Seen] = {}
        self._made: list[Path] = []
        self._is_made = False
        self._shares = world_size > 1
        self._is_closed = False
        self._has_spoken = False
        self._meter = WorkMeter()
        self._measured_work = 0
        """The number of the call that the meter measures, `Pulse.num_works`; 0 for none."""
        self._sign_bytes = 0
        """Of the meter, at the last sign."""
        self._looked_at_work = self._moved = 0.0
        self._errand: threading.Thread | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._began = self._looked = time.monotonic()
        self._arm()
        self._thread.start()

    def close(self) -> None:
        """Stop watching, and take this rank's file away."""
        self._is_closed = True
        self._pulse.news.set()
        self._thread.join()
        if self._errand is not None:
            self._errand.join(DISK_S)
        faulthandler.cancel_dump_traceback_later()
        self._tidy([self._rank])

    def _tidy(self, ranks: Iterable[int]) -> None:
        """Take files of ranks away, and the folders when they are empty."""
        for rank in ranks:
            path = self._file_of(rank)
            for file in (path, *path.parent.glob(f".{path.name}.*{atomic.SUFFIX}")):
                with suppress(OSError):
                    file.unlink()
        for folder in (self._beats, self._beats.parent, *self._made):
            with suppress(OSError):  # others are still there
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
            self._pulse.news.wait(self._poll_s)
            self._pulse.news.clear()
            if self._is_closed:
                return
            self._come_by()
            self._arm()
            self._look_at_work()
            beat = self._noted()
            self._apart(partial(self._exchange, beat), self._poll_s)
            if self._is_hung():
                self._give_up()
                return

    def _apart(self, work: Callable[[], None], wait_s: float) -> bool:
        """Do what touches the disk in a thread of its own, and return whether that was done in time; nothing is begun
        while an earlier one still waits for the disk."""
        if self._errand is not None:
            self._errand.join(wait_s)
            if self._errand.is_alive():
                return False
        self._errand = threading.Thread(target=work, name="watchdog's disk", daemon=True)
        self._errand.start()
        self._errand.join(wait_s)
        return not self._errand.is_alive()

    def _come_by(self) -> None:
        """Take the time in which this thread itself did not run, as in a job that was suspended, for no time at all."""
        now = time.monotonic()
        away_s = now - self._looked
        self._looked = now
        # The clock runs on while a job is suspended (SIGSTOP, scontrol suspend), and that would look like a hang.
        if away_s > SILENT_POLLS * self._poll_s:
            lost_s = away_s - self._poll_s
            self._began += lost_s
            for seen in list(self._seen.values()):
                seen.written_at += lost_s
                seen.beaten_at += lost_s

    def _arm(self) -> None:
        """Let faulthandler write the stacks should this thread not come by again, later than it would by itself.

        It ends nothing: to its timer a job that was suspended, and goes on, looks the same.
        """
        with suppress(OSError, ValueError, RuntimeError):  # no stderr that has a descriptor
            late_s = self._timeout_s + 10 * self._poll_s
            faulthandler.dump_traceback_later(late_s, file=sys.__stderr__ or sys.stderr)

    def _look_at_work(self) -> None:
        """Count signs that a call goes on which reports no progress itself; not of one that waits for another rank."""
        pulse, now = self._pulse, time.monotonic()
        if pulse.work is None or pulse.detail.startswith(WAITING):
            self._measured_work = 0
            return
        readings, elapsed_s = read_work(), now - self._looked_at_work
        self._looked_at_work = now
        if self._measured_work != pulse.num_works:
            self._measured_work, self._sign_bytes, self._moved = pulse.num_works, 0, now
            self._meter.reset(readings)
            return
        cpu_before_s = self._meter.cpu_s
        self._meter.add(readings)
        pulse.work_bytes = self._meter.num_bytes
        is_busy = self._meter.cpu_s - cpu_before_s >= BUSY_SHARE * elapsed_s
        if self._meter.num_bytes - self._sign_bytes >= SIGN_BYTES:
            self._sign_bytes, self._moved = self._meter.num_bytes, now
            pulse.num_signs += 1
        elif is_busy and now - self._moved <= (BUSY_FACTOR - 1) * self._timeout_s:
            pulse.num_signs += 1

    def _noted(self, *, as_evidence: bool = False) -> Beat:
        """Return what this rank is at, which this thread has noted; no disk is touched."""
        self._num_written += 1
        beat = beat_now(self._pulse, self._rank, self._world_size, self._num_written, as_evidence=as_evidence)
        self._note(beat)
        return beat

    def _exchange(self, beat: Beat) -> None:
        self._tell(beat)
        self._look()

    def _tell(self, beat: Beat) -> None:
        if self._shares and self._is_due():
            if not self._is_made:
                self._make_folder()
            with suppress(OSError):
                write_beat(self._own_file(), beat)

    def _is_due(self) -> bool:
        """Return whether this rank is to be heard: a run that has its folder, or has been long enough at getting it."""
        first_s = min(FIRST_SHARE * self._timeout_s, LONGEST_FIRST_S)
        return self._pulse.run_folder is not None or time.monotonic() - self._began >= first_s

    def _look(self) -> None:
        for rank in range(self._world_size) if self._shares else ():
            if rank != self._rank and (beat := read_beat(self._file_of(rank))) is not None:
                self._note(beat)

    def _note(self, beat: Beat) -> None:
        now, seen = time.monotonic(), self._seen.get(beat.rank)
        if seen is None or beat.pid != seen.beat.pid:
            self._seen[beat.rank] = _Seen(beat, now, now)
            return
        seen.written_at = now if beat.num_written != seen.beat.num_written else seen.written_at
        seen.beaten_at = now if beat.num_beats != seen.beat.num_beats else seen.beaten_at
        seen.beat = beat

    def _is_hung(self) -> bool:
        """Return whether no rank made progress for the time that is allowed."""
        is_heard = len(self._seen) == self._world_size
        allowed_s = self._timeout_s * (1 if is_heard or not self._shares else UNHEARD_FACTOR)
        last = max([self._began, *(seen.beaten_at for seen in list(self._seen.values()))])
        return time.monotonic() - last > allowed_s

    def _silent(self) -> dict[int, str | None]:
        """Return the ranks whose thread no longer writes, with what the system says of their process."""
        found: dict[int, str | None] = {}
        own = self._seen[self._rank].beat
        for rank, seen in list(self._seen.items()):
            if time.monotonic() - seen.written_at > SILENT_POLLS * self._poll_s:
                is_here = seen.beat.host == own.host
                found[rank] = (process_state(seen.beat.pid) or "gone") if is_here else None
        return found

    def _give_up(self) -> None:
        """Keep the evidence; the lowest rank that answers says who is missing; end the process."""
        silent = self._silent()  # before stacks are written, which takes the others' time too
        is_kept = self._apart(lambda: self._keep_evidence(silent), 10 * self._poll_s + DISK_S)
        if not is_kept and not self._has_spoken:
            self._speak_of_the_disk()
        faulthandler.cancel_dump_traceback_later()
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        self._end(EXIT_HUNG)

    def _keep_evidence(self, silent: dict[int, str | None]) -> None:
        folder = self._evidence_folder()
        self._write_stacks(folder)
        self._tell(self._noted(as_evidence=True))
        speaker = min(rank for rank in self._seen if rank not in silent)
        if speaker == self._rank:
            self._wait_for(lambda: all(self._answers(rank) for rank in self._seen if rank not in silent))
            self._speak(folder, silent)
        else:
            self._wait_for(lambda: self._is_told(folder))
        # Also of ranks that are stopped: the next session would take them for ranks at work.
        self._tidy([self._rank, *silent])
        note_exit_code(EXIT_HUNG)

    def _is_told(self, folder: Path | None) -> bool:
        """Return whether another rank has said who is missing, this time: an earlier hang may have left its word."""
        if folder is None:
            return False
        with suppress(Exception):
            told = read_json(folder / VERDICT_FILE)["ranks"]
            return any((each["rank"], each["pid"]) == (self._rank, os.getpid()) for each in told)
        return False

    def _speak_of_the_disk(self) -> None:
        """Say on stderr alone that the disk of the run does not answer, with the stacks."""
        beat = self._seen[self._rank].beat
        text = (
            f"rank {self._rank} (process {beat.pid} on {beat.host}; last at {beat.where()}) waits for the "
            f"disk of {self._folder.parent}: look at the file server and the mount"
        )
        verdict = HangVerdict("disk", (self._rank,), text)
        with suppress(OSError):
            os.write(2, f"\n{message(verdict, {self._rank: beat}, self._timeout_s, None)}\n".encode())
        with suppress(Exception):  # no stderr that has a descriptor
            faulthandler.dump_traceback(all_threads=True)

    def _answers(self, rank: int) -> bool:
        """Return whether a rank has written what it waits in, which it does when it has noticed the same."""
        self._look()
        return self._seen[rank].beat.is_evidence

    def _wait_for(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 6 * self._poll_s
        while time.monotonic() < deadline and not done():
            time.sleep(self._poll_s / 4)

    def _evidence_folder(self) -> Path | None:
        held = self._pulse.run_folder
        folder = held / EVIDENCE if held is not None else self._folder.with_name(f"{self._folder.name}.{EVIDENCE}")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # a full disk may be the reason of it all
            return None
        return folder

    def _write_stacks(self, folder: Path | None) -> None:
        if folder is None:
            faulthandler.dump_traceback(all_threads=True)
            return
        stacks = folder / f"stacks.rank{self._rank:04d}.txt"
        with suppress(OSError), stacks.open("w", encoding="utf-8") as file:
            faulthandler.dump_traceback(file, all_threads=True)

    def _speak(self, folder: Path | None, silent: dict[int, str | None]) -> None:
        self._look()
        self._has_spoken = True
        beats = {rank: seen.beat for rank, seen in self._seen.items()}
        verdict = judge(beats, self._world_size, silent)
        text = message(verdict, beats, self._timeout_s, folder)
        with suppress(OSError):
            os.write(2, f"\n{text}\n".encode())
        if self._pulse.run_folder is not None:
            with suppress(Exception):
                events = EventLog(self._pulse.run_folder, self._rank)
                events.add("failure", error="Hung", message=verdict.text)
                events.close()
        with suppress(Exception):  # the disk may be full, or gone
            if folder is not None:
                (folder / VERDICT_FILE).unlink(missing_ok=True)
                for rank in silent:  # what is there is of an earlier hang
                    (folder / f"stacks.rank{rank:04d}.txt").unlink(missing_ok=True)
                write_json(folder / VERDICT_FILE, _record(verdict, beats, self._timeout_s))


def message(verdict: HangVerdict, beats: dict[int, Beat], timeout_s: float, folder: Path | None) -> str:
    """Return what is said at the end of a run that stands still."""
    lines = [f"no rank made progress for {timeout_s:g} s (run.hang_timeout_s): {verdict.text}."]
    for rank in sorted(beats):
        beat = beats[rank]
        last = f"; in {beat.last}" if beat.waits else f"; last {beat.last}" if beat.last is not None else ""
        lines.append(f"  rank {rank} ({beat.host}, process {beat.pid}): {beat.where()}, {beat.for_s:.0f} s{last}")
    kept = f"Stacks and collectives of all ranks are in {folder}; " if folder is not None else ""
    lines.append(f"{kept}--resume continues from the newest checkpoint (docs/howto/hangs.md)")
    return "\n".join(lines)


def _record(verdict: HangVerdict, beats: dict[int, Beat], timeout_s: float) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "time": round(time.time(), 3),
        "timeout_s": timeout_s,
        "cause": verdict.cause,
        "missing_ranks": list(verdict.ranks),
        "message": verdict.text,
        "ranks": [asdict(beats[rank]) for rank in sorted(beats)],
    }


@contextmanager
def watching(pulse: Pulse, rank: int, world_size: int, folder: Path, timeout_s: float | None) -> Iterator[None]:
    """Watch this run for as long as the block lasts; not at all without a time."""
    if timeout_s is None:
        yield
        return
    watchdog = Watchdog(pulse, rank, world_size, folder, timeout_s)
    watchdog.start()
    try:
        with current(pulse):
            yield
    finally:
        watchdog.close()
