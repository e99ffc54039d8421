"""Problems of a configuration with their places, and the error that lists all of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from paratune.errors import ConfigError, Fault


@dataclass(frozen=True)
class SourceLocation:
    """Place of a value: a line of a file, or the command line (`line` is None)."""

    file: str
    line: int | None = None
    is_outside: bool = False
    """Whether the file is outside the folder of the configuration, so that messages must not show its content."""

    @property
    def origin(self) -> str:
        return self.file if self.line is None else f"{self.file}:{self.line}"


SET = SourceLocation("--set")
"""Place of values on the command line."""


@dataclass(frozen=True)
class Problem:
    """A mistake that prevents the run from starting."""

    message: str
    """What was found, what is allowed, what to do; has the full names of its keys."""
    keys: tuple[str, ...] = ()
    """Dotted keys that cause the problem; the message has the line of the first."""
    place: SourceLocation | None = None
    """None: the place of the keys."""
    code: str = field(kw_only=True)
    """Stable name of the cause, listed in docs/errors.md."""
    is_impossible: bool = False
    """Whether the settings are valid alone and only cannot be combined: a matrix skips such runs."""


def without_content(problem: Problem) -> Problem:
    """Return a problem without the content of a file outside the folder of the configuration; others as they are.

    Whoever wrote the configuration may have named a private file of the user, whose lines would be in the message.
    """
    place = problem.place
    if place is None or not place.is_outside:
        return problem
    message = (
        "a mistake, which is not shown because the file is outside the folder of the configuration; see it with: "
        f"paratune config show {place.file}"
    )
    return replace(problem, message=message, keys=())


def overlap(key: str, other: str) -> bool:
    """Return whether two dotted keys are the same, or one is inside the other."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def failure(path: Path, problems: Sequence[Problem], main_file: str) -> ConfigError:
    """Return the error that lists all problems: those of the main file by line, then other files, then `--set`.

    Args:
        main_file: Name of that file in places; messages leave it out.
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
