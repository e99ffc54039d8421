"""A matrix file: a configuration, the axes along which it varies, and the excluded combinations."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paratune.config.layers import EXTENDS, Layer
from paratune.config.problems import failure, overlap
from paratune.config.validate import describe_value
from paratune.errors import did_you_mean
from paratune.records.published import Published
from paratune.records.sweep import NAME
from paratune.sweeps.axes import AxisOfValues, find_value, read_axes
from paratune.sweeps.compressing import COMPRESS, Compress, read_compress
from paratune.sweeps.environment import ENV, read_environment
from paratune.sweeps.matrix_file import MatrixFile
from paratune.sweeps.order import ORDERS, Order
from paratune.sweeps.probe import PROBE, ProbeLength, read_probe
from paratune.sweeps.published import published_beside
from paratune.sweeps.search import STEPS, TRIAL, Search, known_trials, read_search, trial_title, with_search_axes
from paratune.sweeps.values import NODES, NPROC, short, show, slug

KEYS = {
    "name": "name of the matrix and of its folder; the file's name when not given",
    "folder": "folder in which the folder of the matrix is created; runs when not given",
    "base": "a configuration file, a list of files, or the sections of a configuration",
    "axes": "lists of values of an option, or mappings of names to settings",
    "search": "trials with sampled settings: {method: random, trials: 20, space: {...}}",
    "exclude": "combinations to leave out",
    "baseline": "configuration with which tables compare the others, by axis and value; the first when not given",
    NPROC: "processes of each run; 1 when not given",
    NODES: "nodes over which the processes of each run are distributed, on a cluster; one node when not given",
    ENV: "environment variables of all runs; null unsets one",
    PROBE: "length of runs that are only timed: {steps: 20, warmup_steps: 5}",
    "repeats": "number of times that each run is trained, to measure the variation of speed; 1 when not given",
    "order": "shuffled or given; shuffled when not given",
    "warmup_runs": "number of probes before the first run; their results are discarded",
    "timeout_s": "seconds after which a run is ended",
    "max_nproc": "maximum number of processes of a run; runs with more are skipped",
    "price_per_device_hour": "price of one device for an hour, for the cost of runs",
    "select_per": "axes: the best is selected for each of their values; default: axes that change task, data or model",
    "groups": "headings under which a table lists values of an axis: {model: {Encoders: [a, b], Decoders: [c]}}",
    "published": "a file of published figures and claims, relative to this one, for reports",
    COMPRESS: "smaller forms of each finished run, measured beside it: {forms: [bf16, int8]}",
    "select_by": "metric on validation for the selection; default: evaluate.best, or the first metric of the task",
}
"""Keys of a matrix file, with their meaning."""


@dataclass(frozen=True)
class Matrix:
    """A matrix file without problems; its cells may still have some."""

    name: str
    folder: Path
    """Of the matrix: `folder` and `name` of the file."""
    source: Path
    below: Layer
    """Settings of the files that `base` extends."""
    own: Layer
    """Settings in `base` itself."""
    axes: tuple[AxisOfValues, ...]
    exclude: tuple[Mapping[str, Any], ...]
    """By label, the values (or lists of them) to leave out together."""
    num_processes: int
    num_nodes: int | None
    """Of each run; None where the file does not set it."""
    environment: Mapping[str, str | None]
    """Variables of all runs; those of axes have priority."""
    probe: ProbeLength | None
    """Length of the probes; None for full runs. Values of axes have priority."""
    all_are_probes: bool
    """Whether `probe: false` of a value of an axis is ignored."""
    repeats: int
    order: Order
    warmup_runs: int | None
    """None where the file does not set it; see `paratune.sweeps.warmup`."""
    timeout_s: float | None
    max_processes: int | None
    price_per_device_hour: float | None
    select_per: tuple[str, ...]
    select_by: str | None
    baseline: Mapping[str, str] = field(default_factory=dict)
    """By label, the name of the value of the runs that tables compare the others with."""
    published: Published | None = None
    """Published figures and claims; None when the file names none."""
    groups: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """By label and heading, the names of the values that the table of chosen runs lists under it."""
    search: Search | None = None
    """Whose trials are the axis `trial`."""
    compress: Compress | None = None
    """Smaller forms of the finished runs; None where none are made."""
    trials: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Settings of the trials that are known so far, by name."""


