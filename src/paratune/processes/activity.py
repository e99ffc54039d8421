"""Measures the activity of a process during calls that report no progress: transferred bytes and CPU time.

Downloading a model, loading weights, compiling and writing a large file are single calls of a library. The operating
system counts bytes that threads and child processes read and write, bytes that arrive at TCP sockets, pages of
memory-mapped files, and CPU time. A call that hangs adds nothing.

Source: proc(5), `/proc/PID/io` and `/proc/PID/stat`; Linux `include/uapi/linux/tcp.h`, `struct tcp_info`.
"""

import ctypes
import os
import socket
import struct
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paratune.base.units import KIB

SIGN_BYTES = 64 * KIB
"""Bytes that count as progress: more than the messages and look-ups of a waiting process."""
BUSY_SHARE = 0.1
"""Share of a core from which a process counts as busy, also on a shared machine. Polling takes less."""
BYSTANDERS = ("watchdog", "paratune-sampler", "tracker ")
"""Prefixes of the names of threads that never hang with the run; their activity does not count."""
_PROC = Path("/proc")
_TCP_INFO_BYTES_RECEIVED = 128
"""Offset of `tcpi_bytes_received`, a 64-bit number, in `struct tcp_info`; Linux 4.1 and newer."""


@dataclass(frozen=True)
class Readings:
    """Counters at one time; each only grows while its thread, socket or process exists."""

    num_bytes: Mapping[str, int] = field(default_factory=dict)
    """By thread, child process and socket."""
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    """CPU time, by thread and child process."""


class WorkMeter:
    """Sums the activity of a process since the last reset."""

    def __init__(self) -> None:
        self._last = Readings()
        self.num_bytes = 0
        """Bytes read, written or received since the reset."""
        self.cpu_s = 0.0
        """CPU time since the reset."""

    def reset(self, readings: Readings) -> None:
        """Reset the sums to 0."""
        self._last, self.num_bytes, self.cpu_s = readings, 0, 0.0

    def add(self, readings: Readings) -> None:
        """Add the growth of counters since the last readings; a new counter starts at 0."""
        self.num_bytes += int(_growth(self._last.num_bytes, readings.num_bytes))
        self.cpu_s += _growth(self._last.cpu_s, readings.cpu_s)
        self._last = readings


def _growth(before: Mapping[str, float], now: Mapping[str, float]) -> float:
    # A smaller number belongs to another thread with the same id.
    return sum(max(0, value - before.get(key, 0)) for key, value in now.items())


def read_work(proc: Path = _PROC) -> Readings:
    """Return the counters of this process and its descendants; empty if the system has none."""
    own = proc / "self"
    spared = {thread.native_id for thread in threading.enumerate() if thread.name.startswith(BYSTANDERS)}
    spared.add(threading.get_native_id())
    threads = [path for path in _entries(own / "task") if path.name.isdigit() and int(path.name) not in spared]
    num_bytes: dict[str, int] = {}
    cpu_s: dict[str, float] = {}
    for path in (*threads, *_descendants(own, proc)):
        with suppress(OSError, ValueError, IndexError):
            # Fields from the third one follow the name in parentheses, which may contain any character.
            fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
            num_major_faults, user, system = int(fields[9]), int(fields[11]), int(fields[12])
            num_bytes[str(path)] = num_major_faults * os.sysconf("SC_PAGE_SIZE")  # page faults read whole pages
            cpu_s[str(path)] = (user + system) / os.sysconf("SC_CLK_TCK")
            # Bytes of read and write calls, if they are counted.
            lines = (line.partition(":") for line in (path / "io").read_text().splitlines())
            num_bytes[str(path)] += sum(int(value) for name, _, value in lines if name in ("rchar", "wchar"))
    return Readings(num_bytes | _received_bytes(own / "fd"), cpu_s)


def _descendants(process: Path, proc: Path) -> Iterator[Path]:
    """Yield the folders of all descendants of a process; none if the system has no list of children."""
    for thread in _entries(process / "task"):
        with suppress(OSError):
            for number in (thread / "children").read_text().split():
                yield proc / number
                yield from _descendants(proc / number, proc)


def _received_bytes(descriptors: Path) -> dict[str, int]:
    """Return the bytes received by each TCP socket of this process."""
    received_by_socket: dict[str, int] = {}
    for path in _entries(descriptors):
        with suppress(OSError, ValueError):
            target = str(path.readlink())
            if not target.startswith("socket:"):
                continue
            # By libc, since a Python socket object could change the mode of the socket.
            info = ctypes.create_string_buffer(_TCP_INFO_BYTES_RECEIVED + 8)
            size = ctypes.c_uint32(len(info))
            getsockopt = ctypes.CDLL(None).getsockopt
            failed = getsockopt(int(path.name), socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(size))
            if not failed and size.value >= len(info):  # not another kind of socket, or an older system
                received_by_socket[target] = int(struct.unpack_from("=Q", info, _TCP_INFO_BYTES_RECEIVED)[0])
    return received_by_socket


def _entries(folder: Path) -> Iterable[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return ()
