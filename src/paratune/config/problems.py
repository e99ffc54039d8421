"""Problems of a configuration, each with its place, and the one error that reports all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paratune.errors import ConfigError, Fault


@dataclass(frozen=True)
class SourceLocation:
    """Where a value was written: a line of a file, or the command line (`line` is None)."""

    file: str
    line: int | None = None

    @property
    def origin(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


SET = SourceLocation("--set")
"""The place of values given on the command line."""


@dataclass(frozen=True)
class Problem:
    """Something that must be mended before the run can start."""

    message: str
    """What was found, what is allowed, what to do; names its keys in full."""
    keys: tuple[str, ...] = ()
    """Dotted keys that it is about; the first is the one whose line is shown."""
    place: SourceLocation | None = None
    """Where to look; looked up by key when None."""
    code: str = field(kw_only=True)
    """Stable name of the cause, listed in docs/errors.md."""
    is_impossible: bool = False
    """Whether each setting is right by itself, and only together they cannot be: a matrix leaves such runs out."""


def overlap(key: str, other: str) -> bool:
    """Return whether two dotted keys are the same or one holds the other."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def failure(path: Path, problems: Sequence[Problem], main_file: str) -> ConfigError:
    """Return the error that lists all problems: those of the main file by line, then other files, then `--set`.

    Args:
        path: The file as the user named it.
        problems: At least one.
        main_file: How that file is named in places; the name is left out on its own lines.
    """
    assert problems
    faults = [_fault(problem, main_file) for problem in _sorted(problems, main_file)]
    noun = "problem" if len(faults) == 1 else "problems"
    return ConfigError(f"{path}: {len(faults)} {noun}", code=faults[0].code, faults=faults)


def _fault(problem: Problem, main_file: str) -> Fault:
    place = problem.place
    facts = {"keys": problem.keys, "file": place and place.file, "line": place and place.line}
    return Fault(problem.code, f"{_prefix(place, main_file)}{problem.message}", facts)


def _prefix(place: SourceLocation | None, main_file: str) -> str:
    if place is None:
        return ""
    if place.line is None:
        return f"{place.file}: "
    return f"line {place.line}: " if place.file == main_file else f"{place.file} line {place.line}: "


def _sorted(problems: Iterable[Problem], main_file: str) -> list[Problem]:
    def order(problem: Problem) -> tuple[int, str, int]:
        place = problem.place
        if place is None:
            return 3, "", 0
        if place.line is None:
            return 2, place.file, 0
        return (0 if place.file == main_file else 1), place.file, place.line

    return sorted(dict.fromkeys(problems), key=order)
