"""Temporary folders that are deleted at the end of a block or, after a killed process, by the next one."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "paratune-scratch-"
MIN_AGE_S = 60.0
"""Younger folders are not deleted: their process may not have locked them yet."""


@contextmanager
def scratch_folder(parent: Path | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """Yield an empty folder that is deleted at the end of the block.

    Folders that killed processes left in `parent` are deleted first. A running process has a lock on its folder,
    which the system releases when the process ends; process numbers are not enough, because containers may share
    `parent`.

    Args:
        parent: The folder that contains it; default: the system's folder for temporary files.
        prefix: Start of its name; no other file in `parent` may start with it.

    Raises:
        OSError: It cannot be created.
    """
    _delete_left(Path(parent or tempfile.gettempdir()), prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks, where old folders are not deleted either
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            os.close(descriptor)


def _delete_left(parent: Path, prefix: str) -> None:
    for folder in parent.glob(f"{prefix}*"):
        with suppress(OSError):  # another user's, or deleted by another process at this moment
            if time.time() - folder.stat().st_mtime < MIN_AGE_S:
                continue
            descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(descriptor)
