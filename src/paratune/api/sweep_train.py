"""Trains the runs of a matrix one after the other, makes their smaller forms, and logs the progress."""

import logging
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from paratune.api.sweep_rounds import train_rounds, undecided_runs
from paratune.base.text import plain
from paratune.base.units import format_duration
from paratune.console import Bar, Display
from paratune.errors import EXIT_FAILED, EXIT_OK, Stopped
from paratune.processes.local import CommandRunner
from paratune.records.sweep import LOGS_FOLDER, CellRecord, SweepRecord, cell_run_folder, write_sweep
from paratune.sweeps.cell import Cell, waits_for
from paratune.sweeps.matrix import Matrix, is_compressed
from paratune.sweeps.plan import SweepPlan, now
from paratune.sweeps.run import Start, run_cell, was_killed
from paratune.sweeps.search import validation_score

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedSweep:
    """The record of a matrix after its runs were trained."""

    record: SweepRecord
    names: Collection[str]
    """Of the selected runs."""
    signal: str | None
    """Signal that stopped the sweep."""
    not_compressed: tuple[str, ...] = ()
    """Finished runs without all of their smaller forms (`compress:`)."""

    def check(self) -> int:
        """Log the failed runs; return 0 if all selected runs are finished or skipped, and made smaller, otherwise 1.

        Raises:
            Stopped: A signal stopped the sweep before that.
        """
        cells = [cell for cell in self.record.cells if cell.name in self.names]
        is_done = all(cell.state in ("finished", "skipped") for cell in cells) and not self.not_compressed
        if self.signal is not None and not is_done:
            raise Stopped(
                f"stopped by {self.signal}; the same command continues it", code="stopped.signal", signal=self.signal
            )
        if num_failed := sum(cell.state == "failed" for cell in cells):
            _log(f"{num_failed} failed; their output is in logs/; --retry-failed continues from their checkpoints")
        return EXIT_OK if is_done else EXIT_FAILED


def train_steps(
    matrix: Matrix,
    plan: SweepPlan,
    names: Collection[str],
    *,
    retry_failed: bool,
    run_code: bool,
) -> TrainedSweep:
    """Train the runs of these names that are not finished, and make smaller forms of the finished ones.

    Args:
        matrix: Its folder is locked by this process.
        run_code: Whether the commands are started with --run-code.
    """
    todo = plan.to_train(names, retry_failed=retry_failed)
    total = sum(cell.name in names and cell.record.state != "skipped" for cell in plan.cells)
    num_done = total - len(todo)
    record = replace(plan.record, listed=())  # from here on this process starts them
    write_sweep(matrix.folder, record)
    _log(f"{matrix.name}: {plan.counts(names)}; {total - num_done} to train now")
    with CommandRunner() as children, Display(speaks=True).bar("runs", total) as bar:
        trainer = _Trainer(matrix, children, bar, total, num_done, run_code)
        if record.rounds is not None:
            record = train_rounds(record, todo, trainer, undecided_runs(matrix.folder))
        else:
            record = trainer.train(record, todo)
        not_compressed = trainer.compress(record, names)
        signal = children.signal
    record = record.with_look(now())
    write_sweep(matrix.folder, record)
    return TrainedSweep(record, names, signal, not_compressed)


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
        """Runs a command."""
        more = ["--run-code"] if self.run_code else []
        return lambda words, output, environment: self.children.run([*words, *more], output, environment)

    def train(self, record: SweepRecord, cells: Sequence[Cell]) -> SweepRecord:
        """Train these runs until a signal stops the sweep, and return the record.

        Where runs decide which others follow (--until, a Bayesian search), a killed run is tried once more.
        """
        for cell in cells:
            if self.is_stopped:
                return record
            self.num_done += 1
            record = self._train_run(record, cell)
        if record.rounds is None and (record.search is None or record.search.method == "random"):
            return record
        for cell in cells:
            ended = record.cell(cell.name)
            if was_killed(ended) and not self.is_stopped:
                record = self._train_run(record, replace(cell, record=ended, changed=(), is_begun=True))
        return record

    def _train_run(self, record: SweepRecord, cell: Cell) -> SweepRecord:
        number = f"[{self.num_done}/{self.total}]"
        if (reason := waits_for(record, cell.record)) is not None:
            _log(f"{number} {cell.name}: not started, {reason}")
            return record.with_cell(replace(cell.record, reason=reason))
        if sys.stderr.isatty():  # elsewhere the lines below show the progress
            self.bar.update(self.num_done - 1, cell.name)
        how = ": deleted, and trained again with the present settings" if cell.changed else ": resumed"
        _log(f"{number} {cell.name}{how if cell.changed or cell.is_begun else ''}")
        record = run_cell(self.matrix.folder, record, cell, self.start, stopped=lambda: self.is_stopped)
        ended = record.cell(cell.name)
        score = validation_score(self.matrix.folder, ended)
        shown = "" if score is None else f": {ended.metric} {score:.4f} on validation"
        _log(f"{number} {_end_note(ended)}{shown}")
        return record

    def compress(self, record: SweepRecord, names: Collection[str]) -> tuple[str, ...]:
        """Run `paratune compress` for each finished run of these names; return the runs for which it did not succeed.

        A run that has all its measurements is left out, so that an interrupted sweep continues here. The output of the
        command is in the log of the run. It has the variables of `env`, but not those of axes: all runs are measured
        alike.
        """
        compress, folder = self.matrix.options.compress, self.matrix.folder
        if compress is None:
            return ()
        folders = {cell.name: cell_run_folder(folder, cell.name) for cell in record.cells if cell.name in names}
        todo = [
            cell.name
            for cell in record.cells
            if cell.name in names
            and is_compressed(folders[cell.name], cell)
            and not compress.is_done(folders[cell.name])
        ]
        failed = list(todo)
        for number, name in enumerate(todo, start=1):
            if self.is_stopped:
                break
            _log(f"compress [{number}/{len(todo)}] {name}: {', '.join(compress.forms)}")
            output = folder / LOGS_FOLDER / f"{name}.txt"
            output.parent.mkdir(exist_ok=True)
            code = self.start(compress.words(folders[name]), output, self.matrix.environment)
            if code == EXIT_OK:
                failed.remove(name)
            elif not self.is_stopped:
                _log(f"compress: {name} failed with exit code {code}; its output is in {output}")
        return tuple(failed)


def _log(text: str) -> None:
    log.info("%s", plain(text))


def _end_note(cell: CellRecord) -> str:
    took = format_duration(replace(cell, attempts=cell.attempts[-1:]).took_s)
    reason = (cell.reason or "").splitlines()
    return f"{cell.state} after {took}{f': {reason[0]}' if reason else ''}"
