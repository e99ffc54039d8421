"""The record of a matrix of runs: `sweep.json` in its folder, which `paratune sweep` writes and reports read.

    runs/<name>/
      sweep.json        axes, cells, and how each ended; written whole after each change
      configs/<cell>.yaml   the whole configuration of a cell; `paratune train` runs it by itself
      runs/<cell>/      the record of each run
      logs/<cell>.txt   what each run said
      report/           tables of the matrix

Floor 1: no torch.
"""

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, get_args

from paratune import records
from paratune.base.text import plain
from paratune.config.differences import flatten
from paratune.config.plain import one_line
from paratune.errors import CheckpointError
from paratune.records.published import Published, published_of

SWEEP_FILE = "sweep.json"
SCHEMA_VERSION = 1
CONFIGS_FOLDER = "configs"
RUNS_FOLDER = "runs"
LOGS_FOLDER = "logs"
REPORT_FOLDER = "report"

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""What the name of a run or of a value is made of: it becomes the name of a folder."""

NOT_COMPARED = (
    "run.name",
    "run.folder",
    "data.cache_dir",
    "data.figures",
    "measure.log_every",
    "measure.plan",
    "trackers",
    "evaluate.batch_size",
    "checkpoint",
)
"""What may change without a run being another one: where things are kept, how often, and what changes neither what is
trained nor what is measured of it."""

State = Literal["pending", "running", "finished", "interrupted", "failed", "skipped"]
"""Skipped is what cannot run here; the reason says why."""
Kind = Literal["full", "probe"]
"""A probe takes a few steps to be timed, and has no scores."""


@dataclass(frozen=True)
class Axis:
    """What varies over the matrix."""

    key: str
    """As in the matrix file."""
    label: str
    """As in tables."""
    values: Mapping[str, str]
    """How each value is shown, by its name in the names of runs; in the order of the file."""
    is_seed: bool = False
    """Whether it sets `run.seed`: its values are repetitions, never chosen among."""
    is_column: bool = False
    """Whether it changes what is learned from what, so that its values are columns of the table of chosen runs."""
    keys: tuple[str, ...] = ()
    """Dotted keys in which its values differ, `nproc`, `probe` and `env.NAME` included; those that it sets, where it
    has one value."""


@dataclass(frozen=True)
class CellRecord:
    """One run of the matrix, and how far it came."""

    name: str
    """Of its run folder."""
    values: Mapping[str, str]
    """The name of its value on each axis, by the axis' label."""
    num_processes: int
    task: str
    """Kind of its task."""
    metric: str
    """By which it is chosen, on validation."""
    metrics: tuple[str, ...]
    """What tables show of it."""
    fingerprint: str
    """SHA-256 of its configuration and number of processes."""
    state: State = "pending"
    reason: str | None = None
    """Why it failed or was interrupted."""
    exit_code: int | None = None
    """Of its last process."""
    attempts: tuple[Mapping[str, Any], ...] = ()
    """Each start: began, ended, exit_code."""
    kind: Kind = "full"
    num_nodes: int | None = None
    """Nodes that the matrix asks for; null where it does not say."""
    repeat: int = 1
    """Which of the times, from 1, that the very same run is made, for its speed; scores of the first one count."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that the matrix gives it; null unsets one."""

    @property
    def counts(self) -> bool:
        """Whether its scores count: it is no probe, no repeat, and can run."""
        return self.kind == "full" and self.repeat == 1 and self.state != "skipped"


@dataclass(frozen=True)
class SweepRecord:
    """A matrix of runs."""

    name: str
    created: str
    matrix: str
    """The file, as it was named."""
    command: tuple[str, ...]
    axes: tuple[Axis, ...]
    select_per: tuple[str, ...]
    """Labels of the axes for each combination of whose values a best cell is chosen."""
    cells: tuple[CellRecord, ...]
    past: tuple[str, ...] = field(default=())
    """Runs in its folder that an earlier matrix had and this one has not."""
    order: tuple[str, ...] = ()
    """Names of the cells in the order in which they run; that of `cells`, where it is not said."""
    price_per_device_hour: float | None = None
    """Of one process' device, in whatever currency."""
    listed: tuple[str, ...] = ()
    """Names of the cells that are started one by one by others, as `--list` and `paratune launch` hand them out."""
    baseline: Mapping[str, str] = field(default_factory=dict)
    """By label, the name of the value of the runs that tables compare the others with; the first when empty."""
    matrix_text: str | None = None
    """Content of the matrix file at the last start, without secrets; null in records of before it was kept."""
    directory: str | None = None
    """Working directory of the command: relative paths start there."""
    version: str | None = None
    """Of paratune."""
    code: Mapping[str, Any] = field(default_factory=dict)
    """git_commit and git_dirty of paratune, as in run.json."""

    published: Published | None = None
    """What a study published of it, for reports to show beside what was measured."""
    groups: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """By label of an axis and heading, the names of the values that the table of chosen runs lists under it."""

    def with_cell(self, cell: CellRecord) -> "SweepRecord":
        """Return the record with the cell of that name replaced."""
        return replace(self, cells=tuple(cell if each.name == cell.name else each for each in self.cells))


