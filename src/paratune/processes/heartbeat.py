"""Heartbeats of ranks: files with the progress of a rank, and the state of its process."""

import json
import os
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from paratune.base.atomic import replace_file
from paratune.base.process_state import read_state
from paratune.base.units import format_bytes
from paratune.processes.progress import RankProgress

NUM_COLLECTIVES = 8
"""Number of last collectives of each rank in evidence."""
_PROC = Path("/proc")


@dataclass(frozen=True)
class Collective:
    """A collective in PyTorch's flight recorder."""

    group: str
    number: int
    """Number in its group, from 1; the same collective has the same number on all ranks."""
    name: str
    """Name, such as gloo:all_reduce."""
    sizes: tuple[tuple[int, ...], ...]
    """Shapes of the inputs."""
    is_done: bool

    def __str__(self) -> str:
        shapes = ", ".join(str(list(size)) for size in self.sizes)
        return f"{self.name} of {shapes} (number {self.number} of group {self.group})"


@dataclass(frozen=True)
class Heartbeat:
    """The progress of a rank at one time."""

    rank: int
    world_size: int
    host: str
    pid: int
    num_written: int
    """Number of heartbeats of the rank; it grows while its watchdog runs."""
    num_beats: int
    doing: str
    phase: str | None = None
    step: int = 0
    detail: str = ""
    work: str | None = None
    """Name of a call that reports no progress, such as a download."""
    work_bytes: int = 0
    """Bytes read, written or received in this call."""
    for_s: float = 0.0
    """Seconds since the phase or task began."""
    is_evidence: bool = False
    """Whether the rank has detected the hang."""
    collectives: tuple[Collective, ...] = ()
    """Last collectives; only in evidence."""
    interfaces_down: tuple[str, ...] = ()
    """Network interfaces that are down; only in evidence."""

    @property
    def last(self) -> Collective | None:
        """The last collective."""
        return self.collectives[-1] if self.collectives else None

    @property
    def waits(self) -> bool:
        """Whether the last collective has not completed."""
        return self.last is not None and not self.last.is_done

    def where(self) -> str:
        """Return the position in words: "step 12, backward"."""
        words = [f"step {self.step}"] if self.step and self.phase else []
        words.append(self.phase or self.doing)
        details = [self.detail] if self.detail and not self.phase else []
        if self.work is not None:
            moved = f"{format_bytes(self.work_bytes)} read, written or received"
            details = [*dict.fromkeys((*details, self.work)), moved]
        return ", ".join(words) + (f" ({'; '.join(details)})" if details else "")


def current_heartbeat(
    rank_progress: RankProgress, rank: int, world_size: int, num_written: int, *, as_evidence: bool = False
) -> Heartbeat:
    """Return the heartbeat of this rank."""
    return Heartbeat(
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        num_written=num_written,
        num_beats=rank_progress.num_beats + rank_progress.num_signs,
        doing=rank_progress.doing,
        phase=rank_progress.phase,
        step=rank_progress.step,
        detail=rank_progress.detail,
        work=rank_progress.work,
        work_bytes=rank_progress.work_bytes if rank_progress.work is not None else 0,
        for_s=round(time.time() - rank_progress.since, 3),
        is_evidence=as_evidence,
        collectives=last_collectives() if as_evidence else (),
        interfaces_down=interfaces_down() if as_evidence else (),
    )


def write_heartbeat(path: Path, beat: Heartbeat) -> None:
    """Write a heartbeat; the file is complete or absent. It is not synced, since it is useless after a crash."""
    with replace_file(path, is_durable=False) as temporary:
        temporary.write_text(json.dumps(asdict(beat)), encoding="utf-8")


def read_heartbeat(path: Path) -> Heartbeat | None:
    """Return the heartbeat in a file; None if it is missing or damaged."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["collectives"] = tuple(
            Collective(**{**collective, "sizes": tuple(map(tuple, collective["sizes"]))})
            for collective in values["collectives"]
        )
        values["interfaces_down"] = tuple(values["interfaces_down"])
        return Heartbeat(**{name.name: values[name.name] for name in fields(Heartbeat)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def last_collectives() -> tuple[Collective, ...]:
    """Return the last collectives of this process, in order; empty if torch has no record."""
    # Not imported: the training may hang in an import and hold its lock.
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    if dump is None:
        return ()
    with suppress(Exception):  # a private function of torch, for evidence only
        return parse_trace(json.loads(dump(includeCollectives=True, onlyActive=False)))
    return ()


def parse_trace(trace: Mapping[str, Any]) -> tuple[Collective, ...]:
    """Return the last collectives in a trace of the flight recorder (JSON, version 2)."""
    collectives = []
    status = trace.get("pg_status", {})
    for entry in trace.get("entries", [])[-NUM_COLLECTIVES:]:
        group = str(entry["process_group"][0])
        number = int(entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"])
        completed = int(status.get(group, {}).get("last_completed_collective", -1))
        is_done = bool(entry.get("retired")) or entry.get("state") == "completed" or 0 <= number <= completed
        sizes = tuple(tuple(size) for size in entry["input_sizes"])
        collectives.append(Collective(group, number, entry["profiling_name"], sizes, is_done))
    return tuple(collectives)


def process_state(pid: int, proc: Path = _PROC) -> str | None:
    """Return the state of a process of this machine: R, S, D (a thread waits for a disk), T (stopped) or Z; None if the
    process does not exist or the state is unknown."""
    state = read_state(proc / str(pid) / "stat")
    if state in ("R", "S"):
        with suppress(OSError):
            if any(read_state(thread / "stat") == "D" for thread in (proc / str(pid) / "task").iterdir()):
                return "D"
    return state


def interfaces_down() -> tuple[str, ...]:
    """Return the network interfaces that are down, including loopback."""
    import fcntl
    import struct

    is_up, get_flags = 0x1, 0x8913  # IFF_UP, SIOCGIFFLAGS
    down = []
    with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            answer = fcntl.ioctl(asked, get_flags, struct.pack("256s", name.encode()[:15]))
            if not struct.unpack_from("H", answer, 16)[0] & is_up:
                down.append(name)
    return tuple(down)