def read_matrix(path: Path) -> Matrix:
    """Read a matrix file.

    Raises:
        ConfigError: It cannot be read, or has problems: all are listed, each with its line.
    """
    file = MatrixFile(path)
    matrix = _read(file)
    if matrix is None or file.problems:
        raise failure(path, file.problems, file.label)
    return matrix


def _read(file: MatrixFile) -> Matrix | None:
    content = file.value
    if not isinstance(content, dict):
        if not file.problems:
            problem = f"found {describe_value(content)}" if content is not None else "it is empty"
            file.refuse(f"a matrix is a mapping ({', '.join(KEYS)}); {problem}", "", "config.not_mapping")
        return None
    for key in content:
        if key not in KEYS:
            _unknown(file, key)
    below, own = _base(file, content)
    name = _name(file, content)
    folder = Path(file.text(content, "folder", "runs")) / name
    search = read_search(file, content.get("search"))
    trials = {} if search is None else known_trials(search, folder)
    axes = _axes(file, content, own, search, trials)
    labels = {
        **{axis.axis.key: axis.axis.label for axis in axes},
        **{axis.axis.label: axis.axis.label for axis in axes},
    }
    return Matrix(
        name=name,
        folder=folder,
        source=file.path,
        below=below,
        own=own,
        axes=axes,
        exclude=tuple(_exclude(file, content.get("exclude"), axes, labels, search)),
        num_processes=file.count(content.get(NPROC, 1), NPROC),
        num_nodes=file.count(content[NODES], NODES) if NODES in content else None,
        environment=read_environment(file, content.get(ENV), ENV),
        probe=read_probe(file, content.get(PROBE), PROBE),
        all_are_probes=False,
        repeats=file.count(content.get("repeats", 1), "repeats"),
        order=_order(file, content.get("order", "shuffled")),
        warmup_runs=file.count(content["warmup_runs"], "warmup_runs", least=0) if "warmup_runs" in content else None,
        timeout_s=file.amount(content, "timeout_s"),
        max_processes=file.count(content["max_nproc"], "max_nproc") if "max_nproc" in content else None,
        price_per_device_hour=file.amount(content, "price_per_device_hour", zero=True),
        select_per=_with_rounds(_select_per(file, content, axes, labels), search),
        select_by=file.text(content, "select_by", None),
        baseline=dict(_baseline(file, content.get("baseline"), axes, labels)),
        published=published_beside(file, content, name, axes),
        groups=dict(_groups(file, content.get("groups"), axes, labels)),
        search=search,
        compress=read_compress(file, content.get(COMPRESS)),
        trials=trials,
    )


def _axes(
    file: MatrixFile, content: Mapping[Any, Any], own: Layer, search: Search | None, trials: Mapping[str, Any]
) -> tuple[AxisOfValues, ...]:
    if search is None:
        # A search with problems has no trials; then absent `axes` are no further problem.
        return () if "search" in content and "axes" not in content else read_axes(file, content.get("axes"), own)
    axes = read_axes(file, with_search_axes(file, content.get("axes"), search, trials), own)
    for axis in axes:
        key = axis.axis.key
        if search.is_adaptive and key not in (TRIAL, STEPS) and not axis.axis.is_seed:
            message = (
                f"axes.{key}: with search.method: {search.method} the scores decide which trials follow, so no "
                f"other axis than seeds is allowed; put {key} into search.space, or use method: random"
            )
            file.refuse(message, f"axes.{key}", "config.conflict")
    titles: dict[str, Callable[[str], str]] = {
        TRIAL: lambda name: trial_title(name, trials[name]),
        **({STEPS: lambda name: name.removeprefix("steps-")} if search.steps else {}),
    }
    return tuple(_titled(axis, titles.get(axis.axis.key)) for axis in axes)


