"""Errors of the operating system that no other place expects, as errors with an exit code.

Most places catch what they expect and name the option to change. What is left is caught here, for all commands: a path
that is too long, no more memory, threads or open files, a file that cannot be read or written.
"""

import errno
import os

from paratune.errors import ConfigError, OutOfMemory, ParatuneError

_MAX_SHOWN = 200
"""Characters of a path that a message shows; of a longer path, as many from its start."""
_NO_MEMORY = ("failed to map segment", "annot allocate memory", "can't allocate memory", "bad_alloc")
"""Parts of what the dynamic loader, PyTorch and the C++ library say."""
_NO_THREAD = "can't start new thread"
_NO_FILE = "Too many open files"
_LOOP = "Symlink loop from"
"""What `Path.resolve` says before Python 3.13."""
_RAISE_FILES = "close other programs, or raise the limit (ulimit -n)"
_RAISE_PROCESSES = "end other processes, or raise the limit (ulimit -u, or that of the container)"
_RAISE_MEMORY = "free memory, or raise the limit (ulimit -v, or that of the job)"
_PERMISSION = "change the permissions, or name another path"
_ROOM = "make room, or name a path on another file system"
_PATHS = {
    errno.ENAMETOOLONG: "name a shorter path: most file systems allow 255 bytes in each part of a path",
    errno.ELOOP: "symbolic links lead back to themselves; name the path that they are to lead to",
    errno.ENOTDIR: "a part of the path is a file; name another path",
    errno.EISDIR: "it is a folder; name a file",
}
"""Paths that a user has to change, with what to do, by error number."""
_LIMITS = {errno.EMFILE: _RAISE_FILES, errno.ENFILE: _RAISE_FILES, errno.EAGAIN: _RAISE_PROCESSES}
"""What a process has used up."""
_FILES = {
    errno.EACCES: _PERMISSION,
    errno.EPERM: _PERMISSION,
    errno.EROFS: "name a path on another file system",
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "raise the limit for the size of a file (ulimit -f)",
    errno.EIO: "the disk or the network file system fails; dmesg may have the reason",
    errno.ESTALE: "the network file system has lost the file; mount it again",
}
"""Files that cannot be read or written."""


def system_error(error: BaseException | None) -> ParatuneError | None:
    """Return an exception as an error of this package, where the operating system is its cause; None where it is not.

    Args:
        error: What a command raised. Its `__cause__` counts too, because libraries wrap what they catch; its
            `__context__` does not: that would hide a bug in a handler.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        explained = _explained(error)
        if explained is not None:
            return explained
        error = error.__cause__
    return None


def _explained(error: BaseException) -> ParatuneError | None:
    text = str(error)
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY) or _number(error) == errno.ENOMEM:
        what = text[:_MAX_SHOWN] or type(error).__name__
        return OutOfMemory(f"memory ran out ({what}); {_RAISE_MEMORY}", code="memory.out", what=what)
    if isinstance(error, RuntimeError) and _NO_THREAD in text:
        return _used_up(text, _RAISE_PROCESSES)
    if isinstance(error, RuntimeError) and _NO_FILE in text:  # from torch.utils.data
        return _used_up(_NO_FILE, _RAISE_FILES)
    if isinstance(error, RuntimeError) and text.startswith(_LOOP):
        return ConfigError(f"{_shown(text)}; {_PATHS[errno.ELOOP]}", code="system.path", path=_shown(text))
    return _of_number(error) if isinstance(error, OSError) else None


def _of_number(error: OSError) -> ParatuneError | None:
    number = _number(error)
    if number is None:
        return None
    path = None if error.filename is None else _shown(error.filename)
    what = os.strerror(number) if path is None else f"{path}: {os.strerror(number)}"
    if number in _PATHS:
        return ConfigError(f"{what}; {_PATHS[number]}", code="system.path", path=path)
    if number in _LIMITS:
        return _used_up(what, _LIMITS[number])
    return ParatuneError(f"{what}; {_FILES[number]}", code="system.file", path=path) if number in _FILES else None


def _used_up(what: str, advice: str) -> ParatuneError:
    return ParatuneError(f"{what}; {advice}", code="system.limit", what=what)


def _number(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _shown(filename: object) -> str:
    text = os.fsdecode(filename) if isinstance(filename, bytes) else str(filename)
    more = len(text) - _MAX_SHOWN
    return text if more <= 0 else f"{text[:_MAX_SHOWN]}... ({more} more characters)"
