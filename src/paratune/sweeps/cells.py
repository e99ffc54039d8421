"""The cells of a matrix: every combination of its axes, with its whole configuration or its problems.

A combination may be impossible on any machine, or on this one; mistakes in a file are errors. No torch.
"""

import functools
import hashlib
import itertools
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

from paratune.base.grouping import grouped
from paratune.config.check import check
from paratune.config.choices import INSTEAD_OF
from paratune.config.feasibility import Ranks, Target, num_layers, reasons_against
from paratune.config.layers import Layer, expand_shorthands, layer_of, merge
from paratune.config.load import LoadedConfig, check_layer
from paratune.config.optional_sections import teacher_names
from paratune.config.overrides import drop_superseded_settings, read_overrides
from paratune.config.plain import flatten, one_line
from paratune.config.problems import Problem, SourceLocation, overlap
from paratune.config.sections import Config, data_sources
from paratune.config.sources import absence, local_path, path_and_split
from paratune.config.strategy_sections import strategy_options
from paratune.config.traits import strategy_traits
from paratune.config.validate import describe_value
from paratune.errors import ConfigError, is_installed, option_error
from paratune.records.sweep import RUNS_FOLDER, CellRecord
from paratune.sweeps.axes import ENV, NODES, NPROC, OURS, Value
from paratune.sweeps.cell import INITIAL, TEACHER, Cell, check_needs, first_training, resolve_needs
from paratune.sweeps.matrix import Matrix, ProbeLength

MAX_CELLS = 10_000
_MAX_NAME = 120
"""Characters of the name of a run; a file system has 255 bytes, and names of files beside the folder are longer."""


def cells_of(
    matrix: Matrix, overrides: Sequence[str] = (), *, here: bool = True, need_files: bool = True
) -> tuple[Cell, ...]:
    """Return every combination that is not excluded, the last axis varying fastest, and each of its repeats behind it.

    Args:
        here: Whether the cells are to run on this machine; without it, all that any machine can run is possible.
        need_files: Whether a data file that is absent is a problem.

    Raises:
        ConfigError: An override would undo an axis, the exclusions leave nothing, or there are too many cells.
    """
    above = read_overrides(Layer(), overrides)
    _check_overrides(matrix, above)
    size = math.prod(len(axis.read) for axis in matrix.axes) * matrix.options.repeats
    if size > MAX_CELLS:
        message = f"{matrix.source}: {size:,} runs; at most {MAX_CELLS:,} in one matrix"
        raise ConfigError(message, code="sweep.invalid", source=matrix.source)
    cells = []
    for values in itertools.product(*(axis.read for axis in matrix.axes)):
        names = {axis.label: value.name for axis, value in zip(matrix.axes, values, strict=True)}
        if not any(all(names[label] in wanted for label, wanted in out.items()) for out in matrix.exclude):
            cells.append(_cell(matrix, names, values, above, here=here, need_files=need_files))
    if not any(matrix.record.baseline.items() <= cell.values.items() for cell in cells):
        message = "baseline names no run of the matrix, or one that exclude leaves out"
        message = message if cells else f"exclude leaves no run of {size}"
        raise ConfigError(f"{matrix.source}: {message}", code="sweep.invalid", source=matrix.source)
    cells = list(check_needs(cells))
    _check_different(matrix, cells)
    if matrix.probe is None:
        cells = _check_comparable(matrix, cells)
    else:  # after the checks, so that problems of the full run are reported for its probe too
        length = matrix.probe
        cells = [replace(cell, loaded=cell.loaded and as_probe(cell.loaded, length)) for cell in cells]
        # Equal probes, such as those of runs of two lengths, are skipped except for the first.
        probes = [cell for cell in cells if cell.loaded is not None and cell.impossible is None]
        twins = {cell.name: f"as a probe it is the same as {first.name}" for first, cell in _twins(probes)}
        cells = [replace(cell, impossible=twins.get(cell.name, cell.impossible)) for cell in cells]
    all_cells = []
    for cell in cells:
        all_cells.append(cell)
        for number in range(2, matrix.options.repeats + 1):
            loaded, name = cell.loaded, f"{cell.name}_r{number}"
            if loaded is not None:
                run = loaded.config.run.model_copy(update={"name": name})
                settings = {**loaded.values, "run": {**loaded.values["run"], "name": name}}
                loaded = replace(loaded, config=loaded.config.model_copy(update={"run": run}), values=settings)
            all_cells.append(replace(cell, record=replace(cell.record, name=name, repeat=number), loaded=loaded))
    for first, cell in _twins(all_cells, by_name=True):
        both = f"{dict(first.values)} and {dict(cell.values)}; give the values of an axis other names"
        message = f"{matrix.source}: two runs would be called {cell.name}: {both}"
        raise ConfigError(message, code="sweep.invalid", source=matrix.source, name=cell.name)
    return tuple(all_cells)


