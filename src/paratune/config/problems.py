"""Problems of a configuration with their places, and the errors that list all of them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paratune.errors import ConfigError, DataError, Fault, LaunchError, MissingDependency, ParatuneError

ERRORS: Mapping[str, type[ParatuneError]] = {
    "dependency.missing": MissingDependency,
    "device.too_few_gpus": LaunchError,
    "data.too_few_rows": DataError,
}
"""Classes of the errors that are not a ConfigError, by code."""


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
    """Dotted keys that cause the problem, the one to change first; the message has the line of the first."""
    place: SourceLocation | None = None
    """None: the place of the keys."""
    code: str = field(kw_only=True)
    """Stable name of the cause, listed in docs/errors.md."""
    is_impossible: bool = False
    """Whether the settings are valid alone and only cannot be combined: a matrix skips such runs."""
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Values of the message by name."""


def place_of(key: str, places: Mapping[str, SourceLocation]) -> SourceLocation | None:
    """Return the place of a dotted key, or of the nearest section or item that contains it and has one."""
    while key and key not in places:
        key = re.sub(r"(\.|^)[^.\[]*$|\[\d+\]$", "", key)
    return places.get(key)


def without_content(problem: Problem) -> Problem:
    """Return a problem without the content of a file outside the folder of the configuration; others as they are.

    Whoever wrote the configuration may have named a private file of the user, whose lines would be in the message.
    """
    place = problem.place
    if place is None or not place.is_outside:
        return problem
    message = "a mistake, which is not shown because the file is outside the folder of the configuration; see it with: "
    message += f"paratune config show {place.file}"
    return replace(problem, message=message, keys=())


def overlap(key: str, other: str) -> bool:
    """Return whether two dotted keys are the same, or one is inside the other."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def refuse(problems: Iterable[Problem], *, source: object = None) -> None:
    """Raise all problems of a run as one error; do nothing where there are none.

    Args:
        source: File of the configuration; in the message where there are several problems.

    Raises:
        ParatuneError: The first problem decides its class, and so the exit code: `ERRORS`, or ConfigError.
    """
    listed = [*problems]
    if not listed:
        return
    faults = [Fault(problem.code, problem.message, {"keys": problem.keys, **problem.facts}) for problem in listed]
    first, kind = faults[0], ERRORS.get(faults[0].code, ConfigError)
    if len(faults) == 1:
        raise kind(first.message, code=first.code, **dict[str, Any](first.facts))
    heading = f"{len(faults)} problems" if source is None else f"{source}: {len(faults)} problems"
    raise kind(heading, code=first.code, faults=faults)


def failure(path: Path, problems: Sequence[Problem], main_file: str) -> ConfigError:
    """Return the error that lists all problems: those of the main file by line, then other files, then `--set`.

    Args:
        main_file: Name of that file in places; messages leave it out.
    """

    def order(problem: Problem) -> tuple[int, str, int]:
        place = problem.place
        if place is None or place.line is None:
            return 3 if place is None else 2, "", 0
        return (0 if place.file == main_file else 1), place.file, place.line

    faults = []
    for problem in sorted(dict.fromkeys(problems), key=order):
        place, prefix = problem.place, ""
        if place is not None:
            name = "" if place.file == main_file and place.line is not None else f"{place.file} "
            prefix = f"{place.file}: " if place.line is None else f"{name}line {place.line}: "
        facts = {"keys": problem.keys, "file": place and place.file, "line": place and place.line}
        faults.append(Fault(problem.code, f"{prefix}{problem.message}", facts))
    noun = "problem" if len(faults) == 1 else "problems"
    return ConfigError(f"{path}: {len(faults)} {noun}", code=faults[0].code, faults=faults)
