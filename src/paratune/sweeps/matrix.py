"""A matrix file: a configuration, the axes along which it varies, and the excluded combinations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from paratune.base.secrets import hide_secrets
from paratune.config.layers import EXTENDS, Layer, read_text
from paratune.config.options import section_options
from paratune.config.problems import failure, overlap
from paratune.config.section import LONGEST_S, Positive, Section, Text
from paratune.config.sections import Config
from paratune.config.validate import describe_value, validate_as
from paratune.errors import ConfigError
from paratune.records import MODEL_FOLDER
from paratune.records.run_folder import COMPRESSED_FOLDER, FP32, Form, ScoredSplit, is_measured
from paratune.records.sweep import NAME, Axis, CellRecord, SweepRecord
from paratune.sweeps.axes import (
    ENV,
    MatrixAxis,
    MatrixFile,
    find_axis,
    find_one_of_each,
    find_values,
    read_axes,
    read_environment,
    slug,
)
from paratune.sweeps.published import published_beside
from paratune.sweeps.search import TRIAL, Search, Trials, read_search, read_search_axes

MOST_SLOTS = 1024


class ProbeLength(Section):
    """Length of a probe."""

    steps: Positive = 20
    """Optimizer steps, warm-up included."""
    warmup_steps: Annotated[int, Field(ge=0)] = 5
    """The first of them, which are left out of medians and rates."""

    @model_validator(mode="after")
    def _times_steps(self) -> "ProbeLength":
        if self.warmup_steps >= self.steps:
            order = f"warmup_steps: {self.warmup_steps} must be less than steps: {self.steps}"
            raise ValueError(f"{order}; later steps are timed")
        return self


class Compress(Section):
    """Smaller forms of each finished run, measured beside it: options of `paratune compress`."""

    forms: Annotated[list[Form], Field(min_length=1)] = Field(default=["bf16", "int8"])
    """Smaller forms."""
    split: ScoredSplit | None = None
    """Set whose rows are scored; default: test if the run has scored it."""
    rows: Annotated[int, Field(ge=2)] = 1000
    """Most rows that are scored, evenly spaced."""
    timed_rows: Positive = 200
    """Rows of latency and throughput."""
    batch_size: Positive = 32
    """Size of the batches of throughput."""

    def words(self, run: Path) -> list[str]:
        """Return the arguments of paratune for a run."""
        words = ["compress", str(run), "--to", ",".join(self.forms), "--rows", str(self.rows)]
        words += ["--timed-rows", str(self.timed_rows), "--batch-size", str(self.batch_size)]
        return words + (["--split", self.split] if self.split is not None else [])

    def is_due(self, run: Path, cell: CellRecord) -> bool:
        """Return whether a run is to be measured.

        It is finished, its scores count, it has a model, and measurements with these settings are missing.
        """
        if cell.state != "finished" or not cell.counts or cell.task == "mlm" or not (run / MODEL_FOLDER).is_dir():
            return False
        wanted: dict[str, Any] = {"rows": self.rows, "timed_rows": self.timed_rows, "batch_size": self.batch_size}
        wanted |= {} if self.split is None else {"split": self.split}
        return not all(is_measured(run / COMPRESSED_FOLDER / form, wanted) for form in (FP32, *self.forms))


class MatrixOptions(Section):
    """The keys of a matrix file."""

    name: Annotated[str, Field(pattern=f"^{NAME.pattern}$")] | None = None
    """Name of the matrix and of its folder; the file's name when not given."""
    folder: Text = "runs"
    """Folder in which the folder of the matrix is created."""
    base: str | list[str] | dict[str, Any]
    """A configuration file, a list of files, or the sections of a configuration."""
    axes: Annotated[dict[str, Any], Field(min_length=1)] | None = None
    """Lists of values of an option, or mappings of names to settings, such as {run.seed: [41, 42, 43]}."""
    search: Search | None = None
    """Trials with sampled settings."""
    exclude: list[dict[str, Any]] = Field(default_factory=list)
    """Combinations to leave out, such as [{model: large, seed: [42, 43]}]."""
    baseline: Annotated[dict[str, Any], Field(min_length=1)] | None = None
    """Configuration with which tables compare the others, such as {strategy: ddp, nproc: 4}; default: the first."""
    nproc: Positive = 1
    """Processes of each run."""
    nodes: Positive | None = None
    """Nodes over which the processes of each run are distributed, on a cluster; one node when not given."""
    env: Any = None
    """Environment variables of all runs; null unsets one."""
    probe: ProbeLength | None = None
    """Length of runs that are only timed: {steps: 20, warmup_steps: 5}."""
    parallel: Annotated[int, Field(ge=1, le=MOST_SLOTS)] | Literal["auto"] = 1
    """Most runs at a time; auto: one on each GPU, or on each set of four cores."""
    repeats: Positive = 1
    """Number of times that each run is trained, to measure the variation of speed."""
    system: Text | None = None
    """Name of the machine or cluster, for reports, such as "4 x V100 NVLink"."""
    price_per_device_hour: Annotated[float, Field(ge=0, le=LONGEST_S)] | None = None
    """Price of one device for an hour, for the cost of runs."""
    select_per: list[str] | None = None
    """Axes: the best is selected for each of their values; default: axes that change task, data or model."""
    groups: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Headings under which a table lists values of an axis: {model: {Encoders: [a, b], Decoders: [c]}}."""
    published: Text | None = None
    """A file of published figures and claims, relative to this one, for reports."""
    notes: Text | None = None
    """A file with your own words in Markdown, relative to this one, for reports."""
    compress: Compress | None = None
    """Smaller forms of each finished run, measured beside it."""


@dataclass(frozen=True)
class Matrix:
    """A matrix file without problems; its cells may still have some."""

    name: str
    folder: Path
    source: Path
    options: MatrixOptions
    below: Layer
    """Settings of the files that `base` extends."""
    own: Layer
    """Settings in `base` itself."""
    axes: tuple[MatrixAxis, ...]
    exclude: tuple[Mapping[str, Sequence[str]], ...]
    """By label, the names of values to leave out together."""
    environment: Mapping[str, str | None]
    """Variables of all runs; those of axes have priority."""
    probe: ProbeLength | None
    """Length of the runs, which are probes; None for full runs."""
    record: SweepRecord
    """What `sweep.json` has of the file, without cells."""


def read_matrix(path: Path, trials: Trials | None = None, *, as_probes: bool = False) -> Matrix:
    """Read a matrix file.

    Args:
        trials: Those of its search; by default the random ones and those in `sweep.json`.
        as_probes: Put a probe in place of each run, in the folder NAME.probe; without effect on a matrix of probes.

    Raises:
        ConfigError: It cannot be read, or has problems: all are listed, each with its line.
    """
    file = MatrixFile(path)
    options = _options(file)
    if options is None:
        raise failure(path, file.problems, file.label)
    if isinstance(options.base, dict):
        below, own = file.layers(options.base, "base")
    else:
        file.places[f"base.{EXTENDS}"] = file.places["base"]
        below, own = file.layers({EXTENDS: options.base}, "base", called="base")
    in_file = options.name or slug(file.path.stem)
    name = f"{in_file}.probe" if as_probes and options.probe is None else in_file
    folder, search, compress = Path(options.folder) / name, options.search, options.compress
    trials = trials or ({} if search is None else read_search(file, search, folder))
    given = options.axes or {}
    axes = read_search_axes(file, given, own, trials) if trials else read_axes(file, given, own)
    baseline = None if options.baseline is None else find_one_of_each(file, axes, options.baseline, "baseline")
    matrix = Matrix(
        name=name,
        folder=folder,
        source=file.path,
        options=options,
        below=below,
        own=own,
        axes=axes,
        exclude=tuple(_found(file, axes, out, f"exclude[{number}]") for number, out in enumerate(options.exclude)),
        environment={} if options.env is None else read_environment(file, options.env, ENV),
        probe=options.probe or (ProbeLength() if as_probes else None),
        record=SweepRecord(
            name=name,
            created="",
            matrix=str(file.path),
            command=(),
            axes=tuple(Axis(own.key, own.label, own.values, own.is_seed, own.is_column, own.keys) for own in axes),
            select_per=_select_per(file, options, axes),
            cells=(),
            system=options.system,
            price_per_device_hour=options.price_per_device_hour,
            baseline=baseline or {},
            published=published_beside(file, options.published, in_file, axes),
            groups=_groups(file, options.groups, axes),
            search=search.record(trials) if search is not None and trials else None,
            compress=() if compress is None else tuple(compress.forms),
            notes=None if options.notes is None else _notes(file, options.notes),
        ),
    )
    if options.probe is not None and options.parallel != 1:
        message = f"parallel: {options.parallel} has no effect on probes, which are timed alone; leave it out"
        file.refuse(message, "parallel", "config.no_effect")
    if file.problems:
        raise failure(path, file.problems, file.label)
    return matrix


def _options(file: MatrixFile) -> MatrixOptions | None:
    """Return the keys of a file, the wrong ones with their defaults; None where it is not a mapping."""
    content, known = file.value, section_options(MatrixOptions)
    if not isinstance(content, dict):
        if not file.problems:
            message = f"a matrix is a mapping ({', '.join(known)}), and the file is {describe_value(content)}"
            file.refuse(message, "", "config.syntax")
        return None
    misplaced = content.keys() & section_options(Config).keys() - known.keys()
    for key in misplaced:
        message = f"{key} is not a key of a matrix; options of all runs belong below base:"
        file.refuse(message, key, "config.unknown_key")
    if content.get("axes") is None and content.get("search") is None:
        example = "a mapping of one axis or more, such as axes: {run.seed: [41, 42, 43]}"
        file.refuse(f"axes is required; allowed: {example}", "axes", "config.required")
    given = {key: value for key, value in content.items() if key not in misplaced}
    values, findings = validate_as(MatrixOptions, given, "a matrix")
    for wrong in findings.problems:
        file.refuse(wrong.message, wrong.keys[0], wrong.code)
    if not findings.problems:
        return MatrixOptions.model_validate(values)
    # The others are still checked, so that all problems are reported at once.
    sections: dict[str, Any] = dict.fromkeys(("search", "compress", "probe"))
    instead = {**sections, **({"base": {}} if "base" in findings.bad else {})}
    return MatrixOptions.model_construct(**{**values, **instead})


def _found(file: MatrixFile, axes: Sequence[MatrixAxis], wanted: Mapping[str, Any], at: str) -> dict[str, list[str]]:
    """Return the names of the wanted values by the label of their axis."""
    if not wanted:
        file.refuse(f"{at} is empty; allowed: a mapping of axes to values", at)
    found, problems = find_values(axes, wanted, at)
    for problem in problems:
        file.refuse(f"{at}: {problem.message}", problem.keys[0], problem.code)
    return found


def _groups(
    file: MatrixFile, groups: Mapping[str, Mapping[str, Any]], axes: Sequence[MatrixAxis]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the names of the values under each heading, by the label of their axis."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for key, headings in groups.items():
        count = Counter[str]()
        for heading, values in headings.items():
            for label, names in _found(file, axes, {key: values}, "groups").items():
                found.setdefault(label, {})[heading] = tuple(names)
                count.update(names)
        for name in (name for name, number in count.items() if number > 1):
            file.refuse(f"groups.{key} lists {name} twice; keep one", f"groups.{key}")
    return found


def _select_per(file: MatrixFile, options: MatrixOptions, axes: Sequence[MatrixAxis]) -> tuple[str, ...]:
    if options.select_per is None:
        # Trials of a search are selected among, whatever their settings are.
        candidates = (axis for axis in axes if not axis.is_seed and axis.key != TRIAL)
        parts = ("task", "data", "model")
        return tuple(
            axis.label for axis in candidates if any(overlap(key, part) for key in axis.keys for part in parts)
        )
    per = []
    for key in options.select_per:
        if isinstance(named := find_axis(axes, key), str):
            file.refuse(f"select_per: {named}", "select_per", "config.unknown_key")
        elif named.is_seed:
            file.refuse(f"select_per: {key} has seeds, and the selection is by the mean over seeds", "select_per")
        else:
            per.append(named.label)
    return tuple(dict.fromkeys(per))


def _notes(file: MatrixFile, name: str) -> str | None:
    path = file.path.parent / name
    # A matrix of others must not put a private file of the user into a report.
    if not path.resolve().is_relative_to(file.path.parent.resolve()):
        file.refuse(f"notes: {name} is outside the folder of this file; put it beside this file", "notes")
        return None
    try:
        return hide_secrets(read_text(path))
    except ConfigError as error:
        file.refuse(f"notes: {error}", "notes", error.code)
        return None
