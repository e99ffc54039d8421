"""What can go wrong, as one family of exceptions with documented exit codes.

Floor 0: standard library only.
"""

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


@dataclass(frozen=True)
class Fault:
    """One error or warning; docs/errors.md lists the codes with their causes and remedies."""

    code: str
    """Stable name of the cause, such as data.label_unseen."""
    message: str
    facts: Mapping[str, object] = field(default_factory=dict)
    """Values of the message by name, such as its path, key, line or number."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fault as `--json` prints it."""
        return {"code": self.code, "message": self.message, "facts": dict(self.facts)}

    def text(self) -> str:
        """Return the message as a terminal shows it, with the code at the end of its first line."""
        first, newline, rest = self.message.partition("\n")
        return f"{first}  [{self.code}]{newline}{rest}"


class ParatuneError(Exception):
    """Base of all errors that the user can correct.

    Args:
        message: Where, what was found, what is allowed and what to do.
        code: Stable name of the cause, listed in docs/errors.md; of an error that lists several faults, that of
            the first.
        faults: Where `message` is a heading, what it is the heading of; it is then followed by these, one per line.
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
        """Return the message with the code of each fault, as a terminal shows it."""
        if self.heading is None:
            return self.faults[0].text()
        return "\n".join([self.heading, *(f"  {fault.text()}" for fault in self.faults)])

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a process pool needs to send the error to another process, whatever its class is called with."""
        return _rebuilt, (type(self), self.args), self.__dict__


def _rebuilt(kind: type[ParatuneError], arguments: tuple[Any, ...]) -> ParatuneError:
    error = kind.__new__(kind, *arguments)
    error.args = arguments
    return error


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


def coded(code: str, **facts: object) -> dict[str, object]:
    """Return the `extra` of a logged warning: its code, and values of its message by name."""
    return {"code": code, "facts": facts}


def option_error(option: str, value: object, reason: str, *, code: str, **facts: object) -> ConfigError:
    """Return the error of an option of the command line, with option, value and reason in its message and facts."""
    return ConfigError(f"{option} {value}: {reason}", code=code, faults=(), option=option, value=value, **facts)


@contextmanager
def os_error_as(
    kind: type[ParatuneError], what: str, remedy: str = "", *, code: str, **facts: object
) -> Iterator[None]:
    """Raise a coded error in place of an OSError of the block.

    Args:
        kind: Class of the error.
        what: What failed, such as "PATH cannot be written"; the reason of the operating system follows.
        remedy: What to do about it.
        code: As in `ParatuneError`.
        facts: As in `ParatuneError`.
    """
    try:
        yield
    except OSError as error:
        reason = f"{what}: {error.strerror or error}"
        raise kind(f"{reason}; {remedy}" if remedy else reason, code=code, faults=(), **facts) from error


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it.

    Raises:
        MissingDependency: The package, or something that it needs, is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingDependency(
            f"{module} is not installed ({error}); it comes with the extra: pip install 'paratune[{extra}]'",
            code="dependency.missing",
            module=module,
            extra=extra,
        ) from error


def require_installed(module: str, *, extra: str) -> None:
    """Say early, without the time that importing takes, that an optional package is missing.

    Raises:
        MissingDependency: It is not installed.
    """
    if not is_installed(module):
        raise MissingDependency(
            f"{module} is not installed; it comes with the extra: pip install 'paratune[{extra}]'",
            code="dependency.missing",
            module=module,
            extra=extra,
        )


def is_installed(module: str) -> bool:
    """Return whether an optional package is there, without the time that importing it takes."""
    try:
        spec = importlib.util.find_spec(module)
    except ModuleNotFoundError:  # the package around it
        return False
    # A folder of that name in the working directory (that of wandb's files) is found as well, and is no package.
    return spec is not None and spec.origin is not None


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
