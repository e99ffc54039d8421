"""A matrix file while it is read: its lines, and what is wrong with it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune.config.layers import EXTENDS, Layer, label, layers_within, read_text
from paratune.config.problems import Problem, SourceLocation
from paratune.config.section import LONGEST_S
from paratune.config.validate import describe_value
from paratune.config.yaml_tree import read_tree


class MatrixFile:
    """One file; problems are noted where they are found, so that all of them are said at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = label(path, path.parent)
        """As messages call it."""
        tree = read_tree(read_text(path), self.label)
        self.value = tree.value
        """All that it says."""
        self.places = tree.places
        """Where each of it stands, by dotted key."""
        self.problems: list[Problem] = list(tree.problems)

    def refuse(self, message: str, key: str, code: str = "config.invalid_value") -> None:
        """Note what is wrong with a key."""
        keys = (key,)
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        self.problems.append(Problem(message, keys, self.places.get(key, SourceLocation(self.label, 1)), code=code))

    def text(self, found: Mapping[Any, Any], key: str, default: Any) -> Any:
        """Return a text; the default where there is none or it is something else."""
        value = found.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            self.refuse(f"{key} is {describe_value(value)}; allowed: text", key)
            return default
        return value

    def count(self, value: Any, key: str, *, least: int = 1) -> int:
        """Return a whole number of at least `least`; that where it is something else."""
        if type(value) is not int or value < least:
            self.refuse(f"{key} is {describe_value(value)}; allowed: a whole number, at least {least}", key)
            return least
        return value

    def amount(self, found: Mapping[Any, Any], key: str, *, zero: bool = False) -> float | None:
        """Return a number of seconds (or a price) above 0, or also 0, at most LONGEST_S; None where it is none."""
        value = found.get(key)
        if value is None:
            return None
        # Compared before it is converted: no float holds a whole number of 400 digits. NaN compares as false.
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and value <= LONGEST_S
        if not is_number or value < 0 or (value == 0 and not zero):
            allowed = "0" if zero else "above 0"
            self.refuse(f"{key} is {describe_value(value)}; allowed: a number {allowed} to {LONGEST_S:g}", key)
            return None
        return float(value)

    def layers(self, settings: Mapping[Any, Any], at: str, *, called: str = EXTENDS) -> tuple[Layer, Layer]:
        """Return what settings extend, and what they say themselves; `called` is what names the files in this one."""
        below, own = layers_within(settings, self.places, at, self.path, called=called)
        self.problems += [*below.problems, *own.problems]
        return replace(below, problems=[]), replace(own, problems=[])
