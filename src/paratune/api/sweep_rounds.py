"""The runs of a matrix that are trained next: all at once, or those that follow from verdicts so far.

`paratune sweep --until` adds a seed or a repeat to the configurations whose verdicts are undecided.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from paratune.base.text import plain
from paratune.base.units import counted, format_duration
from paratune.errors import coded, option_error
from paratune.records.sweep import CellRecord, Configuration, Rounds, SweepRecord, write_sweep
from paratune.reports.systems.judging import judged
from paratune.reports.systems.model import build_systems
from paratune.sweeps.cell import Cell, waits_for
from paratune.sweeps.matrix import Matrix
from paratune.sweeps.plan import block_of, now
from paratune.verdicts import Verdict
from paratune.verdicts.groups import SPEED
from paratune.verdicts.speeds import GOODPUT

log = logging.getLogger(__name__)

FIRST_BLOCKS = 3
"""Runs that every configuration gets before the first look: fewer do not show how much runs vary."""
UNTIL = ("decided", "speed", "quality")
"""What has to be decided: all measures of a verdict, its speed, or its scores."""
NOT_NEEDED = "not needed: its verdict was decided with fewer runs (--until)"

NextRuns = Callable[[SweepRecord, Sequence[Cell]], tuple[SweepRecord, list[Cell]]]
"""Function that gets the record and all runs that are not trained, in order, and returns the record with the runs that
are trained now, independently of each other; none at the end. It writes the record."""


class Trainer(Protocol):
    """Trains runs of a matrix."""

    @property
    def is_stopped(self) -> bool: ...
    def train(self, record: SweepRecord, cells: Sequence[Cell]) -> SweepRecord: ...


def train_rounds(record: SweepRecord, todo: Sequence[Cell], trainer: Trainer, next_runs: NextRuns) -> SweepRecord:
    """Train round after round, until no run follows or a signal stops the sweep; return the record."""
    left = list(todo)
    while not trainer.is_stopped:
        record, cells = next_runs(record, left)
        if not cells:
            break
        record = trainer.train(record, cells)
        names = {cell.name for cell in cells}
        left = [cell for cell in left if cell.name not in names]
    return record


def ready_runs(record: SweepRecord, left: Sequence[Cell]) -> tuple[SweepRecord, list[Cell]]:
    """Return the record, and the runs whose teachers are finished; write nothing."""
    ready = [cell for cell in left if waits_for(record, cell.record) is None]
    if len(ready) < len(left):
        waiting = counted(len(left) - len(ready), "run")
        log.info("%s", f"{waiting} left out: a teacher is not finished; repeat the command when it is")
    return record, ready


def read_rounds(matrix: Matrix, cells: Sequence[CellRecord], until: str | None) -> Rounds | None:
    """Return the rounds that `--until` requests; None without it.

    Raises:
        ConfigError: It is none of `UNTIL`, or has no effect.
    """
    if until is None:
        return None
    if until not in UNTIL:
        raise option_error("--until", until, f"one of {', '.join(UNTIL)} is needed", code="cli.invalid_value")
    if until == "quality" and all(cell.kind == "probe" for cell in cells):
        raise option_error("--until", until, "probes have no scores; use --until speed", code="cli.no_effect")
    num_planned = len({block_of(cell, matrix.axes) for cell in cells})
    if num_planned <= FIRST_BLOCKS:
        reason = (
            f"it has no effect: {matrix.source.name} has {num_planned} runs of a configuration, and the first "
            f"{FIRST_BLOCKS} are always made; give more seeds on the axis of run.seed, or more repeats:"
        )
        raise option_error("--until", until, reason, code="cli.no_effect")
    return Rounds(until, num_planned)


def undecided_runs(folder: Path) -> NextRuns:
    """Return a function that returns the runs of `--until`, until all verdicts are decided or all runs are made."""

    def next_runs(record: SweepRecord, left: Sequence[Cell]) -> tuple[SweepRecord, list[Cell]]:
        record = record.with_look(now())
        write_sweep(folder, record)
        judged_ones, undecided = judged_and_undecided(folder, record)
        cells = next_round(record, left, undecided)
        if not cells:
            record = _ended(record, left, judged_ones, is_decided=not undecided)
            write_sweep(folder, record)
            return record, []
        which = f"{counted(len(undecided), 'configuration')} undecided" if undecided else "the first one"
        log.info("%s", f"round of {counted(len(cells), 'run')}: {which}")
        return record, cells

    return next_runs


def next_round(record: SweepRecord, left: Sequence[Cell], undecided: Collection[Configuration]) -> list[Cell]:
    """Return the runs of `left` that are the next round; none when nothing is left that is needed.

    The first round is `FIRST_BLOCKS` runs of every configuration. Each later one is a run of every configuration whose
    verdict is undecided, baselines included.
    """
    first_blocks = sorted({block_of(cell, record.axes) for cell in record.cells})[:FIRST_BLOCKS]
    block = {cell.name: block_of(cell.record, record.axes) for cell in left}
    first = [cell for cell in left if block[cell.name] in first_blocks]
    needed = [cell for cell in left if record.configuration_of(cell.record) in undecided]
    return first or [cell for cell in needed if block[cell.name] == min(block[other.name] for other in needed)]


def _ended(
    record: SweepRecord, left: Sequence[Cell], judged_ones: Collection[Configuration], *, is_decided: bool
) -> SweepRecord:
    """Return the record at the end, with the time that the runs that were not needed would have used.

    Runs of configurations without a verdict stay pending.
    """
    not_needed = [cell for cell in left if record.configuration_of(cell.record) in judged_ones]
    num_without = len(left) - len(not_needed)
    ended = "no_verdict" if num_without else "decided" if is_decided else "planned"
    saved_s = sum(record.expected_s(cell.record) or 0.0 for cell in not_needed)
    why = {
        "decided": "all verdicts are decided",
        "planned": "all planned runs of the undecided configurations are made",
        "no_verdict": f"{counted(num_without, 'run')} not made: no verdict on their configurations",
    }[ended]
    saved = f"{counted(len(not_needed), 'run')} of {len(record.cells)} not needed"
    log.info("%s", f"{why}; {saved}, about {format_duration(saved_s)}")
    assert record.rounds is not None
    rounds = replace(record.rounds, ended=ended)
    for cell in not_needed:
        record = record.with_cell(replace(cell.record, state="skipped", reason=NOT_NEEDED, is_needed=False))
    return replace(record, rounds=rounds)


def judged_and_undecided(
    folder: Path, record: SweepRecord
) -> tuple[frozenset[Configuration], frozenset[Configuration]]:
    """Return the configurations with a verdict, baselines included, and those whose verdict needs more runs."""
    systems = build_systems(folder, record)
    verdicts, problems = judged(systems, all_of_them=True)
    for problem in problems:
        log.warning("%s", plain(problem), extra=coded("sweep.unreadable_run"))
    by_name = {cell.name: record.configuration_of(cell) for cell in record.cells}
    assert record.rounds is not None

    def configurations(some: Iterable[Verdict]) -> frozenset[Configuration]:
        names = (name for verdict in some for name in (*verdict.runs, *verdict.baseline_runs))
        return frozenset(by_name[name] for name in names)

    until = record.rounds.until
    return configurations(verdicts), configurations(verdict for verdict in verdicts if _is_open(verdict, until))


def _is_open(verdict: Verdict, until: str) -> bool:
    is_speed = [measure in (SPEED, GOODPUT) for measure in verdict.undecided]
    return {"speed": any(is_speed), "quality": not all(is_speed), "decided": bool(is_speed)}[until]
