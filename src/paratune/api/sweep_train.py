"""Trains the runs of a matrix one after the other, and logs the progress."""

import logging
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

from paratune.api.sweep_compress import compress_runs
from paratune.api.sweep_rounds import train_rounds
from paratune.api.sweep_search import Searching
from paratune.base.text import plain
from paratune.base.units import format_duration
from paratune.console import Bar, Display
from paratune.errors import EXIT_OK
from paratune.launch.command_runner import CommandRunner
from paratune.records.sweep import CellRecord, SweepRecord, write_sweep
from paratune.sweeps.cell import Cell
from paratune.sweeps.matrix import Matrix
from paratune.sweeps.plan import SweepPlan, now
from paratune.sweeps.rounds import is_over_budget
from paratune.sweeps.run import WARMUP_LOG, Start, run_cell, run_warm_up, warm_ups, was_killed
from paratune.sweeps.search import validation_score
from paratune.sweeps.teachers import waits_for

log = logging.getLogger(__name__)


def steps_to_train(plan: SweepPlan, names: Collection[str], *, retry_failed: bool) -> list[Cell]:
    """Return the runs of these names that are to be trained, in their order."""
    return [cell for cell in plan.in_order() if cell.name in names and cell.runs(retry_failed=retry_failed)]


def train_steps(
    plan: SweepPlan, names: Collection[str], searching: Searching, *, retry_failed: bool, run_code: bool
) -> tuple[SweepRecord, tuple[str, ...], str | None, tuple[str, ...]]:
    """Train the runs of these names that are not finished, and make smaller forms of the finished ones.

    Args:
        searching: Decides which runs follow; it has the matrix, whose folder this process has locked.
        run_code: Whether the commands are started with --run-code.

    Returns:
        The record, the names of the selected runs with those of new trials, the signal that stopped the sweep, and the
        runs without all of their smaller forms.
    """
    matrix = searching.matrix
    todo = steps_to_train(plan, names, retry_failed=retry_failed)
    total = sum(cell.name in names and cell.record.state != "skipped" for cell in plan.cells)
    num_done = total - len(todo)
    total = searching.num_runs(plan.record) or total
    record = replace(plan.record, listed=())  # from here on this process starts them
    write_sweep(matrix.folder, record)
    at_most = "at most " if searching.is_adaptive else ""
    _log(f"{matrix.name}: {plan.counts(names)}; {at_most}{total - num_done} to train now")
    with CommandRunner() as children, Display(speaks=True).bar("runs", total) as bar:
        trainer = _Trainer(matrix, children, bar, total, num_done, run_code)
        trainer.warm_up(todo)
        if record.rounds is not None:
            record = train_rounds(matrix.folder, record, todo, trainer)
        elif searching.is_adaptive:
            record = searching.train(record, todo, trainer)
            names = [cell.name for cell in record.cells]
        else:
            record = trainer.train(record, todo)
        not_compressed = compress_runs(matrix, record, names, trainer)
        signal = children.signal
    record = record.with_look(now())
    write_sweep(matrix.folder, record)
    return record, tuple(sorted(names)), signal, not_compressed


@dataclass
class _Trainer:
    """Trains the runs of a matrix one after the other, and logs the progress."""

    matrix: Matrix
    children: CommandRunner
    bar: Bar
    total: int
    num_done: int
    run_code: bool

    @property
    def is_stopped(self) -> bool:
        """Whether a signal stopped the sweep."""
        return self.children.signal is not None

    @property
    def start(self) -> Start:
        """Runs a command, within the time limit of the matrix."""
        more = ["--run-code"] if self.run_code else []
        run = partial(self.children.run, timeout_s=self.matrix.options.timeout_s)
        return lambda words, output, environment: run([*words, *more], output, environment)

    def warm_up(self, todo: Sequence[Cell]) -> None:
        """Run the warm-ups, and log the ones that fail; the failure stops no run."""
        for name, warm_up in warm_ups(self.matrix, todo):
            if self.is_stopped:
                return
            _log(f"warm-up: the first steps of {name}; they do not count")
            code = run_warm_up(self.matrix.folder, warm_up, self.start)
            if code != EXIT_OK and not self.is_stopped:
                _log(f"the warm-up ended with exit code {code}; its output is in {self.matrix.folder / WARMUP_LOG}")

    def train(self, record: SweepRecord, cells: Sequence[Cell]) -> SweepRecord:
        """Train these runs until a signal stops the sweep, and return the record.

        Where runs decide which others follow (--until, a search), a killed run is tried once more.
        """
        for cell in cells:
            if self.is_stopped:
                return record
            self.num_done += 1
            record = self._train_run(record, cell)
        if record.rounds is None and record.search is None:
            return record
        for cell in cells:
            ended = _record_of(record, cell)
            if was_killed(ended) and not self.is_stopped and not is_over_budget(record, cell):
                record = self._train_run(record, replace(cell, record=ended, changed=(), is_begun=True))
        return record

    def _train_run(self, record: SweepRecord, cell: Cell) -> SweepRecord:
        number = f"[{self.num_done}/{self.total}]"
        if (reason := waits_for(record, cell.record)) is not None:
            _log(f"{number} {cell.name}: not started, {reason}")
            return record.with_cell(replace(cell.record, reason=reason))
        if sys.stderr.isatty():  # elsewhere the lines below show the progress
            self.bar.update(self.num_done - 1, cell.name)
        _log(f"{number} {cell.name}{_start_note(cell)}")
        record = run_cell(self.matrix.folder, record, cell, self.start, stopped=lambda: self.is_stopped)
        ended = _record_of(record, cell)
        _log(f"{number} {_end_note(ended)}{_score_note(self.matrix, ended)}")
        return record


def _record_of(record: SweepRecord, cell: Cell) -> CellRecord:
    return next(other for other in record.cells if other.name == cell.name)


def _log(text: str) -> None:
    log.info("%s", plain(text))


def _start_note(cell: Cell) -> str:
    if cell.changed:
        return ": deleted, and trained again with the present settings"
    return ": resumed" if cell.is_begun else ""


def _end_note(cell: CellRecord) -> str:
    took = format_duration(replace(cell, attempts=cell.attempts[-1:]).took_s)
    reason = (cell.reason or "").splitlines()
    return f"{cell.state} after {took}{f': {reason[0]}' if reason else ''}"


def _score_note(matrix: Matrix, cell: CellRecord) -> str:
    if cell.kind == "probe":
        return ""
    value = validation_score(matrix.folder, cell)
    return "" if value is None else f": {cell.metric} {value:.4f} on validation"


def log_failed(record: SweepRecord, names: Collection[str]) -> None:
    """Log the number of failed runs of these names, and where their output is."""
    failed = [cell.name for cell in record.cells if cell.state == "failed" and cell.name in names]
    if failed:
        _log(f"{len(failed)} failed; their output is in logs/; --retry-failed continues from their checkpoints")
