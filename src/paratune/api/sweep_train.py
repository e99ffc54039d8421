"""Trains the runs of a matrix, in turn or side by side, makes their smaller forms, and logs the progress.

With `paratune sweep --until`, each round adds a seed or a repeat to the configurations whose verdicts are undecided.
"""

import logging
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path

from paratune.api.sweep_slots import Parallel, expected_work, slots_here, uses_gpus
from paratune.base.text import plain
from paratune.base.units import counted, format_duration, utc_now
from paratune.console import Bar, Display
from paratune.errors import EXIT_FAILED, EXIT_OK, Stopped, coded, option_error
from paratune.processes.local import CommandRunner
from paratune.processes.slots import Share, Slots
from paratune.records.neighbours import NEIGHBOURS_FILE, NEIGHBOURS_VARIABLE, log_neighbour
from paratune.records.sweep import (
    LOGS_FOLDER,
    CellRecord,
    Configuration,
    Rounds,
    SweepRecord,
    cell_run_folder,
    write_sweep,
)
from paratune.reports.systems.judging import judged
from paratune.reports.systems.model import Systems, read_cell_runs
from paratune.sweeps.cell import Cell, waits_for
from paratune.sweeps.matrix import Matrix
from paratune.sweeps.run import SharedRecord, SweepPlan, block_of, run_cell, was_killed
from paratune.sweeps.search import validation_score
from paratune.verdicts import Verdict
from paratune.verdicts.groups import SPEED
from paratune.verdicts.speeds import GOODPUT
from paratune.watch.run import RunWatch

log = logging.getLogger(__name__)

LINES_EVERY_S = 1.0
"""Seconds between two updates of the lines of slots."""
FIRST_BLOCKS = 3
"""Runs that every configuration gets before the first look: fewer do not show how much runs vary."""
UNTIL = ("decided", "speed", "quality")
"""What has to be decided: all measures of a verdict, its speed, or its scores."""
NOT_NEEDED = "not needed: its verdict was decided with fewer runs (--until)"


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

    def check(self, *, is_last: bool = True) -> int:
        """Log the failed runs; return 0 if all selected runs are finished or skipped, and made smaller, otherwise 1.

        Raises:
            Stopped: A signal stopped the sweep before that, or before the runs that follow (`is_last` is False).
        """
        cells = [cell for cell in self.record.cells if cell.name in self.names]
        is_done = all(cell.state in ("finished", "skipped") for cell in cells) and not self.not_compressed
        if self.signal is not None and not (is_done and is_last):
            message = f"stopped by {self.signal}; the same command continues it"
            raise Stopped(message, code="stopped.signal", signal=self.signal)
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
    parallel: Parallel = 1,
) -> TrainedSweep:
    """Train the runs of these names that are not finished, and make smaller forms of the finished ones.

    Args:
        matrix: Its folder is locked by this process.
        run_code: Whether the commands are started with --run-code.
        parallel: Most runs at a time, or `auto`.
    """
    todo = [cell for cell in plan.in_order() if cell.name in names and cell.runs(retry_failed=retry_failed)]
    total = sum(cell.name in names and cell.record.state != "skipped" for cell in plan.cells)
    num_done = total - len(todo)
    slots = slots_here(todo, parallel)
    # From here on this process starts them.
    record = replace(plan.record, listed=(), num_slots=slots.num_slots)
    write_sweep(matrix.folder, record)
    beside = f", {slots.num_slots} at a time" if slots.num_slots > 1 else ""
    _log(f"{matrix.name}: {plan.counts(names)}; {total - num_done} to train now{beside}")
    expected = expected_work(todo, plan.cells) if slots.num_slots > 1 else {}
    display = Display(speaks=True)
    with CommandRunner() as children, display.bar("runs", total) as bar:
        trainer = _Trainer(matrix, children, display, bar, total, num_done, run_code, slots, expected)
        if record.rounds is not None:
            record = train_rounds(matrix.folder, record, todo, trainer)
        else:
            record = trainer.train(record, todo)
        not_compressed = trainer.compress(record, names)
        signal = children.signal
    record = record.with_look(utc_now())
    write_sweep(matrix.folder, record)
    return TrainedSweep(record, names, signal, not_compressed)