def _twins(cells: Iterable[Cell], *, by_name: bool = False) -> Iterator[tuple[Cell, Cell]]:
    """Yield each cell with the first one of the same name, or else of the same settings but for name and folder."""
    seen: dict[str, Cell] = {}
    for cell in cells:
        key = cell.name.lower()
        if not by_name:
            assert cell.loaded is not None
            record, environment = cell.record, dict(sorted(cell.record.environment.items()))
            settings = {key: value for key, value in sorted(flatten(cell.loaded.values).items()) if key not in OURS}
            key = one_line([record.num_processes, record.num_nodes, environment, record.kind, settings])
        if (first := seen.setdefault(key, cell)) is not cell:
            yield first, cell


def as_probe(loaded: LoadedConfig, probe: ProbeLength, *, reads_all: bool = False) -> LoadedConfig:
    """Return a configuration that takes the first steps of a run, without evaluation and checkpoints.

    A longer warm-up of the learning rate is cut to the length of the probe: the rate rises in all steps and stays below
    the peak, as in the run.

    Args:
        reads_all: Whether the sets that a probe does not need are read too, so that their tokens are cached.
    """
    values = deepcopy(loaded.values)
    train, evaluate, data = values["train"], values["evaluate"], values["data"]
    warmup = None if train["warmup_steps"] is None else min(train["warmup_steps"], probe.steps)
    # The steps of a checkpoint of the Trainer would count as steps of the probe.
    train |= {"epochs": None, "max_steps": probe.steps, "warmup_steps": warmup, "continue_trainer": False}
    evaluate |= {"every": "never", "steps": None, "best": None, "patience": None, "min_delta": 0.0}
    values["checkpoint"] |= {"every": "never", "steps": None}
    values["measure"] |= {"probe": True, "warmup_steps": probe.warmup_steps}
    if not reads_all:
        data |= {"validation": None, "test": None, "extra": {}, "predict": {}}
        cut: Mapping[str, Any] = data["split"] or {}
        data["max_rows"] |= {name: None for name in ("validation", "test") if cut.get(name) is None}
    config = Config.model_validate(values)
    if not reads_all and check(config):  # an option of the sets that are left out now, such as the revision of one
        return as_probe(loaded, probe, reads_all=True)
    plain = config.model_dump(mode="json", by_alias=True)
    before, after = flatten(loaded.values), flatten(plain)
    origin = {key: origin for key, origin in loaded.origin.items() if key in after}
    origin |= {key: "probe" for key, value in after.items() if before.get(key) != value}
    return replace(loaded, config=config, values=plain, origin=origin)


def _check_overrides(matrix: Matrix, above: Layer) -> None:
    for key in above.places:
        for axis in matrix.axes:
            own = [set_key for value in axis.read for set_key in value.own.places]
            taken = (key, *INSTEAD_OF.get(key, ()))  # --set train.max_steps would undo an axis of train.epochs
            if any(overlap(one, set_key) for one in taken for set_key in (*own, *axis.varied)):
                reason = f"the axis {axis.key} sets it in each run; see --only, or the axis"
                raise option_error("--set", key, reason, code="sweep.invalid", key=axis.key)
        if key in (*OURS, "run"):
            reason = "the matrix gives each run its name and folder (name:, folder:)"
            raise option_error("--set", key, reason, code="sweep.invalid")


