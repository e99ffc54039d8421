"""The constants of a machine for predictions of time (rates and durations), each with bounds and source.

No torch. A constant that was not measured is a share of the value on the data sheet, with wide bounds; `paratune plan
--calibrate` replaces it by a measurement.
"""

import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from typing import Any

from paratune.hardware.devices import ARITHMETICS

KINDS: Mapping[str, str] = {
    **{f"product.{arithmetic}": f"FLOP/s of matrix products in {arithmetic}" for arithmetic in ARITHMETICS},
    **{
        f"batched.{arithmetic}": f"FLOP/s of the products within attention, in {arithmetic}"
        for arithmetic in ARITHMETICS
    },
    "elementwise": "bytes/s of sums, products and copies, read and written",
    "activation": "bytes/s of GELU, tanh and the like, forward and backward",
    "softmax": "bytes/s of softmax, forward and backward",
    "norm": "bytes/s of layer normalisation, forward and backward",
    "dropout": "bytes/s of drawing and applying dropout, forward and backward",
    "random": "bytes/s of drawing random numbers of PyTorch's own dropout",
    "gather": "bytes/s of rows that an embedding reads and writes, forward",
    "scatter": "bytes/s of the gradient of an embedding: zeros for the whole table, and rows; as gather where unknown",
    "operands": "bytes/s of the inputs and outputs of a matrix product that no cache contains, on a CPU",
    "scores": "bytes/s of the scores of packed rows' attention on a CPU: exponentials, sums, dropout; forward",
    "scores_backward": "bytes/s of the same, backward",
    "rows": "bytes/s of copies of packed rows into blocks of heads, and back, forward",
    "rows_backward": "bytes/s of the same, backward",
    "launch.forward": "seconds of the host for an operation of the forward pass, Python included",
    "launch.backward": "seconds of the host for an operation of the backward pass",
    "launch.evicted": "seconds that a CPU loses in the forward pass after an operation that fills its level 2 cache",
    "kernel": "seconds that the smallest kernel takes on the device",
    "step": "seconds of a step's bookkeeping, by the host",
    "adamw": "bytes/s of the fused AdamW and the gradient's norm, read and written",
    "adamw.tensor": "seconds of the optimizer phase for each parameter tensor, independent of its size",
    "adamw.shard": "seconds of the same for each tensor that FSDP2 shards",
    "adamw.host": "bytes/s of AdamW on the host, for states that are offloaded",
    "hooks.unit": "seconds of the host for a unit that FSDP2 gathers, of a forward and backward pass",
    "hooks.tensor": "seconds of the host for a parameter whose gradient DeepSpeed reduces, of a backward pass",
    "hooks.gather": "seconds of the host for a parameter that DeepSpeed's stage 3 gathers, of both passes",
    "wait.reduce": "seconds that a device waits for each parameter whose gradient DeepSpeed's stage 2 reduces",
    "wait.gather": "seconds that a device waits for each parameter that DeepSpeed's stage 3 gathers, both passes",
    "link": "bytes/s of a collective between devices of a machine: of its slowest link, one direction",
    "link.gather": "bytes/s of gathering shards between devices of a machine; as link where not known",
    "link.scatter": "bytes/s of reduce-scatters between devices of a machine; as link where not known",
    "link.latency": "seconds of a step of a ring between devices of a machine",
    "link.tree": "seconds of a step of a tree between devices of a machine",
    "link.call": "seconds of a collective besides its steps and bytes",
    "network": "bytes/s of a collective between machines, each with one ring through it",
    "network.latency": "seconds of a step of a ring between machines",
    "network.tree": "seconds of a step of a tree between machines",
    "host_link": "bytes/s between host and device, one direction",
    "loader": "seconds of one process to make a sample of a batch",
    "loader.hiding": "seconds of one process to hide words of a masked LM, for each token of a batch",
    "overlap": "share of a collective that runs at the same time as computing, where the schedule allows it",
    "together": "time of computing while all devices of the machine compute, over that of one alone",
    "factor.run": "time of a run's step over that of the same passes in a probe: neighbours, heat, cold memory",
    "factor.forward": "measured over predicted time of the forward pass",
    "factor.backward": "measured over predicted time of the backward pass",
    "factor.optimizer": "measured over predicted time of the optimizer's phase",
    "factor.communication": "measured over predicted time of what collectives leave exposed",
    "factor.sharding": "the same for collectives of strategies that shard gradients",
    "factor.pipeline": "measured over predicted time of a pipeline's waiting",
}
"""Meaning of all constants by name. A rate may be a curve: it depends on the bytes or FLOP of an operation."""


def communication_factor(shards: Collection[str]) -> str:
    """Return the factor of a strategy's collectives by `Traits.shards`, which runs with like collectives refine."""
    return "factor.sharding" if "gradients" in shards else "factor.communication"


class UnknownConstant(KeyError):
    """A prediction needs a constant that is unknown on this machine, or the schedule of an outside strategy."""


