"""Reads and writes `sweep.json`, the record of a matrix of runs.

runs/<name>/
  sweep.json        axes, cells, and the result of each cell; written atomically after each change
  configs/<cell>.yaml   the whole configuration of a cell; `paratune train` can run it
  runs/<cell>/      the record of each run
  logs/<cell>.txt   the output of each run
  report/           tables of the matrix
"""

import hashlib
import re
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from paratune import records
from paratune.base.text import plain
from paratune.base.units import GIB, KIB, MIB
from paratune.config.metric_names import METRICS
from paratune.config.plain import flatten, one_line
from paratune.errors import CheckpointError

ClaimKind = Literal["less", "not_less", "equal", "worse"]
"""How the measure of `of` compares with that of `than`.

less: smaller by at least a share. not_less: not smaller by more than a share. equal: a score within a margin. worse: a
score that is worse by more than a margin."""
RATIO_CLAIMS = frozenset({"less", "not_less"})

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {
    "B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KiB": float(KIB), "MiB": float(MIB), "GiB": float(GIB), "TiB": float(2**40),
}  # fmt: skip
_SHARE = {"%": 0.01, "": 1.0}
SYSTEM_MEASURES: dict[str, tuple[str, Mapping[str, float]]] = {
    "time": ("training time", _SECONDS),
    "total_time": ("time of the whole run", _SECONDS),
    "memory": ("peak memory per device", _BYTES),
    "total_memory": ("total memory", _BYTES),
    "state_memory": ("model states per device", _BYTES),
    "samples_per_s": ("samples/s", {"": 1.0}),
    "utilisation": ("utilisation", _SHARE),
}
"""Measures of a run other than scores: title, and units with their size in s, bytes or 1."""
NOT_ALLOCATED = ("context", "fragmentation", "nccl")  # planned, and not in `torch.cuda.max_memory_allocated`
METRIC_NAMES = tuple(dict.fromkeys(name for names in METRICS.values() for name in names))


MEASURE_UNITS: dict[str, Mapping[str, float]] = {
    **{name: units for name, (_, units) in SYSTEM_MEASURES.items()}, **dict.fromkeys(METRIC_NAMES, _SHARE),
}  # fmt: skip
"""The allowed units of all measures with their sizes; a score has "" or "%"."""


@dataclass(frozen=True)
class PublishedFigure:
    values: Mapping[str, str]  # name of its value on each of its axes, by the label of the axis
    measure: str
    value: float
    unit: str  # as in the file; empty for a score between 0 and 1, and for a rate
    where: str  # the table, figure or page of the publication; empty if unknown


@dataclass(frozen=True)
class ComparedPair:
    """Two configurations that a claim compares, by the names of their values on some axes."""

    of: Mapping[str, str]
    than: Mapping[str, str]


@dataclass(frozen=True)
class PublishedClaim:
    text: str
    kind: ClaimKind
    measure: str
    """Of `SYSTEM_MEASURES` for less and not_less, otherwise a metric."""
    by: float  # the share for less and not_less; the margin for the others, in the unit of the metric
    pairs: tuple[ComparedPair, ...]  # the claim is true if it is true for all pairs
    where: str


@dataclass(frozen=True)
class Published:
    source: str = ""
    figures: tuple[PublishedFigure, ...] = ()
    claims: tuple[PublishedClaim, ...] = ()


SWEEP_FILE = "sweep.json"
CONFIGS_FOLDER = "configs"
RUNS_FOLDER = "runs"
LOGS_FOLDER = "logs"
REPORT_FOLDER = "report"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # allowed names of runs and of values: they become names of folders

NOT_COMPARED = (
    *("run.name", "run.folder", "data.cache_dir", "data.figures", "measure.log_every", "measure.plan"),
    *("trackers", "evaluate.batch_size", "checkpoint"),
)
"""Options that do not make a run a different one: they change neither the training nor the measurements."""

Configuration = tuple[str, ...]  # values of a cell without its seed
State = Literal["pending", "running", "finished", "interrupted", "failed", "skipped"]
"""skipped: the cell cannot run here, for the reason in `reason`."""
Kind = Literal["full", "probe"]  # probe: a few timed steps without scores


@dataclass(frozen=True)
class Axis:
    key: str
    label: str
    values: Mapping[str, str]  # title of each value by its name in names of runs, in the order of the file
    is_seed: bool = False  # its values are repetitions, `run.seed` or `data.split.fold`, say: no best one is selected
    is_column: bool = False  # it changes task or data: columns of the table of selected runs
    keys: tuple[str, ...] = ()
    """Dotted keys in which its values differ, also `nproc`, `probe` and `env.NAME`; those that its only value sets."""

    @property
    def repeats(self) -> str:
        """What one of its values is in tables, if `is_seed`: fold, part that is held out, or seed."""
        return {"data.split.fold": "fold", "data.split.held_out": "held-out part"}.get("".join(self.keys), "seed")