def _cell(
    matrix: Matrix, names: Mapping[str, str], values: Sequence[Value], above: Layer, *, here: bool, need_files: bool
) -> Cell:
    """Return a cell: the matrix has priority over files, and `--set` over both."""
    beside = {key: setting for value in values for key, setting in value.beside.items()}
    variables = {key.removeprefix(f"{ENV}."): text for key, text in beside.items() if key.startswith(f"{ENV}.")}
    record = CellRecord(
        _name(names), names, beside.get(NPROC, matrix.options.nproc),
        task="", metric="", metrics=(), fingerprint="", state="pending",  # see `Cell.described`
        num_nodes=beside.get(NODES, matrix.options.nodes),
        environment={**matrix.environment, **variables},
        kind="full" if matrix.probe is None else "probe",
    )  # fmt: skip
    layer = matrix.below
    for value in values:
        layer = merge(drop_superseded_settings(layer, value.below), value.below)
    layer = merge(layer, matrix.own)
    for value in values:
        layer = merge(drop_superseded_settings(layer, value.own), value.own)
    layer = merge(drop_superseded_settings(layer, above), above)
    layer, needs, unknown = resolve_needs(matrix, names, layer, _name)
    if unknown:
        return Cell(record, problems=unknown)
    record = replace(record, needs=needs)
    given = layer.values.get("run")
    if given is not None and not isinstance(given, dict):  # folder and name would replace it
        message = f"run is {describe_value(given)}; allowed: a mapping, such as {{seed: 42}}"
        return Cell(record, problems=(Problem(message, ("run",), layer.place("run"), code="sweep.invalid"),))
    place = SourceLocation(matrix.source.name)
    for key, text in (("run.folder", str(matrix.folder / RUNS_FOLDER)), ("run.name", record.name)):
        layer = merge(layer, layer_of(key, text, {key: place}))
    # Cells share the settings of the matrix; an option that a check fills in must stay with its cell.
    layer = replace(layer, values=deepcopy(layer.values), places=dict(layer.places))
    loaded, problems = check_layer(expand_shorthands(layer), matrix.source)
    if loaded is None:
        return Cell(record, problems=tuple(problems))
    if loaded.config.model.from_scratch and first_training(loaded.config, needs):
        message = f"{INITIAL} is the model of a run, and model.from_scratch replaces it by new weights; set it on the "
        at = layer.place("model.from_scratch")
        problem = Problem(f"{message}value of the first training", (INITIAL,), at, code="sweep.invalid")
        return Cell(record, problems=(problem,))
    lost = missing_files(loaded)
    missing = [Problem(message, (key,), layer.place(key), code="data.not_found") for key, message in lost]
    for name in () if loaded.config.distil is None else teacher_names(loaded.config.distil):
        path = Path(name).expanduser()
        # Teachers that are runs of the matrix are trained first.
        if not path.is_dir() and not path.resolve().is_relative_to(matrix.folder.resolve()):
            message = f"{TEACHER}: {name} is not a folder; name the folder of a finished run, or a model folder"
            missing.append(Problem(message, (TEACHER,), layer.place(TEACHER), code="distil.teacher"))
    if missing and need_files:
        return Cell(record, problems=tuple(missing))
    reason: str | None = "; ".join(problem.message for problem in problems)
    if not problems:
        reason = why_impossible(loaded.config, record.num_processes, record.num_nodes, record.environment, here=here)
    return Cell(record, loaded, impossible=reason)


def _name(names: Mapping[str, str]) -> str:
    name = "_".join(names.values())
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 9]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def missing_files(loaded: LoadedConfig) -> Iterator[tuple[str, str]]:
    """Yield the option of each data file that does not exist, with a message."""
    for key, file in data_sources(loaded.config.data):
        path = local_path(file)
        if path is not None and not (place := path_and_split(path)[0]).exists():
            yield key, f"{key}: {file}{absence(place)}"


def _check_different(matrix: Matrix, cells: Sequence[Cell]) -> None:
    """Refuse two names for one run, which differ only in settings without effect."""
    for first, cell in _twins(cell for cell in cells if cell.loaded is not None):
        apart = [axis for axis in matrix.axes if cell.values[axis.label] != first.values[axis.label]]
        labels = " and ".join(axis.label for axis in apart)
        keys = ", ".join(dict.fromkeys(key for axis in apart for key in axis.varied)) or "nothing"
        message = (
            f"{matrix.source}: {first.name} and {cell.name} would train the same, although {labels} sets {keys}: these "
            "are the defaults, or are in files, over which base, the axes and --set have priority; leave out what has "
            f"no effect, or write the settings themselves below {labels}"
        )
        raise ConfigError(message, code="sweep.invalid", source=matrix.source, name=first.name, keys=keys)


_ANSWERS_ALIKE = {"start_at_mean", "threshold", "stride", "max_answer_tokens", "num_best", "null_threshold"}
"""Options of a task that leave rows and scores comparable: how a model is initialized or answers."""


