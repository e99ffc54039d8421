"""Files and folders that are written whole or not at all, also when the process is killed or the power fails.

What is new is written beside its place under a temporary name, synchronized to the disk, and renamed; then the folder
that holds it is synchronized, because a rename is kept by a power cut only after that. Temporary names begin with a dot
and end with `.tmp`. A process that was killed leaves them. Run folders, checkpoints, corpus stages and the
corpus database call `delete_remains` before they write; beside other outputs, such as a file of predictions, they stay.

Floor 0: standard library only.

Source: the order of calls is that of T. S. Pillai et al., All File Systems Are Not Created Equal, OSDI 2014, section 2.
"""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SUFFIX = ".tmp"
OLD = ".old"
"""Before `SUFFIX`: a folder that is about to be replaced."""


def temporary_path(path: Path) -> Path:
    """Return the name under which this process writes what will be `path`: in the same folder, hidden."""
    return path.with_name(f".{path.name}.{os.getpid()}{SUFFIX}")


@contextmanager
def replace_file(path: Path, *, is_durable: bool = True) -> Iterator[Path]:
    """Yield a path to write to; when the block ends, the file there becomes `path`, which it replaces.

    An exception in the block deletes the temporary file and leaves `path` as it was.

    Args:
        path: Its folder must exist.
        is_durable: Whether the file must survive a power cut; not for what is useless after the machine has stopped.

    Raises:
        OSError: The file cannot be synchronized or renamed; `path` is as it was.
    """
    temporary = temporary_path(path)
    try:
        yield temporary
        if is_durable:
            sync(temporary)
        temporary.replace(path)
        if is_durable:
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):  # on a read-only file system unlink raises even where there is no such file
            temporary.unlink(missing_ok=True)


@contextmanager
def replace_folder(folder: Path, *, is_new: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill; when the block ends, it becomes `folder`, which it replaces.

    What stood there before is deleted only after the new one has its name. An exception in the block deletes the
    temporary folder and leaves `folder` as it was.

    Args:
        folder: Its parents are made.
        is_new: Whether `folder` must be missing or empty; OSError is raised where it is not.

    Raises:
        OSError: A file cannot be synchronized or renamed; `folder` is as it was.
    """
    folder = folder.resolve() if folder.is_symlink() else folder
    temporary, previous = temporary_path(folder), folder.with_name(f".{folder.name}.{os.getpid()}{OLD}{SUFFIX}")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            sync(path)
        if folder.exists() and not is_new:
            folder.rename(previous)
        temporary.rename(folder)
        _sync_folder(folder.parent)
    finally:
        _settle(previous, folder)
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, whole or not at all; `path` is replaced when it exists.

    Raises:
        OSError: It cannot be written; `path` is as it was.
    """
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete_remains(folder: Path, *, is_locked: bool = False) -> None:
    """Delete what killed processes left under temporary names in a folder.

    A folder that was moved aside to be replaced, and was not, gets its name back. What processes of this machine that
    still run are writing stays, and subfolders with other names are not searched.

    Args:
        folder: Where to look.
        is_locked: Whether a lock keeps all others from writing there: then a process that still runs is about to end.
    """
    for path in folder.glob(f".*{SUFFIX}"):
        name, _, number = path.name.removesuffix(SUFFIX).removesuffix(OLD).rpartition(".")
        if not is_locked and number.isdigit() and int(number) != os.getpid() and _is_running(number):
            continue
        if path.name.endswith(f"{OLD}{SUFFIX}"):
            _settle(path, path.with_name(name.removeprefix(".")))
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def _is_running(number: str) -> bool:
    """Say whether a process of this machine runs; one that has ended and that nobody has waited for does not."""
    try:
        state = Path("/proc", number, "stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state not in ("Z", "X")


def _settle(previous: Path, folder: Path) -> None:
    """Delete what a folder replaced; where nothing has its name, the replaced one gets it back."""
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
    elif previous.exists():
        with suppress(OSError):
            previous.rename(folder)


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the file system does that and the folder may be read."""
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise
