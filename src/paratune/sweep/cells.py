"""The cells of a matrix: every combination of its axes, each with its whole configuration or what is wrong with it."""

import hashlib
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from paratune.config.differences import flatten
from paratune.config.glue import headline_metrics
from paratune.config.layers import Layer, expand_shorthands, layer_of, merge, read_overrides
from paratune.config.load import LoadedConfig, check_layer
from paratune.config.metric_names import METRICS
from paratune.config.plain import one_line
from paratune.config.problems import Place, Problem, failure, overlap
from paratune.config.sections import Config
from paratune.config.sources import local_path, split_of
from paratune.config.validate import describe_value
from paratune.errors import ConfigError, did_you_mean
from paratune.place import global_batch_size
from paratune.sweep.axes import OURS, Value, find_value
from paratune.sweep.matrix import Matrix
from paratune.sweep_record import RUNS_FOLDER

MAX_CELLS = 10_000
_MAX_NAME = 120
"""Characters of the name of a run; a file system has 255 bytes, and names of files beside the folder are longer."""
NOT_COMPARED = (
    "run.name",
    "run.folder",
    "data.cache_dir",
    "data.figures",
    "measure",
    "trackers",
    "evaluate.batch_size",
    "checkpoint",
)
"""What may change without a run being another one: where things are kept, how often, and what trains nothing."""
_ANSWERS_ALIKE = {"start_at_mean", "threshold", "stride", "max_answer_tokens", "num_best", "null_threshold"}
"""Of a task: how a model is begun or answers; the rows and the scores of the answers stay comparable."""


@dataclass(frozen=True)
class Cell:
    """One run of the matrix."""

    name: str
    values: Mapping[str, str]
    """The name of its value on each axis, by the axis' label."""
    num_processes: int
    loaded: LoadedConfig | None
    """None when it has problems."""
    problems: tuple[Problem, ...] = ()

    @property
    def config(self) -> Config:
        assert self.loaded is not None
        return self.loaded.config

    @property
    def metric(self) -> str:
        """By which its validation is judged; see `select_by`."""
        return self.config.evaluate.best or headline_metrics(self.config.task)[0]

    @property
    def metrics(self) -> tuple[str, ...]:
        """What tables show of it."""
        return tuple(dict.fromkeys([*headline_metrics(self.config.task), self.metric]))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of all that makes it another run when it changes."""
        assert self.loaded is not None
        kept = [self.num_processes, dict(sorted(compared(self.loaded.values).items()))]
        return hashlib.sha256(one_line(kept).encode()).hexdigest()


def compared(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by dotted key, that make a run another one when they change."""
    return {
        key: value
        for key, value in flatten(values).items()
        if not any(key == each or key.startswith(f"{each}.") for each in NOT_COMPARED)
    }


def cells_of(matrix: Matrix, overrides: Sequence[str] = ()) -> tuple[Cell, ...]:
    """Return every combination that is not excluded, the last axis varying fastest.

    Args:
        matrix: The file.
        overrides: `section.key=value` for all cells, on top of what the file says.

    Raises:
        ConfigError: An override would undo an axis, the exclusions leave nothing or exclude nothing, or there are too
            many cells.
    """
    above = read_overrides(Layer(), overrides)
    _check_overrides(matrix, above)
    size = math.prod(len(axis.values) for axis in matrix.axes)
    if size > MAX_CELLS:
        raise ConfigError(f"{matrix.source}: {size:,} runs; at most {MAX_CELLS:,} in one matrix")
    cells, used = [], set()
    for values in itertools.product(*(axis.values for axis in matrix.axes)):
        names = {axis.axis.label: value.name for axis, value in zip(matrix.axes, values, strict=True)}
        excluding = [number for number, each in enumerate(matrix.exclude) if _matches(names, each)]
        used.update(excluding)
        if not excluding:
            cells.append(_cell(matrix, names, values, above))
    for number, each in enumerate(matrix.exclude):
        if number not in used:
            raise ConfigError(f"{matrix.source}: exclude[{number}] leaves nothing out: {_written(each)}")
    if not cells:
        raise ConfigError(f"{matrix.source}: exclude leaves no run of {size}")
    if not any(matrix.baseline.items() <= cell.values.items() for cell in cells):
        raise ConfigError(f"{matrix.source}: baseline names no run of the matrix, or one that exclude leaves out")
    _check_names(matrix, cells)
    _check_different(matrix, cells)
    return tuple(_check_choices(matrix, cells))


def _check_overrides(matrix: Matrix, above: Layer) -> None:
    for key in above.places:
        for axis in matrix.axes:
            own = [each for value in axis.values for each in value.own.places]
            if any(overlap(key, each) for each in (*own, *axis.varied)):
                raise ConfigError(f"--set {key}: the axis {axis.axis.key} sets it in each run; see --only, or the axis")
        if key in ("run.name", "run.folder", "run"):
            raise ConfigError(f"--set {key}: the matrix gives each run its name and folder (name:, folder:)")


