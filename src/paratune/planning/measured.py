"""Figures that somebody measured on the planned device, as text or in a YAML file: `plan --measured`.

One figure: `310 s an epoch on 1 x a100-40gb, ddp, fp16, micro-batch 16`. No torch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from paratune.base.text import plain
from paratune.base.units import GIB, MIB
from paratune.config.layers import read_text
from paratune.config.problems import failure
from paratune.config.yaml_tree import read_tree
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
_FILE_KEYS = ("figure", "config", "set")


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
    config: Path | None = None
    """Another configuration than the planned one."""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the configuration that differ, by dotted key."""


def parse_figure(text: str) -> MeasuredFigure:
    """Return the figure that a text states.

    Raises:
        ConfigError: The text has another form, or a value out of range (`plan.measured_syntax`).
    """
    match = _FIGURE.fullmatch(text.strip())
    if match is None:
        raise _syntax(text, "it is not a time, a rate or an amount of memory with its devices")
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
        "30.1 GiB allocated; for several nodes add '2 nodes'. A run folder needs --goal",
        code="plan.measured_syntax",
        option="--measured",
        value=text,
    )


def read_figures(path: Path) -> list[MeasuredFigure]:
    """Return the figures of a YAML file: a list whose entries are texts, or mappings with figure, config, set.

    Raises:
        ConfigError: The file cannot be read, or an entry is wrong; the error has the number of the entry.
    """
    tree = read_tree(read_text(path), str(path))
    if tree.problems:
        raise failure(path, list(tree.problems), str(path))
    entries = tree.value
    if not isinstance(entries, list) or not entries:
        form = f"each entry is a text such as {FORM!r}, or a mapping with figure, and where they differ from the plan "
        text = f"{path}: a file of measured figures is a list; {form}config and set"
        raise ConfigError(text, code="plan.measured_file", path=path)
    return [_entry(path, number, entry) for number, entry in enumerate(entries, start=1)]


def _entry(path: Path, number: int, entry: Any) -> MeasuredFigure:
    entry = {"figure": entry} if isinstance(entry, str) else entry
    where = f"{path}, entry {number}"
    if not isinstance(entry, dict) or not isinstance(entry.get("figure"), str):
        text = f"{where}: figure is missing; such as {FORM!r}"
        raise ConfigError(text, code="plan.measured_file", path=path, entry=number)
    unknown = [str(key) for key in entry if key not in _FILE_KEYS]
    config, overrides = entry.get("config"), entry.get("set") or {}
    if unknown or not isinstance(overrides, dict) or not isinstance(config, str | None):
        text = f"{where}: allowed keys are figure (a text), config (a path) and set (a mapping of dotted keys)"
        text += f"; found {', '.join(unknown)}" if unknown else ""
        raise ConfigError(text, code="plan.measured_file", path=path, entry=number, keys=unknown)
    try:
        figure = parse_figure(entry["figure"])
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}", code="plan.measured_syntax", path=path, entry=number) from error
    return replace(figure, config=None if config is None else path.parent / config, overrides=overrides)


def divide_measured(arguments: Sequence[str], *, has_goal: bool) -> tuple[list[MeasuredFigure], list[Path]]:
    """Divide the arguments of `--measured` into figures and run folders.

    With a --goal, a text that is no figure is the path of a run.

    Raises:
        ConfigError: A text is neither an existing path nor a figure.
    """
    figures: list[MeasuredFigure] = []
    runs: list[Path] = []
    for argument in arguments:
        if argument.lower().endswith((".yaml", ".yml")):
            figures += read_figures(Path(argument))
        elif Path(argument).exists() or (has_goal and _FIGURE.fullmatch(argument.strip()) is None):
            runs.append(Path(argument))
        else:
            figures.append(parse_figure(argument))
    return figures, runs
