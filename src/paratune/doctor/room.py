"""Checks of the disk space for checkpoints, the speed of disks, clocks, and the time limit."""

from collections.abc import Iterator

from paratune.base.units import format_bytes, format_duration, format_number
from paratune.doctor.finding import Finding
from paratune.doctor.setup import QueuedRun

STATE_BYTES = 12
"""Bytes per parameter of a checkpoint: the weight and both moments of AdamW in fp32; twice as many in fp64."""
SLOW_WRITE_S = 60.0
"""Time to write one checkpoint above which a disk is slow."""
MIN_READ_BYTES_PER_S = 20e6
MIN_FREE_FILES = 1000
SKEW_S = 5.0
"""Difference of two clocks above which times in records are inconsistent and builds of extensions fail."""


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
    needed, probes = needed_bytes(setup), setup.probes
    where = setup.where("run.folder")
    if needed is None:
        return
    free, quota = probes.run_storage.get("free_bytes"), probes.quota_free_bytes
    fact = f"the run needs up to {format_bytes(needed)} in {setup.machine.out_folder}"
    why = "If a checkpoint does not fit, the run ends (exit code 4)."
    keep = _fitting(setup, min((value for value in (free, quota) if value is not None), default=0))
    elsewhere = "run.folder: FOLDER_WITH_MORE_SPACE"
    line = f"checkpoint.keep: {keep}" if keep else elsewhere
    remedy = "or choose another folder with run.folder" if keep else ""
    if quota is not None and needed > quota:
        fact = f"{fact}, and your quota leaves {format_bytes(quota)}"
        yield Finding("quota", "problem", fact, why, remedy, where, line)
    elif free is not None and needed > free:
        fact = f"{fact}, and {format_bytes(free)} are free"
        yield Finding("checkpoint_room", "problem", fact, why, remedy, where, line)
    else:
        yield Finding("checkpoint_room", "ok", f"{fact}; {format_bytes(free)} are free", where=where)
    if probes.free_files is not None and probes.free_files < MIN_FREE_FILES:
        fact = f"{probes.free_files} more files can be created in {setup.machine.out_folder}"
        why = "A disk without free inodes is full, even with free bytes."
        remedy = "delete files, or choose another folder"
        yield Finding("free_files", "problem", fact, why, remedy, where, "run.folder: FOLDER")


def _fitting(setup: QueuedRun, free: int) -> int:
    """Return the largest smaller value of `checkpoint.keep` that fits into `free` bytes; 0 without one."""
    for keep in range(setup.config.checkpoint.keep - 1, 0, -1):
        needed = needed_bytes(setup, keep)
        if needed is not None and needed <= free:
            return keep
    return 0


def check_speed(setup: QueuedRun) -> Iterator[Finding]:
    count = setup.model.num_parameters if setup.model else None
    speed = setup.probes.run_bytes_per_s
    if count is not None and speed:
        seconds = count * STATE_BYTES / speed
        fact = (
            f"a checkpoint of {format_bytes(count * STATE_BYTES)} takes {format_duration(seconds)} to write at "
            f"{format_number(speed / 1e6, 3)} MB/s"
        )
        where = setup.where("run.folder")
        if seconds > SLOW_WRITE_S:
            why = "All ranks wait for it; one minute between signal and kill of a job is too short for it."
            line = "run.folder: FOLDER_ON_A_FASTER_DISK"
            yield Finding("slow_storage", "warning", fact, why, "", where, line)
        else:
            yield Finding("slow_storage", "ok", fact, where=where)
    for source, rate in setup.probes.data_bytes_per_s.items():
        if rate < MIN_READ_BYTES_PER_S:
            fact = f"{source} is read at {format_number(rate / 1e6, 3)} MB/s"
            why = "Reading and tokenizing wait for the disk; the tokens are cached."
            remedy = "copy it to a faster disk"
            yield Finding("slow_data", "warning", fact, why, remedy, source, "data.cache_dir: FOLDER_ON_A_FASTER_DISK")


def check_clocks(setup: QueuedRun) -> Iterator[Finding]:
    why = (
        "Times in records are inconsistent, and builds of extensions mistake new files for old ones: they wait, or "
        "compile every time."
    )
    line = "sudo systemctl restart chronyd"
    folder = setup.machine.out_folder
    skews = [(f"the file system under {folder}", str(folder), setup.probes.clock_skew_s or 0.0)]
    skews += [(node, node, seconds) for node, seconds in setup.probes.node_skew_s.items()]
    for clock, where, seconds in skews:
        if abs(seconds) > SKEW_S:
            ahead = "ahead of" if seconds > 0 else "behind"
            fact = f"the clock of {clock} is {abs(seconds):.0f} s {ahead} this machine's"
            yield Finding("clock_skew", "warning", fact, why, "", where, line)


def check_time_limit(setup: QueuedRun) -> Iterator[Finding]:
    limit = setup.start.time_limit_s
    if limit is None or setup.config.checkpoint.every != "never" or setup.config.measure.probe:
        return
    fact = f"the job ends after {format_duration(limit)}, and no checkpoint is saved before the end"
    why = "If a node fails, the run is lost; a checkpoint is written only if the signal arrives in time."
    where = setup.where("checkpoint.every")
    yield Finding("no_checkpoint", "warning", fact, why, "", where, "checkpoint.every: epoch")
