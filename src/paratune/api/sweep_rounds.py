"""The rounds of `paratune sweep --until`: train, look at the verdicts, and add runs where they are not decided."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paratune.base.text import plain
from paratune.base.units import counted, format_duration
from paratune.errors import coded
from paratune.records.sweep import Configuration, SweepRecord, write_sweep
from paratune.reports.systems.judging import judged
from paratune.reports.systems.model import build_systems
from paratune.sweeps.cell import Cell
from paratune.sweeps.plan import now
from paratune.sweeps.rounds import end_rounds, is_over_budget, next_round
from paratune.verdicts import Verdict
from paratune.verdicts.groups import SPEED
from paratune.verdicts.rates import GOODPUT

log = logging.getLogger(__name__)


class Trainer(Protocol):
    """Trains runs of a matrix."""

    @property
    def is_stopped(self) -> bool: ...
    def train(self, record: SweepRecord, cells: Sequence[Cell]) -> SweepRecord: ...


def train_rounds(folder: Path, record: SweepRecord, todo: Sequence[Cell], trainer: Trainer) -> SweepRecord:
    """Train in rounds, until all verdicts are decided, all planned runs are made, or the budget is used.

    Args:
        record: With `rounds`.
        todo: All runs that are not finished, in order.

    Returns:
        The record, with a look for each round.
    """
    left = list(todo)
    while True:
        record = record.with_look(now())
        write_sweep(folder, record)
        state = verdict_state(folder, record)
        cells = next_round(record, left, state.undecided)
        if not cells:
            return _ended(folder, record, left, state)
        which = f"{counted(len(state.undecided), 'configuration')} undecided" if state.undecided else "the first one"
        log.info("%s", f"round of {counted(len(cells), 'run')}: {which}")
        for cell in cells:
            if trainer.is_stopped:
                return record
            if is_over_budget(record, cell):
                return _over_budget(folder, record.with_look(now()), left)
            record = trainer.train(record, [cell])
            left.remove(cell)
        if trainer.is_stopped:
            return record


def _over_budget(folder: Path, record: SweepRecord, left: Sequence[Cell]) -> SweepRecord:
    record = end_rounds(record, (), "budget")
    write_sweep(folder, record)
    assert record.rounds is not None
    undecided = counted(len(verdict_state(folder, record).undecided), "configuration")
    used = f"the budget of {format_duration(record.rounds.budget_s)} is used: {undecided} undecided"
    log.info("%s", f"{used}, {counted(len(left), 'run')} not made; a larger --budget continues")
    return record


def _ended(folder: Path, record: SweepRecord, left: Sequence[Cell], state: "VerdictState") -> SweepRecord:
    """Return the record at the end; runs of configurations without a verdict stay pending."""
    judged_ones = [cell for cell in left if record.configuration_of(cell.record) in state.judged]
    ended = "no_verdict" if len(judged_ones) < len(left) else "planned" if state.undecided else "decided"
    record = end_rounds(record, judged_ones, ended)
    write_sweep(folder, record)
    rounds = record.rounds
    assert rounds is not None
    why = {
        "decided": "all verdicts are decided",
        "planned": "all planned runs of the undecided configurations are made",
        "no_verdict": f"{counted(len(left) - len(judged_ones), 'run')} not made: no verdict on their configurations",
    }[ended]
    saved = f"{counted(rounds.num_saved, 'run')} of {len(record.cells)} not needed"
    log.info("%s", f"{why}; {saved}, about {format_duration(rounds.saved_s)}")
    return record


@dataclass(frozen=True)
class VerdictState:
    """Which configurations have a verdict, baselines included."""

    judged: frozenset[Configuration]
    undecided: frozenset[Configuration]
    """Those whose verdict needs more runs."""


def verdict_state(folder: Path, record: SweepRecord) -> VerdictState:
    """Return which configurations are decided; writes nothing."""
    systems = build_systems(folder, record)
    verdicts, problems = judged(systems, all_of_them=True)
    for problem in problems:
        log.warning("%s", plain(problem), extra=coded("sweep.unreadable_run"))
    by_name = {cell.name: record.configuration_of(cell) for cell in record.cells}
    rounds = record.rounds
    assert rounds is not None

    def configurations(some: Iterable[Verdict]) -> frozenset[Configuration]:
        names = (name for verdict in some for name in (*verdict.runs, *verdict.baseline_runs))
        return frozenset(by_name[name] for name in names)

    undecided = configurations(verdict for verdict in verdicts if _is_open(verdict, rounds.until))
    return VerdictState(configurations(verdicts), undecided)


def _is_open(verdict: Verdict, until: str) -> bool:
    is_speed = [measure in (SPEED, GOODPUT) for measure in verdict.undecided]
    return {"speed": any(is_speed), "quality": not all(is_speed), "decided": bool(is_speed)}[until]
