"""The folder of a run: may it be used, who is using it, and what it begins with.

Floor 1: no torch, so that a folder that is in the way is said at once.
"""

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from paratune.base import atomic
from paratune.config.differences import differences, flatten
from paratune.errors import CheckpointError
from paratune.records import RUN_COPY, RUN_FILE, is_finished, read_json, read_run, write_json

Mode = Literal["new", "resume", "overwrite"]
LOCK_FILE = ".lock"
SLURM_FOLDER = "slurm"
"""Holds the batch scripts of a run, which are there before it, and what Slurm's jobs print."""
_ASIDE = "overwritten"
"""Name of what is about to be deleted, as a temporary one."""
LOOK_S = 0.5
"""Seconds for which one who takes a folder tries again: `is_in_use`, asked elsewhere, holds the lock for an instant."""
FREE_TO_CHANGE = (
    "run.folder",
    "run.name",
    "run.hang_timeout_s",
    "strategy",
    "device",
    "precision",
    "measure",
    "trackers",
    "checkpoint",
    "data.cache_dir",
    "data.figures",
    "data.num_workers",
    "data.prefetch_factor",
    "evaluate.batch_size",
    "batch",
    "train.activation_checkpointing",
    "train.compile",
    "train.deterministic",
)
"""What may differ when a run is gone on with: it moves the arithmetic, not what is trained. Of the batch, the samples
of a step, over all ranks, are compared by themselves."""

DECISIVE = {"strategy.param_dtype": "fp32"}
"""Options in free sections that decide what is trained all the same, with what holds where a strategy has none: passes
over weights of 16 bits round what passes under autocast keep in fp32."""


def check_usable(folder: Path, mode: Mode) -> None:
    """Look whether a run may write into `folder`, before anything slow is done; nothing is made or changed.

    Every rank looks by itself, before it meets the others: one that only rank 0 refused would wait for it. They see the
    same, because rank 0 writes nothing there until all have met.

    Raises:
        CheckpointError: It holds a run and neither --resume nor --overwrite was said, or it is something else, or
            another process trains in it, or there can be no folder or no file in it.
    """
    _check_free(folder)
    _check_content(folder, mode)
    _check_writable(folder)


def _check_content(folder: Path, mode: Mode) -> None:
    above = next((path for path in folder.parents if path.exists()), None)
    if above is not None and not above.is_dir():
        raise CheckpointError(
            f"{folder} cannot be made, because {above} is a file; change run.folder",
            code="run.folder_taken",
            folder=folder,
        )
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is a file; the run folder needs this name: change run.name or run.folder",
            code="run.folder_taken",
            folder=folder,
        )
    if all(_is_beginning(path.name) for path in folder.iterdir()):
        return
    if not (folder / RUN_FILE).exists():
        raise CheckpointError(
            f"{folder} holds files but no run ({RUN_FILE} is missing); nothing of it was touched: change run.name",
            code="run.folder_taken",
            folder=folder,
        )
    if mode == "resume":
        if is_finished(folder):
            raise CheckpointError(
                f"{folder} holds a finished run; there is nothing to resume: change run.name",
                code="run.finished",
                folder=folder,
            )
        return
    if mode == "overwrite":
        return
    state = "a finished run" if is_finished(folder) else "an unfinished run (--resume continues it)"
    raise CheckpointError(
        f"{folder} already holds {state}; change run.name, or use --overwrite to delete it",
        code="run.exists",
        folder=folder,
    )


def state_of(folder: Path) -> Literal["finished", "unfinished", "foreign"] | None:
    """Return what a folder holds already: a run, or files that are none; None for nothing that is in the way."""
    if is_finished(folder):
        return "finished"
    if (folder / RUN_FILE).exists():
        return "unfinished"
    try:
        is_free = not folder.exists() or all(_is_beginning(path.name) for path in folder.iterdir())
    except OSError:  # a file, or a folder that may not be looked into
        return "foreign"
    return None if is_free else "foreign"


def is_in_use(folder: Path) -> bool:
    """Return whether a process trains in a folder, which need not be there."""
    try:
        _check_free(folder)
    except CheckpointError:
        return True
    return False


def _check_free(folder: Path) -> None:
    """Look whether nobody trains there. Shared, so that ranks that look at one time do not see each other."""
    try:
        with (folder / LOCK_FILE).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _in_use(folder) from error
    except OSError:  # no lock file; or no locks on this file system, which `take` says
        return


def _check_writable(folder: Path) -> None:
    place = next((path for path in (folder, *folder.parents) if path.exists()), Path())
    try:
        # Asking for permission is not enough: it is granted to root on a disk that is read-only or full.
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise _unusable(folder, error) from error


