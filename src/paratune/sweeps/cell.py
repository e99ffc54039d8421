"""One cell of a matrix, a run with its configuration or its problems; errors of cells, and the cells of `--only`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from paratune.base.grouping import grouped
from paratune.base.text import listing
from paratune.config.glue import headline_metrics
from paratune.config.load import LoadedConfig
from paratune.config.problems import Problem, failure
from paratune.config.sections import Config
from paratune.errors import ConfigError, option_error
from paratune.records.sweep import CellRecord, run_fingerprint
from paratune.sweeps.axes import find_values
from paratune.sweeps.matrix import Matrix

IN_USE = "still trained by another process"


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    record: CellRecord
    loaded: LoadedConfig | None = None
    """Its configuration; None when it has problems."""
    problems: tuple[Problem, ...] = ()
    impossible: str | None = None
    """Why it cannot run, although the file is correct; None when it can."""
    changed: tuple[str, ...] = ()
    """Settings with other values in the run in its folder, as "key: then, now"."""
    is_begun: bool = False
    """Whether its folder contains a run that can be resumed."""

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def values(self) -> Mapping[str, str]:
        return self.record.values

    @property
    def config(self) -> Config:
        assert self.loaded is not None
        return self.loaded.config

    @property
    def metric(self) -> str:
        """Metric on validation by which a candidate is selected."""
        return self.config.evaluate.best or headline_metrics(self.config.task)[0]

    def described(self) -> CellRecord:
        """Return its record with what follows from its configuration: task, metrics and fingerprint."""
        assert self.loaded is not None
        record = self.record
        return replace(
            record,
            task=self.config.task.kind,
            metric=self.metric,
            metrics=tuple(dict.fromkeys([*headline_metrics(self.config.task), self.metric])),
            fingerprint=run_fingerprint(self.loaded.values, record.num_processes, record.environment, record.num_nodes),
        )

    @property
    def shown_state(self) -> str:
        """The state, or `changed`, or `running` for a run that another process trains."""
        return "changed" if self.changed else "running" if self.record.reason == IN_USE else self.record.state

    def runs(self, *, retry_failed: bool) -> bool:
        """Return whether it is trained now."""
        if self.record.state == "skipped":
            return False
        is_open = self.record.state in ("pending", "interrupted", "running")
        return bool(self.changed) or is_open or (retry_failed and self.record.state == "failed")


def invalid(matrix: Matrix, cells: Sequence[Cell]) -> ConfigError | None:
    """Return the error that lists the problems of all cells, each once with the names of its cells, or None."""
    firsts = [cell for cell in cells if cell.record.repeat == 1]  # repeats have the same problems
    by_problem = grouped((replace(problem, keys=()), cell) for cell in firsts for problem in cell.problems)
    if not by_problem:
        return None
    listed = [
        replace(problem, message=f"{problem.message} (in {names_of(having, len(firsts))})")
        for problem, having in by_problem.items()
    ]
    error = failure(matrix.source, listed, matrix.source.name)
    counts = f"{sum(bool(cell.problems) for cell in cells)} of {len(cells)} runs cannot be trained"
    heading = f"{error.heading}; {counts}: correct them, or leave them out with exclude:; nothing was started"
    return ConfigError(heading, code=error.code, faults=error.faults)


def none_possible(matrix: Matrix, cells: Sequence[Cell]) -> ConfigError | None:
    """Return the error with the reasons why no cell can run; None when one can."""
    if any(cell.impossible is None for cell in cells):
        return None
    by_reason = grouped((cell.impossible, cell) for cell in cells)
    lines = [f"  {reason} (in {names_of(same_reason, len(cells))})" for reason, same_reason in by_reason.items()]
    message = f"{matrix.source}: no run of this matrix is possible here"
    return ConfigError("\n".join([message, *lines]), code="sweep.none_possible")


def names_of(cells: Sequence[Cell], total: int) -> str:
    """Return the names of cells in words, at most three of them."""
    return f"all {total} runs" if len(cells) == total > 1 else listing((cell.name for cell in cells), 3)


def select(matrix: Matrix, cells: Sequence[Cell], wanted: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells that `--only` selects: AXIS=VALUE[,VALUE...] or patterns of names, which are combined.

    Raises:
        ConfigError: There is no such axis, value or cell.
    """
    selected = tuple(cells)
    for word in wanted:
        key, equals, values = word.partition("=")
        if not equals:
            selected = tuple(cell for cell in selected if fnmatchcase(cell.name, word))
            continue
        found, problems = find_values(matrix.axes, {key: values.split(",")})
        for problem in problems:
            raise option_error("--only", word, problem.message, code="sweep.unknown_run", key=key)
        ((label, names),) = found.items()
        selected = tuple(cell for cell in selected if cell.values[label] in names)
    if not selected:
        message = f"--only {' '.join(wanted)}: none of the {len(cells)} runs matches; --dry-run lists them"
        raise ConfigError(message, code="sweep.unknown_run", option="--only")
    return selected