def write_sweep(folder: Path, sweep: SweepRecord) -> None:
    """Write sweep.json whole or not at all.

    Raises:
        CheckpointError: It cannot be written.
    """
    records.write_json(folder / SWEEP_FILE, {"schema_version": SCHEMA_VERSION, **asdict(sweep)})


def holds_sweep(folder: Path) -> bool:
    """Return whether a folder is that of a matrix."""
    return (folder / SWEEP_FILE).is_file()


def read_sweep(folder: Path) -> SweepRecord:
    """Read sweep.json.

    Raises:
        CheckpointError: It is absent, damaged or of another schema version.
    """
    path = folder / SWEEP_FILE
    found = records.read_json(path)
    version = found.get("schema_version") if isinstance(found, dict) else None
    if isinstance(found, dict) and version != SCHEMA_VERSION:
        raise CheckpointError(
            f"{plain(path)} has schema_version {plain(repr(version)[:40])}, this paratune reads {SCHEMA_VERSION}; "
            "use the version of paratune that made it",
            code="run.other_version",
            path=path,
            version=version,
        )
    try:
        values = {key: value for key, value in found.items() if key != "schema_version"}
        values["axes"] = tuple(Axis(**{**axis, "keys": tuple(axis.get("keys", ()))}) for axis in values["axes"])
        values["cells"] = tuple(_cell(cell) for cell in values["cells"])
        values |= {
            key: tuple(map(str, values.get(key, ()))) for key in ("command", "select_per", "past", "order", "listed")
        }
        values["published"] = published_of(values.get("published"))
        values["groups"] = {
            label: {heading: tuple(map(str, names)) for heading, names in headings.items()}
            for label, headings in values.get("groups", {}).items()
        }
        sweep = SweepRecord(**values)
        labels = {axis.label: axis.values.keys() for axis in sweep.axes}
        for cell in sweep.cells:
            if any(cell.values[label] not in names for label, names in labels.items()):
                raise ValueError(f"{cell.name} has a value that is on no axis")
        if any(name not in labels[label] for label, name in sweep.baseline.items()):
            raise ValueError(f"baseline {dict(sweep.baseline)} has a value that is on no axis")
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{plain(path)} is damaged: it is not the record of a matrix ({plain(repr(error))})",
            code="run.damaged",
            path=path,
        ) from error
    return sweep


def _cell(values: Mapping[str, Any]) -> CellRecord:
    if not NAME.fullmatch(values["name"]):
        raise ValueError(f"name {values['name']!r}")
    for key, allowed in (("state", get_args(State)), ("kind", get_args(Kind))):
        if values.get(key, allowed[0]) not in allowed:
            raise ValueError(f"{key} {values[key]!r}")
    if type(values.get("repeat", 1)) is not int or not isinstance(values.get("environment", {}), dict):
        raise ValueError(f"repeat or environment of {values['name']}")
    tuples = {key: tuple(values[key]) for key in ("metrics", "attempts")}
    return CellRecord(**{**values, **tuples})


def run_folder_of(folder: Path, cell: str) -> Path:
    """Return the folder of a cell's run."""
    return folder / RUNS_FOLDER / cell


def compared(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings, by dotted key, that make a run another one when they change."""
    return {
        key: value
        for key, value in flatten(values).items()
        if not any(key == each or key.startswith(f"{each}.") for each in NOT_COMPARED)
    }


def run_fingerprint(
    values: Mapping[str, Any],
    num_processes: int,
    environment: Mapping[str, str | None],
    num_nodes: int | None = None,
) -> str:
    """Return the SHA-256 of all that makes a cell another run when it changes.

    Args:
        values: Its resolved configuration.
        num_processes: World size.
        environment: Variables that the matrix gives it.
        num_nodes: Nodes that the matrix asks for, if it does.
    """
    kept: list[Any] = [num_processes, dict(sorted(compared(values).items()))]
    kept += [dict(sorted(environment.items()))] if environment else []
    kept += [{"nodes": num_nodes}] if num_nodes is not None else []
    return hashlib.sha256(one_line(kept).encode()).hexdigest()


def as_found(folder: Path, sweep: SweepRecord) -> SweepRecord:
    """Return a record with those cells finished whose runs are, though nobody has told it: a cluster has trained them.

    A run of another configuration, from before the matrix was changed, is none of a cell.
    """
    return replace(sweep, cells=tuple(_as_found(run_folder_of(folder, cell.name), cell) for cell in sweep.cells))


def _as_found(run: Path, cell: CellRecord) -> CellRecord:
    if cell.state == "finished" or not records.is_finished(run):
        return cell
    try:
        record = records.read_run(run)
        last = record["sessions"][-1] if record["sessions"] else record
        given = given_environment(last, cell.environment)
        found = run_fingerprint(last["config"], last["world_size"], {} if given is None else given, cell.num_nodes)
    except (CheckpointError, KeyError, TypeError, AttributeError):
        return cell
    return replace(cell, state="finished", reason=None, exit_code=None) if found == cell.fingerprint else cell


def given_environment(session: Mapping[str, Any], names: Iterable[str]) -> dict[str, str | None] | None:
    """Return the variables of these names that a session of a run was given, None for one without a value.

    Of one that was unset, a default that its launcher gave it is no value. None for a record of before they were kept.
    """
    environment = session.get("environment")
    if environment is None:
        return None
    unset = session.get("environment_unset", ())
    return {name: None if name in unset else environment.get(name) for name in names}
