"""Checks of the folders for runs and for the cache: free space, speed, and who can read them."""

import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paratune import hardware
from paratune.base.units import GIB, MIB, format_bytes, format_number
from paratune.doctor.finding import Finding, Level, MachineFacts
from paratune.doctor.setup import QueuedRun

MIN_FREE_BYTES = GIB
"""The demo model needs it: 22.7e6 parameters x 12 bytes = 0.27 GB a checkpoint; two are kept while a third is
written, and 0.09 GB for the model."""
LOW_FREE_BYTES = 5 * GIB
"""A BERT-base checkpoint is 110e6 parameters x 12 bytes = 1.3 GB; three at a time, plus the model."""
SLOW_DISK_BYTES_PER_S = 50e6
PROBE_BYTES = 16 * MIB
STATE_BYTES = 12
"""Bytes per parameter of a checkpoint: the weight and both moments of AdamW in fp32; twice as many in fp64."""
LOCAL_FILESYSTEMS = frozenset({"btrfs", "ext3", "ext4", "overlay", "xfs", "zfs"})


def check_disks(machine: MachineFacts) -> Iterator[Finding]:
    for code, folder in (("run_disk", machine.out_folder), ("cache_disk", machine.cache_folder)):
        yield from judge_disk(code, folder, hardware.describe_storage(folder), probe_write(folder))


def judge_disk(code: str, folder: Path, storage: Mapping[str, Any], bytes_per_s: float | str) -> Iterator[Finding]:
    """Yield the finding for a folder; only run_disk needs space for checkpoints, cache_disk does not.

    From the results of `hardware.describe_storage` and `probe_write`.
    """
    title, line = "cache", "export PARATUNE_CACHE=FOLDER"
    if code == "run_disk":
        title, line = "run folder", "run.folder: FOLDER"
    remedy = "a writable folder with more space"
    if isinstance(bytes_per_s, str):
        fact = f"{title} {folder} cannot be written: {bytes_per_s}"
        yield Finding(code, "problem", fact, "Every run needs it.", remedy, line=line)
        return
    level: Level = "warning"
    free, why = storage["free_bytes"], ""
    if free is not None and free < MIN_FREE_BYTES:
        level, why = "problem", "Not even the checkpoints of the smallest model fit."
    elif free is not None and free < LOW_FREE_BYTES and code == "run_disk":
        why = "Three checkpoints of a BERT-base (1.3 GB each) and the model need 4.4 GB."
    elif storage["kind"] == "memory":
        why = "Its files use memory, and are lost at the next start."
    elif bytes_per_s < SLOW_DISK_BYTES_PER_S and code == "run_disk":
        why = f"A checkpoint of a BERT-base (1.3 GB) takes {1.3e9 / bytes_per_s:.0f} s to write."
    if why:
        kind = storage["kind"] or storage["filesystem"] or "storage of unknown kind"
        speed = format_number(bytes_per_s / 1e6, 2)
        fact = f"{title} {folder}: {format_bytes(free)} free on {kind}, writes {speed} MB/s"
        yield Finding(code, level, fact, why, remedy, line=line)


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


def needed_bytes(setup: QueuedRun, keep: int | None = None) -> int | None:
    """Return the maximum size of the run folder; None if the size of the model is unknown.

    `checkpoint.keep` checkpoints are kept while one more is written; `evaluate.best` adds the best weights, and the end
    of the run the model.

    `keep` replaces `checkpoint.keep`.
    """
    count = setup.model.num_parameters if setup.model else None
    if count is None:
        return None
    config, value_bytes = setup.config, 8 if setup.config.precision == "fp64" else 4
    if config.measure.probe:
        return 0
    num_checkpoints = 1 if config.checkpoint.every == "never" else (keep or config.checkpoint.keep) + 1
    num_models = 1 + (2 if config.evaluate.best is not None else 0)
    return count * value_bytes * (num_checkpoints * STATE_BYTES // 4 + num_models)


def check_room(setup: QueuedRun) -> Iterator[Finding]:
    needed, free = needed_bytes(setup), setup.probes.run_storage.get("free_bytes")
    if needed is None or free is None or needed <= free:
        return
    fact = (
        f"the run needs up to {format_bytes(needed)} in {setup.machine.out_folder}, and {format_bytes(free)} are free"
    )
    why = "If a checkpoint does not fit, the run ends (exit code 4)."
    smaller = range(setup.config.checkpoint.keep - 1, 0, -1)
    keep = next((keep for keep in smaller if (needed_bytes(setup, keep) or 0) <= free), None)
    remedy, line = "", "run.folder: FOLDER_WITH_MORE_SPACE"
    if keep is not None:
        remedy, line = "or choose another folder with run.folder", f"checkpoint.keep: {keep}"
    yield Finding("checkpoint_room", "problem", fact, why, remedy, setup.where("run.folder"), line)


def check_nodes_share(setup: QueuedRun) -> Iterator[Finding]:
    """Check whether all nodes can read the run folder."""
    storage = setup.probes.run_storage
    is_local = storage.get("kind") in ("memory", "nvme", "ssd", "hdd") or storage.get("filesystem") in LOCAL_FILESYSTEMS
    if not is_local or (setup.start.num_nodes < 2 and not setup.start.is_elsewhere):
        return
    fact = f"the run folder {setup.machine.out_folder} is on a disk of this node ({storage['filesystem']})"
    why = "Other nodes cannot read it: after a requeue, the first node may be another one, without the checkpoints."
    where, line = setup.where("run.folder"), "run.folder: FOLDER_THAT_ALL_NODES_SHARE"
    # On the file server itself, shared disks look local.
    level: Level = "warning" if setup.start.is_elsewhere else "problem"
    yield Finding("run_folder_local", level, fact, why, "", where, line)
