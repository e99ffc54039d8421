"""Checks of the free space and the speed of the disks for runs and the cache."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paratune import hardware
from paratune.base.units import GIB, MIB, format_bytes, format_number
from paratune.doctor.finding import HERE, Finding, Level, MachineFacts

MIN_FREE_BYTES = GIB
"""The demo model needs it: 22.7e6 parameters x 12 bytes = 0.27 GB a checkpoint; two are kept while a third is
written, and 0.09 GB for the model."""
LOW_FREE_BYTES = 5 * GIB
"""A BERT-base checkpoint is 110e6 parameters x 12 bytes = 1.3 GB; three at a time, plus the model."""
SLOW_DISK_BYTES_PER_S = 50e6
PROBE_BYTES = 16 * MIB


def check_disks(machine: MachineFacts) -> Iterator[Finding]:
    for code, folder in (("run_disk", machine.out_folder), ("cache_disk", machine.cache_folder)):
        yield judge_disk(code, folder, hardware.describe_storage(folder), probe_write(folder))


def judge_disk(code: str, folder: Path, storage: Mapping[str, Any], bytes_per_s: float | str) -> Finding:
    """Return the finding for a folder; only run_disk needs space for checkpoints, cache_disk does not.

    From the results of `hardware.describe_storage` and `probe_write`.
    """
    title, setting = {"run_disk": ("run folder", "run.folder"), "cache_disk": ("cache", "PARATUNE_CACHE")}[code]
    line = f"{setting}: FOLDER" if code == "run_disk" else f"export {setting}=FOLDER"
    remedy = "a writable folder with more space"
    if isinstance(bytes_per_s, str):
        fact = f"{title} {folder} cannot be written: {bytes_per_s}"
        return Finding(code, "problem", fact, "Every run needs it.", remedy, line=line)
    free, kind = storage["free_bytes"], storage["kind"] or storage["filesystem"] or "storage of unknown kind"
    speed = format_number(bytes_per_s / 1e6, 2)
    level, why = _level(code, free, kind, bytes_per_s)
    fact = f"{title} {folder}: {format_bytes(free)} free on {kind}, writes {speed} MB/s"
    return Finding(code, level, fact, why, *(("", HERE, "") if level == "ok" else (remedy, HERE, line)))


def _level(code: str, free: int | None, kind: str, bytes_per_s: float) -> tuple[Level, str]:
    if free is not None and free < MIN_FREE_BYTES:
        why = "Not even the checkpoints of the smallest model fit." if code == "run_disk" else "It is nearly full."
        return "problem", why
    if free is not None and free < LOW_FREE_BYTES and code == "run_disk":
        return "warning", "Three checkpoints of a BERT-base (1.3 GB each) and the model need 4.4 GB."
    if kind == "memory":
        return "warning", "Its files use memory, and are lost at the next start."
    if bytes_per_s < SLOW_DISK_BYTES_PER_S and code == "run_disk":
        return "warning", f"A checkpoint of a BERT-base (1.3 GB) takes {1.3e9 / bytes_per_s:.0f} s to write."
    return "ok", ""


def probe_write(folder: Path, num_bytes: int = PROBE_BYTES) -> float | str:
    """Return the bytes per second of writing and syncing a file in the folder (or its nearest parent), or the error.

    The file has no name, so that nothing remains.
    """
    chunk = os.urandom(MIB)
    try:
        with tempfile.TemporaryFile(dir=hardware.nearest_existing(folder)) as file:
            start = time.perf_counter()
            for _ in range(num_bytes // MIB):
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
            return num_bytes / (time.perf_counter() - start)
    except OSError as error:
        return error.strerror or str(error)
