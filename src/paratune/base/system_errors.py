"""Converts unexpected errors of the operating system to errors with an exit code.

Most functions catch the errors that they expect and name the option to change. All commands convert the others here: a
path that is too long, no more memory, threads or open files, a file that cannot be read or written.
"""

import errno
import os
import traceback

from paratune.errors import ConfigError, OutOfMemory, ParatuneError

_MAX_SHOWN = 200
"""Maximum number of characters of a path in a message."""
_NO_MEMORY = ("failed to map segment", "annot allocate memory", "can't allocate memory", "bad_alloc")
"""Parts of messages of the dynamic loader, PyTorch and the C++ library."""
_MODELS = os.path.join("transformers", "models", "")  # noqa: PTH118 - compared with names of files as texts
"""Part of the file name of a model's code."""
_LAYERS = os.path.join("torch", "nn", "")  # noqa: PTH118
_MESSAGES = {
    "can't start new thread": errno.EAGAIN,
    "Too many open files": errno.EMFILE,  # of torch.utils.data
    "Symlink loop from": errno.ELOOP,  # of Path.resolve before Python 3.13
}
"""Parts of messages of a RuntimeError that has no error number."""
_RAISE_FILES = "close other programs, or raise the limit (ulimit -n)"
_PATHS = {
    errno.ENAMETOOLONG: "name a shorter path: most file systems allow 255 bytes in each part of a path",
    errno.ELOOP: "symbolic links form a cycle; correct the links, or name another path",
    errno.ENOTDIR: "a part of the path is a file; name another path",
    errno.EISDIR: "it is a folder; name a file",
}
"""Remedies for wrong paths, by error number."""
_LIMITS = {
    errno.EMFILE: _RAISE_FILES,
    errno.ENFILE: _RAISE_FILES,
    errno.EAGAIN: "end other processes, or raise the limit (ulimit -u, or that of the container)",
}
"""Remedies for exceeded limits, by error number."""
_FILES = {
    **dict.fromkeys((errno.EACCES, errno.EPERM), "change the permissions, or name another path"),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "free space, or name a path on another file system"),
    errno.EROFS: "name a path on another file system",
    errno.EFBIG: "raise the limit for the size of a file (ulimit -f)",
    errno.EIO: "the disk or the network file system fails; dmesg may have the reason",
    errno.ESTALE: "the network file system has lost the file; mount it again",
}
"""Remedies for files that cannot be read or written, by error number."""


def system_error(error: BaseException | None) -> ParatuneError | None:
    """Return an exception as an error of paratune if the operating system caused it; otherwise None.

    Args:
        error: Exception of a command. Its `__cause__` counts too, because libraries wrap exceptions; its `__context__`
            does not: that would hide a bug in a handler.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        explained = _explained(error)
        if explained is not None:
            return explained
        error = error.__cause__
    return None


def forward_error(error: BaseException) -> ParatuneError | None:
    """Return an exception as an error of paratune if the code of a model of transformers raised it; otherwise None.

    Some models need inputs other than tokens, or texts of certain lengths only. The layers that the model calls are
    part of it (torch/nn); collectives are not, so that the loss of a process is no error of the model.
    """
    frames = traceback.extract_tb(error.__traceback__)
    while frames and _LAYERS in frames[-1].filename:
        frames.pop()
    own = [frame for frame in frames if _MODELS in frame.filename]
    is_device = type(error).__name__ == "OutOfMemoryError" or "CUDA error" in str(error)
    if (
        is_device
        or system_error(error)
        or not own
        or own[-1] is not frames[-1]
        or all(frame.name != "forward" for frame in own)
    ):
        return None
    file, line = own[-1].filename.rpartition(os.sep)[2], own[-1].lineno
    return ConfigError(
        f"model.name: the code of the model fails for these rows ({file}, line {line}: {type(error).__name__}: "
        f"{str(error)[:_MAX_SHOWN]}); it may need other inputs than tokens, or texts of other lengths "
        "(data.max_length, model.overrides); use another model",
        code="model.unsupported",
        key="model.name",
        file=file,
        line=line,
    )


def _explained(error: BaseException) -> ParatuneError | None:
    text = str(error)
    number: int | None = None
    path, reason = None, _shown(text)
    if isinstance(error, OSError) and error.errno is not None:
        number, path = error.errno, None if error.filename is None else _shown(error.filename)
        reason = os.strerror(number) if path is None else f"{path}: {os.strerror(number)}"
    elif isinstance(error, RuntimeError):
        number = next((number for part, number in _MESSAGES.items() if part in text), None)
    if isinstance(error, MemoryError) or any(sign in text for sign in _NO_MEMORY) or number == errno.ENOMEM:
        reason = text[:_MAX_SHOWN] or type(error).__name__
        remedy = "free memory, or raise the limit (ulimit -v, or that of the job)"
        return OutOfMemory(f"memory ran out ({reason}); {remedy}", code="memory.out", reason=reason)
    if number in _PATHS:
        return ConfigError(f"{reason}; {_PATHS[number]}", code="system.path", path=path)
    if number in _LIMITS:
        return ParatuneError(f"{reason}; {_LIMITS[number]}", code="system.limit", reason=reason)
    return ParatuneError(f"{reason}; {_FILES[number]}", code="system.file", path=path) if number in _FILES else None


def _shown(filename: object) -> str:
    text = os.fsdecode(filename) if isinstance(filename, bytes) else str(filename)
    more = len(text) - _MAX_SHOWN
    return text if more <= 0 else f"{text[:_MAX_SHOWN]}... ({more} more characters)"
