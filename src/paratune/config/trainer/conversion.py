"""`Conversion`: the keys of settings, the configuration that they become, and a list of those that are not in it."""

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paratune.base.text import plain
from paratune.config.plain import flatten, nested, one_line, yaml_lines
from paratune.config.trainer.read import from_json, of_deepspeed
from paratune.config.trainer.table import FSDP, MEANT, TABLE, Mapped, Reason, has_no_effect
from paratune.config.validate import describe_value
from paratune.errors import did_you_mean

_SECTIONS = (
    *("run", "task", "data", "model", "train", "batch", "evaluate", "checkpoint", "strategy", "precision", "device"),
    *("measure", "trackers"),
)
FILL_IN = "FILL IN"  # marks a value that settings of the Trainer do not contain
_ALLOWED = {"number": "a number", "whole": "a whole number", "switch": "true or false", "word": "text", "text": "text"}
_OF_SECTIONS = ("deepspeed", "fsdp_config", "accelerator_config")  # mappings of settings; dotted keys in the table


@dataclass(frozen=True)
class UnmappedKey:
    """A key without an equivalent in paratune."""

    key: str
    value: Any
    why: str
    changes: bool | None  # whether the experiment is different without it; None where that is unknown

    @property
    def line(self) -> str:
        """The key, its value and the reason."""
        shown = one_line(self.value)
        short = shown if len(shown) <= 60 else f"{shown[:56]} ..."
        value = "" if self.value is None else f" {short}:"
        return plain(f"{'[changes the experiment] ' if self.changes else ''}{self.key}:{value} {self.why}")