@dataclass(frozen=True)
class BoundedConstant:
    """A constant in its SI unit, with bounds that should contain nine of ten true values."""

    value: float
    low: float
    high: float
    source: str
    """Where the value comes from: a data sheet, a measurement with its number of repeats, or "assumed"."""
    curve: tuple[tuple[float, float], ...] = ()
    """For a rate: pairs of bytes or FLOP of an operation and the rate, ascending; `value` is that of the largest."""

    @staticmethod
    def around(value: float, below: float, above: float, source: str) -> "BoundedConstant":
        """Return a constant with the bounds value / below and value * above."""
        return BoundedConstant(value, value / below, value * above, source)

    def at(self, size: float) -> float:
        """Return the rate for an operation of a size: linear interpolation of the curve in logarithms."""
        if not self.curve:
            return self.value
        sizes = [point for point, _ in self.curve]
        place = bisect_right(sizes, size)
        if place in (0, len(sizes)):
            return self.curve[min(place, len(sizes) - 1)][1]
        (x0, y0), (x1, y1) = self.curve[place - 1 : place + 1]
        share = math.log(size / x0) / math.log(x1 / x0)
        return math.exp(math.log(y0) + share * math.log(y1 / y0))

    def times(self, factor: float) -> "BoundedConstant":
        """Return the constant with value, bounds and curve multiplied by a factor."""
        curve = tuple((size, rate * factor) for size, rate in self.curve)
        return replace(self, value=self.value * factor, low=self.low * factor, high=self.high * factor, curve=curve)


@dataclass(frozen=True)
class Constants:
    """The constants of a machine. A missing one is unknown."""

    by_name: Mapping[str, BoundedConstant] = field(default_factory=dict)
    joint: tuple[Mapping[str, float], ...] = ()
    """Directions in which constants vary together after a refit: for each name the logarithm of the factor at the end
    of the interval. The own bounds of these constants are not used in addition."""

    def __post_init__(self) -> None:
        assert not (strange := set(self.by_name) - set(KINDS)), f"unknown names of constants: {strange}"

    def __getitem__(self, name: str) -> BoundedConstant:
        """Return a constant.

        Raises:
            UnknownConstant: It is unknown on this machine.
            KeyError: The name is not in `KINDS`, which is an error of the caller.
        """
        if name not in KINDS or name in self.by_name:
            return self.by_name[name]
        raise UnknownConstant(name)

    def __contains__(self, name: str) -> bool:
        return name in self.by_name

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def value(self, name: str, otherwise: float) -> float:
        """Return the value of a constant, or `otherwise` if it is unknown."""
        return self.by_name[name].value if name in self.by_name else otherwise

    def replaced(self, by_name: Mapping[str, BoundedConstant]) -> "Constants":
        """Return the constants with some of them replaced."""
        return replace(self, by_name={**self.by_name, **by_name})

    def shifted(self, logs: Mapping[str, float], sign: float = 1.0) -> "Constants":
        """Return the constants with some of them, their bounds and curves multiplied by exp(sign x log)."""
        return self.replaced({name: self.by_name[name].times(math.exp(sign * log)) for name, log in logs.items()})

    def at_bound(self, name: str, bound: str) -> "Constants":
        """Return the constants with one of them at its bound, low or high; its curve is scaled by the same factor.

        Raises:
            KeyError: The constant is unknown.
        """
        constant = self.by_name[name]
        end = constant.low if bound == "low" else constant.high
        if constant.value == 0:
            return self.replaced({name: replace(constant, value=end)})
        return self.replaced({name: constant.times(end / constant.value)})

    def as_json(self) -> dict[str, Any]:
        """Return plain data for `from_json`."""
        return {name: asdict(constant) for name, constant in self.by_name.items()}

    @staticmethod
    def from_json(values: Any) -> "Constants":
        """Return constants from the plain data of `as_json`.

        Raises:
            ValueError: A name or a value is invalid; the text has the name.
        """
        if not isinstance(values, dict):
            raise ValueError("constants are a mapping of names")
        return Constants({name: _constant(name, constant) for name, constant in values.items()})


def _constant(name: str, entry: Any) -> BoundedConstant:
    if name not in KINDS:
        raise ValueError(f"{name} is not a constant of a machine")
    try:
        curve = tuple((float(size), float(rate)) for size, rate in entry.get("curve", ()))
        value, low, high = (float(entry[key]) for key in ("value", "low", "high"))
        constant = BoundedConstant(value, low, high, str(entry["source"]), curve)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"{name} is not a value with low, high and source") from error
    rates = [rate for _, rate in curve]
    ascends = all(0 < a < b for (a, _), (b, _) in pairwise(curve)) and (not curve or curve[0][0] > 0)
    if not (0 <= constant.low <= constant.value <= constant.high < math.inf and ascends and all(r > 0 for r in rates)):
        raise ValueError(f"{name} is {constant.value} between {constant.low} and {constant.high}, which cannot be")
    return constant
