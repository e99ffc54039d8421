"""The time of an optimizer step: its terms and its interval.

The time of operations comes from `planning.work`; the modules of `planning.kinds` add that of the strategy.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paratune.planning.constants import BoundedConstant, Constants, UnknownConstant
from paratune.planning.kinds import kind_of
from paratune.planning.work import StepCase, Work

TERMS = (
    "get_batch",
    "forward",
    "backward",
    "optimizer",
    "communication_exposed",
    "bubble",
    "offload",
    "other",
)
"""Terms of a step; their sum is the step."""
REMEDY = "give a run on it, 20 steps are enough (paratune plan CONFIG --measured RUN)"


@dataclass(frozen=True)
class FigureRange:
    """A predicted figure with the bounds of its interval."""

    value: float
    low: float
    high: float

    def times(self, factor: float) -> "FigureRange":
        return FigureRange(self.value * factor, self.low * factor, self.high * factor)

    def as_list(self) -> list[float]:
        """Return value, low and high."""
        return [self.value, self.low, self.high]


@dataclass(frozen=True)
class StepTime:
    """The time of one optimizer step, in seconds."""

    terms: Mapping[str, float]
    """Seconds by the names of `TERMS`."""
    total_s: float
    low_s: float
    high_s: float
    """Bounds of the interval, from the bounds of all constants of the machine."""


def step_time(case: StepCase) -> tuple[StepTime | None, str | None]:
    """Predict the time of an optimizer step.

    Returns:
        The time and None; or None and the reason: a constant of the machine is unknown, or the traits of an outside
        strategy are not sufficient.
    """
    setup, machine, constants = case.setup, case.machine, case.machine.constants
    if (why := kind_of(setup).why_no_seconds(setup)) is not None:
        return None, why
    if constants is None:
        return None, f"the speed of {machine.name} is unknown; {REMEDY}"
    try:
        terms = step_terms(case, constants)
        total = math.fsum(terms.values())
        ends = [
            [math.log(step_seconds(case, end) / total) for end in variation]
            for variation in constants.variations(used_constants(case, constants))
        ]
    except UnknownConstant as error:
        return None, (
            f"{error.args[0]} of {machine.name} is unknown; give it in a file "
            "(docs/howto/plan.md#a-machine-of-your-own)"
        )
    # Constants are independent of each other, and so are joint directions: the squares of their shifts add up.
    faster = math.sqrt(math.fsum(max(0.0, -min(pair)) ** 2 for pair in ends))
    slower = math.sqrt(math.fsum(max(0.0, *pair) ** 2 for pair in ends))
    return StepTime(terms, total, low_s=total * math.exp(-faster), high_s=total * math.exp(slower)), None


def step_seconds(case: StepCase, constants: Constants) -> float:
    """Return the seconds of a whole step; see `step_terms`."""
    return math.fsum(step_terms(case, constants).values())


class _ReadConstants(dict[str, BoundedConstant]):
    """The constants of a machine; records the names of those that are read, on which the step depends."""

    def __init__(self, by_name: Mapping[str, BoundedConstant]) -> None:
        super().__init__(by_name)
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> BoundedConstant:
        self.names.add(name)
        return super().__getitem__(name)


def used_constants(case: StepCase, constants: Constants) -> set[str]:
    """Return the names of the constants on which the time of a step depends.

    Raises:
        UnknownConstant: A constant that the step needs is missing.
    """
    read = _ReadConstants(constants.by_name)
    step_terms(case, Constants(read))
    return read.names


def step_terms(case: StepCase, constants: Constants) -> dict[str, float]:
    """Return the seconds of a step by its `TERMS`, with these constants instead of those of the machine.

    Raises:
        UnknownConstant: A constant that the step needs is missing.
    """
    work = Work(case, constants)
    step = kind_of(case.setup).seconds(work)
    other = constants.value("step", 0.0)
    # The host makes the next batch while it is ahead of the device.
    idle_s = work.idle_s * case.setup.grad_accum_steps - step.hidden_s if work.is_cuda else 0.0
    terms = {
        "get_batch": _get_batch_s(case, constants, step.total_s + other, idle_s),
        "forward": step.forward_s,
        "backward": step.backward_s,
        "optimizer": step.optimizer_s,
        "communication_exposed": step.communication_s,
        "bubble": step.bubble_s,
        "offload": step.offload_s,
        "other": other,
    }
    run = constants.value("factor.run", 1.0)
    return {term: run * seconds for term, seconds in terms.items()}


def _get_batch_s(case: StepCase, constants: Constants, rest_s: float, idle_s: float) -> float:
    """Return the seconds that a step waits for its batch, which overlap neither workers nor a host that is ahead."""
    hiding = case.num_tokens * constants.value("loader.hiding", 0.0) if case.hides_words else 0.0
    making = case.setup.micro_batch_size * constants.value("loader", 0.0) + hiding
    making *= case.setup.grad_accum_steps
    if case.num_workers:
        return max(0.0, making / case.num_workers - rest_s)
    return max(0.0, making - idle_s)
