"""Trains the runs of a matrix for `paratune sweep`, one after the other, and prints the report."""

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from paratune.base.text import plain
from paratune.base.units import format_duration
from paratune.commands.sweep_plan import counts
from paratune.commands.sweep_rounds import train_rounds
from paratune.commands.sweep_search import Searching
from paratune.console import Bar, Display, outlive_readers, print_json, print_result, set_up_logging
from paratune.errors import EXIT_OK, Stopped
from paratune.launch.command_runner import CommandRunner
from paratune.records import SUMMARY_FILE, read_json
from paratune.records.sweep import REPORT_FOLDER, CellRecord, SweepRecord, cell_run_folder, write_sweep
from paratune.reports.matrix import SweepReport, make_sweep, terminal_sweep
from paratune.reports.matrix.export import as_dict
from paratune.sweeps.matrix import Matrix
from paratune.sweeps.plan import Step, SweepPlan, now
from paratune.sweeps.run import Start, exit_code, run_step
from paratune.sweeps.warmup import warm_ups

log = logging.getLogger(__name__)


def steps_to_train(plan: SweepPlan, names: set[str], *, retry_failed: bool) -> list[Step]:
    """Return the runs of these names that are to be trained, in their order."""
    return [step for step in plan.in_order() if step.cell.name in names and step.runs(retry_failed=retry_failed)]


def train_steps(
    matrix: Matrix,
    plan: SweepPlan,
    names: set[str],
    searching: Searching,
    *,
    retry_failed: bool,
    as_json: bool,
    data_figures: bool,
) -> int:
    """Train the runs of these names that are not finished, write the report, and return the exit code."""
    outlive_readers()
    set_up_logging(speaks=True)
    todo = steps_to_train(plan, names, retry_failed=retry_failed)
    total = sum(step.cell.name in names and step.record.state != "skipped" for step in plan.steps)
    num_done = total - len(todo)
    total = searching.num_runs(plan.record) or total
    record = replace(plan.record, listed=())  # from here on this process starts them
    write_sweep(matrix.folder, record)
    _log(f"{matrix.name}: {counts(plan, names)}; {len(todo)} to train now")
    with CommandRunner() as children, Display(speaks=True).bar("runs", total) as bar:
        trainer = _Trainer(matrix, children, bar, total, num_done)
        trainer.warm_up(todo)
        if record.rounds is not None:
            record = train_rounds(matrix.folder, record, todo, trainer)
        elif searching.is_adaptive:
            record = searching.train(record, todo, trainer)
            names = {cell.name for cell in record.cells}
        else:
            record = trainer.train(record, todo)
        signal = children.signal
    record = record.with_look(now())
    write_sweep(matrix.folder, record)
    report = make_sweep(matrix.folder, matrix.folder / REPORT_FOLDER)
    if data_figures and signal is None and report.num_finished:
        # Only now: the packages that read the data stay in memory, which would disturb the measured runs.
        from paratune.commands.matrix_data import data_section

        report = make_sweep(matrix.folder, matrix.folder / REPORT_FOLDER, more=data_section)
    if as_json:
        print_json(as_dict(report), indent=1)
    else:
        print_result(terminal_sweep(report))
        _print_paths(report)
    code = exit_code(record, sorted(names), was_stopped=signal is not None)
    if signal is not None and code != EXIT_OK:
        raise Stopped(f"stopped by {signal}; the same command continues it", code="stopped.signal", signal=signal)
    _log_failed(record, names)
    return code


@dataclass
class _Trainer:
    """Trains the runs of a matrix one after the other, and logs the progress."""

    matrix: Matrix
    children: CommandRunner
    bar: Bar
    total: int
    num_done: int

    @property
    def is_stopped(self) -> bool:
        """Whether a signal stopped the sweep."""
        return self.children.signal is not None

    @property
    def _start(self) -> Start:
        return partial(self.children.run, timeout_s=self.matrix.timeout_s)

    def warm_up(self, todo: Sequence[Step]) -> None:
        """Run the warm-ups, and log the ones that fail; the failure stops no run."""
        for warm_up in warm_ups(self.matrix, todo):
            if self.is_stopped:
                return
            _log(f"warm-up: the first steps of {warm_up.of}; they do not count")
            code = warm_up.run(self._start)
            if code != EXIT_OK and not self.is_stopped:
                _log(f"the warm-up ended with exit code {code}; its output is in {warm_up.log}")

    def train(self, record: SweepRecord, steps: Sequence[Step]) -> SweepRecord:
        """Train these runs until a signal stops the sweep, and return the record."""
        for step in steps:
            if self.is_stopped:
                break
            number = f"[{self.num_done + 1}/{self.total}]"
            if sys.stderr.isatty():  # elsewhere the lines below show the progress
                self.bar.update(self.num_done, step.cell.name)
            _log(f"{number} {step.cell.name}{_start_note(step)}")
            record = run_step(self.matrix.folder, record, step, self._start, stopped=lambda: self.is_stopped)
            cell = next(cell for cell in record.cells if cell.name == step.cell.name)
            _log(f"{number} {_end_note(cell)}{_score_note(self.matrix, cell)}")
            self.num_done += 1
        return record


def _log(text: str) -> None:
    log.info("%s", plain(text))


def _start_note(step: Step) -> str:
    if step.changed:
        return ": deleted, and trained again with the present settings"
    return ": resumed" if step.is_begun else ""


def _end_note(cell: CellRecord) -> str:
    last = cell.attempts[-1]
    took = format_duration(_seconds(last["began"], last["ended"]))
    reason = (cell.reason or "").splitlines()
    return f"{cell.state} after {took}{f': {reason[0]}' if reason else ''}"


def _score_note(matrix: Matrix, cell: CellRecord) -> str:
    if cell.state != "finished" or cell.kind == "probe":
        return ""
    scores = read_json(cell_run_folder(matrix.folder, cell.name) / SUMMARY_FILE)["scores"]
    value = (scores.get("validation") or {}).get(cell.metric)
    return "" if value is None else f": {cell.metric} {value:.4f} on validation"


def _seconds(began: str, ended: str) -> float:
    return (datetime.fromisoformat(ended) - datetime.fromisoformat(began)).total_seconds()


def _print_paths(report: SweepReport) -> None:
    for name, path in (("report", report.files[0]), ("runs", report.folder / "runs"), ("logs", report.folder / "logs")):
        print(f"{name}: {plain(path)}")  # noqa: T201


def _log_failed(record: SweepRecord, names: set[str]) -> None:
    failed = [cell.name for cell in record.cells if cell.state == "failed" and cell.name in names]
    if failed:
        _log(f"{len(failed)} failed; their output is in logs/; --retry-failed continues from their checkpoints")
