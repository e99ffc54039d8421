"""The runs of a matrix that are trained next: all at once, or those that follow from verdicts or scores so far.

`paratune sweep --until` adds a seed or a repeat to the configurations whose verdicts are undecided; a Bayesian search
adds trials.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from paratune.base.text import plain
from paratune.base.units import counted, format_duration
from paratune.errors import ConfigError, coded, option_error
from paratune.records.sweep import CellRecord, Configuration, Rounds, SweepRecord, write_sweep
from paratune.reports.systems.judging import judged
from paratune.reports.systems.model import build_systems
from paratune.sweeps.cell import Cell, invalid
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import Matrix, read_matrix
from paratune.sweeps.plan import block_of, check_unchanged, now, plan_of
from paratune.sweeps.search import next_trials, trial_scores, trial_title
from paratune.sweeps.teachers import waits_for
from paratune.verdicts import Verdict
from paratune.verdicts.groups import SPEED
from paratune.verdicts.rates import GOODPUT

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
    """Return the runs whose teachers are finished; see `NextRuns`. It writes nothing."""
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


def check_search(matrix: Matrix, *, only: Sequence[str], until: str | None) -> None:
    """Check the options of a command line against a search that decides by scores.

    Raises:
        ConfigError: An option, or probes, contradict it.
    """
    if matrix.search is None or matrix.search.method != "bayesian":
        return
    is_probe = matrix.probe is not None or matrix.all_are_probes
    for option, is_given in (("--only", bool(only)), ("--until", until is not None), ("probe", is_probe)):
        if is_given:
            message = (
                f"{option} contradicts search.method: bayesian, where runs follow from the scores of all earlier "
                "ones; leave it out, or use method: random"
            )
            raise ConfigError(message, code="cli.conflict", options=(option, "search.method"))


def num_runs_of_search(matrix: Matrix, record: SweepRecord) -> int:
    """Return the largest number of runs until the end of a Bayesian search."""
    assert matrix.search is not None
    assert record.search is not None
    num_known = len(record.search.trials)
    num_possible = sum(cell.state != "skipped" for cell in record.cells)
    return num_possible + len(record.cells) // num_known * (matrix.search.trials - num_known)


def suggested_runs(matrix: Matrix, overrides: Sequence[str], *, here: bool, writes: bool = True) -> NextRuns:
    """Return a function that returns the runs of a Bayesian search: those of known trials, then those of new ones.

    It raises CheckpointError where the files of the matrix were edited since the start, so that trained runs differ,
    and ConfigError for an invalid new trial.

    Args:
        matrix: Its folder is locked by this process.
        here: Whether the runs are to run on this machine.
        writes: Whether new trials are suggested, which are written to `sweep.json`.
    """
    search = matrix.search
    assert search is not None

    def next_runs(record: SweepRecord, left: Sequence[Cell]) -> tuple[SweepRecord, list[Cell]]:
        cells, names = list(left), {cell.name for cell in left}
        open_ones = [cell for cell in record.cells if cell.state == "interrupted" and cell.name not in names]
        if open_ones:  # killed, or another process still trains it; the scores of the round are not complete
            why = f"{open_ones[0].name} is not finished ({open_ones[0].reason})"
            log.info("%s", plain(f"the search stops: {why}; the same command continues it"))
            return record, []
        while not cells and writes and record.search and len(record.search.trials) < search.trials:
            # Without a run where the new trials are impossible here.
            record, cells = _with_next_trials(matrix, overrides, record, here=here)
        if writes:
            write_sweep(matrix.folder, record)
        return record, cells

    return next_runs


def _with_next_trials(
    matrix: Matrix, overrides: Sequence[str], record: SweepRecord, *, here: bool
) -> tuple[SweepRecord, list[Cell]]:
    """Return the record with the next trials, and their runs."""
    assert matrix.search is not None
    assert record.search is not None
    trials = next_trials(matrix.search, record, trial_scores(matrix.folder, record.cells))
    for name in [name for name in trials if name not in record.search.trials]:
        log.info("%s", plain(f"next trial: {trial_title(name, trials[name])}"))
    write_sweep(matrix.folder, replace(record, search=replace(record.search, trials=trials)))
    matrix = read_matrix(matrix.source)
    cells = cells_of(matrix, overrides, here=here)
    if (error := invalid(matrix, cells)) is not None:
        raise error
    plan = plan_of(matrix, cells, record.command)
    check_unchanged(matrix, plan.cells)  # an edit of a file since the start would train the new trials with it
    old = {cell.name: cell for cell in record.cells}
    cells_now = tuple(old.get(cell.name, cell) for cell in plan.record.cells)
    new = [cell for cell in plan.in_order() if cell.name not in old and cell.record.state != "skipped"]
    return replace(plan.record, cells=cells_now, listed=record.listed), new