@dataclass
class _Trainer:
    matrix: Matrix
    children: CommandRunner
    display: Display
    bar: Bar
    total: int
    num_done: int
    run_code: bool
    slots: Slots
    expected: Mapping[str, float]
    """Expected time or work of each run by its name, for the order of runs side by side."""

    @property
    def is_stopped(self) -> bool:
        """Whether a signal stopped the sweep."""
        return self.children.signal is not None

    @property
    def logs_neighbours(self) -> bool:
        # A run that is resumed alone may have had neighbours before.
        return self.slots.num_slots > 1 or (self.matrix.folder / NEIGHBOURS_FILE).exists()

    def start(self, words: Sequence[str], output: Path, environment: Mapping[str, str | None], share: Share) -> int:
        """Run a command with a share of the machine."""
        more = ["--run-code"] if self.run_code else []
        own = {**share.environment, **environment}
        return self.children.run([*words, *more], output, own, share.cores)

    def train(self, record: SweepRecord, cells: Sequence[Cell]) -> SweepRecord:
        """Train these runs until a signal stops the sweep, and return the record.

        Where runs decide which others follow (--until, a Bayesian search), a killed run is tried once more.
        """
        sweep = SharedRecord(self.matrix.folder, record)
        self._train_all(sweep, cells)
        if record.rounds is not None or (record.search is not None and record.search.method != "random"):
            by_name = {one.name: one for one in sweep.record.cells}
            killed = [cell for cell in cells if was_killed(by_name[cell.name])]
            again = [replace(cell, record=by_name[cell.name], changed=(), is_begun=True) for cell in killed]
            self.num_done -= len(again)
            self._train_all(sweep, again)
        return sweep.record

    def _train_all(self, sweep: SharedRecord, cells: Sequence[Cell]) -> None:
        """Train runs, as many at a time as there are slots, until all have ended or a signal came."""
        waiting, order = list(cells), {cell.name: place for place, cell in enumerate(cells)}
        if self.slots.num_slots > 1:
            # The longest first: a long run at the end would leave the other slots empty.
            waiting.sort(key=lambda cell: (-self.expected.get(cell.name, 0.0), order[cell.name]))
        if self.logs_neighbours:
            log_neighbour(self.matrix.folder / NEIGHBOURS_FILE, "start")
        running: dict[Future[None], tuple[Cell, Share]] = {}
        # One line for each slot, with the step of its run.
        num_lines = self.slots.num_slots if self.slots.num_slots > 1 and sys.stderr.isatty() else 0
        with ExitStack() as stack, ThreadPoolExecutor(self.slots.num_slots) as pool:
            lines = [stack.enter_context(self.display.bar(f"slot {at + 1}", 1)) for at in range(min(num_lines, 16))]
            try:
                while (waiting and not self.is_stopped) or running:
                    left = {cell.name for cell in waiting} | {cell.name for cell, _ in running.values()}
                    for cell in [] if self.is_stopped else list(waiting):
                        if left & {*cell.record.needs}:
                            continue
                        share = self.slots.take(cell.record.num_processes, on_gpus=uses_gpus(cell))
                        if share is None:
                            # No other run overtakes it: one that needs many GPUs would wait for all of them.
                            break
                        waiting.remove(cell)
                        self.num_done += 1
                        running[pool.submit(self._train_run, sweep, cell, share, self.num_done)] = cell, share
                    if not running:  # runs that need each other
                        break
                    names = [cell.name for cell, _ in running.values()]
                    if sys.stderr.isatty():  # elsewhere the log shows the progress
                        self.bar.update(self.num_done - len(running), names[0] if not lines else "")
                    ended, _ = wait(running, LINES_EVERY_S if lines else None, FIRST_COMPLETED)
                    for line, name in zip_longest(lines, names[: len(lines)]):
                        run = None if name is None else RunWatch(cell_run_folder(sweep.folder, name)).look()
                        done, num_steps = (0, 1) if run is None else (int(run.step or 0), int(run.num_steps or 1))
                        line.update(done, name or "waits", total=num_steps)
                    for future in ended:
                        self.slots.give_back(running.pop(future)[1])
                        future.result()
            except BaseException:
                self.children.end()  # one run cannot be written; the others save and end
                raise

    def _train_run(self, sweep: SharedRecord, cell: Cell, share: Share, place: int) -> None:
        number = f"[{place}/{self.total}]"
        if (reason := waits_for(sweep.record, cell.record)) is not None:
            _log(f"{number} {cell.name}: not started, {reason}")
            sweep.put(replace(cell.record, reason=reason))
            return
        how = ": deleted, and trained again with the present settings" if cell.changed else ": resumed"
        on = f" (GPU {', '.join(share.gpus)})" if share.gpus else ""
        _log(f"{number} {cell.name}{on}{how if cell.changed or cell.is_begun else ''}")
        beside: dict[str, str | None] = {}
        if self.logs_neighbours:
            file = (self.matrix.folder / NEIGHBOURS_FILE).resolve()
            log_neighbour(file, "resume" if cell.is_begun and not cell.changed else "begin", cell.name)
            beside = {NEIGHBOURS_VARIABLE: str(file)}
        try:
            ended = run_cell(
                sweep,
                cell,
                lambda words, output, environment: self.start(words, output, {**environment, **beside}, share),
                stopped=lambda: self.is_stopped,
            )
        finally:
            if beside:
                log_neighbour(file, "end", cell.name)
        score = validation_score(self.matrix.folder, ended)
        shown = "" if score is None else f": {ended.metric} {score:.4f} on validation"
        took = format_duration(replace(ended, attempts=ended.attempts[-1:]).took_s)
        reason = f": {ended.reason.splitlines()[0]}" if ended.reason else ""
        _log(f"{number} {ended.state} after {took}{reason}{shown}")

    def compress(self, record: SweepRecord, names: Collection[str]) -> tuple[str, ...]:
        """Run `paratune compress` for each finished run of these names; return the runs for which it did not succeed.

        A run that has all its measurements is left out, so that an interrupted sweep continues here. The output of the
        command is in the log of the run. It has the variables of `env`, but not those of axes: all runs are measured
        alike.
        """
        compress, folder = self.matrix.options.compress, self.matrix.folder
        if compress is None:
            return ()
        cells = [(cell, cell_run_folder(folder, cell.name)) for cell in record.cells if cell.name in names]
        todo = {cell.name: run for cell, run in cells if compress.is_due(run, cell)}
        failed = list(todo)
        for number, (name, run) in enumerate(todo.items(), start=1):
            if self.is_stopped:
                break
            _log(f"compress [{number}/{len(todo)}] {name}: {', '.join(compress.forms)}")
            output = folder / LOGS_FOLDER / f"{name}.txt"
            output.parent.mkdir(exist_ok=True)
            code = self.start(compress.words(run), output, self.matrix.environment, Share())
            if code == EXIT_OK:
                failed.remove(name)
            elif not self.is_stopped:
                _log(f"compress: {name} failed with exit code {code}; its output is in {output}")
        return tuple(failed)


