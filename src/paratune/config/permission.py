"""Decides whether Python code that does not come with paratune may run in this process: the only place that does.

Code comes from two origins. What the user's own command line or configuration names may run in commands that run it
(`allow`). What a record names, which the user may have received from somebody else (run.json, a model folder, a name of
the hub), runs only if the record is the user's own (`records.own`), or the user asked for it with --run-code (`admit`).

Below, `require_allowed` guards each place that imports or calls such code: code that no command has allowed is an
error, so that a command that forgets to ask runs nothing. Permissions of a process are only ever added: calls in
several threads do not disturb each other.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from paratune.errors import ConfigError

REMOTE_CODE: Final = "model.trust_remote_code"
"""Option with which the Python files of a model folder run."""
_allowed: set[tuple[str, str]] = set()
"""Name and options, see `NamedCode.identity`, of all code that may run in this process."""
_trusted: set[str] = set()
"""Folders and hub names whose records may name code: those of --run-code."""


@dataclass(frozen=True)
class NamedCode:
    """Code that an option of a configuration or of a record names."""

    key: str
    """The option, such as `model.head.function`."""
    name: str
    """package.module:attribute, a script of the library `evaluate`, or a model with `trust_remote_code`."""
    options: str = "{}"
    """What it is called with, as JSON: options decide as much as the name what happens."""
    shown: str = ""
    """The value of the option; `name` where it is empty."""

    def __str__(self) -> str:
        options = "" if self.options == "{}" else f" with {self.options}"
        return f"{self.key}: {self.shown or self.name}{options}"

    @property
    def identity(self) -> tuple[str, str]:
        """What is compared. A file or a folder is the same in every working directory."""
        return (_absolute(self.name), self.options)


def as_options(options: Mapping[str, Any] | None) -> str:
    """Return options as text, the same for equal options."""
    return json.dumps(options or {}, sort_keys=True, ensure_ascii=False, default=str)


def allow(code: Iterable[NamedCode]) -> None:
    """Allow code that the user's own command line or configuration names."""
    _allowed.update(item.identity for item in code)


def trust(*names: str) -> None:
    """Allow what records in these folders, or models of these names on the hub, name: the user gave --run-code."""
    _trusted.update(_absolute(name) for name in names)


def is_trusted(place: str | Path) -> bool:
    """Return whether the user gave --run-code for a file, a folder or a hub name."""
    name = _absolute(str(place))
    folders = map(str, Path(name).parents) if Path(name).is_absolute() else ()  # a hub name has no folders
    return not _trusted.isdisjoint((name, *folders))


def admit(code: Iterable[NamedCode], place: str | Path, *, is_own: bool) -> None:
    """Allow the code that a record names, or refuse it.

    Args:
        place: File of the record, or a hub name.
        is_own: Whether the record is signed with the key of this user.

    Raises:
        ConfigError: The record is another one, and --run-code was not given for it.
    """
    wanted = [item for item in code if item.identity not in _allowed]
    if wanted and not (is_own or is_trusted(place)):
        message = (
            f"{place} names Python code that does not come with paratune: {', '.join(map(str, wanted))}. The file was "
            "not written by you with this home directory, or was changed since. Such code can do everything that you "
            "can do; if you trust it, add --run-code (in Python: run_code=True). Nothing was imported"
        )
        raise ConfigError(message, code="code.refused", path=str(place), names=[str(item) for item in wanted])
    allow(wanted)


def is_allowed(name: str, options: Mapping[str, Any] | None = None) -> bool:
    """Return whether code may run in this process; without options, whether it may with any options."""
    if options is None:
        return any(allowed == _absolute(name) for allowed, _ in _allowed)
    return (_absolute(name), as_options(options)) in _allowed


def require_allowed(name: str, key: str, options: Mapping[str, Any] | None = None) -> None:
    """Raise an error for code that may not run in this process; arguments as for `is_allowed`.

    Raises:
        ConfigError: Neither the user's configuration in a command that runs it, nor an admitted record names it.
    """
    if not is_allowed(name, options):
        message = f"{key}: {name} is Python code that does not come with paratune, and this command does not import it "
        message += "unless you add --run-code (in Python: run_code=True)"
        raise ConfigError(message, code="code.refused", key=key, value=name)


def _absolute(name: str) -> str:
    """Return the absolute path of an existing file or folder; other names as they are."""
    path = Path(name).expanduser()
    return str(path.resolve()) if path.exists() else name
