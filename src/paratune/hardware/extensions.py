"""Where torch keeps what it compiles, and what killed compilations leave there: locks, and libraries that are torn.

A lock is an empty file that the compiling process holds open and deletes at its end. Whoever else wants the same
extension waits until the file is gone - for ever, if the process was killed. torch.compile takes a library that is
there for one that is whole, and fails to load a torn one in every later run.

Beside floor 1: no torch.
"""

import getpass
import os
import re
import struct
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paratune.hardware import describe_storage

LONG_S = 1800.0
"""No extension takes longer than this to compile."""
GRACE_S = 10.0
"""Seconds within which a lock may be between two states."""
_PROC = Path("/proc")


@dataclass(frozen=True)
class BuildLock:
    """A lock of a compilation."""

    path: Path
    age_s: float
    process: int | None
    """That has it open, on this machine; None when there is none, or none that can be seen."""
    is_stale: bool
    """Whether nobody will ever delete it."""

    def describe(self) -> str:
        holder = "no process has it open" if self.process is None else f"process {self.process} has it open"
        return f"{self.path} is {self.age_s:.0f} s old, and {holder}"


def extensions_folder(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> Path:
    """Return the folder under which torch keeps compiled extensions, existing or not."""
    if named := environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(named)
    cache = environ.get("XDG_CACHE_HOME") or (home or Path.home()) / ".cache"
    return Path(cache) / "torch_extensions"


def find_locks(folder: Path, name: str = "*", proc: Path = _PROC) -> list[BuildLock]:
    """Return the locks under `folder`, or those of the extension called `name`."""
    return [lock for path in sorted(folder.glob(f"**/{name}/lock")) if (lock := _look_at(path, proc)) is not None]


def is_compiled(folder: Path, name: str) -> bool:
    """Say whether an extension has been compiled before; torch may still find that its sources have changed."""
    return next(folder.glob(f"**/{name}/{name}.so"), None) is not None


def inductor_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the folder in which torch.compile keeps its libraries, existing or not."""
    if named := environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(named)
    user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    return Path(environ.get("TMPDIR") or tempfile.gettempdir()) / f"torchinductor_{user}"


def torn_libraries(folder: Path, proc: Path = _PROC) -> list[Path]:
    """Return the libraries of torch.compile that are empty or cut off, and that nobody is at work on."""
    torn = [path for path in sorted(folder.glob("*/*.so")) if _is_torn(path)]
    return [path for path in torn if _who_has_open(path, proc) is None]


def _is_torn(path: Path) -> bool:
    """Return whether a library was not written to its end: linkers put the table of its sections last.

    Source: System V Application Binary Interface, ELF Header: e_shoff at byte 40, e_shentsize at 58, e_shnum at 60 of
        the 64 of a 64-bit file; EI_DATA at 5.
    """
    try:
        status = path.stat()
        if time.time() - status.st_mtime < GRACE_S:
            return False
        with path.open("rb") as file:
            header = file.read(64)
    except OSError:  # deleted meanwhile, or another user's
        return False
    if status.st_size == 0 or sys.platform != "linux":
        return status.st_size == 0
    if len(header) < 64 or header[:4] != b"\x7fELF":
        return True
    order = ">" if header[5] == 2 else "<"
    (table,) = struct.unpack_from(f"{order}Q", header, 40)
    entry, count = struct.unpack_from(f"{order}HH", header, 58)
    return bool(header[4] == 2 and table + entry * count > status.st_size)


def _look_at(path: Path, proc: Path) -> BuildLock | None:
    try:
        status = path.stat()
    except OSError:  # it was deleted meanwhile
        return None
    age_s = max(0.0, time.time() - status.st_mtime)
    process = _who_has_open(path, proc)
    # Processes of other users, and of other machines that share the folder, cannot be seen.
    can_tell = (
        (proc / "self" / "fd").is_dir()
        and (os.getuid() in (0, status.st_uid))
        and describe_storage(path)["kind"] != "network"
    )
    is_stale = process is None and age_s > (GRACE_S if can_tell else LONG_S)
    return BuildLock(path, age_s, process, is_stale)


def _who_has_open(path: Path, proc: Path) -> int | None:
    real = os.path.realpath(path)
    for process, link in _open_files(proc):
        if link == real:
            return process
    return None


def _open_files(proc: Path) -> Iterator[tuple[int, str]]:
    for folder in proc.glob("[0-9]*/fd"):
        with suppress(OSError):  # another user's, or gone
            for entry in list(folder.iterdir()):
                with suppress(OSError):  # closed meanwhile
                    yield int(folder.parent.name), os.readlink(entry)  # noqa: PTH115 - what it says, not a path
