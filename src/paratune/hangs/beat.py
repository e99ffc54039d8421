"""What a rank says of itself in its file, and what the system says of its process."""

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
from paratune.hangs.pulse import Pulse

NUM_COLLECTIVES = 8
"""The last ones of each rank that are kept as evidence."""
_PROC = Path("/proc")


@dataclass(frozen=True)
class Collective:
    """An exchange between ranks, as PyTorch's flight recorder has it."""

    group: str
    number: int
    """Counted from 1 in its group; on ranks that do the same, the same one has the same number."""
    name: str
    """Such as gloo:all_reduce."""
    sizes: tuple[tuple[int, ...], ...]
    """Shapes of what goes in."""
    is_done: bool

    def __str__(self) -> str:
        shapes = ", ".join(str(list(size)) for size in self.sizes)
        return f"{self.name} of {shapes} (number {self.number} of group {self.group})"


@dataclass(frozen=True)
class Beat:
    """What one rank was at."""

    rank: int
    world_size: int
    host: str
    pid: int
    num_written: int
    """Times that the rank's watching thread has written; it grows as long as that thread runs."""
    num_beats: int
    doing: str
    phase: str | None = None
    step: int = 0
    detail: str = ""
    work: str | None = None
    """A call that reports no progress itself, such as a download."""
    work_bytes: int = 0
    """Read, written or received within that call."""
    for_s: float = 0.0
    """Seconds in this phase, or at this, when it was written."""
    is_evidence: bool = False
    """Whether it was written by a rank that has noticed that nobody gets on."""
    collectives: tuple[Collective, ...] = ()
    """The last ones; only in evidence."""
    interfaces_down: tuple[str, ...] = ()
    """Network interfaces of the machine that are switched off; only in evidence."""

    @property
    def last(self) -> Collective | None:
        """The last exchange that was begun."""
        return self.collectives[-1] if self.collectives else None

    @property
    def waits(self) -> bool:
        """Whether it is in an exchange that has not ended."""
        return self.last is not None and not self.last.is_done

    def where(self) -> str:
        """Return what it was at in words: "step 12, backward"."""
        words = [f"step {self.step}"] if self.step and self.phase else []
        words.append(self.phase or self.doing)
        details = [self.detail] if self.detail and not self.phase else []
        if self.work is not None:
            moved = f"{format_bytes(self.work_bytes)} read, written or received"
            details = [*dict.fromkeys((*details, self.work)), moved]
        return ", ".join(words) + (f" ({'; '.join(details)})" if details else "")


def beat_now(pulse: Pulse, rank: int, world_size: int, num_written: int, *, as_evidence: bool = False) -> Beat:
    """Return what this rank is at."""
    return Beat(
        rank=rank,
        world_size=world_size,
        host=socket.gethostname(),
        pid=os.getpid(),
        num_written=num_written,
        num_beats=pulse.num_beats + pulse.num_signs,
        doing=pulse.doing,
        phase=pulse.phase,
        step=pulse.step,
        detail=pulse.detail,
        work=pulse.work,
        work_bytes=pulse.work_bytes if pulse.work is not None else 0,
        for_s=round(time.time() - pulse.since, 3),
        is_evidence=as_evidence,
        collectives=last_collectives() if as_evidence else (),
        interfaces_down=interfaces_down() if as_evidence else (),
    )


def write_beat(path: Path, beat: Beat) -> None:
    """Write a rank's file, whole or not at all. It is not synced: it says nothing once the machine is gone."""
    with replace_file(path, is_durable=False) as temporary:
        temporary.write_text(json.dumps(asdict(beat)), encoding="utf-8")


def read_beat(path: Path) -> Beat | None:
    """Return what a rank's file says; None where there is none, or not a whole one."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["collectives"] = tuple(
            Collective(**{**each, "sizes": tuple(map(tuple, each["sizes"]))}) for each in values["collectives"]
        )
        values["interfaces_down"] = tuple(values["interfaces_down"])
        return Beat(**{name.name: values[name.name] for name in fields(Beat)})
    except (OSError, ValueError, KeyError, TypeError):
        return None


def last_collectives() -> tuple[Collective, ...]:
    """Return the last exchanges of this process in the order in which they were begun; none where torch tells none."""
    # Not imported: the training may hang in an import, whose lock this would wait for.
    dump = getattr(sys.modules.get("torch._C._distributed_c10d"), "_dump_fr_trace_json", None)
    if dump is None:
        return ()
    with suppress(Exception):  # it is a private function of torch's, for evidence alone
        return parse_trace(json.loads(dump(includeCollectives=True, onlyActive=False)))
    return ()


def parse_trace(trace: Mapping[str, Any]) -> tuple[Collective, ...]:
    """Return the last exchanges of a flight recorder's trace (its JSON, version 2)."""
    found = []
    status = trace.get("pg_status", {})
    for entry in trace.get("entries", [])[-NUM_COLLECTIVES:]:
        group = str(entry["process_group"][0])
        number = int(entry["p2p_seq_id"] if entry.get("is_p2p") else entry["collective_seq_id"])
        completed = int(status.get(group, {}).get("last_completed_collective", -1))
        is_done = bool(entry.get("retired")) or entry.get("state") == "completed" or 0 <= number <= completed
        sizes = tuple(tuple(size) for size in entry["input_sizes"])
        found.append(Collective(group, number, entry["profiling_name"], sizes, is_done))
    return tuple(found)


def process_state(pid: int, proc: Path = _PROC) -> str | None:
    """Return the system's letter for a process of this machine: R, S, D (one of its threads waits for a disk), T
    (stopped), Z; None when there is none, or the system does not tell."""
    state = read_state(proc / str(pid) / "stat")
    if state in ("R", "S"):
        with suppress(OSError):
            if any(read_state(thread / "stat") == "D" for thread in (proc / str(pid) / "task").iterdir()):
                return "D"
    return state


def interfaces_down() -> tuple[str, ...]:
    """Return the network interfaces that are switched off, loopback among them."""
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