def _check_comparable(matrix: Matrix, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells; those that cannot be compared with others of which one is selected have a problem."""
    seeds = sorted(axis.label for axis in matrix.axes if axis.is_seed)
    # Those that will have scores, as far as is known.
    scored = (cell for cell in cells if cell.loaded is not None and cell.impossible is None)
    groups = grouped((tuple(cell.values[label] for label in matrix.record.select_per), cell) for cell in scored)
    problems: dict[str, Problem] = {}
    for group in groups.values():
        if len({tuple(name for label, name in cell.values.items() if label not in seeds) for cell in group}) < 2:
            continue
        kinds = sorted({cell.config.task.kind for cell in group})
        metrics = sorted({cell.metric for cell in group})
        rows = [_validation_rows(cell.config) for cell in group]
        seeds_of = [tuple(cell.values[label] for label in seeds) for cell in group]
        if len(kinds) > 1:
            reason = f"the best of runs of different tasks is asked for ({', '.join(kinds)})"
        elif len(metrics) > 1:
            reason = f"evaluate.best differs between runs of which one is to be selected ({', '.join(metrics)})"
        elif None in rows:
            reason = "one of several runs is to be chosen, and that needs a validation set"
        elif len({*zip(seeds_of, map(one_line, rows), strict=True)}) > len({*seeds_of}):
            reason = "runs with different validation sets, or tasks with other scores, cannot be compared"
        else:
            continue
        problem = Problem(f"{reason}; name the axis that differs in select_per", code="sweep.invalid")
        if len(kinds) == len(metrics) == 1 and None in rows:
            message = f"{reason}; give data.validation or data.split.validation"
            problem = Problem(message, code="data.validation_missing")
        problems |= dict.fromkeys((cell.name for cell in group), problem)
    own = {name: (problem,) for name, problem in problems.items()}
    return [replace(cell, loaded=None, problems=own[cell.name]) if cell.name in own else cell for cell in cells]


def _validation_rows(config: Config) -> list[Any] | None:
    """Return the settings that decide the validation rows and their labels; None without a validation set."""
    data, task = config.data, config.task
    is_cut = data.split is not None and data.split.validation_share is not None
    if data.validation is None and not is_cut:
        return None
    return [
        task.model_dump(exclude=_ANSWERS_ALIKE),
        data.model_dump(include={"validation", "columns", "missing", "hub_revision"}),
        data.max_rows.validation,
        data.model_dump(include={"train", "split"}) if is_cut else None,
        data.max_length if task.kind == "mlm" else None,  # the length of the windows then
    ]


_ASK = """
import json, torch
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
print(json.dumps([torch.cuda.get_device_capability(number) for number in range(count)]))
"""
_ASK_S = 120.0  # importing torch from a slow file system may take this long
Gpus = tuple[tuple[int, int], ...] | None
"""Compute capability of each GPU of a machine; None when PyTorch could not report it."""


@functools.cache
def gpus_here() -> Gpus:
    """Return the GPUs that PyTorch sees, from another process: here it would use GPU memory while runs are measured."""
    if sys.platform == "linux" and not any(Path("/dev").glob("nvidia[0-9]*")):
        if not any(Path("/dev", name).exists() for name in ("kfd", "dxg")):
            return ()
    command = [sys.executable, "-P", "-c", _ASK]
    try:
        process = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_ASK_S, check=True)
        return tuple((int(major), int(minor)) for major, minor in json.loads(process.stdout.splitlines()[-1]))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError):
        return None


def why_impossible(
    config: Config,
    num_processes: int,
    num_nodes: int | None = None,
    environment: Mapping[str, str | None] | None = None,
    *,
    here: bool,
    gpus: Gpus | str = "here",
) -> str | None:
    """Return why a run is impossible; None when it is possible, as far as is known.

    Args:
        num_nodes: Nodes that the matrix sets.
        environment: Variables of the run; CUDA_VISIBLE_DEVICES hides GPUs.
        here: Whether it is to run on this machine; otherwise on any, with any packages.
        gpus: Those of this machine; default: those that PyTorch sees.
    """
    if num_nodes is not None and num_processes % num_nodes:
        return f"nproc: {num_processes} cannot be divided equally among nodes: {num_nodes}"
    if here and num_nodes is not None and num_nodes > 1:
        return f"nodes: {num_nodes} needs several machines: paratune launch MATRIX --site SITE --array submits it"
    traits = strategy_traits(config.strategy.kind, strategy_options(config.strategy))
    target = None  # unknown, or not needed
    if config.device == "cpu":
        target = Target(is_cpu=True, description="device is cpu")
    elif here:
        needs_gpus = num_processes > 1 or (traits is not None and traits.needs_accelerator)
        asks = needs_gpus or config.device == "cuda" or config.precision in ("fp16", "bf16", "tf32")
        if asks or not config.train.deterministic:
            gpus = gpus_here() if isinstance(gpus, str) else gpus
            words = (environment or {}).get("CUDA_VISIBLE_DEVICES")
            if gpus and words is not None:  # which of them are visible does not matter where all are alike
                named = itertools.takewhile(lambda word: word != "-1", (word.strip() for word in words.split(",")))
                gpus = gpus[: sum(map(bool, named))]
            if gpus:
                oldest = min(gpus[:num_processes])
                target = Target(
                    is_cpu=False,
                    description=f"one here has {'.'.join(map(str, oldest))}",
                    missing_precisions=frozenset(("bf16", "tf32")) if oldest < (8, 0) else frozenset(),
                    num_devices=len(gpus),
                    is_tf32_disabled={**os.environ, **(environment or {})}.get("NVIDIA_TF32_OVERRIDE") == "0",
                )
            elif gpus is not None:
                target = Target(is_cpu=True, description="PyTorch sees no GPU here")
    reasons = reasons_against(
        config,
        traits,
        target,
        Ranks(num_processes, 1 if here else None),
        num_blocks=num_layers(config.model),
        is_installed=is_installed if here else None,
    )
    return reasons[0].message if reasons else None