def _titled(axis: AxisOfValues, title: Callable[[str], str] | None) -> AxisOfValues:
    if title is None:
        return axis
    return replace(axis, axis=replace(axis.axis, values={name: title(name) for name in axis.axis.values}))


def all_probes(matrix: Matrix) -> Matrix:
    """Return the matrix with a probe in place of each run, in its own folder NAME.probe.

    A matrix of probes is returned unchanged.
    """
    says_full = any(value.probe is False for axis in matrix.axes for value in axis.values)
    if matrix.probe is not None and not says_full:
        return matrix
    name = f"{matrix.name}.{PROBE}"
    return replace(matrix, name=name, folder=matrix.folder.with_name(name), all_are_probes=True)


def _order(file: MatrixFile, content: Any) -> Order:
    for order in ORDERS:
        if content == order:
            return order
    file.refuse(f"order is {describe_value(content)}; allowed: {' or '.join(ORDERS)}", "order")
    return "given"


def _unknown(file: MatrixFile, key: Any) -> None:
    near = did_you_mean(str(key), KEYS)
    if not near and str(key).partition(".")[0] in ("task", "data", "model", "train", "batch", "evaluate", "strategy"):
        near = "; options of all runs belong below base:"
    file.refuse(
        f"{key} is not a key of a matrix{near or '; it has: ' + ', '.join(KEYS)}", str(key), "config.unknown_key"
    )


def _name(file: MatrixFile, content: Mapping[Any, Any]) -> str:
    name = content.get("name")
    if name is None:
        name = slug(file.path.stem)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        file.refuse(
            f"name is {describe_value(name)}; allowed: letters, digits, '.', '_' and '-', with a letter or digit first",
            "name",
        )
        return "matrix"
    return name


def _base(file: MatrixFile, content: Mapping[Any, Any]) -> tuple[Layer, Layer]:
    base = content.get("base")
    is_name = isinstance(base, str | list)
    if is_name:
        base = {EXTENDS: base}
        file.places[f"base.{EXTENDS}"] = file.places["base"]
    if not isinstance(base, dict):
        problem, code = "is required", "config.required"
        if "base" in content:
            problem, code = f"is {describe_value(base)}", "config.invalid_value"
        file.refuse(
            f"base {problem}; allowed: a configuration file, a list of files, or sections (task:)", "base", code
        )
        return Layer(), Layer()
    return file.layers(base, "base", called="base" if is_name else EXTENDS)


def _exclude(
    file: MatrixFile, content: Any, axes: Sequence[AxisOfValues], labels: Mapping[str, str], search: Search | None
) -> Iterator[Mapping[str, Any]]:
    if content is None:
        return
    if not isinstance(content, list):
        file.refuse(f"exclude is {describe_value(content)}; allowed: a list of mappings of axes to values", "exclude")
        return
    known = {axis.axis.label: axis for axis in axes}
    for number, combination in enumerate(content):
        at = f"exclude[{number}]"
        if not isinstance(combination, dict) or not combination:
            file.refuse(f"{at} is {describe_value(combination)}; allowed: a mapping of axes to values", at)
            continue
        left_out = dict(_combination(file, combination, at, known, labels))
        if search is not None and search.steps and short(STEPS) in left_out:
            file.refuse(
                f"{at}: the rounds of a search follow from its scores; leave {short(STEPS)} out", at, "config.conflict"
            )
        yield left_out


