"""Files and folders that are written whole or not at all, also when the process is killed or the power fails.

What is new is written beside its place under a temporary name, synchronized to the disk, and renamed; then the folder
that holds it is synchronized, because a rename is kept by a power cut only after that. Temporary names begin with a dot
and end with `.tmp`. A process that was killed leaves them; whoever writes the same file or folder next deletes them.
Run folders, checkpoints, corpus stages and the corpus database call `delete_remains`, which deletes all in a folder.

They have the modes that the umask gives, whichever library wrote them.

Floor 0: standard library only.

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
    if is_durable:  # the others are written every few seconds
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
    delete_remains(folder.parent, name=folder.name)
    try:
        temporary.mkdir(parents=True)
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            if path.is_file() and not path.is_symlink():
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
    """Write a text file as UTF-8, whole or not at all; `path` is replaced when it exists.

    Raises:
        OSError: It cannot be written; `path` is as it was.
    """
    with replace_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def use_umask(path: Path) -> None:
    """Give a file the mode that the umask leaves of 0666, as a program gets that opens a new file.

    Some libraries write a file for its owner alone (safetensors: 0600), and others beside it follow the umask. What is
    executable stays so.
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
        value = os.umask(0o077)  # there is no other way to ask; another thread may make a file meanwhile
        os.umask(value)
        return value


def sync(path: Path) -> None:
    """Wait until the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def fill_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; when the block ends, what it holds is in `folder`, which must be missing or empty.

    A folder that is there stays the same one: it may be somebody's working directory, or a disk of its own. Its content
    is moved into it file by file; only a missing folder appears all at once.

    Raises:
        OSError: It is not empty, or a file cannot be synchronized or renamed.
    """
    if not folder.exists():
        with replace_folder(folder, is_new=True) as temporary:
            yield temporary
        return
    inner = folder / "content"
    delete_remains(folder, name=inner.name)
    if any(folder.iterdir()):
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
    temporary = temporary_path(inner)
    try:
        temporary.mkdir()
        yield temporary
        for path in temporary.rglob("*"):
            sync(path)
        for path in sorted(temporary.iterdir()):
            path.rename(folder / path.name)
        _sync_folder(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def delete_folder(folder: Path) -> None:
    """Delete a folder at one stroke: it loses its name first, so that no part of it is taken for the whole.

    Raises:
        OSError: It cannot be renamed, or not all of it can be deleted; then it is a remain of this process.
    """
    delete_remains(folder.parent, name=folder.name)
    temporary = temporary_path(folder)
    folder.rename(temporary)
    shutil.rmtree(temporary)


def delete_remains(folder: Path, *, name: str | None = None, is_locked: bool = False) -> None:
    """Delete what killed processes left under temporary names in a folder.

    A folder that was moved aside to be replaced, and was not, gets its name back. What processes of this machine that
    still run are writing stays, and subfolders with other names are not searched.

    Args:
        folder: Where to look.
        name: Of the file or folder whose remains are deleted; None for all.
        is_locked: Whether a lock keeps all others from writing there: then a process that still runs is about to end.
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
