"""What can go wrong, as one family of exceptions with documented exit codes.

Floor 0: standard library only.
"""

import difflib
import importlib
from collections.abc import Iterable
from types import ModuleType

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_CONFIG = 2
EXIT_DATA = 3
EXIT_CHECKPOINT = 4
EXIT_LAUNCH = 5
EXIT_MISSING = 6
EXIT_NOT_FINITE = 7
EXIT_STOPPED = 75
"""Stopped by a signal, in good order: after saving a checkpoint, or before there was anything to save (sysexits.h,
EX_TEMPFAIL: try again later)."""


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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" for the nearest of `known`, or an empty string when none is near."""
    # Compared without case: ACCURACY shares no letter with accuracy otherwise.
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""
