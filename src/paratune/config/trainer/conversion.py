"""Result of a conversion: a configuration with the origin of each value, and a list of all other keys."""

from dataclasses import dataclass, field
from typing import Any

from paratune.base.text import plain
from paratune.config.plain import one_line, yaml_lines

_SECTIONS = (
    *("run", "task", "data", "model", "train", "batch", "evaluate", "checkpoint", "strategy", "precision", "device"),
    *("measure", "trackers"),
)


FILL_IN = "FILL IN"
"""Marks a value that settings of the Trainer do not contain."""
DECIDE = "DECIDE"
"""Marks a value that replaces a setting without an equivalent."""


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


@dataclass
class Conversion:
    """A configuration, and a list of the keys that are not in it."""

    values: dict[str, Any] = field(default_factory=dict)
    """By dotted key."""
    comments: dict[str, str] = field(default_factory=dict)
    """Origin of each value, by dotted key."""
    decide: list[UnmappedKey] = field(default_factory=list)
    """Keys for which the user must decide: the written value may be wrong."""
    no_equal: list[UnmappedKey] = field(default_factory=list)
    """Keys without an equivalent."""
    not_known: list[UnmappedKey] = field(default_factory=list)
    """Keys that TrainingArguments never had."""
    ignored: list[str] = field(default_factory=list)
    """Keys without an equivalent that have their default."""
    used: list[str] = field(default_factory=list)
    """Keys of the file that became options."""

    def put(self, key: str, value: Any, comment: str) -> None:
        """Write an option with its origin."""
        self.values[key] = value
        self.comments[key] = comment

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
        for section in _SECTIONS:
            for key in self.values:
                if key == section or key.startswith(f"{section}."):
                    _put_in(nested, key, self.values[key])
        lines = [
            f"# Converted from {plain(source)}, settings of a Hugging Face Trainer; comments have the origin of values."
        ]
        for title, keys in self.groups():
            lines += [f"# {title[0].upper()}{title[1:]}:", *(f"#   {line}" for line in keys)]
        return "\n".join([*lines, *yaml_lines(nested, lambda key: plain(self.comments[key]))]) + "\n"


def _put_in(nested: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for name in path:
        nested = nested.setdefault(name, {})
    nested[last] = value
