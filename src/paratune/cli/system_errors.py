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
_OTHER_FOLDER = "change the permissions, or name another path"
_ADVICE: dict[int, tuple[type[ParatuneError], str]] = {
    errno.ENAMETOOLONG: (ConfigError, "name a shorter path: most file systems allow 255 bytes in each part of a path"),
    errno.ELOOP: (ConfigError, "symbolic links lead back to themselves; name the path that they are to lead to"),
    errno.ENOTDIR: (ConfigError, "a part of the path is a file; name another path"),
    errno.EISDIR: (ConfigError, "it is a folder; name a file"),
    errno.EMFILE: (ParatuneError, _RAISE_FILES),
    errno.ENFILE: (ParatuneError, _RAISE_FILES),
    errno.EAGAIN: (ParatuneError, _RAISE_PROCESSES),
    errno.ENOMEM: (OutOfMemory, "free memory, or raise the limit (ulimit -v, or that of the job)"),
    errno.EACCES: (ParatuneError, _OTHER_FOLDER),
    errno.EPERM: (ParatuneError, _OTHER_FOLDER),
    errno.EROFS: (ParatuneError, "name a path on another file system"),
    errno.ENOSPC: (ParatuneError, "make room, or name a path on another file system"),
    errno.EDQUOT: (ParatuneError, "make room, or name a path on another file system"),
    errno.EFBIG: (ParatuneError, "raise the limit for the size of a file (ulimit -f)"),
    errno.EIO: (ParatuneError, "the disk or the network file system fails; dmesg may say why"),
    errno.ESTALE: (ParatuneError, "the network file system has lost the file; mount it again"),
}
"""By error number: what the command ends with, and what to do."""


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
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY):
        kind, advice = _ADVICE[errno.ENOMEM]
        return kind(f"memory ran out ({text[:_MAX_SHOWN] or type(error).__name__}); {advice}")
    if isinstance(error, RuntimeError) and _NO_THREAD in text:
        return ParatuneError(f"no further thread can be started; {_RAISE_PROCESSES}")
    if isinstance(error, RuntimeError) and _NO_FILE in text:  # from torch.utils.data
        return ParatuneError(f"{_NO_FILE}; {_RAISE_FILES}")
    if isinstance(error, RuntimeError) and text.startswith(_LOOP):
        kind, advice = _ADVICE[errno.ELOOP]
        return kind(f"{_shown(text)}; {advice}")
    if not isinstance(error, OSError) or error.errno not in _ADVICE:
        return None
    kind, advice = _ADVICE[error.errno]
    where = "" if error.filename is None else f"{_shown(error.filename)}: "
    return kind(f"{where}{os.strerror(error.errno)}; {advice}")


def _shown(filename: object) -> str:
    text = os.fsdecode(filename) if isinstance(filename, bytes) else str(filename)
    more = len(text) - _MAX_SHOWN
    return text if more <= 0 else f"{text[:_MAX_SHOWN]}... ({more} more characters)"