def check_same_run(
    folder: Path,
    values: Mapping[str, Any],
    *,
    global_batch_size: int | None = None,
    fingerprints: Mapping[str, str] | None = None,
) -> None:
    """Look whether the configuration still trains what the run in `folder` trains; a folder without one is fine.

    Args:
        folder: The run.
        values: The resolved configuration.
        global_batch_size: Samples per step with the present number of processes; None while that is not known.
        fingerprints: Of each split's content; None while the data has not been read.

    Raises:
        CheckpointError: It does not; all that differs is named.
    """
    if not (folder / RUN_FILE).exists():
        return
    record = read_run(folder)
    try:
        config, size, data = record["config"], record["batch"]["global_batch_size"], record["data"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(
            f"{folder / RUN_FILE} is damaged: it is not the record of a run ({error!r})", code="run.damaged"
        ) from error
    changed = [
        f"  {key}: {before!r} then, {now!r} now"
        for key, before, now in differences(_with_decisive(config), _with_decisive(values))
        if not _is_free(key)
    ]
    if size is not None and global_batch_size not in (None, size):  # a baseline has no batch
        changed.append(f"  global batch: {size} samples then, {global_batch_size} now (batch.global keeps it the same)")
    for split, about in data.items():
        if fingerprints is not None and about is not None and about["fingerprint"] != fingerprints.get(split):
            changed.append(f"  data.{split}: the content of {about['source']} is not what it was")
    if changed:
        raise CheckpointError(
            f"{folder} was started with another configuration and cannot be resumed with this one:\n"
            + "\n".join(changed)
            + "\nchange run.name to train this one",
            code="run.other_configuration",
        )


def take(folder: Path, mode: Mode) -> FileLock:
    """Make the folder (emptied first, with overwrite) and hold it until the returned lock is released.

    Raises:
        CheckpointError: Another process is training in it, or it cannot be made or emptied.
    """
    lock = FileLock(folder / LOCK_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=LOOK_S)
        _check_content(folder, mode)  # another process may have trained here since the first look
        _undo_emptying(folder)
        atomic.delete_remains(folder)
        if mode == "overwrite":
            _empty(folder)
        else:
            _mend_run_file(folder)
    except Timeout as error:
        raise _in_use(folder) from error
    except CheckpointError:
        lock.release()
        raise
    except OSError as error:
        lock.release()
        raise _unusable(folder, error) from error
    return lock


def _mend_run_file(folder: Path) -> None:
    """Write run.json anew from its copy, where it is damaged."""
    if not (folder / RUN_FILE).exists():
        return
    try:
        read_json(folder / RUN_FILE)
    except CheckpointError:
        write_json(folder / RUN_FILE, read_run(folder))


def _undo_emptying(folder: Path) -> None:
    """Move back what `_empty` moved aside and could not, because the disk failed or the process was killed."""
    for aside in folder.glob(f".{_ASIDE}.*{atomic.SUFFIX}"):
        # run.json is moved last: where it is aside, nothing of that run is to stay.
        if not (folder / RUN_FILE).exists() or (aside / RUN_FILE).exists():
            continue
        for path in aside.iterdir():
            if not os.path.lexists(folder / path.name):
                path.rename(folder / path.name)


def _empty(folder: Path) -> None:
    """Delete a run, all of it or nothing; links are deleted, and what they lead to stays.

    All is moved into a hidden folder first, run.json last: whoever is killed meanwhile leaves a run that can be
    overwritten, or an empty folder.

    Raises:
        OSError: Something cannot be moved; all is where it was.
    """
    old = [path for path in folder.iterdir() if path.name not in (LOCK_FILE, SLURM_FOLDER)]
    old.sort(key=lambda path: path.name == RUN_FILE)
    aside = atomic.temporary_path(folder / _ASIDE)
    aside.mkdir()
    moved: list[Path] = []
    try:
        for path in old:
            path.rename(aside / path.name)
            moved.append(path)
    except OSError:
        for path in reversed(moved):
            (aside / path.name).rename(path)
        aside.rmdir()
        raise
    shutil.rmtree(aside)


def _in_use(folder: Path) -> CheckpointError:
    return CheckpointError(
        f"{folder} is in use by another process that trains; change run.name", code="run.in_use", folder=folder
    )


def _unusable(folder: Path, error: OSError) -> CheckpointError:
    return CheckpointError(
        f"{folder} cannot be used: {error.strerror or error}; change run.folder", code="run.not_writable", folder=folder
    )


def _is_beginning(name: str) -> bool:
    """Return whether a file is one that is there before run.json: of its job, or of a process that was killed early."""
    is_ours = name in (LOCK_FILE, SLURM_FOLDER, RUN_COPY) or name.endswith(atomic.SUFFIX)
    return is_ours or name.startswith(("log.rank", "events.rank"))


def trained_fingerprint(values: Mapping[str, Any]) -> str:
    """Return the SHA-256, in hexadecimal, of the options that decide what is trained: all but FREE_TO_CHANGE.

    DECISIVE options count where they are not what holds without them, so that older runs keep their fingerprints.
    """
    flat = flatten(values)
    kept = {key: value for key, value in flat.items() if not _is_free(key) and value != DECISIVE.get(key)}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _with_decisive(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves of a configuration by dotted key, with all DECISIVE options."""
    return {**DECISIVE, **flatten(values)}


def _is_free(key: str) -> bool:
    return key not in DECISIVE and any(key == free or key.startswith(f"{free}.") for free in FREE_TO_CHANGE)
