"""What a run is at, as data: what `paratune watch` shows of one, and prints with --json."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

State = Literal[
    "starting",
    "tokenizing",
    "training",
    "evaluating",
    "saving",
    "stalled",
    "finished",
    "stopped",
    "failed",
    "killed",
    "waiting",
    "skipped",
    "gone",
]
"""stalled: a process holds the run and has said nothing for too long; stopped: by a signal, after saving; killed:
no process runs it, and it recorded no reason; waiting, skipped: in a matrix; gone: its folder is not there any more."""
RUNNING: tuple[State, ...] = ("starting", "tokenizing", "training", "evaluating", "saving", "stalled")


@dataclass(frozen=True)
class RankView:
    """One process of a run."""

    rank: int
    step: int | None = None
    """The last that it logged."""
    memory_bytes: float | None = None
    """Its peak so far."""
    slower: float | None = None
    """By which share its own work of a step takes longer than that of the others; None where that is not known."""
    behind: int = 0
    """Steps that others have logged and it has not, when they are more than one write of the log holds."""


@dataclass(frozen=True)
class RunView:
    """One run, at one time."""

    name: str
    folder: str
    state: State
    since: float | None = None
    """When it was last heard of, in Unix seconds."""
    reason: str | None = None
    """Why it is in this state, where that is known."""
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
    """Of all ranks, over the last steps, pauses left out."""
    samples_per_s: float | None = None
    phases: Mapping[str, float] = field(default_factory=dict)
    """Share of each phase in the wall time of the last steps."""
    ranks: tuple[RankView, ...] = ()
    scores: Mapping[str, float | None] = field(default_factory=dict)
    """Of the last evaluation."""
    scored_at: int | None = None
    """Step of that evaluation; None when the scores are those of the finished run."""
    scored_on: str | None = None
    """Split that they are of."""
    total_s: float | None = None
    """Of a finished run."""
    left_s: float | None = None
    """About how long it will take to its last step, evaluations and checkpoints as they were so far."""
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
    """How long it took, or has been running."""
    run: RunView | None = None
    """What it is at, while it runs."""


@dataclass(frozen=True)
class SweepView:
    """A matrix of runs, at one time."""

    name: str
    folder: str
    is_running: bool
    """Whether a `paratune sweep` holds its folder, or one of its runs is at work."""
    cells: tuple[CellView, ...] = ()
    left_s: float | None = None
    """About how long it will take when the cells that wait take as long as those that finished, one after the other."""
    problem: str | None = None
    """Why its record cannot be read."""
    is_awaited: bool = False
    """Whether runs are still to be started one by one, as of a list: nothing holds the folder between them."""

    def counts(self) -> dict[str, int]:
        """Return how many cells are in each state, those at work as "running"."""
        found: dict[str, int] = {}
        for cell in self.cells:
            state = "running" if cell.state in RUNNING else cell.state
            found[state] = found.get(state, 0) + 1
        return found


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
