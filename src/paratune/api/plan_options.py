"""The options of a plan, checked: the strategies, devices and batches to plan, and the machine."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from paratune.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from paratune.config.load import LoadedConfig
    from paratune.planning.enumerate import PlanRequest
    from paratune.planning.machine import Machine
    from paratune.planning.measured import MeasuredFigure
    from paratune.records.finished import RunRecord

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64")
ALL = "all"
"""Value of `PlanOptions.strategies` for all strategies."""
_MAX_NUMBER = 65536
_USUAL_RANKS = (1, 2, 4, 8)


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options that decide what is planned, as on the command line; they are checked by `check_options`.

    Args:
        devices: numbers of devices, comma-separated; default: 1,2,4,8
        device: a100-40gb, h100-80gb, ... or FILE.yaml with a description; default: this machine
        nodes: numbers of nodes, comma-separated; default: as few as the devices need (8 devices per node)
        strategies: comma-separated, such as ddp,zero3,pipeline:4 (a value sets the first option); or all
        precision: comma-separated; default: that of CONFIG
        max_length: plan without the data, with this number of tokens in every row
        rows: with --max-length: number of rows of the training set
        micro_batch_size: comma-separated; default: that of CONFIG, or the largest that fits
        price: price of a device-hour, in any currency: adds the cost of runs
    """

    devices: str | None = None
    device: str | None = None
    nodes: str | None = None
    strategies: str | None = None
    precision: str | None = None
    max_length: int | None = None
    rows: int | None = None
    micro_batch_size: str | None = None
    price: float | None = None


def check_options(options: PlanOptions) -> None:
    """Raise a `ConfigError` for a number out of range, an unknown precision, or a list that cannot be read."""
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
    _numbers("--devices", options.devices)
    _numbers("--nodes", options.nodes)
    _numbers("--micro-batch-size", options.micro_batch_size)
    _precisions(options.precision)
    planned_strategies(options)


def planned_strategies(options: PlanOptions) -> tuple[str, ...] | None:
    """Return the strategies that the user named; None for the usual ones, or all."""
    if options.strategies is None or options.strategies == ALL:
        return None
    from paratune.config.candidates import strategy_names  # pydantic, which --help does not need

    return tuple(strategy_names(options.strategies))


def _numbers(option: str, text: str | None) -> tuple[int, ...] | None:
    """Return the numbers of a comma-separated list, each at least 1 and named once; None for None."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if re.fullmatch("[0-9]{1,9}", word) is None or not 1 <= int(word) <= _MAX_NUMBER:
            message = f"{option} {text!r}: {word!r} is not a whole number from 1 to {_MAX_NUMBER}"
            raise ConfigError(
                f"{message}; for example {option} 1,2,4,8", code="cli.invalid_value", option=option, word=word
            )
    numbers = tuple(map(int, words))
    repeated = [number for number in numbers if numbers.count(number) > 1]
    if repeated:
        message = f"{option} {text!r} names {repeated[0]} twice; name each once"
        raise ConfigError(message, code="cli.named_twice", option=option)
    return numbers


def _precisions(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
    for name in names:
        if name not in PRECISIONS:
            message = f"--precision {name!r} is not a precision{did_you_mean(name, PRECISIONS)}; allowed: "
            message += f"{', '.join(PRECISIONS)}, several with commas"
            raise ConfigError(message, code="cli.unknown_name", option="--precision")
    return names


def planned_machine(
    options: PlanOptions,
    loaded: "LoadedConfig",
    figures: Sequence["MeasuredFigure"] = (),
    runs: Sequence["RunRecord"] = (),
) -> "Machine":
    """Return the machine that is planned: the named one, the one that was measured, or this one.

    Args:
        options: Have its name and price, if they were given.
        loaded: The planned configuration.
        figures: Figures of `--measured`.
        runs: Runs of `--measured`.

    Raises:
        ConfigError: There is no such machine, the configuration asks for the CPU of a machine with a GPU, or another
            machine was measured.
    """
    from paratune.api.plan_measured import machine_of_run
    from paratune.planning.machine import find_machine, this_machine

    ran_on = [machine_of_run(run) for run in runs]
    if options.device is not None:
        machine = find_machine(options.device)
    elif ran_on:
        machine = ran_on[0]
    elif figures:
        machine = find_machine(figures[0].device)
    else:
        machine = this_machine()
        if machine.is_cuda and loaded.config.device == "cpu":
            message = (
                "device: cpu in the configuration, and this machine has a GPU; name a machine: --device KEY or "
                "FILE.yaml, or set --set device=auto"
            )
            raise ConfigError(message, code="device.conflict", key="device")
    # The file of a CPU has a name of its own: any CPU may have been measured, but only one.
    measured = ran_on[0] if ran_on and not (machine.is_cuda or ran_on[0].is_cuda) else machine
    names = {machine.name.lower()} | ({machine.device.key} if machine.device is not None else set())
    others = [figure.device for figure in figures if figure.device not in names]
    others += [other.description for other in ran_on if not other.is_same_kind(measured)]
    if others:
        devices = [measured.description, others[0]]
        message = f"--measured: the plan is for {devices[0]}, and {devices[1]} was measured; give the measurements of"
        raise ConfigError(f"{message} one device, or --device", code="plan.measured_device", devices=devices)
    return machine if options.price is None else replace(machine, price_per_hour=options.price)


def plan_request(options: PlanOptions, loaded: "LoadedConfig", machine: "Machine") -> "PlanRequest":
    """Return the options that the plan varies, with defaults for machine and configuration."""
    from paratune.planning.enumerate import ALL_STRATEGIES, DEFAULT_STRATEGIES, PlanRequest

    named = planned_strategies(options)
    usual = DEFAULT_STRATEGIES if options.strategies is None else ALL_STRATEGIES
    usual_num_ranks = [number for number in _USUAL_RANKS if machine.is_cuda or number <= max(1, machine.num_cores or 1)]
    return PlanRequest(
        num_ranks=_numbers("--devices", options.devices) or tuple(usual_num_ranks),
        strategies=named or tuple(dict.fromkeys([*usual, loaded.config.strategy.kind])),
        precisions=_precisions(options.precision) or (loaded.config.precision,),
        micro_batch_sizes=_numbers("--micro-batch-size", options.micro_batch_size) or (None,),
        nodes=_numbers("--nodes", options.nodes) or (),
        are_named=named is not None,
    )
