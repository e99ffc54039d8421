"""Folders for the time of a block, which do not stay when the process is killed."""

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
"""Younger folders are left alone: their process may not have locked them yet."""


@contextmanager
def scratch_folder(parent: Path | None = None, prefix: str = PREFIX) -> Iterator[Path]:
    """Yield an empty folder that is deleted at the end of the block.

    Folders beside it that killed processes left are deleted first. A process that runs holds a lock on its folder,
    which the system releases when it ends; process numbers would not do, because containers may share such a folder.

    Args:
        parent: Where it is made; the system's folder for temporary files when not given.
        prefix: Of its name; nothing else in `parent` may begin like this.

    Raises:
        OSError: It cannot be made.
    """
    _delete_left(Path(parent or tempfile.gettempdir()), prefix)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=parent) as name:
        descriptor = os.open(name, os.O_RDONLY)
        try:
            with suppress(OSError):  # a file system without locks; then nothing of it is deleted either
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
