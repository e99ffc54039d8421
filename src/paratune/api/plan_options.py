"""The options of a plan, checked: the strategies, devices and batches to plan, and the machine."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paratune.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from paratune.config.load import LoadedConfig
    from paratune.planning.machine import Machine
    from paratune.planning.measured import MeasuredFigure

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64")
ALL = ("all",)
"""Value of `PlanOptions.strategies` for all strategies."""
_MAX_NUMBER = 65536
_USUAL_RANKS = (1, 2, 4, 8)
Reload = Callable[[Sequence[str]], "LoadedConfig"]
"""Loads the planned configuration again with further settings, each `section.key=value`."""


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """What is planned; `paratune.plan` describes each field. The fields are checked by `check_options`."""

    devices: tuple[int, ...] | None = None
    device: str | None = None
    nodes: tuple[int, ...] | None = None
    strategies: tuple[str, ...] | None = None
    precision: tuple[str, ...] | None = None
    max_length: int | None = None
    rows: int | None = None
    micro_batch_size: tuple[int, ...] | None = None
    price: float | None = None


def check_options(options: PlanOptions) -> None:
    """Raise a `ConfigError` for a number out of range or an unknown precision."""
    problems = [
        f"{name} {value}: at least 1 is needed"
        for name, value in (("--max-length", options.max_length), ("--rows", options.rows))
        if value is not None and value < 1
    ]
    if options.price is not None and not 0 <= options.price < float("inf"):
        problems.append(f"--price {options.price}: the price of a device-hour is at least 0")
    if options.rows is not None and options.max_length is None:
        problems.append("--rows replaces the data and needs --max-length")
    if problems:
        raise ConfigError("; ".join(problems), code="cli.out_of_range")
    for option, numbers in (
        ("--devices", options.devices),
        ("--nodes", options.nodes),
        ("--micro-batch-size", options.micro_batch_size),
    ):
        if numbers is not None:
            _check_numbers(option, numbers)
    if options.precision is not None:
        _check_precisions(options.precision)


def read_numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """Return the numbers of a comma-separated list; None for None.

    Raises:
        ConfigError: A word is not a whole number.
    """
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if re.fullmatch("[0-9]{1,9}", word) is None:
            raise _not_a_number(option, text, word)
    return tuple(map(int, words))


def _check_numbers(option: str, numbers: Sequence[int]) -> None:
    """Raise an error for numbers below 1, and for repeated ones."""
    text = ",".join(map(str, numbers))
    if not numbers:
        raise _not_a_number(option, text, "")
    for number in numbers:
        if not isinstance(number, int) or isinstance(number, bool) or not 1 <= number <= _MAX_NUMBER:
            raise _not_a_number(option, text, str(number))
    repeated = [number for number in dict.fromkeys(numbers) if numbers.count(number) > 1]
    if repeated:
        raise ConfigError(
            f"{option} {text!r} names {repeated[0]} twice; name each once", code="cli.named_twice", option=option
        )


def _not_a_number(option: str, text: str, word: str) -> ConfigError:
    message = f"{option} {text!r}: {word!r} is not a whole number from 1 to {_MAX_NUMBER}; for example {option} 1,2,4,8"
    return ConfigError(message, code="cli.invalid_value", option=option, word=word)


def _check_precisions(names: Sequence[str]) -> None:
    unknown = [name for name in names if name not in PRECISIONS]
    if unknown or not names:
        name = unknown[0] if unknown else ""
        message = (
            f"--precision {name!r} is not a precision{did_you_mean(name, PRECISIONS)}; allowed: "
            f"{', '.join(PRECISIONS)}, several with commas"
        )
        raise ConfigError(message, code="cli.unknown_name", option="--precision")


def planned_machine(
    options: PlanOptions, loaded: "LoadedConfig", figures: Sequence["MeasuredFigure"] = ()
) -> "Machine":
    """Return the machine that is planned: the named one, that of the measured figures, or this one.

    Raises:
        ConfigError: There is no such machine, or the configuration asks for the CPU of a machine with a GPU.
    """
    from dataclasses import replace

    from paratune.api.plan_measured import measured_device
    from paratune.planning.machine import find_machine, this_machine

    name = measured_device(figures) if options.device is None else options.device
    machine = this_machine() if name is None else find_machine(name)
    if name is None and machine.is_cuda and loaded.config.device == "cpu":
        message = (
            "device: cpu in the configuration, and this machine has a GPU; name a machine: --device KEY or "
            "FILE.yaml, or set --set device=auto"
        )
        raise ConfigError(message, code="device.conflict", key="device")
    return machine if options.price is None else replace(machine, price_per_hour=options.price)


def plan_request(options: PlanOptions, loaded: "LoadedConfig", machine: "Machine") -> Any:
    """Return the `PlanRequest`, the options that the plan varies, with defaults for machine and configuration."""
    from paratune.planning.enumerate import ALL_STRATEGIES, DEFAULT_STRATEGIES, PlanRequest

    strategies = options.strategies
    if strategies in (None, ALL):
        names = DEFAULT_STRATEGIES if strategies is None else ALL_STRATEGIES
        strategies = tuple(dict.fromkeys([*names, loaded.config.strategy.kind]))
    usual_num_ranks = [number for number in _USUAL_RANKS if machine.is_cuda or number <= max(1, machine.num_cores or 1)]
    return PlanRequest(
        num_ranks=tuple(usual_num_ranks) if options.devices is None else options.devices,
        strategies=strategies,
        precisions=(loaded.config.precision,) if options.precision is None else options.precision,
        micro_batch_sizes=(None,) if options.micro_batch_size is None else options.micro_batch_size,
        nodes=options.nodes or (),
        are_named=options.strategies not in (None, ALL),
    )