class Conversion:
    """The keys of a file, the configuration that they become, and a list of the keys that are not in it."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.values: dict[str, Any] = {}  # options by dotted key
        self.comments: dict[str, str] = {}  # origin of each option, by dotted key
        self.decide: list[UnmappedKey] = []  # the user must decide: the written value may be wrong
        self.no_equal: list[UnmappedKey] = []
        self.not_known: list[UnmappedKey] = []  # TrainingArguments never had them
        self.ignored: list[str] = []  # without an equivalent, with their default
        self.problems: list[str] = []  # wrong values, which end the conversion
        self.given: dict[str, Any] = {}  # values of the file by the names of the table
        self.names: dict[str, str] = {}  # name in the file, which may be another one, by name of the table
        for key, value in sorted(_in_sections(settings).items(), key=lambda pair: "." in pair[0]):
            self._add(key, value)
        # The keys without an equivalent, and those that the Trainer does not have.
        known = [name for name, row in TABLE.items() if isinstance(row, Mapped) and "." not in name]
        for key, value in self.given.items():
            row = TABLE.get(key)
            if isinstance(row, Mapped):
                continue
            if has_no_effect(key):
                self.ignored.append(self.names[key])
            elif not isinstance(row, Reason):
                why = f"not a key of TrainingArguments{did_you_mean(key, known)}"
                self.not_known.append(UnmappedKey(key, value, why, changes=None))
            elif value in (None, "", [], {}) or (value is False and row.default is not True) or value == row.default:
                self.ignored.append(self.names[key])
            else:
                self.no_equal.append(UnmappedKey(key, value, row.why, changes=True))

    def _add(self, key: str, value: Any) -> None:
        other = TABLE.get(key)
        is_meant = key in MEANT and key not in TABLE and not isinstance(value, list | dict)
        name = other if isinstance(other, str) else MEANT[key] if is_meant else key
        if key.startswith("deepspeed.") and value == "auto":  # the Trainer's own setting
            self.ignored.append(key)
            return
        before, is_off = self.given.get(name), value in (None, False, "no", "NO")
        if name in self.given and is_off:
            return
        if before in (None, False, value) or (_number(before) == _number(value) is not None):
            self.given[name], self.names[name] = value, key
            if is_meant:
                self.to_decide(key, value, f"not a key of TrainingArguments; read as {name}", changes=False)
        elif key in TABLE and "." not in key:
            self.problems.append(f"{key} is an older name of {name}, and both are given; keep one")
        else:
            why = f"left out: {self.names[name]} is {one_line(before)}, and the Trainer has one value for both"
            self.to_decide(key, value, why)

    def get(self, key: str) -> Any:
        """Return the value of a key, or the default of TrainingArguments; wrong values are a problem.

        A number, a whole number or a text may be None, where it is null or wrong; a switch is true or false.
        """
        row = TABLE[key]
        assert isinstance(row, Mapped), key
        value = self.given.get(key, row.default)
        if row.kind == "switch":
            value = {"true": True, "false": False}.get(value.lower(), value) if isinstance(value, str) else value
            if value is None or isinstance(value, bool):
                return bool(value)
        elif row.kind == "any" or value is None:
            return from_json(value)
        elif row.kind in ("number", "whole"):
            value = _number(value)
            if value is not None and (row.kind == "number" or value == int(value)):
                return value if row.kind == "number" else int(value)
            value = self.given[key]
        elif isinstance(value, str):
            # Older versions wrote the name of the enumeration: SchedulerType.LINEAR.
            return re.sub(r"^[A-Za-z]+\.(?=[A-Z_]+$)", "", value).lower() if row.kind == "word" else value or None
        self.problems.append(f"{self.names[key]} is {describe_value(value)}; allowed: {_ALLOWED[row.kind]}")
        return False if row.kind == "switch" else None

    def origin(self, *keys: str) -> str:
        """Return the origin of a value: the keys of the file, or the default of TrainingArguments."""
        names = [self.names[key] for key in keys if key in self.given]
        return ", ".join(names) or f"default of TrainingArguments ({keys[0]})"

    def put(self, option: str, value: Any, comment: str) -> None:
        """Write an option with its origin."""
        self.values[option], self.comments[option] = value, comment

    def to_decide(self, key: str, value: Any, why: str, *, changes: bool = True) -> None:
        """Add a key for which the written value may be wrong."""
        self.decide.append(UnmappedKey(key, value, why, changes))

    @property
    def used(self) -> list[str]:
        """The keys that became options: those with an equivalent that are in no other group."""
        others = {entry.key for entry in (*self.decide, *self.no_equal)} | set(self.ignored)
        keys = [(key, self.names[key]) for key in self.given if isinstance(TABLE.get(key), Mapped)]
        return [name for key, name in keys if not {key, name} & others]

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
        in_order = sorted(self.values.items(), key=lambda pair: _SECTIONS.index(pair[0].split(".")[0]))
        lines = [f"# Converted from {plain(source)}, settings of a Hugging Face Trainer; a comment has the origin."]
        for title, keys in self.groups():
            lines += [f"# {title[0].upper()}{title[1:]}:", *(f"#   {line}" for line in keys)]
        return "\n".join([*lines, *yaml_lines(nested(dict(in_order)), lambda key: plain(self.comments[key]))]) + "\n"


def _number(value: Any) -> float | int | None:
    """Return a finite number, also from a text: some programs write 5e-5 as text; None for other values."""
    if isinstance(value, str):
        with suppress(ValueError):
            value = float(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value if is_number and abs(value) <= sys.float_info.max else None  # not NaN, and no int of 400 digits


def _in_sections(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with those of DeepSpeed, FSDP and Accelerate's loaders by dotted key."""
    values: dict[str, Any] = {}
    for key, given in settings.items():
        value = from_json(given) if key in _OF_SECTIONS else given
        if key not in _OF_SECTIONS or not isinstance(value, Mapping):
            values[key] = value
        elif key == "deepspeed":
            values |= of_deepspeed(value)
        else:
            names = {name: name.removeprefix("fsdp_") if f"{key}." == FSDP else name for name in flatten(value)}
            values |= {f"{key}.{names[name]}": item for name, item in flatten(value).items()}
    return values
