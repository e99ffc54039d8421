"""Writes files and folders atomically: complete or not at all, also when the process is killed or the power fails.

New content is written next to its place with a temporary name, synchronized to the disk, and renamed; then its folder
is synchronized, because only that makes a rename survive a power cut. Temporary names start with a dot and end with
`.tmp`. A killed process leaves them; the next process that writes the same file or folder deletes them. Run folders,
checkpoints and corpus stages call `delete_remains`, which deletes all of them in a folder.

Files have the mode of the umask, whichever library wrote them.

Source: the order of calls is that of T. S. Pillai et al., All File Systems Are Not Created Equal, OSDI 2014, section 2.
"""

import errno
import glob
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from paratune.base.process_state import is_running

SUFFIX = ".tmp"
OLD = ".old"
"""Before `SUFFIX` in the name of a folder that is about to be replaced."""


def temporary_path(path: Path) -> Path:
    """Return the temporary name of `path` for this process: hidden, in the same folder."""
    return path.with_name(f".{path.name}.{os.getpid()}{SUFFIX}")


@contextmanager
def replace_file(path: Path, *, is_durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path to write to; at the end of the block the file replaces `path`.

    An exception in the block deletes the temporary file and does not change `path`.

    Args:
        path: Its folder must exist.
        is_durable: Whether the file must survive a power cut; False for files that are useless after a restart.

    Raises:
        OSError: The file cannot be synchronized or renamed; `path` is unchanged.
    """
    temporary = temporary_path(path)
    if is_durable:  # other files are written every few seconds
        delete_remains(path.parent, name=path.name)
    try:
        yield temporary
        use_umask(temporary)
        if is_durable:
            sync(temporary)
        temporary.replace(path)
        if is_durable:
            _sync_folder(path.parent)
    finally:
        with suppress(OSError):  # on a read-only file system unlink raises even for a missing file
            temporary.unlink(missing_ok=True)


@contextmanager
def replace_folder(folder: Path, *, is_new: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill; at the end of the block it replaces `folder`.

    The old folder is deleted only after the new one has its name. An exception in the block deletes the temporary
    folder and does not change `folder`.

    Args:
        folder: Its parents are created.
        is_new: Whether `folder` must be missing or empty; otherwise OSError is raised.

    Raises:
        OSError: A file cannot be synchronized or renamed; `folder` is unchanged.
    """
    folder = folder.resolve() if folder.is_symlink() else folder
    temporary, previous = temporary_path(folder), folder.with_name(f".{folder.name}.{os.getpid()}{OLD}{SUFFIX}")
    delete_remains(folder.parent, name=folder.name)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            if path.is_dir():
                _sync_folder(path)
            elif not path.is_symlink():
                use_umask(path)
                sync(path)
        if folder.exists() and not is_new:
            folder.rename(previous)
        temporary.rename(folder)
        _sync_folder(folder.parent)
    finally:
        _settle(previous, folder)
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8 atomically; an existing `path` is replaced.

    Raises:
        OSError: It cannot be written; `path` is unchanged.
    """
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def use_umask(path: Path) -> None:
    """Set the mode of a file to 0666 without the bits of the umask, as for a file that a program opens.

    Some libraries write files only for their owner (safetensors: 0600). Executable files stay executable.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    wanted = (0o666 & ~_umask()) | (mode & 0o111)
    if mode != wanted:
        with suppress(PermissionError, NotImplementedError):  # a file system without modes
            path.chmod(wanted)


def _umask() -> int:
    try:
        status = Path("/proc/self/status").read_text()
        return int(status.partition("\nUmask:")[2].split()[0], 8)
    except (OSError, ValueError, IndexError):
        value = os.umask(0o077)  # the only other way to read it; another thread may create a file meanwhile
        os.umask(value)
        return value


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def delete_folder(folder: Path) -> None:
    """Delete a folder atomically: it is renamed first, so that no partly deleted folder has its name.

    Raises:
        OSError: It cannot be renamed, or not all of it can be deleted; the rest has a temporary name.
    """
    delete_remains(folder.parent, name=folder.name)
    temporary = temporary_path(folder)
    folder.rename(temporary)
    shutil.rmtree(temporary)


def delete_remains(folder: Path, *, name: str | None = None, is_locked: bool = False) -> None:
    """Delete the temporary files and folders of killed processes in a folder.

    A folder that was renamed to be replaced, and was not replaced, gets its name back. Files of running processes of
    this machine are kept, and subfolders with other names are not searched.

    Args:
        folder: Folder to clean.
        name: Of the file or folder with temporary files to delete; None for all.
        is_locked: Whether a lock prevents other processes from writing there: a running process is about to end then.
    """
    for path in folder.glob(f".{glob.escape(name)}.*{SUFFIX}" if name is not None else f".*{SUFFIX}"):
        stem, _, number = path.name.removesuffix(SUFFIX).removesuffix(OLD).rpartition(".")
        if name is not None and not (stem == f".{name}" and number.isdigit()):
            continue
        if not is_locked and number.isdigit() and int(number) != os.getpid() and is_running(int(number)):
            continue
        if path.name.endswith(f"{OLD}{SUFFIX}"):
            _settle(path, path.with_name(stem.removeprefix(".")))
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with suppress(OSError):
                path.unlink()


def _settle(previous: Path, folder: Path) -> None:
    """Delete the folder that was replaced; if `folder` does not exist, rename the old one back."""
    if folder.exists():
        shutil.rmtree(previous, ignore_errors=True)
    elif previous.exists():
        with suppress(OSError):
            previous.rename(folder)


def _sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, if the file system and the permissions allow it."""
    try:
        sync(folder)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.EACCES):
            raise
