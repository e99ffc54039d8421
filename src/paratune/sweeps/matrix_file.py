"""A matrix file while it is read, with its lines and its problems."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune.config.layers import EXTENDS, Layer, label, layers_within, read_text
from paratune.config.other_files import refuse_other_file
from paratune.config.problems import Problem, SourceLocation
from paratune.config.section import LONGEST_S
from paratune.config.validate import describe_value
from paratune.config.yaml_tree import read_tree
from paratune.errors import did_you_mean


class MatrixFile:
    """One file; problems are collected, so that all of them are reported at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = label(path, path.parent)
        """Its name in messages."""
        refuse_other_file(path)
        tree = read_tree(read_text(path), self.label)
        self.value = tree.value
        """Its content."""
        self.places = tree.places
        """Line of each value, by dotted key."""
        self.problems: list[Problem] = list(tree.problems)

    def refuse(self, message: str, key: str, code: str = "config.invalid_value") -> None:
        """Add a problem of a key."""
        keys = (key,)
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        self.problems.append(Problem(message, keys, self.places.get(key, SourceLocation(self.label, 1)), code=code))

    def mapping(self, content: Any, at: str, allowed: str, known: Collection[str] = ()) -> dict[Any, Any] | None:
        """Return a mapping; None when the value is not one. Keys that are not `known` are problems.

        Args:
            allowed: What is allowed instead of another value, with an example.
            known: All options; any key is allowed when it is empty.
        """
        if not isinstance(content, dict):
            self.refuse(f"{at} is {describe_value(content)}; allowed: {allowed}", at)
            return None
        for key in content if known else ():
            if key not in known:
                near = did_you_mean(str(key), known) or f"; it has: {', '.join(known)}"
                self.refuse(f"{at}.{key} is not an option{near}", f"{at}.{key}", "config.unknown_key")
        return content

    def text(self, content: Mapping[Any, Any], key: str, default: Any) -> Any:
        """Return a text; the default when it is absent or not a text."""
        value = content.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            self.refuse(f"{key} is {describe_value(value)}; allowed: text", key)
            return default
        return value

    def count(self, value: Any, key: str, *, least: int = 1) -> int:
        """Return a whole number of at least `least`; `least` when the value is invalid."""
        if type(value) is not int or value < least:
            self.refuse(f"{key} is {describe_value(value)}; allowed: a whole number, at least {least}", key)
            return least
        return value

    def amount(self, content: Mapping[Any, Any], key: str, *, zero: bool = False) -> float | None:
        """Return a number of seconds (or a price) from 0 or above 0 to LONGEST_S; None when absent or invalid."""
        value = content.get(key)
        if value is None:
            return None
        # Compared before it is converted: a float cannot represent a whole number of 400 digits. NaN compares as false.
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value <= LONGEST_S
        if not is_number or value < 0 or (value == 0 and not zero):
            allowed = "0" if zero else "above 0"
            self.refuse(f"{key} is {describe_value(value)}; allowed: a number {allowed} to {LONGEST_S:g}", key)
            return None
        return float(value)

    def layers(self, settings: Mapping[Any, Any], at: str, *, called: str = EXTENDS) -> tuple[Layer, Layer]:
        """Return the settings of extended files and the own settings; `called` is the key that names the files."""
        below, own = layers_within(settings, self.places, at, self.path, called=called)
        self.problems += [*below.problems, *own.problems]
        return replace(below, problems=[]), replace(own, problems=[])
