"""Exceptions of paratune with stable codes and documented exit codes."""

import difflib
import importlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

_NEAR = 0.65
"""Minimum similarity of two names for "did you mean": dpp and ddp share 2 of 3 letters."""

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
"""`paratune certify`: a strategy does not train the same; `verify`: something is not as it was published."""
EXIT_HUNG = 10
"""No rank made progress for `run.hang_timeout_s`, and the watchdog ended the run."""
EXIT_STOPPED = 75
"""Stopped by a signal, after saving a checkpoint or before the first step (sysexits.h, EX_TEMPFAIL: try again
later)."""


@dataclass(frozen=True)
class Fault:
    """One error or warning; docs/errors.md lists the codes with causes and remedies."""

    code: str
    """Stable name of the cause, such as data.label_unseen."""
    message: str
    facts: Mapping[str, object] = field(default_factory=dict)
    """Values of the message by name, such as its path, key, line or number."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fault as `--json` prints it."""
        return {"code": self.code, "message": self.message, "facts": dict(self.facts)}

    def text(self) -> str:
        """Return the message for a terminal, with the code at the end of its first line."""
        first, newline, rest = self.message.partition("\n")
        return f"{first}  [{self.code}]{newline}{rest}"


class ParatuneError(Exception):
    """Base of all errors that the user can correct.

    Args:
        message: Where, what was found, what is allowed and what to do.
        code: Stable name of the cause, listed in docs/errors.md; for several faults, the code of the first.
        faults: List of faults, where `message` is their heading; the text has one per line below it.
        facts: Values of the message by name.
    """

    exit_code = EXIT_FAILED

    def __init__(self, message: str, /, *, code: str, faults: Sequence[Fault] = (), **facts: object) -> None:
        super().__init__("\n".join([message, *(f"  {fault.message}" for fault in faults)]))
        self.heading = message if faults else None
        self.code = code
        self.faults = tuple(faults) or (Fault(code, message, facts),)

    @property
    def codes(self) -> tuple[str, ...]:
        """Code of each fault."""
        return tuple(fault.code for fault in self.faults)

    @property
    def facts(self) -> Mapping[str, object]:
        """Facts of the first fault."""
        return self.faults[0].facts

    def text(self) -> str:
        """Return the message for a terminal, with the code of each fault."""
        if self.heading is None:
            return self.faults[0].text()
        return "\n".join([self.heading, *(f"  {fault.text()}" for fault in self.faults)])

    def __reduce__(self) -> tuple[Any, ...]:
        """Return the values from which another process makes the error again, for any signature of a subclass."""
        return _rebuild, (type(self), self.args), self.__dict__


def _rebuild(kind: type[ParatuneError], arguments: tuple[Any, ...]) -> ParatuneError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error


class ConfigError(ParatuneError, ValueError):
    """The configuration cannot be run as written."""

    exit_code = EXIT_CONFIG


class DataError(ParatuneError, ValueError):
    """A data file is missing, unreadable or does not match the configuration."""

    exit_code = EXIT_DATA


class CheckpointError(ParatuneError, OSError):
    """A run folder or checkpoint is damaged, missing, not writable, or belongs to another run."""

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
    """Memory ran out, and the process cannot continue; the message has the use of memory and what to change."""

    exit_code = EXIT_OUT_OF_MEMORY


class Stopped(ParatuneError):
    """A signal stopped the run, which ended normally."""

    exit_code = EXIT_STOPPED


CodedWarning = tuple[str, dict[str, object]]
"""A message and the `extra` with which it is logged (`coded`)."""


def coded(code: str, **facts: object) -> dict[str, object]:
    """Return the `extra` of a logged warning: its code, and the values of its message by name."""
    return {"code": code, "facts": facts}


def option_error(option: str, value: object, reason: str, *, code: str, **facts: object) -> ConfigError:
    """Return the error of an option of the command line, with option, value and reason in its message and facts."""
    return ConfigError(f"{option} {value}: {reason}", code=code, faults=(), option=option, value=value, **facts)


def require_at_least(option: str, value: int | None, least: int = 1) -> None:
    """Raise a `ConfigError` when an option has a value below `least`."""
    if value is not None and value < least:
        raise option_error(option, value, f"at least {least} is needed", code="cli.invalid_value", least=least)


@contextmanager
def os_error_as(
    kind: type[ParatuneError], failure: str, remedy: str = "", *, code: str, **facts: object
) -> Iterator[None]:
    """Raise a coded error in place of an OSError of the block.

    Args:
        kind: Class of the error.
        failure: What failed, such as "PATH cannot be written"; the reason of the operating system follows.
        remedy: What to do.
        code: As in `ParatuneError`.
        facts: As in `ParatuneError`.
    """
    try:
        yield
    except ParatuneError:  # some of them are OSErrors, too
        raise
    except OSError as error:
        reason = f"{failure}: {error.strerror or error}"
        raise kind(f"{reason}; {remedy}" if remedy else reason, code=code, faults=(), **facts) from error


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional package.

    Raises:
        MissingDependency: The package, or a package that it needs, is not installed; the message names the extra.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise _missing(module, extra, f" ({error})") from error


def require_installed(module: str, *, extra: str) -> None:
    """Check that an optional package is installed, without the time of an import.

    Raises:
        MissingDependency: It is not installed.
    """
    if not is_installed(module):
        raise _missing(module, extra)


def _missing(module: str, extra: str, reason: str = "") -> MissingDependency:
    message = f"{module} is not installed{reason}; install its extra: pip install 'paratune[{extra}]'"
    return MissingDependency(message, code="dependency.missing", module=module, extra=extra)


def is_installed(module: str) -> bool:
    """Return whether an optional package is installed, without the time of an import."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the package around it
        return False
    # find_spec also finds a folder of that name in the working directory, such as wandb's files; it has no origin.
    return spec is not None and spec.origin is not None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return "; did you mean X?" for the nearest of `known`, or an empty string when none is near."""
    nearest = nearest_name(word, known)
    return "" if nearest is None else f"; did you mean {nearest}?"


def nearest_name(word: str, known: Iterable[str]) -> str | None:
    """Return the nearest of `known`, or None when none is near.

    Equal suffixes of files do not count, and names with different numbers (fp16, fp64) are never near.
    """
    # Without case: ACCURACY shares no letter with accuracy otherwise.
    lower, numbers = word.lower(), re.findall("[0-9]+", word)
    nearest, most = None, (_NEAR, 0.0)
    for name in known:
        if numbers and re.findall("[0-9]+", name) != numbers:
            continue
        pairs = [(text.rpartition(".")[0] or text, text) for text in (lower, name.lower())]
        without_suffix, whole = (difflib.SequenceMatcher(None, *pair).ratio() for pair in zip(*pairs, strict=True))
        if without_suffix > _NEAR and (without_suffix, whole) > most:
            nearest, most = name, (without_suffix, whole)
    return nearest
