"""One cell of a matrix, a run with its configuration or its problems; errors of cells, and the cells of `--only`.

A run may need other runs of the same matrix: the teachers of a distillation (`distil.teacher: {size: large}` in a
matrix file), and the run whose model is trained further (`model.name: {task: rte}`). The mapping names values of axes;
on all other axes, seeds included, the needed run has the values of the run that needs it. Several values of an axis are
an ensemble of teachers: `{size: large, seed: [1, 2, 3]}`.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.base.text import listing
from paratune.config.glue import headline_metrics
from paratune.config.layers import Layer, layer_of, merge
from paratune.config.load import LoadedConfig
from paratune.config.problems import Problem, SourceLocation, failure
from paratune.config.sections import Config
from paratune.errors import ConfigError, option_error
from paratune.records.sweep import CellRecord, SweepRecord, cell_run_folder, run_fingerprint
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
    message = f"{matrix.source}: no run of this matrix is possible here"
    lines = [f"  {reason}" for reason in why_skipped(cells)]
    return ConfigError("\n".join([message, *lines]), code="sweep.none_possible")


def why_skipped(cells: Sequence[Cell]) -> list[str]:
    """Return each reason why cells cannot run, with the names of these cells; finished ones are not skipped."""
    skipped = (cell for cell in cells if cell.impossible is not None and cell.record.state != "finished")
    by_reason = grouped((cell.impossible, cell) for cell in skipped)
    return [f"{reason} (in {names_of(alike, len(cells))})" for reason, alike in by_reason.items()]


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
            raise option_error("--only", word, problem.message, code="run.not_found", key=key)
        ((label, names),) = found.items()
        selected = tuple(cell for cell in selected if cell.values[label] in names)
    if not selected:
        message = f"--only {' '.join(wanted)}: none of the {len(cells)} runs matches; --dry-run lists them"
        raise ConfigError(message, code="run.not_found", option="--only")
    return selected


TEACHER, INITIAL = "distil.teacher", "model.name"
"""Options that may name runs of the same matrix."""


def resolve_needs(
    matrix: Matrix, values: Mapping[str, str], layer: Layer, name_of: Callable[[Mapping[str, str]], str]
) -> tuple[Layer, tuple[str, ...], tuple[Problem, ...]]:
    """Return the settings of the run of these values with folders of the runs it needs, their names, and problems."""
    needs: list[str] = []
    for key in (TEACHER, INITIAL):
        section, _, option = key.partition(".")
        given = layer.values.get(section)
        wanted = given.get(option) if isinstance(given, dict) else None
        if not isinstance(wanted, dict):
            continue
        place = next((at for name, at in layer.places.items() if name == key or name.startswith(f"{key}.")), None)
        chosen, problems = find_values(matrix.axes, wanted)
        messages = [problem.message for problem in problems]
        combinations = [dict(zip(chosen, names, strict=True)) for names in itertools.product(*chosen.values())]
        if not wanted:
            messages = ["it is an empty mapping; name a value of an axis, such as {size: large}, or a run"]
        elif not messages and key == INITIAL and len(combinations) > 1:
            messages = [f"it names {len(combinations)} runs, and training starts from one model; name one value"]
        if messages:
            wrong = (Problem(f"{key}: {message}", (key,), place, code="sweep.invalid") for message in messages)
            return layer, (), tuple(wrong)
        names = [name_of({**values, **combination}) for combination in combinations]
        folders = [str(cell_run_folder(matrix.folder, name)) for name in names]
        value: Any = folders[0] if len(folders) == 1 else folders
        layer = merge(layer, layer_of(key, value, {key: place or SourceLocation(matrix.source.name)}))
        needs += names
    return layer, tuple(needs), ()


def first_training(config: Config, needs: Collection[str]) -> str | None:
    """Return the needed run whose model is trained further; None for another model."""
    name = Path(config.model.name).name
    return name if name in needs else None


def check_needs(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells; those that need a missing run, themselves or one that cannot run have a problem or a reason."""
    by_name = {cell.name: cell for cell in cells}
    for cell in cells:
        above: dict[str, None] = {}  # the runs it needs, those that they need, and so on
        rest = list(cell.record.needs)
        while rest:
            if (name := rest.pop()) not in above:
                above[name] = None
                rest += by_name[name].record.needs if name in by_name else ()
        problem = impossible = None
        if missing := [name for name in cell.record.needs if name not in by_name]:
            problem = f"{missing[0]} is not a run of the matrix, exclude leaves it out; name another run"
        elif cell.name in above:
            problem = f"{cell.name} needs itself; name a run that does not need it"
        elif above and cell.record.kind == "probe":
            impossible = "it needs the model of a run of this matrix, and a probe has none; train the whole runs"
        else:
            needed = (by_name[name] for name in above if name in by_name)
            failing = next((other for other in needed if other.impossible is not None), None)
            if failing is not None:
                impossible = f"{failing.name}, which it needs, cannot run: {failing.impossible}"
        if problem is not None:
            key = TEACHER if cell.loaded is not None and cell.loaded.config.distil is not None else INITIAL
            yield replace(cell, loaded=None, problems=(Problem(f"{key}: {problem}", (key,), code="sweep.invalid"),))
        elif cell.impossible is None and not cell.problems:
            yield replace(cell, impossible=impossible)
        else:
            yield cell


def waits_for(record: SweepRecord, cell: CellRecord) -> str | None:
    """Return why a run cannot start yet: a run that it needs is not finished; None where it can."""
    states = {other.name: other.state for other in record.cells}
    for name in cell.needs:
        if (state := states.get(name, "unknown")) != "finished":
            return f"{name}, which it needs, is not finished ({state})"
    return None
