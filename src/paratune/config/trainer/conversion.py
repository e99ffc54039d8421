"""Settings of a Trainer, and what becomes of them: options with their origins, and a list of all other keys."""

import json
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.base.unique_keys import unique_keys
from paratune.config.layers import read_text
from paratune.config.plain import one_line, yaml_lines
from paratune.config.trainer.keys import KEYS, RENAMED
from paratune.config.validate import describe_value
from paratune.errors import ConfigError

_SECTIONS = (
    *("run", "task", "data", "model", "train", "batch", "evaluate", "checkpoint", "strategy", "precision", "device"),
    *("measure", "trackers"),
)
FILL_IN = "FILL IN"
"""Marks a value that settings of the Trainer do not contain."""
_ALLOWED = {
    "number": "a number",
    "whole": "a whole number",
    "switch": "true or false",
    "word": "text",
    "text": "text",
}


def read_settings(path: Path) -> dict[str, Any]:
    """Read the JSON file of settings.

    Raises:
        ConfigError: It is missing, a pickle, not JSON, not a mapping, or has duplicate keys.
    """
    if path.is_file():
        with path.open("rb") as file:
            is_pickle = file.read(4).startswith((b"PK\x03\x04", b"\x80")) or path.suffix in (".bin", ".pt", ".pkl")
        if is_pickle:
            raise ConfigError(
                f"{path} is a pickle: reading it would run the code in it. Let the script that wrote it write JSON "
                f"instead: open('training_args.json', 'w').write(trainer.args.to_json_string())",
                code="trainer.pickle",
                path=path,
            )
    text = read_text(path)
    try:
        settings = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON: {error}", code="trainer.settings_unreadable", path=path) from error
    if not isinstance(settings, dict) or not settings:
        message = f"{path} has {describe_value(settings)}; the settings of a Trainer are a mapping with keys"
        raise ConfigError(message, code="trainer.settings_unreadable", path=path)
    return settings


@dataclass(frozen=True)
class UnmappedKey:
    """A key without an equivalent in paratune."""

    key: str
    value: Any
    why: str
    changes: bool | None
    """Whether the experiment is different without it; None where that is unknown."""

    @property
    def line(self) -> str:
        """The key, its value and the reason."""
        shown = one_line(self.value)
        short = shown if len(shown) <= 60 else f"{shown[:56]} ..."
        return plain(f"{'[changes the experiment] ' if self.changes else ''}{self.key}: {short}: {self.why}")


class Conversion:
    """The keys of a file, the configuration that they become, and a list of the keys that are not in it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {}
        """Options by dotted key."""
        self.comments: dict[str, str] = {}
        """Origin of each option, by dotted key."""
        self.decide: list[UnmappedKey] = []
        """Keys for which the user must decide: the written value may be wrong."""
        self.no_equal: list[UnmappedKey] = []
        """Keys without an equivalent."""
        self.not_known: list[UnmappedKey] = []
        """Keys that TrainingArguments never had."""
        self.ignored: list[str] = []
        """Keys without an equivalent that have their default."""
        self.used: list[str] = []
        """Keys of the file that became options."""
        self.problems: list[str] = []
        """Wrong values, which end the conversion."""
        self.given: dict[str, Any] = {}
        """Values of the file by their present names."""
        self.names: dict[str, str] = {}
        """Name in the file, which may be an older one, by present name."""
        for key, value in settings.items():
            name = RENAMED.get(key, key)
            if name in self.given and value in (None, False):
                continue
            if name in self.given and self.given[name] not in (None, False, value):
                self.problems.append(f"{key} is an older name of {name}, and both are given; keep one")
            self.given[name] = value
            self.names[name] = key

    def get(self, key: str) -> Any:
        """Return the value of a key of `KEYS`, or the default of TrainingArguments; wrong values are a problem.

        A number, a whole number or a text may be None, where it is null or wrong; a switch is true or false.
        """
        default, kind, _ = KEYS[key]
        value = self.given.get(key, default)
        if kind == "switch":
            if value is None or isinstance(value, bool):
                return bool(value)
        elif kind == "any" or value is None:
            return value
        elif kind in ("number", "whole"):
            if isinstance(value, str):  # some programs write 5e-5 as text; TrainingArguments accepts it too
                with suppress(ValueError):
                    value = float(value)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if is_number and abs(value) <= sys.float_info.max:  # not NaN, and no int of 400 digits
                if kind == "number":
                    return value
                if value == int(value):
                    return int(value)
        elif isinstance(value, str):
            # Older versions wrote the name of the enumeration: SchedulerType.LINEAR.
            return re.sub(r"^[A-Za-z]+\.(?=[A-Z_]+$)", "", value).lower() if kind == "word" else value or None
        self.problems.append(f"{key} is {describe_value(value)}; allowed: {_ALLOWED[kind]}")
        return False if kind == "switch" else None

    def origin(self, *keys: str) -> str:
        """Return the origin of a value: the keys of the file, or the default of TrainingArguments."""
        names = [self.names[key] for key in keys if key in self.given]
        return ", ".join(names) or f"default of TrainingArguments ({keys[0]})"

    def put(self, option: str, value: Any, comment: str) -> None:
        """Write an option with its origin."""
        self.values[option], self.comments[option] = value, comment

    def to_decide(self, key: str, value: Any, why: str, *, changes: bool) -> None:
        """Add a key for which the written value may be wrong."""
        self.decide.append(UnmappedKey(key, value, why, changes))

    def groups(self) -> list[tuple[str, list[str]]]:
        """Return the keys that the user must check, in groups that are not empty: a title, and a line for each key."""
        groups = (
            ("to decide (the written value may be wrong)", self.decide),
            ("not known (left out; the Trainer has no such key)", self.not_known),
            ("without an equivalent in paratune", self.no_equal),
        )
        return [(title, [entry.line for entry in entries]) for title, entries in groups if entries]

    def text(self, source: str) -> str:
        """Return the file: comments with the keys that have no equivalent, and all values with their origins."""
        nested: dict[str, Any] = {}
        for dotted in sorted(self.values, key=lambda option: _SECTIONS.index(option.split(".")[0])):
            *path, last = dotted.split(".")
            section = nested
            for name in path:
                section = section.setdefault(name, {})
            section[last] = self.values[dotted]
        lines = [
            f"# Converted from {plain(source)}, settings of a Hugging Face Trainer; comments have the origin of values."
        ]
        for title, keys in self.groups():
            lines += [f"# {title[0].upper()}{title[1:]}:", *(f"#   {line}" for line in keys)]
        return "\n".join([*lines, *yaml_lines(nested, lambda key: plain(self.comments[key]))]) + "\n"
