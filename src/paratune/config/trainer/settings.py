"""Reads the settings of a Trainer from a JSON file, with checks of types."""

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from paratune.base.unique_keys import unique_keys
from paratune.config.layers import read_text
from paratune.config.trainer.keys import MAPPED, RENAMED
from paratune.config.validate import describe_value
from paratune.errors import ConfigError


def read_settings(path: Path) -> dict[str, Any]:
    """Read the file.

    Raises:
        ConfigError: It is missing, a pickle, not JSON, not a mapping, or has duplicate keys.
    """
    if path.is_file() and _is_pickle(path):
        raise ConfigError(
            f"{path} is a pickle: reading it would run the code in it. Let the script that wrote it write JSON "
            f"instead: open('training_args.json', 'w').write(trainer.args.to_json_string())",
            code="trainer.pickle",
            path=path,
        )
    try:
        settings = json.loads(read_text(path), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is not JSON: {error}", code="trainer.settings_unreadable", path=path) from error
    if not isinstance(settings, dict):
        message = f"{path} has {describe_value(settings)}; the settings of a Trainer are a mapping"
        raise ConfigError(message, code="trainer.settings_unreadable", path=path)
    if not settings:
        raise ConfigError(f"{path} has no settings", code="trainer.settings_unreadable", path=path)
    return settings


def _is_pickle(path: Path) -> bool:
    with path.open("rb") as file:
        head = file.read(4)
    return path.suffix in (".bin", ".pt", ".pkl") or head.startswith((b"PK\x03\x04", b"\x80"))


class Settings:
    """The keys of a file with their present names; reading a wrong value adds a problem."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.problems: list[str] = []
        self._names: dict[str, str] = {}
        """Name in the file by present name."""
        self.values = self._renamed(given)

    def _renamed(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        renamed: dict[str, Any] = {}
        for key, value in settings.items():
            name = RENAMED.get(key, key)
            if name in renamed and value in (None, False):
                continue
            if name in renamed and renamed[name] not in (None, False) and renamed[name] != value:
                self.problems.append(f"{key} is an older name of {name}, and both are given; keep one")
            renamed[name] = value
            self._names[name] = key
        return renamed

    def name_in_file(self, key: str) -> str:
        """Return the name of a key in the file, which may be an older name."""
        return self._names.get(key, key)

    def number(self, key: str) -> float | None:
        """Return a number, None where it is null or wrong."""
        value = self.value(key)
        if isinstance(value, str):  # some programs write 5e-5 as text; TrainingArguments accepts it too
            with suppress(ValueError):
                value = float(value)
        if value is None:
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if is_number and abs(value) <= sys.float_info.max:  # not NaN, and no int of 400 digits
            return cast(float, value)
        self.problems.append(f"{key} is {describe_value(value)}; allowed: a number")
        return None

    def whole(self, key: str) -> int | None:
        """Return a whole number, None where it is null or wrong."""
        value = self.number(key)
        if value is not None and value != int(value):
            self.problems.append(f"{key} is {describe_value(value)}; allowed: a whole number")
            return None
        return None if value is None else int(value)

    def switch(self, key: str) -> bool:
        """Return whether something is on."""
        value = self.value(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        self.problems.append(f"{key} is {describe_value(value)}; allowed: true or false")
        return False

    def word(self, key: str) -> str | None:
        """Return one of several allowed words, in lower case."""
        value = self.value(key)
        if value is None or isinstance(value, str):
            # Older versions wrote the name of the enumeration: SchedulerType.LINEAR.
            return None if value is None else re.sub(r"^[A-Za-z]+\.(?=[A-Z_]+$)", "", value).lower()
        self.problems.append(f"{key} is {describe_value(value)}; allowed: text")
        return None

    def value(self, key: str) -> Any:
        """Return the value of a key in `MAPPED`, or the default of TrainingArguments."""
        return self.values.get(key, MAPPED[key])

    def text(self, key: str) -> str | None:
        """Return a text, unchanged."""
        value = self.value(key)
        if value is None or isinstance(value, str):
            return value or None
        self.problems.append(f"{key} is {describe_value(value)}; allowed: text")
        return None

    def origin(self, *keys: str) -> str:
        """Return the origin of a value: the keys of the file, or the default of TrainingArguments."""
        names = [self.name_in_file(key) for key in keys if key in self.values]
        return ", ".join(names) or f"default of TrainingArguments ({keys[0]})"
