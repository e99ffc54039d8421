"""Is there room for the checkpoints, are the disks fast enough for them, and do the clocks agree."""

from collections.abc import Iterator

from paratune.base.units import format_bytes, format_duration, format_number
from paratune.doctor.finding import Finding, Level
from paratune.doctor.setup import QueuedRun

STATE_BYTES = 12
"""Of each parameter in a checkpoint: the weight and both moments of AdamW in fp32; twice that in fp64."""
SLOW_SHARE_S = 60.0
"""Seconds of writing one checkpoint from which on it is slow."""
MIN_READ_BYTES_PER_S = 20e6
MIN_FREE_FILES = 1000
SKEW_S = 5.0
"""Seconds between two clocks from which on records of a run contradict each other, and `make`-like builds fail."""


def needed_bytes(setup: QueuedRun, keep: int | None = None) -> int | None:
    """Return what the run folder will hold at most; None while the size of the model is not known.

    Args:
        setup: The run.
        keep: In the place of `checkpoint.keep`, where it is given.

    `checkpoint.keep` checkpoints stay while one more is written; with `evaluate.best` the best weights lie beside
    them; the model and its predictions come last.
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
    what = f"the run needs up to {format_bytes(needed)} in {setup.machine.out_folder}"
    why = "A checkpoint that does not fit ends the run (exit code 4)."
    keep = _fitting(setup, min((value for value in (free, quota) if value is not None), default=0))
    elsewhere = "run.folder: FOLDER_WITH_MORE_ROOM"
    line = f"checkpoint.keep: {keep}" if keep else elsewhere
    remedy = "or choose another folder with run.folder" if keep else ""
    if quota is not None and needed > quota:
        what = f"{what}, and your quota leaves {format_bytes(quota)}"
        yield Finding("quota", "problem", what, why, remedy, where, line)
    elif free is not None and needed > free:
        what = f"{what}, and {format_bytes(free)} are free"
        yield Finding("checkpoint_room", "problem", what, why, remedy, where, line)
    else:
        yield Finding("checkpoint_room", "ok", f"{what}; {format_bytes(free)} are free", where=where)
    if probes.free_files is not None and probes.free_files < MIN_FREE_FILES:
        what = f"{probes.free_files} more files may be made in {setup.machine.out_folder}"
        why = "A disk without free inodes is full, however many bytes are left."
        yield Finding(
            "free_files", "problem", what, why, "delete files, or choose another folder", where, "run.folder: FOLDER"
        )


def _fitting(setup: QueuedRun, free: int) -> int:
    """Return how many checkpoints may stay, fewer than now, so that all fits; 0 where none may."""
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
        what = (
            f"a checkpoint of {format_bytes(count * STATE_BYTES)} takes {format_duration(seconds)} to write at "
            f"{format_number(speed / 1e6, 3)} MB/s"
        )
        level: Level = "warning" if seconds > SLOW_SHARE_S else "ok"
        why = line = ""
        if level == "warning":
            why = "All ranks wait for it; a grace time of a minute before a job is killed is too short for it."
            line = "run.folder: FOLDER_ON_A_FASTER_DISK"
        yield Finding("slow_storage", level, what, why, "", setup.where("run.folder"), line)
    for source, rate in setup.probes.data_bytes_per_s.items():
        if rate < MIN_READ_BYTES_PER_S:
            what = f"{source} is read at {format_number(rate / 1e6, 3)} MB/s"
            why = "Reading and tokenizing wait for it; tokens are kept in the cache."
            remedy = "copy it to a faster disk"
            yield Finding("slow_data", "warning", what, why, remedy, source, "data.cache_dir: FOLDER_ON_A_FASTER_DISK")


def check_clocks(setup: QueuedRun) -> Iterator[Finding]:
    skew = setup.probes.clock_skew_s
    why = (
        "Times in the records contradict each other, and builds of extensions take new files for old ones and wait, "
        "or compile each time."
    )
    line = "sudo systemctl restart chronyd"
    if skew is not None and abs(skew) > SKEW_S:
        ahead = "ahead of" if skew > 0 else "behind"
        what = (
            f"the clock of the file system under {setup.machine.out_folder} is {abs(skew):.0f} s {ahead} this machine's"
        )
        yield Finding("clock_skew", "warning", what, why, "", str(setup.machine.out_folder), line)
    for node, seconds in setup.probes.node_skew_s.items():
        if abs(seconds) > SKEW_S:
            ahead = "ahead of" if seconds > 0 else "behind"
            what = f"the clock of {node} is {abs(seconds):.0f} s {ahead} this machine's"
            yield Finding("clock_skew", "warning", what, why, "", node, line)


def check_time_limit(setup: QueuedRun) -> Iterator[Finding]:
    limit = setup.start.time_limit_s
    if limit is None or setup.config.checkpoint.every != "never" or setup.config.measure.probe:
        return
    what = f"the job ends after {format_duration(limit)}, and no checkpoint is saved before the end"
    why = "If a node fails, all of it is lost; a checkpoint is written only when the signal arrives in time."
    where = setup.where("checkpoint.every")
    yield Finding("no_checkpoint", "warning", what, why, "", where, "checkpoint.every: epoch")