@dataclass(frozen=True)
class CellRecord:
    name: str
    values: Mapping[str, str]  # name of its value on each axis, by the label of the axis
    num_processes: int
    task: str
    metric: str  # selects the best run, on validation
    metrics: tuple[str, ...]
    fingerprint: str  # SHA-256 of its configuration and number of processes
    state: State
    reason: str | None = None
    exit_code: int | None = None
    attempts: tuple[Mapping[str, Any], ...] = ()  # all starts: began, ended, exit_code
    kind: Kind = "full"
    num_nodes: int | None = None
    repeat: int = 1  # from 1; only the scores of the first one count
    environment: Mapping[str, str | None] = field(default_factory=dict)  # that the matrix sets; null unsets
    needs: tuple[str, ...] = ()  # runs of the matrix whose models it needs: its teachers, and the one it trains further
    is_needed: bool = True  # False: `sweep --until` skipped it, because its verdict was decided before

    @property
    def took_s(self) -> float | None:
        """Seconds of all attempts; None without one, or where a time cannot be read."""
        try:
            took = [datetime.fromisoformat(at["ended"]) - datetime.fromisoformat(at["began"]) for at in self.attempts]
        except (KeyError, TypeError, ValueError):
            return None
        return sum(time.total_seconds() for time in took) if took else None

    @property
    def counts(self) -> bool:
        """Whether its scores count: it is not a probe, not a repeat, and can run."""
        return self.kind == "full" and self.repeat == 1 and self.state != "skipped"


@dataclass(frozen=True)
class Look:
    """Verdicts on the runs that were finished at that time: a test of which later ones have to be corrected."""

    time: str
    finished: tuple[str, ...]  # names of the finished runs that no earlier look had
    num_planned: int | None = None


@dataclass(frozen=True)
class Rounds:
    """How `paratune sweep --until` adds runs."""

    until: str  # `decided`, `speed` or `quality`: the measures that have to be decided
    num_planned: int  # most runs of a configuration: its seeds times its repeats
    ended: str | None = None
    """Why no round follows: `decided`, `planned` (all planned runs of the undecided ones were made), or `no_verdict`
    (runs failed, and there is nothing to compare); None while it runs."""


@dataclass(frozen=True)
class SearchRecord:
    """The search of a matrix: how its trials were sampled, and what they are."""

    method: str  # `random` or `bayesian`
    seed: int
    num_trials: int  # wanted trials; `trials` has fewer until the end of a Bayesian search
    space: tuple[str, ...]  # each option with its range, in words
    trials: Mapping[str, Mapping[str, Any]]  # settings by the name of the trial, in the order of the trials


@dataclass(frozen=True)
class SweepRecord:
    name: str
    created: str
    matrix: str  # the file, as the user named it
    command: tuple[str, ...]
    axes: tuple[Axis, ...]
    select_per: tuple[str, ...]  # labels of axes; a best cell is selected for each combination of their values
    cells: tuple[CellRecord, ...]
    past: tuple[str, ...] = ()  # runs in the folder from an earlier matrix that are not in this one
    order: tuple[str, ...] = ()  # names of the cells in the order in which they run; empty: the order of `cells`
    system: str | None = None  # name of the machine or cluster, for reports
    price_per_device_hour: float | None = None  # of the device of one process, in any currency
    listed: tuple[str, ...] = ()  # cells that other programs start, from `--list` or `paratune launch`
    baseline: Mapping[str, str] = field(default_factory=dict)
    """Name of the value of the baseline runs, by label of the axis; empty: the first values."""
    matrix_text: str | None = None  # content of the matrix file at the last start, without secrets
    directory: str | None = None  # working directory of the command, for relative paths
    version: str | None = None  # of paratune, and `code` as in run.json
    code: Mapping[str, Any] = field(default_factory=dict)
    published: Published | None = None
    groups: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """Names of the values in each group of the table of selected runs, by label of the axis and heading."""
    looks: tuple[Look, ...] = ()
    rounds: Rounds | None = None  # of `--until`; None where all runs are made
    search: SearchRecord | None = None
    compress: tuple[str, ...] = ()
    num_slots: int = 1  # most runs at a time in the last call
    notes: str | None = None  # the text of the file `notes`, without secrets

    def with_cell(self, cell: CellRecord) -> "SweepRecord":
        return replace(self, cells=tuple(cell if old.name == cell.name else old for old in self.cells))

    def configuration_of(self, cell: CellRecord) -> Configuration:
        """Return the values of a cell that its seeds and repeats share."""
        return tuple(cell.values[axis.label] for axis in self.axes if not axis.is_seed)

    @cached_property
    def expected_s(self) -> Mapping[str, float | None]:
        """Mean seconds of the finished runs of the configuration of each cell, else of all, by the name of the cell."""
        took: dict[Configuration | None, list[float]] = {}
        for cell in self.cells:
            if cell.state == "finished" and (seconds := cell.took_s) is not None:
                for key in (self.configuration_of(cell), None):
                    took.setdefault(key, []).append(seconds)
        means = {key: statistics.fmean(seconds) for key, seconds in took.items()}
        return {cell.name: means.get(self.configuration_of(cell), means.get(None)) for cell in self.cells}

    def with_look(self, time: str) -> "SweepRecord":
        """Return the record with a look at this time; the same where no run has finished since the last look."""
        seen = {name for look in self.looks for name in look.finished}
        new = [cell.name for cell in self.cells if cell.state == "finished" and cell.name not in seen]
        num_planned = None if self.rounds is None else self.rounds.num_planned
        return replace(self, looks=(*self.looks, Look(time, tuple(new), num_planned))) if new else self


