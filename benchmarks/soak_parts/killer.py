"""Orders for `killer.c`: the file operation of a trial at which it sends a signal."""

import ctypes
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("killer.c")
VARIABLE = "SOAK_ORDER"
"""Environment variable with the file of the order, for new programs."""
BEFORE, WITHIN, AFTER = MOMENTS = range(3)
_FORMAT = "6Q4096s"
_SIZE = struct.calcsize(_FORMAT)


@dataclass(frozen=True)
class Order:
    """One signal at one file operation; `at` 0 only counts operations."""

    at: int = 0
    """1 is the first operation below the folder, over all processes of the trial."""
    number: int = 0
    """Number of the signal."""
    moment: int = BEFORE
    """One of `MOMENTS`: before the operation, after a part of the bytes of a write, or after the operation."""
    part: int = 500
    """Thousandths of the bytes of a write, for WITHIN."""


def build(folder: Path) -> Path | None:
    """Compile the library into a folder; None without a C compiler, or on other systems than Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not Path("/proc/self/fd").exists():
        return None
    library = folder / "killer.so"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    completed = subprocess.run(command, capture_output=True)
    return library if completed.returncode == 0 else None


def is_loaded(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this process was started with the library."""
    return "killer.so" in environ.get("LD_PRELOAD", "")


def write_order(path: Path, order: Order, folder: Path) -> None:
    """Write the file of an order about operations below a folder."""
    name = str(folder.resolve()).encode()
    path.write_bytes(struct.pack(_FORMAT, 0, order.at, 0, order.part, order.moment, order.number, name))


def arm(path: Path) -> None:
    """Let this process, and processes that it starts, follow an order."""
    os.environ[VARIABLE] = str(path)
    if ctypes.CDLL(None).soak_arm(os.fsencode(path)) != 0:
        raise OSError(f"{path} is not an order")


def counts(path: Path) -> tuple[int, int]:
    """Return the operations so far, and the signals sent, 0 or 1."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), _SIZE, access=mmap.ACCESS_READ) as memory:
        values = struct.unpack(_FORMAT, memory[:_SIZE])
    return int(values[0]), int(values[2])