def _matches(names: Mapping[str, str], combination: Mapping[str, Any]) -> bool:
    return all(names[label] in wanted for label, wanted in combination.items())


def _written(combination: Mapping[str, Sequence[str]]) -> str:
    return ", ".join(f"{label}: {' or '.join(names)}" for label, names in combination.items())


def _cell(matrix: Matrix, names: Mapping[str, str], values: Sequence[Value], above: Layer) -> Cell:
    """Return a cell: what files say lies below, what the matrix says above it, `--set` on top."""
    name = _name(names)
    layer = matrix.below
    for part in (*(value.below for value in values), matrix.own, *(value.own for value in values), above):
        layer = merge(layer, part)
    count = next((value.num_processes for value in values if value.num_processes), matrix.num_processes)
    given = layer.values.get("run")
    if given is not None and not isinstance(given, dict):  # folder and name would replace it
        message = f"run is {describe_value(given)}; allowed: a mapping, such as {{seed: 42}}"
        return Cell(name, names, count, None, (Problem(message, ("run",), layer.place("run")),))
    place = Place(matrix.source.name)
    runs = str(matrix.folder / RUNS_FOLDER)
    for key, value in (("run.folder", runs), ("run.name", name)):
        layer = merge(layer, layer_of(key, value, {key: place}))
    # Cells share what they do not set; what a check fills in must stay with its cell.
    layer = replace(layer, values=deepcopy(layer.values), places=dict(layer.places))
    loaded, problems = check_layer(expand_shorthands(layer), matrix.source)
    if loaded is not None:
        problems = list(_of_the_machine(loaded, count, layer))
    return Cell(name, names, count, None if problems else loaded, tuple(problems))


def _name(names: Mapping[str, str]) -> str:
    name = "_".join(names.values())
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _of_the_machine(loaded: LoadedConfig, num_processes: int, layer: Layer) -> Iterator[Problem]:
    """Yield what the run would refuse at its start: data files that are not there, a number of processes."""
    try:
        global_batch_size(loaded.config, num_processes)
    except ConfigError as error:
        yield Problem(str(error).replace("--nproc", "nproc:"))
    data = loaded.config.data
    trains = [data.train] if isinstance(data.train, str) else data.train or []
    names = [*(("data.train", name) for name in trains), ("data.validation", data.validation), ("data.test", data.test)]
    names += [(f"data.extra.{name}", source) for name, source in data.extra.items()]
    names += [(f"data.predict.{name}", source) for name, source in data.predict.items()]
    for key, file in names:
        path = local_path(file) if file is not None else None
        if path is not None and not split_of(path)[0].exists():
            message = f"{key}: {file} does not exist (working directory: {Path.cwd()})"
            yield Problem(message, (key,), layer.place(key))


def _check_names(matrix: Matrix, cells: Sequence[Cell]) -> None:
    seen: dict[str, Cell] = {}
    for cell in cells:
        other = seen.setdefault(cell.name.lower(), cell)
        if other is not cell:
            raise ConfigError(
                f"{matrix.source}: two runs would be called {cell.name}: {dict(other.values)} and {dict(cell.values)}; "
                "give the values of an axis other names"
            )


def _check_different(matrix: Matrix, cells: Sequence[Cell]) -> None:
    """Refuse two names of one run: what sets them apart has no effect."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        if cell.loaded is None:
            continue
        said = {key: value for key, value in flatten(cell.loaded.values).items() if key not in OURS}
        other = seen.setdefault(one_line([cell.num_processes, dict(sorted(said.items()))]), cell)
        if other is not cell:
            apart = [axis for axis in matrix.axes if cell.values[axis.axis.label] != other.values[axis.axis.label]]
            labels = " and ".join(axis.axis.label for axis in apart)
            keys = ", ".join(dict.fromkeys(key for axis in apart for key in axis.varied)) or "nothing"
            raise ConfigError(
                f"{matrix.source}: {other.name} and {cell.name} would train the same, although {labels} sets {keys}: "
                "these are the defaults, or lie in files, above which base, the axes and --set are; leave out what has "
                f"no effect, or write the settings themselves below {labels}"
            )


def _check_choices(matrix: Matrix, cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yield the cells; those that cannot be chosen among with a problem that says so."""
    seeds = {each.axis.label for each in matrix.axes if each.axis.is_seed}
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in cells:
        if cell.loaded is not None:
            groups.setdefault(_group_of(matrix, cell), []).append(cell)
    wrong = {key: list(_of_a_group(matrix, group, seeds)) for key, group in groups.items()}
    for cell in cells:
        found = [] if cell.loaded is None else [*wrong[_group_of(matrix, cell)], *_of_the_metric(matrix, cell)]
        yield replace(cell, loaded=None, problems=tuple(found)) if found else cell


def _group_of(matrix: Matrix, cell: Cell) -> tuple[str, ...]:
    return tuple(cell.values[label] for label in matrix.select_per)