def write_sweep(folder: Path, sweep: SweepRecord) -> None:
    records.write_json(folder / SWEEP_FILE, {"schema_version": records.SCHEMA_VERSION, **asdict(sweep)})


def read_sweep(folder: Path) -> SweepRecord:
    """Read sweep.json.

    Raises:
        CheckpointError: It is missing, damaged or of another schema version.
    """
    from paratune.records.typed import checked  # not at the top: the help of commands would wait for pydantic

    path, remedy = folder / SWEEP_FILE, "restore it, or start another matrix (name:)"
    sweep: SweepRecord = checked(SweepRecord, records.read_object(path, remedy), path, remedy)
    labels = {axis.label: axis.values.keys() for axis in sweep.axes}
    problem = None
    for cell in sweep.cells:
        if any(cell.values.get(label) not in names for label, names in labels.items()) or not NAME.fullmatch(cell.name):
            problem = f"{cell.name} has a value that is on no axis, or a name that is no name of a folder"
    if any(name not in labels.get(label, ()) for label, name in sweep.baseline.items()):
        problem = f"baseline {dict(sweep.baseline)} has a value that is on no axis"
    if lost := [label for label in sweep.select_per if label not in labels]:
        problem = f"select_per has {lost[0]}, which is no axis"
    published = sweep.published or Published()
    for figure in published.figures:
        if figure.unit not in MEASURE_UNITS.get(figure.measure, ()):
            problem = f"a published figure has the measure {figure.measure!r} with the unit {figure.unit!r}"
    if lost := [claim.measure for claim in published.claims if claim.measure not in MEASURE_UNITS]:
        problem = f"a published claim has {lost[0]!r}, which is no measure"
    if len({cell.name for cell in sweep.cells}) < len(sweep.cells):
        problem = "two runs have one name"
    if problem is not None:
        raise CheckpointError(f"{plain(path)} is damaged: {plain(problem)}; {remedy}", code="run.damaged", path=path)
    return sweep


def cell_run_folder(folder: Path, cell: str) -> Path:
    return folder / RUNS_FOLDER / cell


def compared_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by dotted key, that make a run a different one when they change."""
    free = tuple(f"{name}." for name in NOT_COMPARED)
    return {key: value for key, value in flatten(values).items() if not f"{key}.".startswith(free)}


def run_fingerprint(
    values: Mapping[str, Any], num_processes: int, environment: Mapping[str, str | None], num_nodes: int | None = None
) -> str:
    """Return the SHA-256 of all settings that make a cell a different run when they change."""
    parts: list[Any] = [num_processes, dict(sorted(compared_settings(values).items()))]
    parts += [dict(sorted(environment.items()))] if environment else []
    parts += [{"nodes": num_nodes}] if num_nodes is not None else []
    return hashlib.sha256(one_line(parts).encode()).hexdigest()


def with_finished_runs(folder: Path, sweep: SweepRecord) -> SweepRecord:
    """Return a record with the state of cells whose runs are finished without `paratune sweep`, as on a cluster.

    A run with another configuration, from before the matrix was changed, does not count.
    """
    for cell in sweep.cells:
        run = cell_run_folder(folder, cell.name)
        if cell.state == "finished" or not records.is_finished(run):
            continue
        try:
            fingerprint = run_fingerprint(*trained_with(run, cell.environment), cell.num_nodes)
        except CheckpointError:
            continue
        if fingerprint == cell.fingerprint:
            sweep = sweep.with_cell(replace(cell, state="finished", reason=None, exit_code=None))
    return sweep


def trained_with(run: Path, names: Iterable[str]) -> tuple[dict[str, Any], int, dict[str, str | None]]:
    """Return configuration, number of processes and values of these variables of a run: it may have been resumed by
    hand with other ones, and the last session counts.

    None for a variable without a value; one that the matrix unset has none, also where the launcher gave it a default.

    Raises:
        CheckpointError: run.json is damaged.
    """
    from paratune.records.finished import in_session, read_typed
    from paratune.records.typed import RunFile

    last = in_session(run, read_typed(run, RunFile))
    values = {name: None if name in last.environment_unset else last.environment.get(name) for name in names}
    return last.config, int(last.world_size or 0), values
