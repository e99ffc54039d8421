"""The folder of a run: may it be used, who is using it, and what it begins with.

Floor 1: no torch, so that a folder that is in the way is said at once.
"""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from paratune.config.differences import differences
from paratune.errors import CheckpointError
from paratune.records import RUN_FILE, is_finished, read_json

Mode = Literal["new", "resume", "overwrite"]
LOCK_FILE = ".lock"
FREE_TO_CHANGE = (
    "run.folder",
    "run.name",
    "strategy",
    "device",
    "precision",
    "measure",
    "checkpoint",
    "data.cache_dir",
    "evaluate.batch_size",
    "batch.micro_batch_size",
    "batch.grad_accum_steps",
)
"""What may differ when a run is gone on with: it moves the arithmetic, not what is trained."""


def check_usable(folder: Path, mode: Mode) -> None:
    """Look whether a run may write into `folder`, before anything slow is done.

    Raises:
        CheckpointError: It holds a run and neither --resume nor --overwrite was said, or it is something else, or
            there can be no folder.
    """
    above = next((path for path in folder.parents if path.exists()), None)
    if above is not None and not above.is_dir():
        raise CheckpointError(f"{folder} cannot be made, because {above} is a file; change run.folder")
    if not folder.exists():
        return
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is a file; the run folder needs this name: change run.name or run.folder")
    if all(_is_beginning(path.name) for path in folder.iterdir()):
        return
    if not (folder / RUN_FILE).exists():
        raise CheckpointError(
            f"{folder} holds files but no run ({RUN_FILE} is missing); nothing of it was touched: change run.name"
        )
    if mode == "resume":
        if is_finished(folder):
            raise CheckpointError(f"{folder} holds a finished run; there is nothing to resume: change run.name")
        return
    if mode == "overwrite":
        return
    state = "a finished run" if is_finished(folder) else "an unfinished run (--resume goes on with it)"
    raise CheckpointError(f"{folder} already holds {state}; change run.name, or say --overwrite to delete it")


def check_same_run(
    folder: Path, values: Mapping[str, Any], *, global_batch_size: int, fingerprints: Mapping[str, str]
) -> None:
    """Look whether the configuration still trains what the run in `folder` trains.

    Args:
        folder: The run.
        values: The resolved configuration.
        global_batch_size: Samples per step with the present number of processes.
        fingerprints: Of each split's content.

    Raises:
        CheckpointError: It does not; all that differs is named.
    """
    record = read_json(folder / RUN_FILE)
    try:
        config, size, data = record["config"], record["batch"]["global_batch_size"], record["data"]
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / RUN_FILE} is damaged: it is no record of a run ({error!r})") from error
    changed = [
        f"  {key}: {before!r} then, {now!r} now"
        for key, before, now in differences(config, values)
        if not any(key == free or key.startswith(f"{free}.") for free in FREE_TO_CHANGE)
    ]
    if size != global_batch_size:
        changed.append(f"  global batch: {size} samples then, {global_batch_size} now (batch.global keeps it the same)")
    for split, about in data.items():
        if about is not None and about["fingerprint"] != fingerprints.get(split):
            changed.append(f"  data.{split}: the content of {about['source']} is not what it was")
    if changed:
        raise CheckpointError(
            f"{folder} was begun with another configuration, and cannot be gone on with:\n"
            + "\n".join(changed)
            + "\nchange run.name to train this one"
        )


def take(folder: Path, mode: Mode) -> FileLock:
    """Make the folder (emptied first, with overwrite) and hold it until the returned lock is released.

    Raises:
        CheckpointError: Another process is training in it, or it cannot be made or emptied.
    """
    lock = FileLock(folder / LOCK_FILE)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
        check_usable(folder, mode)  # another process may have trained here since the first look
        if mode == "overwrite":
            for path in folder.iterdir():
                if path.name != LOCK_FILE:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
    except Timeout as error:
        raise CheckpointError(f"{folder} is in use by another process that trains; change run.name") from error
    except CheckpointError:
        lock.release()
        raise
    except OSError as error:
        lock.release()
        raise CheckpointError(f"{folder} cannot be used: {error.strerror or error}; change run.folder") from error
    return lock


def _is_beginning(name: str) -> bool:
    """Return whether a file is one that a process leaves when it is killed before it has written run.json."""
    return name == LOCK_FILE or name.endswith(".tmp") or name.startswith(("log.rank", "events.rank"))
