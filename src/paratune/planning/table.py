"""The output of `paratune plan`: tables of memory and time, impossible options with reasons, and advice."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from paratune.base.text import plain, plain_lines
from paratune.base.units import NOT_AVAILABLE, format_bytes
from paratune.console.html import html_of
from paratune.planning.advice import span_text
from paratune.planning.enumerate import Impossible
from paratune.planning.figure_range import FigureRange
from paratune.planning.predict import Prediction

if TYPE_CHECKING:
    import pyarrow

_GAP = 2
_NAME_SHARE = 3
"""A strategy's name that is wider than the table's width divided by this number is broken into lines."""
SCHEMA_VERSION = 1
_COLUMN_TERMS = {
    "states": ("weights", "gradients", "optimizer", "update", "buffers"),
    "activations": ("activations", "cast_weights", "batch", "measured_difference"),
    "gathered, sent": ("gathered_weights", "communication"),
    "CUDA": ("context", "nccl", "workspaces", "fragmentation"),
    "process": ("process",),
}
"""The terms of memory that each column sums up."""
_SPANS = ("step", "epoch", "run")
_WHOLE_NUMBERS = ("num_ranks", "num_nodes", "micro_batch_size", "grad_accum_steps")


@dataclass(frozen=True)
class Plan:
    """The result of `paratune plan`."""

    heading: tuple[str, ...]
    """Model, data and machine, which all options share."""
    predictions: tuple[Prediction, ...]
    impossible: tuple[Impossible, ...]
    advice: tuple[str, ...]
    notes: tuple[str, ...] = ()
    """Notes on how to read the figures."""
    recommended: Prediction | None = None
    about: dict[str, Any] | None = None
    """The heading as plain data."""

    @property
    def fits(self) -> bool | None:
        """Whether at least one option fits; None if the memory of the machine is unknown."""
        verdicts = {prediction.fits for prediction in self.predictions}
        return True if True in verdicts else None if None in verdicts else False

    def table(self) -> "pyarrow.Table":
        """Return a row for each possible option, in the order of `predictions`.

        Memory is in bytes of the device that needs most, times are in seconds, each with the bounds of its interval;
        unknown values are null. `to_pandas()` makes a DataFrame of it.
        """
        import pyarrow as pa

        schema = pa.schema(
            [
                *((name, pa.string()) for name in ("strategy", "precision")),
                *((name, pa.int64()) for name in _WHOLE_NUMBERS),
                ("fits", pa.bool_()),
                ("fit", pa.string()),
                *((f"memory{end}_bytes", pa.int64()) for end in ("", "_low", "_high")),
                *((f"{span}{end}_s", pa.float64()) for span in _SPANS for end in ("", "_low", "_high")),
                *((f"price{end}", pa.float64()) for end in ("", "_low", "_high")),
                ("is_recommended", pa.bool_()),
            ]
        )
        return pa.Table.from_pylist([self._row(prediction) for prediction in self.predictions], schema)

    def _row(self, prediction: Prediction) -> dict[str, object]:
        memory = prediction.memory
        row: dict[str, object] = prediction.as_dict() | {
            "memory_bytes": memory.total,
            "memory_low_bytes": memory.low,
            "memory_high_bytes": memory.high,
            "is_recommended": prediction is self.recommended,
        }
        figures = [(span, "_s", getattr(prediction, span)) for span in _SPANS]
        for name, unit, figure in [*figures, ("price", "", prediction.price)]:
            if figure is not None:
                row |= {
                    f"{name}{unit}": figure.value,
                    f"{name}_low{unit}": figure.low,
                    f"{name}_high{unit}": figure.high,
                }
        return row

    def _repr_html_(self) -> str:
        """Return the output of the command, for notebooks."""
        return html_of(self)

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as plain data for `--json`; unknown values are None."""
        return {
            "generator": "paratune plan",
            "schema_version": SCHEMA_VERSION,
            **(self.about or {}),
            "options": [prediction.as_dict() for prediction in self.predictions],
            "impossible": [
                {
                    "strategy": rejected.name,
                    "precision": rejected.precision,
                    "num_ranks": rejected.num_ranks,
                    "reason": rejected.reason,
                    "codes": list(rejected.codes),
                }
                for rejected in self.impossible
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
            memory_text = _memory_text(self.recommended)
            yield Text(plain(f"The peak memory of {self.recommended.label} is {memory_text}."), style="dim")
        if self.advice:
            yield Text()
        for line in self.advice:
            yield Text(plain(f"- {line}"))

    def _tables(self, width: int) -> Iterator[Table]:
        """Yield a table of memory and one of time, both with the columns that distinguish the rows.

        Columns of details are left out if the table would be too wide.
        """
        if not self.predictions:
            return
        keys = list(self._keys(width // _NAME_SHARE))
        for columns in (list(self._memory_columns()), list(self._time_columns())):
            if sum(map(_width, [*keys, *columns])) - _GAP > width:
                columns = [column for column in columns if not column.is_detail]
            if columns:
                yield self._table([*keys, *columns])

    def _table(self, columns: Sequence["_Column"]) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
        for column in columns:
            table.add_column(column.name, justify="left" if column.is_text else "right", overflow="fold")
        for number, prediction in enumerate(self.predictions):
            texts = [column.texts[number] for column in columns]
            style = "dim" if prediction.fits is False else "bold green" if prediction is self.recommended else None
            table.add_row(*(Text(plain_lines(text)) for text in texts), style=style)
        return table

    def _keys(self, width: int) -> Iterator["_Column"]:
        """Yield the columns that distinguish options; a strategy's name is broken into lines of `width` characters."""
        yield self._column("strategy", lambda prediction: _break_name(prediction.option.name, width), is_text=True)
        yield self._column("devices", _devices)
        if len({prediction.setup.precision for prediction in self.predictions}) > 1:
            yield self._column("precision", lambda prediction: prediction.setup.precision.name, is_text=True)

    def _memory_columns(self) -> Iterator["_Column"]:
        yield self._column("micro-batch", _micro_batch)
        yield self._column("memory", lambda prediction: format_bytes(prediction.memory.total))
        yield self._column(
            "fits", lambda prediction: NOT_AVAILABLE if prediction.fit == "unknown" else prediction.fit, is_text=True
        )
        yield self._column("left", _room_text)
        yield self._column("largest", lambda prediction: str(prediction.largest_micro_batch or NOT_AVAILABLE))
        for name, terms in _COLUMN_TERMS.items():
            if any(_summed(prediction, terms) for prediction in self.predictions):
                texts = [format_bytes(_summed(prediction, terms)) for prediction in self.predictions]
                yield _Column(name, texts, is_detail=True)
        if any(prediction.host_fit in ("tight", "no") for prediction in self.predictions):
            yield self._column("host", lambda prediction: prediction.host_fit or NOT_AVAILABLE, is_text=True)
        if any(prediction.memory.host_total for prediction in self.predictions):
            yield self._column("on the host", lambda prediction: format_bytes(prediction.memory.host_total))

    def _time_columns(self) -> Iterator["_Column"]:
        if all(prediction.time is None for prediction in self.predictions):
            return
        yield self._column("step", lambda prediction: span_text(prediction.step))
        if any(prediction.epoch is not None for prediction in self.predictions):
            yield self._column("epoch", lambda prediction: _clock_span(prediction.epoch))
        bounds = [
            NOT_AVAILABLE if prediction.time is None else prediction.time.bound for prediction in self.predictions
        ]
        yield _Column("bound by", bounds, is_text=True, is_detail=True)
        if any(prediction.price is not None for prediction in self.predictions):
            yield self._column("price", lambda prediction: _price(prediction.price))

    def _column(self, name: str, text: Any, is_text: bool = False, is_detail: bool = False) -> "_Column":
        return _Column(name, [text(prediction) for prediction in self.predictions], is_text, is_detail)


@dataclass(frozen=True)
class _Column:
    name: str
    texts: Sequence[str]
    is_text: bool = False
    is_detail: bool = False
    """Left out of a table that is too narrow for it; --json has it."""


def _width(column: _Column) -> int:
    """Return the width of a column in characters, with the gap after it."""
    return max(len(line) for text in (column.name, *column.texts) for line in text.splitlines()) + _GAP


def _break_name(name: str, width: int) -> str:
    """Return a strategy with its options, with line breaks before colons."""
    lines = [""]
    for part in re.split("(?=:)", name):
        if lines[-1] and len(lines[-1] + part) > width:
            lines.append("  ")
        lines[-1] += part
    return "\n".join(lines)


def _summed(prediction: Prediction, terms: Sequence[str]) -> int:
    return sum(prediction.memory.terms.get(term, 0) for term in terms)


def impossible_lines(impossible: Sequence[Impossible]) -> list[str]:
    """Return a line for each reason, with all options that are impossible for this reason."""
    by_reason: dict[str, dict[str, list[int]]] = {}
    for rejected in impossible:
        numbers = by_reason.setdefault(rejected.reason, {}).setdefault(rejected.name, [])
        if rejected.num_ranks is not None and rejected.num_ranks not in numbers:
            numbers.append(rejected.num_ranks)
    return [f"{_strategies_text(num_ranks_by_name)}: {reason}" for reason, num_ranks_by_name in by_reason.items()]


def _strategies_text(numbers_of: Mapping[str, Sequence[int]]) -> str:
    """Return strategies and numbers of devices as text; strategies with equal numbers are joined."""
    names_of: dict[tuple[int, ...], list[str]] = {}
    for name, numbers in numbers_of.items():
        names_of.setdefault(tuple(sorted(numbers)), []).append(name)
    texts = []
    for numbers, names in names_of.items():
        on = f" on {' or '.join(map(str, numbers))} device{'s' * (numbers != (1,))}" if numbers else ""
        texts.append(f"{', '.join(names)}{on}")
    return "; ".join(texts)


def _devices(prediction: Prediction) -> str:
    """Return the number of devices; on several nodes such as "2 x 8"."""
    setup = prediction.setup
    return f"{setup.num_nodes} x {setup.ranks_per_node}" if setup.num_nodes > 1 else str(setup.num_ranks)


def _micro_batch(prediction: Prediction) -> str:
    setup = prediction.setup
    accumulated = f" x {setup.grad_accum_steps}" if setup.grad_accum_steps > 1 else ""
    return f"{setup.micro_batch_size}{accumulated}"


def _room_text(prediction: Prediction) -> str:
    room = prediction.room_bytes
    if room is None:
        return NOT_AVAILABLE
    return format_bytes(room) if room >= 0 else f"-{format_bytes(-room)}"


def _clock_span(span: FigureRange | None) -> str:
    """Return a duration with its bounds, in min:s or h:min:s: "5:02 (4:48 to 5:18)"."""
    if span is None:
        return NOT_AVAILABLE
    return f"{_clock(span.value)} ({_clock(span.low)} to {_clock(span.high)})"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _memory_text(prediction: Prediction) -> str:
    parts = sorted(prediction.memory.terms.items(), key=lambda part: -part[1])
    return ", ".join(f"{name.replace('_', ' ')} {format_bytes(size)}" for name, size in parts if size)


def _price(price: FigureRange | None) -> str:
    return NOT_AVAILABLE if price is None else f"{price.value:.3g} ({price.low:.3g} to {price.high:.3g})"
