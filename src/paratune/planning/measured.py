"""The arguments of `plan --measured`: folders of runs, and figures that somebody measured, as text.

One figure: `310 s an epoch on 1 x a100-40gb, ddp, fp16, micro-batch 16`. No torch.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from paratune.base.text import plain
from paratune.base.units import GIB, MIB
from paratune.errors import ConfigError
from paratune.hardware.devices import ARITHMETICS

Quantity = Literal["step", "epoch", "run", "samples_per_s", "memory", "allocated"]

FORM = "310 s an epoch on 1 x a100-40gb, ddp, fp16, micro-batch 16"
_NUMBER = r"(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)"
_TIME = rf"(?P<time>(?:{_NUMBER}\s*(?:ms|s|min|h)\s*)+?)\s*(?:an?|per|/)\s*(?P<span>step|epoch|run)"
_RATE = rf"(?P<rate>{_NUMBER})\s*samples\s*(?:/\s*s|per\s+second)"
_MEMORY = rf"(?P<memory>{_NUMBER})\s*(?P<unit>[GM]i?B)(?P<allocated>\s+allocated)?"
_WHERE = r"\s+on\s+(?P<devices>[0-9]+)\s*x\s*(?P<device>[^\s,]+)"
_FIGURE = re.compile(rf"(?:{_TIME}|{_RATE}|{_MEMORY}){_WHERE}(?P<rest>(?:\s*,\s*[^,]+)*)", re.IGNORECASE)
_SECONDS = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"gb": 1e9, "mb": 1e6, "gib": GIB, "mib": MIB}
_NODES = re.compile(r"([0-9]+)\s+nodes?", re.IGNORECASE)
_MICRO_BATCH = re.compile(r"micro-?batch(?:es of)?\s+([0-9]+)", re.IGNORECASE)


@dataclass(frozen=True)
class MeasuredFigure:
    """A measured time, rate or amount of memory, and the option (strategy, devices, ...) with which it was measured."""

    text: str
    quantity: Quantity
    value: float
    """Seconds (step, epoch, run), samples per second, or bytes of one device (memory: as nvidia-smi shows it;
    allocated: as `torch.cuda.max_memory_allocated` returns it)."""
    device: str
    num_ranks: int
    """Devices over all nodes, at least 1."""
    num_nodes: int = 1
    strategy: str | None = None
    """None stands for the value of the configuration; so for the next two."""
    precision: str | None = None
    micro_batch_size: int | None = None


def parse_figure(text: str) -> MeasuredFigure:
    """Return the figure that a text states.

    Raises:
        ConfigError: The text has another form, or a value out of range (`plan.measured_syntax`).
    """
    match = _FIGURE.fullmatch(text.strip())
    if match is None:
        raise _syntax(text, "it is neither a folder nor a time, a rate or an amount of memory with its devices")
    quantity, value = _quantity(match)
    num_ranks = int(match["devices"])
    words = [word.strip() for word in match["rest"].split(",") if word.strip()]
    options: dict[str, Any] = {}
    for word in words:
        key, option = _option(word)
        if key in options:
            raise _syntax(text, f"{word!r} is a second {key}")
        options[key] = option
    num_nodes = options.get("num_nodes", 1)
    if value <= 0 or num_ranks < 1 or num_nodes < 1 or num_ranks % num_nodes or options.get("micro_batch_size") == 0:
        raise _syntax(text, "amounts and numbers start at 1, and the devices are divided evenly among the nodes")
    return MeasuredFigure(plain(text.strip()), quantity, value, match["device"].lower(), num_ranks, **options)


def _quantity(match: re.Match[str]) -> tuple[Quantity, float]:
    if match["time"] is not None:
        parts = re.findall(rf"({_NUMBER})\s*(ms|s|min|h)", match["time"], re.IGNORECASE)
        span: Any = match["span"].lower()
        return span, sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)
    if match["rate"] is not None:
        return "samples_per_s", float(match["rate"])
    value = float(match["memory"]) * _BYTES[match["unit"].lower()]
    return "memory" if match["allocated"] is None else "allocated", value


def _option(word: str) -> tuple[str, Any]:
    if (match := _NODES.fullmatch(word)) is not None:
        return "num_nodes", int(match[1])
    if (match := _MICRO_BATCH.fullmatch(word)) is not None:
        return "micro_batch_size", int(match[1])
    return ("precision", word.lower()) if word.lower() in ARITHMETICS else ("strategy", word)


def _syntax(text: str, reason: str) -> ConfigError:
    return ConfigError(
        f"--measured {plain(text)!r}: {reason}; write it as {FORM!r}, or 2.1 min per run, 152 samples/s, 31.2 GiB, "
        "30.1 GiB allocated; for several nodes add '2 nodes'. Or name the folder of a run",
        code="plan.measured_syntax",
        option="--measured",
        value=text,
    )


def divide_measured(arguments: Sequence[str]) -> tuple[list[MeasuredFigure], list[Path]]:
    """Divide the arguments of `--measured` into figures and folders, of runs and matrices.

    Raises:
        ConfigError: A text is neither an existing folder nor a figure.
    """
    figures: list[MeasuredFigure] = []
    folders: list[Path] = []
    for argument in arguments:
        folder = Path(argument)
        if folder.exists():
            folders.append(folder)
        else:
            figures.append(parse_figure(argument))
    return figures, folders
