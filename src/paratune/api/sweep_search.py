"""Runs the rounds of a search (`search:` in a matrix file): train, look at the scores, choose the next runs."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from paratune.api.sweep_rounds import Trainer
from paratune.base.text import plain
from paratune.base.units import counted
from paratune.errors import ConfigError
from paratune.records.sweep import SweepRecord, write_sweep
from paratune.sweeps import asked
from paratune.sweeps.cell import Cell
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import Matrix, read_matrix, require_forms
from paratune.sweeps.plan import SweepPlan, check_unchanged, plan_of
from paratune.sweeps.search import (
    halving_needs,
    next_trials,
    num_runs_of_halving,
    require_search,
    skip_not_needed,
    trial_scores,
    trial_title,
)
from paratune.sweeps.teachers import waits_for

log = logging.getLogger(__name__)


def check_options(matrix: Matrix, *, only: Sequence[str], until: str | None = None) -> None:
    """Check the options of a command line against the search of a matrix, and the packages that it needs.

    Raises:
        ConfigError: An option, or probes, contradict a search that decides by scores.
        MissingDependency: Optuna, or a package of smaller forms, is not installed.
    """
    require_forms(matrix.options.compress)
    search = matrix.search
    require_search(search)
    if search is None or not search.is_adaptive:
        return
    given = {
        "--only": bool(only),
        "--until": until is not None,
        "probe": matrix.probe is not None or matrix.all_are_probes,
    }
    for option, is_given in given.items():
        if is_given:
            message = (
                f"{option} contradicts search.method: {search.method}, where runs follow from the scores of all "
                "earlier ones; leave it out, or use method: random"
            )
            raise ConfigError(message, code="cli.conflict", options=(option, "search.method"))


def skip_runs_without_need(matrix: Matrix, plan: SweepPlan, *, retry_failed: bool) -> SweepPlan:
    """Return the states of the runs; those that no later round of successive halving needs are skipped."""
    if matrix.search is None or matrix.search.method != "halving":
        return plan
    todo = {cell.name for cell in plan.cells if cell.runs(retry_failed=retry_failed)}
    _, never = halving_needs(matrix.folder, plan.record, matrix.search, todo)
    record = skip_not_needed(plan.record, never)
    records = {cell.name: cell for cell in record.cells}
    return SweepPlan(tuple(replace(cell, record=records[cell.name]) for cell in plan.cells), record)


@dataclass(frozen=True)
class Searching:
    """Decides which runs of a matrix follow; without a search, all."""

    matrix: Matrix
    overrides: Sequence[str]
    here: bool
    """Whether the runs are to run on this machine."""
    writes: bool = True
    """Whether new trials of a Bayesian search are written to `sweep.json`; without it, none are suggested."""

    @property
    def is_adaptive(self) -> bool:
        """Whether runs follow from scores."""
        return self.matrix.search is not None and self.matrix.search.is_adaptive

    def num_runs(self, record: SweepRecord) -> int | None:
        """Return the largest number of runs until the end of an adaptive search; None for others."""
        search = self.matrix.search
        if search is None or not search.is_adaptive or record.search is None:
            return None
        num_known = len(record.search.trials)
        per_trial = len(record.cells) // num_known
        if search.method == "bayesian":
            num_possible = sum(cell.state != "skipped" for cell in record.cells)
            return num_possible + per_trial * (search.trials - num_known)
        return num_runs_of_halving(search) * per_trial // len(search.steps or ())

    def present_round(self, record: SweepRecord, todo: Sequence[Cell]) -> tuple[SweepRecord, list[Cell]]:
        """Return the record, and the runs that can be trained now, independently of each other.

        A Bayesian search without such runs gets its next trials; these are written to `sweep.json`.

        Args:
            record: Of the matrix, whose folder this process has locked.
            todo: All known runs that are to be trained, in order.

        Raises:
            CheckpointError: The files of the matrix were edited since the start, so that trained runs differ.
            ConfigError: A new trial is invalid.
        """
        search, folder = self.matrix.search, self.matrix.folder
        if search is None or not search.is_adaptive:
            ready = [cell for cell in todo if waits_for(record, cell.record) is None]
            if len(ready) < len(todo):
                waiting = counted(len(todo) - len(ready), "run")
                log.info("%s", f"{waiting} left out: a teacher is not finished; repeat the command when it is")
            return record, ready
        if search.method == "halving":
            needed, never = halving_needs(folder, record, search, {cell.name for cell in todo})
            cells = [cell for cell in todo if cell.name in needed]
            if cells:
                log.info("%s", f"round of {counted(len(cells), 'run')}: {plain(cells[0].record.values['max_steps'])}")
            return skip_not_needed(record, never), cells
        cells = list(todo)
        while not cells and self.writes and record.search and len(record.search.trials) < search.trials:
            record, cells = self._with_next_trials(record)  # without a run where the new trials are impossible here
        return record, cells

    def train(self, record: SweepRecord, todo: Sequence[Cell], trainer: Trainer) -> SweepRecord:
        """Train round after round, until no run follows or a signal stops the sweep; return the record."""
        left = list(todo)
        while not trainer.is_stopped:
            record, cells = self.present_round(record, left)
            write_sweep(self.matrix.folder, record)
            if not cells:
                break
            record = trainer.train(record, cells)
            names = {cell.name for cell in cells}
            left = [cell for cell in left if cell.name not in names]
            unfinished = [cell for cell in record.cells if cell.name in names and cell.state == "interrupted"]
            if unfinished:  # killed, or another process still trains it; the scores of the round are not complete
                if not trainer.is_stopped:
                    why = f"{unfinished[0].name} is not finished ({unfinished[0].reason})"
                    log.info("%s", plain(f"the search stops: {why}; the same command continues it"))
                break
        return record

    def _with_next_trials(self, record: SweepRecord) -> tuple[SweepRecord, list[Cell]]:
        search, folder = self.matrix.search, self.matrix.folder
        assert search is not None
        assert record.search is not None
        trials = next_trials(search, record, trial_scores(folder, record.cells))
        for name in [name for name in trials if name not in record.search.trials]:
            log.info("%s", plain(f"next trial: {trial_title(name, trials[name])}"))
        write_sweep(folder, replace(record, search=replace(record.search, trials=trials)))
        matrix = read_matrix(self.matrix.source)
        cells = cells_of(matrix, self.overrides, here=self.here)
        error = asked.invalid(matrix, cells)
        if error is not None:
            raise error
        plan = plan_of(matrix, cells, record.command)
        check_unchanged(matrix, plan.cells)  # an edit of a file since the start would train the new trials with it
        old = {cell.name: cell for cell in record.cells}
        cells_now = tuple(old.get(cell.name, cell) for cell in plan.record.cells)
        new = [cell for cell in plan.in_order() if cell.name not in old and cell.record.state != "skipped"]
        return replace(plan.record, cells=cells_now, listed=record.listed), new
