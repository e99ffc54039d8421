"""What can go wrong, as one family of exceptions with documented exit codes.

Floor 0: standard library only.
"""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterable
from types import ModuleType

_NEAR = 0.65
"""Share of letters that two names have in common from which on one may be meant by the other: dpp and ddp, 2 of 3."""

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_DATA = 3
EXIT_CHECKPOINT = 4
EXIT_LAUNCH = 5
EXIT_MISSING = 6
EXIT_NOT_FINITE = 7
EXIT_OUT_OF_MEMORY = 8
EXIT_DIFFERS = 9
"""`paratune certify`: a strategy does not train the same."""
EXIT_HUNG = 10
"""No rank got on for `run.hang_timeout_s`; the thread that watches the run ended it."""
EXIT_STOPPED = 75
"""Stopped by a signal, in good order: after saving a checkpoint, or before there was anything to save (sysexits.h,
EX_TEMPFAIL: try again later)."""

EXIT_TIMED_OUT = 124
"""Of a run that `paratune sweep` ended because it took too long, in sweep.json; as `timeout` of the shell has it."""


class ParatuneError(Exception):
    """Base of all errors that are the user's to mend; its text says where, what was found and what to do."""

    exit_code = EXIT_FAILED


class ConfigError(ParatuneError, ValueError):
    """The configuration cannot be run as written."""

    exit_code = EXIT_CONFIG


class DataError(ParatuneError, ValueError):
    """A data file is missing, unreadable or does not hold what the configuration says."""

    exit_code = EXIT_DATA


class CheckpointError(ParatuneError, OSError):
    """A run folder or checkpoint is damaged, absent, not writable, or belongs to another run."""

    exit_code = EXIT_CHECKPOINT


class LaunchError(ParatuneError, RuntimeError):
    """Processes could not be started, did not find each other, or one of them died."""

    exit_code = EXIT_LAUNCH


class MissingDependency(ParatuneError, ImportError):
    """An optional package is not installed."""

    exit_code = EXIT_MISSING


class NotFiniteError(ParatuneError, ArithmeticError):
    """The loss or the gradient norm is not a finite number."""

    exit_code = EXIT_NOT_FINITE


class OutOfMemory(ParatuneError, MemoryError):
    """Memory ran out, and this process cannot go on by itself; the text says who owned it and what to change."""

    exit_code = EXIT_OUT_OF_MEMORY


class Stopped(ParatuneError):
    """A signal asked the run to end, and it ended in good order."""

    exit_code = EXIT_STOPPED


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    Raises:
        MissingDependency: The package, or something that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(
            f"{module} is not installed ({error}); it comes with the extra: pip install 'paratune[{extra}]'"
        ) from error


def require_installed(module: str, *, extra: str) -> None:
    """Say early, without the time that importing takes, that an optional package is missing.

    Raises:
        MissingDependency: It is not installed.
    """
    found = importlib.util.find_spec(module)
    # A folder of that name in the working directory (that of wandb's files) is found as well, and is no package.
    if found is None or found.origin is None:
        raise MissingDependency(f"{module} is not installed; it comes with the extra: pip install 'paratune[{extra}]'")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" for the nearest of `known`, or an empty string when none is near.

    Suffixes of files do not make them near, and numbers that differ (fp16, fp64) are no slip of the pen.
    """
    # Compared without case: ACCURACY shares no letter with accuracy otherwise.
    lower, numbers = word.lower(), _numbers(word)
    nearness = {
        name: (_ratio(_stem(lower), _stem(name.lower())), _ratio(lower, name.lower()))
        for name in known
        if not numbers or _numbers(name) == numbers
    }
    nearest = max(nearness, key=nearness.__getitem__, default=None)
    return f"; did you mean {nearest}?" if nearest is not None and nearness[nearest][0] > _NEAR else ""


def _ratio(a: str, b: str) -> float:
    return difflib.SequenceMatcher(None, a, b).ratio()


def _stem(name: str) -> str:
    return name.rpartition(".")[0] or name


def _numbers(name: str) -> list[str]:
    return re.findall("[0-9]+", name)
