"""What a conversion made: values with where they come from, and what became of every other key."""

from dataclasses import dataclass, field
from typing import Any

from paratune.base.text import plain
from paratune.config.plain import one_line, yaml_lines

_SECTIONS = (
    *("run", "task", "data", "model", "train", "batch", "evaluate", "checkpoint", "strategy", "precision", "device"),
    "measure",
)


FILL_IN = "FILL IN"
"""Before what a file of the Trainer's settings never says."""
DECIDE = "DECIDE"
"""Before a value that stands for one without an equal."""


@dataclass(frozen=True)
class Left:
    """A key without an equal here."""

    key: str
    value: Any
    why: str
    changes: bool | None
    """Whether the experiment is another one without it; None where that cannot be told."""

    @property
    def said(self) -> str:
        """The key, its value and the reason in a line."""
        shown = one_line(self.value)
        short = shown if len(shown) <= 60 else f"{shown[:56]} ..."
        return plain(f"{'[changes the experiment] ' if self.changes else ''}{self.key}: {short}: {self.why}")


@dataclass
class Conversion:
    """A configuration, and what became of each key."""

    values: dict[str, Any] = field(default_factory=dict)
    """By dotted key."""
    comments: dict[str, str] = field(default_factory=dict)
    """Where each value comes from, by dotted key."""
    decide: list[Left] = field(default_factory=list)
    """What needs a decision: a value was written that may not be meant."""
    no_equal: list[Left] = field(default_factory=list)
    not_known: list[Left] = field(default_factory=list)
    """Keys that TrainingArguments never had."""
    ignored: list[str] = field(default_factory=list)
    """Keys without an equal at values that ask for nothing."""
    used: list[str] = field(default_factory=list)
    """Keys of the file that became options."""

    def put(self, key: str, value: Any, comment: str) -> None:
        """Write an option, with where its value comes from."""
        self.values[key] = value
        self.comments[key] = comment

    def to_decide(self, key: str, value: Any, why: str, *, changes: bool) -> None:
        """Note a key for which a value was written that may not be meant."""
        self.decide.append(Left(key, value, why, changes))

    def groups(self) -> list[tuple[str, list[str]]]:
        """Return the groups of keys that need a look, those that have any: a title, and a line of each key."""
        groups = (
            ("to decide (a value was written that may not be meant)", self.decide),
            ("not known (left out; the Trainer has no such key)", self.not_known),
            ("without an equal here", self.no_equal),
        )
        return [(title, [each.said for each in left]) for title, left in groups if left]

    def text(self, source: str) -> str:
        """Return the file: comments that name what has no equal, and every value with where it comes from."""
        nested: dict[str, Any] = {}
        for section in _SECTIONS:
            for key in self.values:
                if key == section or key.startswith(f"{section}."):
                    _put_in(nested, key, self.values[key])
        lines = [
            f"# From {plain(source)}, the settings of a Hugging Face Trainer; behind each value where it comes from."
        ]
        for title, left in self.groups():
            lines += [f"# {title[0].upper()}{title[1:]}:", *(f"#   {each}" for each in left)]
        return "\n".join([*lines, *yaml_lines(nested, lambda key: plain(self.comments[key]))]) + "\n"


def _put_in(nested: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for name in path:
        nested = nested.setdefault(name, {})
    nested[last] = value
