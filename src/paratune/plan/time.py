"""How long an optimizer step takes: each term by itself, what it is bound by, and between which times it should lie.

Times of operations are those of `plan.kernels`; what the strategy adds is in `plan.kinds`.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paratune.plan.constants import BoundedConstant, Constants, UnknownFigure
from paratune.plan.kernels import PassTime, pass_time
from paratune.plan.kinds import kind_of, spread
from paratune.plan.machine import Machine, threads_of_rank
from paratune.plan.profile import Profile, Weights
from paratune.plan.setup import PredictionSetup
from paratune.plan.work import Work

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
"""They sum to the step."""
BOUNDS = ("host", "compute", "memory", "link", "offload", "loader")
BOUND_OF = {
    "launch": "host",
    "python": "host",
    "bookkeeping": "host",
    "compute": "compute",
    "memory": "memory",
    "update": "memory",
    "communication": "link",
    "bubble": "link",
    "offload": "offload",
    "loader": "loader",
}
"""By what takes the time of a step (`StepTime.parts`), of `BOUNDS` the one that it counts as."""


@dataclass(frozen=True)
class TimeInputs:
    """What of the job decides on time and is in neither profile nor setup."""

    num_tokens: float
    """That are computed in a micro-batch: T, or B x S."""
    num_workers: int = 0
    """As `data.num_workers`: processes of each rank that make batches."""
    hides_words: bool = False
    """Whether the words that a masked LM has to find are drawn for each batch."""


@dataclass(frozen=True)
class StepTime:
    """Of one optimizer step, in seconds."""

    terms: Mapping[str, float]
    """By the names of `TERMS`."""
    total_s: float
    low_s: float
    high_s: float
    """Bounds between which it should lie, from those of all figures of the machine."""
    bound: str
    """What most of it is bound by, of `BOUNDS`: the host (launching operations, engines' Python), arithmetic, memory,
    what lies between ranks (a pipeline's bubble too), moving states to the host and back, or making batches."""
    main_constants: tuple[str, ...]
    """Figures of the machine to which the interval owes most, the most important first."""
    parts: Mapping[str, float]
    """The same step by what takes its time, by the names of `BOUND_OF`: calling operations, an engine's own Python,
    arithmetic, ... They sum to the step too."""


def step_time(profile: Profile, setup: PredictionSetup, machine: Machine, figures: TimeInputs) -> StepTime | None:
    """Predict an optimizer step.

    Args:
        profile: Of one micro-batch of the setup.
        setup: The way of running the job.
        machine: On which it runs.
        figures: Of the job.

    Returns:
        The time; None where a figure of the machine is not known that is needed, or where the traits of a strategy
        from outside do not tell enough (see `why_no_time`).
    """
    constants = machine.constants_for(setup.ranks_per_node)
    if constants is None or kind_of(setup).why_no_seconds(setup) is not None:
        return None
    case = _Case(profile, profile.blocks, profile.rest, setup, machine, figures)
    try:
        asked = _Asked(constants.by_name)
        terms, parts = _terms(case, Constants(asked))
        total = math.fsum(terms.values())
        shifts = {name: _shift(case, constants, name, total) for name in constants if name in asked.names}
    except UnknownFigure:
        return None
    faster, slower = (math.sqrt(math.fsum(shift[side] ** 2 for shift in shifts.values())) for side in (0, 1))
    ordered = sorted(shifts, key=lambda name: -max(shifts[name]))
    return StepTime(
        terms=terms,
        total_s=total,
        low_s=total * math.exp(-faster),
        high_s=total * math.exp(slower),
        bound=_bound(parts),
        main_constants=tuple(name for name in ordered[:3] if max(shifts[name]) > 0),
        parts=parts,
    )


def why_no_time(profile: Profile, setup: PredictionSetup, machine: Machine, figures: TimeInputs) -> str | None:
    """Return why `step_time` knows nothing, None where it does."""
    if (why := kind_of(setup).why_no_seconds(setup)) is not None:
        return why
    constants = machine.constants_for(setup.ranks_per_node)
    if constants is None:
        return f"the speed of {machine.name} is unknown; measure it there: paratune plan --calibrate"
    try:
        _terms(_Case(profile, profile.blocks, profile.rest, setup, machine, figures), constants)
    except UnknownFigure as error:
        return (
            f"{machine.name} has no figure for {error.args[0]}; measure it there (paratune plan --calibrate), or give "
            "it in a file (docs/howto/plan.md#a-machine-of-your-own)"
        )
    return None


@dataclass(frozen=True)
class _Case:
    """What is predicted; the parts of the profile are looked up once."""

    profile: Profile
    blocks: tuple[Weights, ...]
    rest: Weights
    setup: PredictionSetup
    machine: Machine
    figures: TimeInputs


class _Asked(Mapping[str, BoundedConstant]):
    """The figures of a machine, with the names of those that were asked for: no others can shift a step."""

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


def _shift(case: _Case, constants: Constants, name: str, total: float) -> tuple[float, float]:
    """Return by how much, in logarithms, one figure at its bounds can make the step faster, and slower."""
    moved = []
    for bound in ("low", "high"):
        terms, _ = _terms(case, constants.at_bound(name, bound))
        moved.append(math.log(math.fsum(terms.values()) / total))
    return max(0.0, -min(moved)), max(0.0, *moved)


def _terms(case: _Case, constants: Constants) -> tuple[dict[str, float], dict[str, float]]:
    """Return the terms of a step, and its parts.

    Raises:
        UnknownFigure: A figure of the machine is not known.
    """
    setup, machine = case.setup, case.machine
    forward, backward = (_pass(case, constants, name) for name in ("forward", "backward"))
    slower = _together(setup, machine, constants)
    work = Work(
        profile=case.profile,
        blocks=case.blocks,
        rest=case.rest,
        setup=setup,
        constants=constants,
        forward_s=forward.total_s * slower * constants.value("factor.forward", 1.0),
        backward_s=backward.total_s * slower * constants.value("factor.backward", 1.0),
        is_cuda=machine.is_cuda,
        idle_s=_ahead_s(forward, backward),
        slower=slower,
    )
    found = spread(work)
    other = constants.value("step", 0.0)
    idle_s = _idle_host_s(forward, backward, setup) - found.hidden_s if machine.is_cuda else 0.0
    get_batch = _get_batch_s(setup, constants, case.figures, found.total_s + other, idle_s)
    run = constants.value("factor.run", 1.0)
    terms = {
        "get_batch": run * get_batch,
        "forward": run * found.forward_s,
        "backward": run * found.backward_s,
        "optimizer": run * found.optimizer_s,
        "communication_exposed": run * found.communication_s,
        "bubble": run * found.bubble_s,
        "offload": run * found.offload_s,
        "other": run * other,
    }
    python = {term: run * seconds for term, seconds in found.python_s.items()}
    return terms, _parts(terms, forward, backward, python)


def _pass(case: _Case, constants: Constants, name: str) -> PassTime:
    phase = case.profile.forward if name == "forward" else case.profile.backward
    return pass_time(
        phase.operations,
        constants,
        launch=f"launch.{name}",
        tf32=case.setup.precision.tf32,
        is_cuda=case.machine.is_cuda,
    )


def _together(setup: PredictionSetup, machine: Machine, constants: Constants) -> float:
    """Return how much slower a rank computes for the other ranks of its machine."""
    ranks = setup.ranks_per_node
    if ranks == 1:
        return 1.0
    together = constants.value("together", 1.0)
    if machine.is_cuda or machine.num_cores is None:
        return together
    return max(together, ranks * threads_of_rank(ranks, machine.num_cores) / machine.num_cores)


def _idle_host_s(forward: PassTime, backward: PassTime, setup: PredictionSetup) -> float:
    """Return the seconds of a step that the host is ahead of the device, and can make the next batch in."""
    return _ahead_s(forward, backward) * setup.grad_accum_steps


def _ahead_s(forward: PassTime, backward: PassTime) -> float:
    """Return the seconds that the host is ahead of the device in a micro-batch, where it can be."""
    return max(0.0, sum(each.device_s - each.host_s for each in (forward, backward) if each.is_queued))


def _get_batch_s(
    setup: PredictionSetup, constants: Constants, figures: TimeInputs, rest_s: float, idle_s: float
) -> float:
    """Return what a step waits for its batch: what workers, or a host that is ahead, do not hide."""
    making = setup.micro_batch_size * constants.value("loader", 0.0)
    if figures.hides_words:
        making += figures.num_tokens * constants.value("loader.hiding", 0.0)
    making *= setup.grad_accum_steps
    if figures.num_workers:
        return max(0.0, making / figures.num_workers - rest_s)
    return max(0.0, making - idle_s)


def _parts(
    terms: Mapping[str, float], forward: PassTime, backward: PassTime, python: Mapping[str, float]
) -> dict[str, float]:
    """Return the terms by what takes their time; `python` is what they have of an engine's own Python."""
    terms = {term: seconds - python.get(term, 0.0) for term, seconds in terms.items()}
    parts = {
        "launch": 0.0,
        "python": math.fsum(python.values()),
        "bookkeeping": terms["other"],
        "compute": 0.0,
        "memory": 0.0,
        "update": terms["optimizer"],
        "communication": terms["communication_exposed"],
        "bubble": terms["bubble"],
        "offload": terms["offload"],
        "loader": terms["get_batch"],
    }
    for term, each in (("forward", forward), ("backward", backward)):
        if each.is_queued and each.is_host_bound:
            parts["launch"] += terms[term]
            continue
        on_host = 0.0 if each.is_queued or not each.total_s else each.host_s / each.total_s
        arithmetic = each.arithmetic_s / each.device_s * (1 - on_host) if each.device_s else 0.0
        parts["launch"] += terms[term] * on_host
        parts["compute"] += terms[term] * arithmetic
        parts["memory"] += terms[term] * (1 - on_host - arithmetic)
    return parts


def _bound(parts: Mapping[str, float]) -> str:
    """Return what most of a step is bound by."""
    shares = dict.fromkeys(BOUNDS, 0.0)
    for part, seconds in parts.items():
        shares[BOUND_OF[part]] += seconds
    return max(BOUNDS, key=shares.__getitem__)