def read_rounds(matrix: Matrix, cells: Sequence[CellRecord], until: str | None) -> Rounds | None:
    """Return the rounds that `--until` requests; None without it."""
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


def train_rounds(folder: Path, record: SweepRecord, left: Sequence[Cell], trainer: "_Trainer") -> SweepRecord:
    """Train round after round, until all verdicts are decided, all runs are made, or a signal stops the sweep."""
    while not trainer.is_stopped:
        record = record.with_look(utc_now())
        write_sweep(folder, record)
        judged_ones, undecided = judged_and_undecided(folder, record)
        if not (cells := next_round(record, left, undecided)):
            record = _ended(record, left, judged_ones, is_decided=not undecided)
            write_sweep(folder, record)
            break
        which = f"{counted(len(undecided), 'configuration')} undecided" if undecided else "the first one"
        _log(f"round of {counted(len(cells), 'run')}: {which}")
        record = trainer.train(record, cells)
        names = {cell.name for cell in cells}
        left = [cell for cell in left if cell.name not in names]
    return record


def next_round(record: SweepRecord, left: Sequence[Cell], undecided: Collection[Configuration]) -> list[Cell]:
    """Return the runs of `left` that are the next round; none when nothing is left that is needed.

    The first round is `FIRST_BLOCKS` runs of every configuration. Each later one is a run of every configuration whose
    verdict is undecided, baselines included. Runs that these need are in the round, too.
    """
    first_blocks = sorted({block_of(cell, record.axes) for cell in record.cells})[:FIRST_BLOCKS]
    block = {cell.name: block_of(cell.record, record.axes) for cell in left}
    first = [cell for cell in left if block[cell.name] in first_blocks]
    needed = [cell for cell in left if record.configuration_of(cell.record) in undecided]
    found = first or [cell for cell in needed if block[cell.name] == min(block[other.name] for other in needed)]
    names = {cell.name for cell in found}
    while more := {name for cell in left if cell.name in names for name in cell.record.needs} - names:
        names |= more
    return [cell for cell in left if cell.name in names]


