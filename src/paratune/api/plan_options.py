"""The options of a plan: the strategies, devices and batches to plan, and the machine."""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paratune.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from paratune.planning.enumerate import PlanRequest

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp64")
_MAX_NUMBER = 65536


@dataclass(frozen=True, kw_only=True)
class PlanOptions:
    """The options that decide what is planned, as on the command line.

    Args:
        devices: numbers of devices, comma-separated; default: 1,2,4,8
        device: a100-40gb, h100-80gb, ..., several with commas; default: this machine
        network: Gbit/s between nodes, all adapters of a node together; default: 100, with wide intervals
        nodes: numbers of nodes, comma-separated; default: as few as the devices need (8 devices per node)
        strategies: comma-separated, such as ddp,zero3,pipeline:4 (a value sets the first option); or all
        precision: comma-separated; default: that of CONFIG, else bf16 or fp16 where the device has them
        max_length: plan without the data, with this number of tokens in every row
        rows: with --max-length: number of rows of the training set
        price: price of a device-hour, in any currency: adds the cost of runs
    """

    devices: str | None = None
    device: str | None = None
    network: float | None = None
    nodes: str | None = None
    strategies: str | None = None
    precision: str | None = None
    max_length: int | None = None
    rows: int | None = None
    price: float | None = None


def plan_request(options: PlanOptions) -> "PlanRequest":
    """Return the options that the plan varies.

    Raises:
        ConfigError: A number is out of range, a precision is unknown, or a list cannot be read.
    """
    from paratune.config.candidates import strategy_names  # pydantic, which --help does not need
    from paratune.planning.enumerate import PlanRequest

    problems = [
        f"{name} {value}: at least 1 is needed"
        for name, value in (("--max-length", options.max_length), ("--rows", options.rows))
        if value is not None and value < 1
    ]
    if options.network is not None and not 0 < options.network < float("inf"):
        problems.append(f"--network {options.network}: a rate in Gbit/s is above 0")
    if options.price is not None and not 0 <= options.price < float("inf"):
        problems.append(f"--price {options.price}: the price of a device-hour is at least 0")
    if options.price is not None and options.device is not None and "," in options.device:
        problems.append(f"--price {options.price} is of one device, and --device {options.device} names several")
    if options.rows is not None and options.max_length is None:
        problems.append("--rows replaces the data and needs --max-length")
    if problems:
        raise ConfigError("; ".join(problems), code="cli.invalid_value")
    precisions = [] if options.precision is None else [word.strip() for word in options.precision.split(",")]
    for name in precisions:
        if name not in PRECISIONS:
            message = f"--precision {name!r} is not a precision{did_you_mean(name, PRECISIONS)}; allowed: "
            message += f"{', '.join(PRECISIONS)}, several with commas"
            raise ConfigError(message, code="cli.invalid_value", option="--precision")
    return PlanRequest(
        num_ranks=_numbers("--devices", options.devices),
        nodes=_numbers("--nodes", options.nodes),
        precisions=tuple(dict.fromkeys(precisions)),
        strategies=() if options.strategies is None else tuple(strategy_names(options.strategies)),
    )


def _numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Return the numbers of a comma-separated list, each at least 1, and once."""
    if text is None:
        return ()
    words = [word.strip() for word in text.split(",")]
    for word in words:
        if re.fullmatch("[0-9]{1,9}", word) is None or not 1 <= int(word) <= _MAX_NUMBER:
            message = f"{option} {text!r}: {word!r} is not a whole number from 1 to {_MAX_NUMBER}; for example "
            raise ConfigError(f"{message}{option} 1,2,4,8", code="cli.invalid_value", option=option, word=word)
    return tuple(dict.fromkeys(map(int, words)))
