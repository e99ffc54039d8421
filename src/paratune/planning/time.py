"""The time of an optimizer step: its terms, its bound and its interval.

The time of operations comes from `planning.kernels`; the modules of `planning.kinds` add that of the strategy.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paratune.planning.constants import BoundedConstant, Constants, UnknownConstant
from paratune.planning.kernels import PassTime, pass_time
from paratune.planning.kinds import kind_of
from paratune.planning.machine import Machine
from paratune.planning.profile import Profile
from paratune.planning.setup import PredictionSetup
from paratune.planning.trace import Phase
from paratune.planning.work import Work

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
BOUNDS = {
    "host": "the host (launching operations, the engine's own Python, the bookkeeping of a step)",
    "compute": "arithmetic",
    "memory": "the bandwidth of the device's memory",
    "link": "exchanging data between devices",
    "offload": "copies to and from the host",
    "loader": "making batches",
}
"""What can limit most of a step, in words."""
REMEDY = "give a run on it, 20 steps are enough (paratune plan CONFIG --measured RUN)"


@dataclass(frozen=True)
class StepTime:
    """The time of one optimizer step, in seconds."""

    terms: Mapping[str, float]
    """Seconds by the names of `TERMS`."""
    total_s: float
    low_s: float
    high_s: float
    """Bounds of the interval, from the bounds of all constants of the machine."""
    main_constants: tuple[str, ...]
    """Constants that make the interval wide, the most important first."""
    parts: Mapping[str, float]
    """Seconds by the names of `BOUNDS`; their sum is the step too."""

    @property
    def bound(self) -> str:
        """The name of the largest part, of `BOUNDS`."""
        return max(BOUNDS, key=self.parts.__getitem__)


@dataclass(frozen=True)
class StepCase:
    """All inputs of the time of a step."""

    profile: Profile
    """Of one micro-batch of the setup."""
    setup: PredictionSetup
    machine: Machine
    num_tokens: float
    """Computed tokens of a micro-batch: T, or B x S."""
    num_workers: int = 0
    """As `data.num_workers`: processes of each rank that make batches."""
    hides_words: bool = False
    """Whether masked words are drawn for each batch (masked LM)."""
    num_threads: int = 1
    """Threads of each rank, on a CPU."""


def step_time(case: StepCase) -> tuple[StepTime | None, str | None]:
    """Predict the time of an optimizer step.

    Returns:
        The time and None; or None and the reason: a constant of the machine is unknown, or the traits of an outside
        strategy are not sufficient.
    """
    setup, machine = case.setup, case.machine
    if (why := kind_of(setup).why_no_seconds(setup)) is not None:
        return None, why
    constants = machine.constants
    if constants is None:
        return None, f"the speed of {machine.name} is unknown; {REMEDY}"
    try:
        used = _UsedConstants(constants.by_name)
        terms, parts = _terms(case, Constants(used))
        total = math.fsum(terms.values())
        shifts = _shifts(case, constants, used.names, total)
    except UnknownConstant as error:
        return None, (
            f"{error.args[0]} of {machine.name} is unknown; give it in a file "
            "(docs/howto/plan.md#a-machine-of-your-own)"
        )
    # Constants are independent of each other, and so are joint directions: the squares of their shifts add up.
    faster, slower = (math.sqrt(math.fsum(shift[side] ** 2 for shift in shifts.values())) for side in (0, 1))
    ordered = sorted(shifts, key=lambda name: -max(shifts[name]))
    time = StepTime(
        terms=terms,
        total_s=total,
        low_s=total * math.exp(-faster),
        high_s=total * math.exp(slower),
        main_constants=tuple(name for name in ordered[:3] if max(shifts[name]) > 0),
        parts=parts,
    )
    return time, None


def step_terms(case: StepCase, constants: Constants) -> dict[str, float]:
    """Return the seconds of a step by its `TERMS`, with these constants instead of those of the machine.

    Raises:
        UnknownConstant: A constant that the step needs is missing.
    """
    return _terms(case, constants)[0]


def step_seconds(case: StepCase, constants: Constants) -> float:
    """Return the seconds of a whole step; see `step_terms`."""
    return math.fsum(step_terms(case, constants).values())


def used_constants(case: StepCase, constants: Constants) -> set[str]:
    """Return the names of the constants on which the time of a step depends.

    Raises:
        UnknownConstant: A constant that the step needs is missing.
    """
    used = _UsedConstants(constants.by_name)
    _terms(case, Constants(used))
    return used.names & constants.by_name.keys()


class _UsedConstants(Mapping[str, BoundedConstant]):
    """The constants of a machine; records the names of those that are read, on which the step depends."""

    def __init__(self, by_name: Mapping[str, BoundedConstant]) -> None:
        self._by_name = by_name
        self.names: set[str] = set()

    def __getitem__(self, name: str) -> BoundedConstant:
        self.names.add(name)
        return self._by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)


def _shifts(case: StepCase, constants: Constants, names: set[str], total: float) -> dict[str, tuple[float, float]]:
    """Return the shifts of a step by the name of the constant, or of the main constant of a joint direction."""
    together = {name for direction in constants.joint for name in direction}
    shifts = {name: _shift(case, constants, name, total) for name in constants if name in names - together}
    for direction in constants.joint:
        if not names & direction.keys():
            continue
        ends = [step_seconds(case, constants.shifted(direction, sign)) for sign in (-1.0, 1.0)]
        changes = [math.log(seconds / total) for seconds in ends]
        main = max(names & direction.keys(), key=lambda name: abs(direction[name]))
        faster, slower = max(0.0, -min(changes)), max(0.0, *changes)
        before = shifts.get(main, (0.0, 0.0))
        shifts[main] = (math.hypot(before[0], faster), math.hypot(before[1], slower))
    return shifts


def _shift(case: StepCase, constants: Constants, name: str, total: float) -> tuple[float, float]:
    """Return how much faster and slower a step is with one constant at its bounds, in logarithms."""
    ends = (step_seconds(case, constants.at_bound(name, bound)) for bound in ("low", "high"))
    changes = [math.log(seconds / total) for seconds in ends]
    return max(0.0, -min(changes)), max(0.0, *changes)


def _terms(case: StepCase, constants: Constants) -> tuple[dict[str, float], dict[str, float]]:
    """Return the terms of a step, and its parts.

    Raises:
        UnknownConstant: A constant of the machine is unknown.
    """
    setup, machine = case.setup, case.machine
    forward, backward = (_pass(case, constants, name) for name in ("forward", "backward"))
    slower, speedup = _slowdown(case, constants), _threads_speedup(case, constants)
    work = Work(
        profile=case.profile,
        setup=setup,
        constants=constants,
        forward_s=forward.total_s * slower * constants.value("factor.forward", 1.0),
        backward_s=backward.total_s * slower * constants.value("factor.backward", 1.0),
        is_cuda=machine.is_cuda,
        idle_s=_ahead_s(forward, backward),
        slower=slower,
        threads_speedup=speedup,
    )
    step = kind_of(setup).seconds(work)
    other = constants.value("step", 0.0)
    # The host makes the next batch while it is ahead of the device.
    idle_s = work.idle_s * setup.grad_accum_steps - step.hidden_s if machine.is_cuda else 0.0
    get_batch = _get_batch_s(case, constants, step.total_s + other, idle_s)
    run = constants.value("factor.run", 1.0)
    terms = {
        "get_batch": run * get_batch,
        "forward": run * step.forward_s,
        "backward": run * step.backward_s,
        "optimizer": run * step.optimizer_s,
        "communication_exposed": run * step.communication_s,
        "bubble": run * step.bubble_s,
        "offload": run * step.offload_s,
        "other": run * other,
    }
    python = {term: run * seconds for term, seconds in step.python_s.items()}
    return terms, _parts(terms, forward, backward, python)


def _pass(case: StepCase, constants: Constants, name: str) -> PassTime:
    phase: Phase = getattr(case.profile, name)
    return pass_time(
        phase.operations,
        constants,
        launch=f"launch.{name}",
        tf32=case.setup.precision.tf32,
        is_cuda=case.machine.is_cuda,
        threads_speedup=_threads_speedup(case, constants),
    )


def _threads_speedup(case: StepCase, constants: Constants) -> float:
    """Return the factor by which the threads of a rank on a CPU compute faster than one."""
    return 1.0 if case.num_threads == 1 else float(case.num_threads ** constants.value("threads", 1.0))


def _slowdown(case: StepCase, constants: Constants) -> float:
    """Return the factor by which the other ranks of a machine slow a rank down."""
    ranks, machine = case.setup.ranks_per_node, case.machine
    if ranks == 1:
        return 1.0
    together = constants.value("together", 1.0)
    if machine.is_cuda or machine.num_cores is None:
        return together
    return max(together, ranks * case.num_threads / machine.num_cores)


def _ahead_s(forward: PassTime, backward: PassTime) -> float:
    """Return the seconds by which the host is ahead of the device in a micro-batch; 0 on a CPU."""
    return max(0.0, sum(passing.device_s - passing.host_s for passing in (forward, backward) if passing.is_queued))


def _get_batch_s(case: StepCase, constants: Constants, rest_s: float, idle_s: float) -> float:
    """Return the seconds that a step waits for its batch, which overlap neither workers nor a host that is ahead."""
    hiding = case.num_tokens * constants.value("loader.hiding", 0.0) if case.hides_words else 0.0
    making = case.setup.micro_batch_size * constants.value("loader", 0.0) + hiding
    making *= case.setup.grad_accum_steps
    if case.num_workers:
        return max(0.0, making / case.num_workers - rest_s)
    return max(0.0, making - idle_s)


def _parts(
    terms: Mapping[str, float], forward: PassTime, backward: PassTime, python: Mapping[str, float]
) -> dict[str, float]:
    """Return the terms by `BOUNDS`; `python` has the seconds of the engine's own Python in each term."""
    rest = {term: seconds - python.get(term, 0.0) for term, seconds in terms.items()}
    parts = {
        "host": rest["other"] + math.fsum(python.values()),
        "compute": 0.0,
        "memory": rest["optimizer"],
        "link": rest["communication_exposed"] + rest["bubble"],
        "offload": rest["offload"],
        "loader": rest["get_batch"],
    }
    for term, passing in (("forward", forward), ("backward", backward)):
        if passing.is_queued:
            on_host = float(passing.is_host_bound)
        else:
            on_host = passing.host_s / passing.total_s if passing.total_s else 0.0
        arithmetic = passing.arithmetic_s / passing.device_s * (1 - on_host) if passing.device_s else 0.0
        parts["host"] += rest[term] * on_host
        parts["compute"] += rest[term] * arithmetic
        parts["memory"] += rest[term] * (1 - on_host - arithmetic)
    return parts
