"""The constants of a machine for predictions of time (rates and durations), each with bounds.

No torch. A constant is a share of the value on the data sheet or an assumption, with wide bounds; `paratune plan
--measured` moves those that measured times determine (`planning.refit`).
"""

import math
from collections.abc import Collection, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace

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
    "scores": "bytes/s of the scores of packed rows' attention on a CPU: exponentials, sums, dropout; forward",
    "scores_backward": "bytes/s of the same, backward",
    "launch.forward": "seconds of the host for an operation of the forward pass, Python included",
    "launch.backward": "seconds of the host for an operation of the backward pass",
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
    "threads": "exponent with which the rates of a CPU grow with the threads of a process; they are those of one",
    "factor.run": "time of a run's step over its prediction, equal in all phases: neighbours, heat, cold memory",
    "factor.forward": "measured over predicted time of the forward pass",
    "factor.backward": "measured over predicted time of the backward pass",
    "factor.optimizer": "measured over predicted time of the optimizer's phase",
    "factor.communication": "measured over predicted time of what collectives leave exposed",
    "factor.sharding": "the same for collectives of strategies that shard gradients",
    "factor.pipeline": "measured over predicted time of a pipeline's waiting",
}
"""Meaning of all constants by name."""


def communication_factor(shards: Collection[str]) -> str:
    """Return the factor of a strategy's collectives by `Traits.shards`, which runs with like collectives determine."""
    return "factor.sharding" if "gradients" in shards else "factor.communication"


class UnknownConstant(KeyError):
    """A prediction needs a constant that is unknown on this machine, or the schedule of an outside strategy."""


@dataclass(frozen=True)
class BoundedConstant:
    """A constant in its SI unit, with bounds that should contain nine of ten true values."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "BoundedConstant":
        """Return the constant with value and bounds multiplied by a factor."""
        return replace(self, value=self.value * factor, low=self.low * factor, high=self.high * factor)


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
        """Return the constants with some of them and their bounds multiplied by exp(sign x log)."""
        return self.replaced({name: self.by_name[name].times(math.exp(sign * log)) for name, log in logs.items()})

    def variations(self, names: Set[str]) -> Iterator[tuple["Constants", "Constants"]]:
        """Yield the constants at both ends of each independent direction in which some of `names` vary."""
        together = {name for direction in self.joint for name in direction}
        for name in names - together:
            constant = self.by_name[name]
            low, high = (replace(constant, value=end) for end in (constant.low, constant.high))
            yield self.replaced({name: low}), self.replaced({name: high})
        for direction in self.joint:
            if names & direction.keys():
                yield self.shifted(direction, -1.0), self.shifted(direction)
