"""State of runs and matrices as data, which `paratune watch` shows and prints with --json."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal[
    "starting", "tokenizing", "training", "evaluating", "saving", "stalled", "finished", "stopped", "failed", "killed",
    "waiting", "skipped", "gone",
]  # fmt: skip
"""stalled: a process trains it, but has logged nothing for too long; stopped: by a signal, after saving; killed: no
process trains it, and it has no record of a reason; waiting, skipped: in a matrix; gone: its folder was deleted."""
RUNNING: tuple[State, ...] = ("starting", "tokenizing", "training", "evaluating", "saving", "stalled")


@dataclass(frozen=True)
class RankView:
    """One process of a run."""

    rank: int
    step: int | None = None
    """Its last logged step."""
    memory_bytes: float | None = None
    """Peak memory so far."""
    slower: float | None = None
    """By which share its own work in a step takes longer than that of the others, for a straggler; None otherwise."""
    behind: int = 0
    """Number of steps behind the other ranks, if more than one write of the log; 0 otherwise."""


@dataclass(frozen=True)
class RunView:
    """One run, at one time."""

    name: str
    folder: str
    state: State
    since: float | None = None
    """Time of its last event, in Unix seconds."""
    reason: str | None = None
    """Reason of its state, if known."""
    host: str | None = None
    strategy: str | None = None
    device: str | None = None
    world_size: int | None = None
    step: int | None = None
    num_steps: int | None = None
    epoch: float | None = None
    num_epochs: float | None = None
    loss: float | None = None
    losses: tuple[float, ...] = ()
    """Of the whole run so far, thinned."""
    learning_rate: float | None = None
    tokens_per_s: float | None = None
    """Of all ranks, over the last steps, without pauses."""
    samples_per_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    """Share of each phase in the wall time of the last steps."""
    ranks: tuple[RankView, ...] = ()
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """Of the last evaluation."""
    scored_at: int | None = None
    """Step of that evaluation; of a finished run the step of the kept model, None in older records."""
    scored_on: str | None = None
    """Split of the scores."""
    metric: str | None = None
    """The metric that selects the kept model; None if the last model is kept."""
    best: float | None = None
    """The best value of that metric so far."""
    best_step: int | None = None
    """Step of that value."""
    total_s: float | None = None
    """Of a finished run."""
    left_s: float | None = None
    """Estimated seconds to the last step, with evaluations and checkpoints as before."""
    num_damaged_lines: int = 0
    """Of its event logs, which were passed over."""

    @property
    def is_running(self) -> bool:
        return self.state in RUNNING


@dataclass(frozen=True)
class CellView:
    """One run of a matrix."""

    name: str
    state: State
    reason: str | None = None
    seconds: float | None = None
    """Duration of all its starts; None while it runs."""
    run: RunView | None = None
    """State of its run while it runs."""
    score: float | None = None
    """Of a finished run: the score on validation by the metric that selects."""


@dataclass(frozen=True)
class BestSoFar:
    """The configuration of a matrix with the best mean score of its finished runs."""

    metric: str
    name: str
    """Values of the configuration, without seeds."""
    score: float
    num_runs: int
    """Finished runs of this configuration, over which the score is the mean."""
    num_planned: int
    within: str = ""
    """Values of the axes for each combination of which the best is selected."""


@dataclass(frozen=True)
class SweepView:
    """A matrix of runs, at one time."""

    name: str
    folder: str
    is_running: bool
    """Whether a `paratune sweep` has locked its folder, or one of its runs is running."""
    cells: tuple[CellView, ...] = ()
    left_s: float | None = None
    """Estimated seconds if waiting cells run one after the other and take as long as finished ones."""
    problem: str | None = None
    """Why its record cannot be read."""
    best: tuple[BestSoFar, ...] = ()
    """The best configuration of each selection; empty before a run with a score is finished."""
    is_awaited: bool = False
    """Whether listed runs have not been started yet: the folder is not locked between them."""

    def counts(self) -> dict[str, int]:
        """Return the number of cells in each state, "running" for all running ones."""
        return dict(Counter("running" if cell.state in RUNNING else cell.state for cell in self.cells))


def number(value: Any) -> float | None:
    """Return a value of a record if it is a finite number, else None: a file that others write may hold anything."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return float(value) if is_number and math.isfinite(value) else None
    except OverflowError:
        return None


def whole(value: Any) -> int | None:
    """Return a value of a record if it is a whole number, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """Return a value of a record if it is a mapping, else an empty one."""
    return value if isinstance(value, Mapping) else {}