def _combination(
    file: MatrixFile, content: Mapping[Any, Any], at: str, known: Mapping[str, AxisOfValues], labels: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the label of each axis that is named, with the names of its values."""
    for key, value in content.items():
        if key not in labels:
            file.refuse(f"{at}: {key} is not an axis{_near(key, labels, known)}", at, "config.unknown_key")
            continue
        axis = known[labels[key]]
        wanted = value if isinstance(value, list) else [value]
        names = [name for item in wanted if (name := find_value(axis, item)) is not None]
        if len(names) < len(wanted):
            message = f"{at}: {show(value)} is not on the axis {key}; it has: {', '.join(axis.axis.values.values())}"
            file.refuse(message, at)
        yield labels[key], names


def _baseline(
    file: MatrixFile, content: Any, axes: Sequence[AxisOfValues], labels: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the value of each axis that `baseline` names."""
    if content is None:
        return
    known = {axis.axis.label: axis for axis in axes}
    if not isinstance(content, dict) or not content:
        file.refuse(
            f"baseline is {describe_value(content)}; allowed: a mapping of axes to values, such as "
            "{strategy: ddp, nproc: 4}",
            "baseline",
        )
        return
    for label, names in _combination(file, content, "baseline", known, labels):
        if known[label].axis.is_seed:
            file.refuse(f"baseline: {label} has seeds, and tables show means over seeds; leave it out", "baseline")
        elif len(names) > 1:
            file.refuse(f"baseline: {label} has {len(names)} values; name one", "baseline")
        elif names:
            yield label, names[0]


def _groups(
    file: MatrixFile, content: Any, axes: Sequence[AxisOfValues], labels: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, tuple[str, ...]]]]:
    """Yield the label of each axis of `groups`, with the names of its values under each heading."""
    if content is None:
        return
    known = {axis.axis.label: axis for axis in axes}
    for key, headings in (file.mapping(content, "groups", "a mapping of axes to headings") or {}).items():
        at = f"groups.{key}"
        if file.mapping(headings, at, "a mapping of headings to values") is None:
            continue
        names: dict[str, tuple[str, ...]] = {}
        for heading, values in headings.items():
            combination = dict(_combination(file, {key: values}, f"{at}.{heading}", known, labels))
            names[str(heading)] = tuple(name for values in combination.values() for name in values)
        listed = [name for values in names.values() for name in values]
        for name in dict.fromkeys(listed):
            if listed.count(name) > 1:
                file.refuse(f"{at} lists {name} twice; keep one", at)
        if key in labels:
            yield labels[key], names


def _select_per(
    file: MatrixFile, content: Mapping[Any, Any], axes: Sequence[AxisOfValues], labels: Mapping[str, str]
) -> tuple[str, ...]:
    per = content.get("select_per")
    if per is None:
        return tuple(
            axis.axis.label
            for axis in axes
            if not axis.axis.is_seed
            and axis.axis.key != TRIAL  # selected among, whatever its settings are
            and any(overlap(key, part) for key in axis.keys for part in ("task", "data", "model"))
        )
    if not isinstance(per, list):
        file.refuse(f"select_per is {describe_value(per)}; allowed: a list of axes", "select_per")
        return ()
    known = {axis.axis.label: axis for axis in axes}
    for name in per:
        if name not in labels:
            near = _near(name, labels, known)
            file.refuse(f"select_per: {name} is not an axis{near}", "select_per", "config.unknown_key")
        elif known[labels[name]].axis.is_seed:
            file.refuse(f"select_per: {name} has seeds, and the selection is by the mean over seeds", "select_per")
    return tuple(dict.fromkeys(labels[name] for name in per if name in labels))


def _with_rounds(per: tuple[str, ...], search: Search | None) -> tuple[str, ...]:
    """Return the axes of the selection with that of rounds: only trials with the same number of steps are compared."""
    return tuple(dict.fromkeys([*per, short(STEPS)])) if search is not None and search.steps else per


def _near(name: Any, labels: Mapping[str, str], known: Mapping[str, AxisOfValues]) -> str:
    return did_you_mean(str(name), labels) or f"; there are: {', '.join(known)}"
