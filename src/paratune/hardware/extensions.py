"""Finds the stale locks that killed compilations of extensions leave in the cache of torch.

A lock is an empty file that the compiling process keeps open and deletes at its end. Other processes that need the same
extension wait until the file is deleted: forever, if the process was killed.
"""

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paratune.hardware import describe_storage

LONG_S = 1800.0
"""Longest compilation of an extension."""
GRACE_S = 10.0
"""Younger locks are not judged."""
_PROC = Path("/proc")


@dataclass(frozen=True)
class BuildLock:
    """A lock of a compilation."""

    path: Path
    age_s: float
    process: int | None
    """Process of this machine that has it open; None when there is none, or none that is visible."""
    is_stale: bool
    """Whether no process will delete it."""

    def describe(self) -> str:
        holder = "no process has it open" if self.process is None else f"process {self.process} has it open"
        return f"{self.path} is {self.age_s:.0f} s old, and {holder}"


def extensions_folder() -> Path:
    """Return torch's folder of compiled extensions, which may not exist."""
    if named := os.environ.get("TORCH_EXTENSIONS_DIR"):
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "torch_extensions"


def find_locks(folder: Path, name: str = "*", proc: Path = _PROC) -> list[BuildLock]:
    """Return the locks under `folder`, or those of the extension called `name`."""
    return [lock for path in sorted(folder.glob(f"**/{name}/lock")) if (lock := _read_lock(path, proc)) is not None]


def is_compiled(folder: Path, name: str) -> bool:
    """Return whether an extension has been compiled before; torch compiles again if its sources have changed."""
    return next(folder.glob(f"**/{name}/{name}.so"), None) is not None


def _read_lock(path: Path, proc: Path) -> BuildLock | None:
    try:
        status = path.stat()
    except OSError:  # deleted meanwhile
        return None
    age_s = max(0.0, time.time() - status.st_mtime)
    process = _who_has_open(path, proc)
    # Processes of other users, and of other machines that share the folder, are not visible.
    sees_processes = (
        (proc / "self" / "fd").is_dir()
        and (os.getuid() in (0, status.st_uid))
        and describe_storage(path)["kind"] != "network"
    )
    is_stale = process is None and age_s > (GRACE_S if sees_processes else LONG_S)
    return BuildLock(path, age_s, process, is_stale)


def _who_has_open(path: Path, proc: Path) -> int | None:
    real = os.path.realpath(path)
    for folder in proc.glob("[0-9]*/fd"):
        with suppress(OSError):  # of another user, or ended
            for entry in list(folder.iterdir()):
                with suppress(OSError):  # closed meanwhile
                    if os.readlink(entry) == real:  # noqa: PTH115 - the text, not a path
                        return int(folder.parent.name)
    return None