def _of_the_metric(matrix: Matrix, cell: Cell) -> Iterator[Problem]:
    known = METRICS[cell.config.task.kind]
    if matrix.select_by is not None and matrix.select_by not in known:
        yield Problem(
            f"select_by: {matrix.select_by} is not a metric of {cell.config.task.kind}"
            f"{did_you_mean(matrix.select_by, known)}; allowed: {', '.join(known)}"
        )


def _of_a_group(matrix: Matrix, group: Sequence[Cell], seeds: set[str]) -> Iterator[Problem]:
    """Yield why runs, of which one is to be chosen, cannot be put beside each other."""
    if len({tuple(name for label, name in cell.values.items() if label not in seeds) for cell in group}) < 2:
        return
    remedy = "name the axis that differs in select_per"
    kinds = {cell.config.task.kind for cell in group}
    if len(kinds) > 1:
        yield Problem(f"the best of runs of different tasks is asked for ({', '.join(sorted(kinds))}); {remedy}")
        return
    metrics = {cell.metric for cell in group}
    if matrix.select_by is None and len(metrics) > 1:
        listed = ", ".join(sorted(metrics))
        yield Problem(f"evaluate.best differs between runs of which one is to be chosen ({listed}); say select_by")
    measured: dict[tuple[str, ...], set[str]] = {}
    for cell in group:
        rows = _validation_rows(cell.config)
        if rows is None:
            yield Problem(
                "one of several runs is to be chosen, and that needs a validation set; give data.validation or "
                "data.split.validation"
            )
            return
        seed = tuple(cell.values[label] for label in sorted(seeds))
        measured.setdefault(seed, set()).add(one_line(rows))
    if any(len(each) > 1 for each in measured.values()):
        yield Problem(
            f"runs with different validation sets, or tasks that are scored otherwise, cannot be chosen among; {remedy}"
        )


def _validation_rows(config: Config) -> list[Any] | None:
    """Return all that decides which rows validate a run and what is right for them; None without a validation set."""
    data, task = config.data, config.task
    is_cut = data.split is not None and data.split.validation is not None
    if data.validation is None and not is_cut:
        return None
    return [
        task.model_dump(exclude=_ANSWERS_ALIKE),
        data.model_dump(include={"validation", "columns", "missing", "hub_revision"}),
        data.max_rows.validation,
        data.model_dump(include={"train", "split"}) if is_cut else None,
        data.max_length if task.kind == "mlm" else None,  # which is then what text is cut into
    ]


def invalid(matrix: Matrix, cells: Sequence[Cell]) -> ConfigError | None:
    """Return the error that lists all problems of all cells, each once with the cells that it is of; None if none."""
    of: dict[Problem, list[Cell]] = {}
    for cell in cells:
        for problem in cell.problems:
            of.setdefault(replace(problem, keys=()), []).append(cell)
    if not of:
        return None
    listed = [replace(problem, message=f"{problem.message} (in {names_of(of[problem], len(cells))})") for problem in of]
    error = failure(matrix.source, listed, matrix.source.name)
    num_invalid = sum(bool(cell.problems) for cell in cells)
    return ConfigError(f"{error}\n{num_invalid} of {len(cells)} runs cannot be trained: mend them, or leave them out "
        "with exclude:; nothing was started")  # fmt: skip


def names_of(cells: Sequence[Cell], total: int) -> str:
    """Return which cells, in words."""
    if len(cells) == total > 1:
        return f"all {total} runs"
    names = ", ".join(cell.name for cell in cells[:3])
    return f"{names} and {len(cells) - 3} more runs" if len(cells) > 3 else names


def only(matrix: Matrix, cells: Sequence[Cell], wanted: Sequence[str]) -> tuple[Cell, ...]:
    """Return the cells that are asked for.

    Args:
        matrix: The file.
        cells: All of them.
        wanted: All must hold: AXIS=VALUE[,VALUE...], or a pattern of names (`*_linear_*`).

    Raises:
        ConfigError: There is no such axis, value or cell.
    """
    by_label = {key: axis for axis in matrix.axes for key in (axis.axis.key, axis.axis.label)}
    kept = tuple(cells)
    for word in wanted:
        key, equals, values = word.partition("=")
        if not equals:
            kept = tuple(cell for cell in kept if fnmatchcase(cell.name, word))
        elif key not in by_label:
            known = ", ".join(axis.axis.label for axis in matrix.axes)
            raise ConfigError(f"--only {word}: {key} is not an axis{did_you_mean(key, by_label)}; there are: {known}")
        else:
            axis = by_label[key]
            names = {value: find_value(axis, value) for value in values.split(",")}
            for value, name in names.items():
                if name is None:
                    raise ConfigError(
                        f"--only {word}: {value or 'nothing'} is not on the axis {key}; it has: "
                        f"{', '.join(axis.axis.values.values())}"
                    )
            kept = tuple(cell for cell in kept if cell.values[axis.axis.label] in names.values())
    if not kept:
        raise ConfigError(f"--only {' '.join(wanted)}: none of the {len(cells)} runs is meant; --dry-run lists them")
    return kept
