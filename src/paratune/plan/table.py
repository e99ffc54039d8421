"""The plan as something to look at: a table of ways and of what memory is made, what is none and why, the advice."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from paratune.base.text import plain, plain_lines
from paratune.base.units import NOT_AVAILABLE, format_bytes
from paratune.plan.advice import span_text
from paratune.plan.enumerate import Impossible
from paratune.plan.predict import FigureRange, Prediction

_GAP = 2
_NAME_SHARE = 3
"""Part of the width, one in so many, that a strategy's name may take before it is written below itself."""
SCHEMA_VERSION = 1
_MADE_OF = {
    "states": ("weights", "gradients", "optimizer", "update", "buffers"),
    "activations": ("activations", "cast_weights", "batch"),
    "gathered, sent": ("gathered_weights", "communication"),
    "CUDA": ("context", "workspaces", "fragmentation"),
}
"""Columns, and the terms of memory that each sums up."""


@dataclass(frozen=True)
class Plan:
    """What `paratune plan` says."""

    heading: tuple[str, ...]
    """Model, data, machine: what all ways have in common."""
    predictions: tuple[Prediction, ...]
    impossible: tuple[Impossible, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """What a reader has to know of the figures."""
    recommended: Prediction | None = None
    about: dict[str, Any] | None = None
    """The heading as plain data."""

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, as `--json` prints it; unknown values are None."""
        return {
            "generator": "paratune plan",
            "schema_version": SCHEMA_VERSION,
            **(self.about or {}),
            "options": [each.as_dict() for each in self.predictions],
            "impossible": [
                {
                    "strategy": each.name,
                    "precision": each.precision,
                    "num_ranks": each.num_ranks,
                    "reason": each.reason,
                    "codes": list(each.codes),
                }
                for each in self.impossible
            ],
            "recommended": None if self.recommended is None else self.predictions.index(self.recommended),
            "advice": list(self.advice),
            "notes": list(self.notes),
        }

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in self.heading:
            yield Text(plain(line))
        yield Text()
        for table in self._tables(options.max_width):
            yield table
            yield Text()
        for sentence in impossible_lines(self.impossible):
            yield Text(plain(f"not possible: {sentence}"), style="yellow")
        for line in self.notes:
            yield Text(plain(line), style="dim")
        if self.recommended is not None:
            made_of = _parts(self.recommended)
            yield Text(plain(f"At its fullest {self.recommended.label} holds {made_of}."), style="dim")
        if self.advice:
            yield Text()
        for line in self.advice:
            yield Text(plain(f"- {line}"))

    def _tables(self, width: int) -> Iterator[Table]:
        """Yield as few tables as the width allows, each with what tells the ways apart."""
        if not self.predictions:
            return
        keys = list(self._keys(width // _NAME_SHARE))
        room = width - sum(map(_width, keys))
        for columns in (self._memory_columns(), self._time_columns()):
            held: list[_Column] = []
            for column in columns:
                if held and sum(map(_width, [*held, column])) - _GAP > room:
                    yield self._table([*keys, *held])
                    held = []
                held.append(column)
            if held:
                yield self._table([*keys, *held])

    def _table(self, columns: Sequence["_Column"]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(column.name, justify="left" if column.is_text else "right", overflow="fold")
        for number, each in enumerate(self.predictions):
            texts = [column.texts[number] for column in columns]
            style = "dim" if each.fits is False else "bold green" if each is self.recommended else None
            table.add_row(*(Text(plain_lines(text)) for text in texts), style=style)
        return table

    def _keys(self, width: int) -> Iterator["_Column"]:
        """Yield what tells the ways apart, names of strategies in lines of so many characters where they can be."""
        yield self._column("strategy", lambda each: _in_lines(each.option.name, width), is_text=True)
        yield self._column("devices", lambda each: str(each.setup.num_ranks))
        if len({each.setup.precision for each in self.predictions}) > 1:
            yield self._column("precision", lambda each: each.setup.precision.name, is_text=True)

    def _memory_columns(self) -> Iterator["_Column"]:
        yield self._column("micro-batch", _micro_batch)
        yield self._column("memory", lambda each: format_bytes(each.memory.total))
        yield self._column("fits", _fits, is_text=True)
        yield self._column("largest", lambda each: str(each.largest_micro_batch or NOT_AVAILABLE))
        for name, terms in _MADE_OF.items():
            if any(_summed(each, terms) for each in self.predictions):
                yield self._column(name, partial(_shown, terms=terms))
        if any(each.memory.host_total for each in self.predictions):
            yield self._column("on the host", lambda each: format_bytes(each.memory.host_total))

    def _time_columns(self) -> Iterator["_Column"]:
        if all(each.time is None for each in self.predictions):
            return
        yield self._column("step", lambda each: span_text(each.step))
        if any(each.epoch is not None for each in self.predictions):
            yield self._column("epoch", lambda each: span_text(each.epoch))
        yield self._column("bound by", lambda each: NOT_AVAILABLE if each.time is None else each.time.bound, True)
        if any(each.price is not None for each in self.predictions):
            yield self._column("price", lambda each: _price(each.price))
        if any(each.energy_j is not None for each in self.predictions):
            yield self._column("energy at most", lambda each: _energy(each.energy_j))

    def _column(self, name: str, text: Any, is_text: bool = False) -> "_Column":
        return _Column(name, [text(each) for each in self.predictions], is_text)


@dataclass(frozen=True)
class _Column:
    name: str
    texts: Sequence[str]
    is_text: bool = False


def _width(column: _Column) -> int:
    """Return the characters of a column, with the gap behind it."""
    return max(len(line) for text in (column.name, *column.texts) for line in text.splitlines()) + _GAP


def _in_lines(name: str, width: int) -> str:
    """Return a strategy with its options, broken before colons."""
    lines = [""]
    for part in re.split("(?=:)", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(lines)


def _summed(prediction: Prediction, terms: Sequence[str]) -> int:
    return sum(prediction.memory.terms.get(term, 0) for term in terms)


def _shown(prediction: Prediction, terms: Sequence[str]) -> str:
    return format_bytes(_summed(prediction, terms))


def impossible_lines(impossible: Sequence[Impossible]) -> list[str]:
    """Return a line for each reason, with all that it keeps from being possible."""
    by_reason: dict[str, dict[str, list[int]]] = {}
    for each in impossible:
        numbers = by_reason.setdefault(each.reason, {}).setdefault(each.name, [])
        if each.num_ranks is not None and each.num_ranks not in numbers:
            numbers.append(each.num_ranks)
    return [f"{_named(found)}: {reason}" for reason, found in by_reason.items()]


def _named(numbers_of: Mapping[str, Sequence[int]]) -> str:
    """Return strategies and their numbers of devices in words, those with the same numbers together."""
    names_of: dict[tuple[int, ...], list[str]] = {}
    for name, numbers in numbers_of.items():
        names_of.setdefault(tuple(sorted(numbers)), []).append(name)
    texts = []
    for numbers, names in names_of.items():
        on = f" on {' or '.join(map(str, numbers))} device{'s' * (numbers != (1,))}" if numbers else ""
        texts.append(f"{', '.join(names)}{on}")
    return "; ".join(texts)


def _micro_batch(prediction: Prediction) -> str:
    setup = prediction.setup
    accumulated = f" x {setup.grad_accum_steps}" if setup.grad_accum_steps > 1 else ""
    return f"{setup.micro_batch_size}{accumulated}"


def _fits(prediction: Prediction) -> str:
    if prediction.room_bytes is None:
        return NOT_AVAILABLE
    if prediction.fits:
        return f"yes, {format_bytes(prediction.room_bytes)} left"
    return f"no, {format_bytes(-prediction.room_bytes)} short"


def _parts(prediction: Prediction) -> str:
    parts = sorted(prediction.memory.terms.items(), key=lambda part: -part[1])
    return ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in parts if size)


def _price(price: FigureRange | None) -> str:
    return NOT_AVAILABLE if price is None else f"{price.value:.3g} ({price.low:.3g} to {price.high:.3g})"


def _energy(joules: float | None) -> str:
    return NOT_AVAILABLE if joules is None else f"{joules / 3.6e6:.3g} kWh"