def _ended(
    record: SweepRecord, left: Sequence[Cell], judged_ones: Collection[Configuration], *, is_decided: bool
) -> SweepRecord:
    """Return the record at the end: runs of configurations without a verdict stay pending, others are skipped."""
    not_needed = [cell for cell in left if record.configuration_of(cell.record) in judged_ones]
    num_without = len(left) - len(not_needed)
    ended = "no_verdict" if num_without else "decided" if is_decided else "planned"
    saved_s = sum(record.expected_s.get(cell.record.name) or 0.0 for cell in not_needed)
    why = {
        "decided": "all verdicts are decided",
        "planned": "all planned runs of the undecided configurations are made",
        "no_verdict": f"{counted(num_without, 'run')} not made: no verdict on their configurations",
    }[ended]
    saved = f"{counted(len(not_needed), 'run')} of {len(record.cells)} not needed"
    _log(f"{why}; {saved}, about {format_duration(saved_s)}")
    assert record.rounds is not None
    record = replace(record, rounds=replace(record.rounds, ended=ended))
    for cell in not_needed:
        record = record.with_cell(replace(cell.record, state="skipped", reason=NOT_NEEDED, is_needed=False))
    return record


def judged_and_undecided(
    folder: Path, record: SweepRecord
) -> tuple[frozenset[Configuration], frozenset[Configuration]]:
    """Return the configurations with a verdict, baselines included, and those whose verdict needs more runs."""
    systems = Systems(record, read_cell_runs(folder, record))
    verdicts, problems = judged(systems, all_of_them=True)
    for problem in problems:
        log.warning("%s", plain(problem), extra=coded("sweep.unreadable_run"))
    by_name = {cell.name: record.configuration_of(cell) for cell in record.cells}
    assert record.rounds is not None

    def configurations(some: Iterable[Verdict]) -> frozenset[Configuration]:
        names = (name for verdict in some for name in (*verdict.runs, *verdict.baseline_runs))
        return frozenset(by_name[name] for name in names)

    undecided = []
    for verdict in verdicts:
        is_speed = [measure in (SPEED, GOODPUT) for measure in verdict.undecided]
        is_open = {"speed": any(is_speed), "quality": not all(is_speed), "decided": bool(is_speed)}
        undecided += [verdict] if is_open[record.rounds.until] else []
    return configurations(verdicts), configurations(undecided)


def _log(text: str) -> None:
    log.info("%s", plain(text))
