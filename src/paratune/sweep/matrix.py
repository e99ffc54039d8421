"""A matrix file: a configuration, the axes along which it varies, and what is left out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paratune.config.layers import EXTENDS, Layer
from paratune.config.problems import failure, overlap
from paratune.config.validate import describe_value
from paratune.errors import did_you_mean
from paratune.records.published import Published
from paratune.records.sweep import NAME
from paratune.sweep.axes import AxisOfValues, find_value, read_axes
from paratune.sweep.environment import ENV, read_environment
from paratune.sweep.matrix_file import MatrixFile
from paratune.sweep.names import show, slug
from paratune.sweep.order import ORDERS, Order
from paratune.sweep.probe import PROBE, ProbeLength, read_probe
from paratune.sweep.published import published_beside
from paratune.sweep.values import NODES, NPROC

KEYS = {
    "name": "name of the matrix and of its folder; the file's name when not given",
    "folder": "folder that holds the matrix' folder; runs when not given",
    "base": "a configuration file, a list of them, or the sections of one",
    "axes": "what varies",
    "exclude": "combinations to leave out",
    "baseline": "values of axes that name the runs which tables compare the others with; the first when not given",
    NPROC: "processes of each run; 1 when not given",
    NODES: "nodes that the processes of each run are divided among, on a cluster; one node when not given",
    ENV: "environment variables of all runs; null unsets one",
    PROBE: "runs of a few steps, to be timed: {steps: 20, warmup_steps: 5}",
    "repeats": "how often each run is made, for its speed; 1 when not given",
    "order": "shuffled or given; shuffled when not given",
    "warmup_runs": "probes that are thrown away before the first run",
    "timeout_s": "seconds after which a run is ended",
    "max_nproc": "most processes of a run; those with more are skipped",
    "price_per_device_hour": "of one device, for the cost of runs",
    "select_per": "axes for each of whose values the best is chosen; those that change task, data or model",
    "groups": "headings under which a table lists values of an axis: {model: {Encoders: [a, b], Decoders: [c]}}",
    "published": "a file of published figures and claims, relative to this one, for reports",
    "select_by": "metric on validation by which to choose; evaluate.best, or the first of the task",
}
"""What a matrix file may say."""


@dataclass(frozen=True)
class Matrix:
    """A matrix file that can be read; its cells may still have problems."""

    name: str
    folder: Path
    """Of the matrix: `folder` and `name` of the file."""
    source: Path
    below: Layer
    """What `base` extends."""
    own: Layer
    """What `base` says itself."""
    axes: tuple[AxisOfValues, ...]
    exclude: tuple[Mapping[str, Any], ...]
    """By label, the values (or lists of them) to leave out together."""
    num_processes: int
    num_nodes: int | None
    """Of each run; None where the file does not say."""
    environment: Mapping[str, str | None]
    """Of all runs, below what axes give."""
    probe: ProbeLength | None
    """How long the probes are that its runs are; None for full runs. Values of axes may say otherwise."""
    all_are_probes: bool
    """Whether values of axes that ask for full runs are not heard."""
    repeats: int
    order: Order
    warmup_runs: int | None
    """None where the file does not say; see `paratune.sweep.warmup`."""
    timeout_s: float | None
    max_processes: int | None
    price_per_device_hour: float | None
    select_per: tuple[str, ...]
    select_by: str | None
    baseline: Mapping[str, str] = field(default_factory=dict)
    """By label, the name of the value of the runs that tables compare the others with."""
    published: Published | None = None
    """What the study published of it; None where the file names nothing."""
    groups: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    """By label and heading, the names of the values that the table of chosen runs lists under it."""


def read_matrix(path: Path) -> Matrix:
    """Read a matrix file.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong: all of it is listed, each with its line.
    """
    file = MatrixFile(path)
    matrix = _read(file)
    if matrix is None or file.problems:
        raise failure(path, file.problems, file.label)
    return matrix


def _read(file: MatrixFile) -> Matrix | None:
    found = file.value
    if not isinstance(found, dict):
        if not file.problems:
            what = f"found {describe_value(found)}" if found is not None else "it is empty"
            file.refuse(f"a matrix is a mapping ({', '.join(KEYS)}); {what}", "", "config.not_mapping")
        return None
    for key in found:
        if key not in KEYS:
            _unknown(file, key)
    below, own = _base(file, found)
    axes = read_axes(file, found.get("axes"), own)
    labels = {
        **{each.axis.key: each.axis.label for each in axes},
        **{each.axis.label: each.axis.label for each in axes},
    }
    name = _name(file, found)
    return Matrix(
        name=name,
        folder=Path(file.text(found, "folder", "runs")) / name,
        source=file.path,
        below=below,
        own=own,
        axes=axes,
        exclude=tuple(_exclude(file, found.get("exclude"), axes, labels)),
        num_processes=file.count(found.get(NPROC, 1), NPROC),
        num_nodes=file.count(found[NODES], NODES) if NODES in found else None,
        environment=read_environment(file, found.get(ENV), ENV),
        probe=read_probe(file, found.get(PROBE), PROBE),
        all_are_probes=False,
        repeats=file.count(found.get("repeats", 1), "repeats"),
        order=_order(file, found.get("order", "shuffled")),
        warmup_runs=file.count(found["warmup_runs"], "warmup_runs", least=0) if "warmup_runs" in found else None,
        timeout_s=file.amount(found, "timeout_s"),
        max_processes=file.count(found["max_nproc"], "max_nproc") if "max_nproc" in found else None,
        price_per_device_hour=file.amount(found, "price_per_device_hour", zero=True),
        select_per=_select_per(file, found, axes, labels),
        select_by=file.text(found, "select_by", None),
        baseline=dict(_baseline(file, found.get("baseline"), axes, labels)),
        published=published_beside(file, found, name, axes),
        groups=dict(_groups(file, found.get("groups"), axes, labels)),
    )


def all_probes(matrix: Matrix) -> Matrix:
    """Return the same matrix with a probe in the place of each run, in a folder of its own: NAME.probe.

    One of probes already is returned as it is.
    """
    says_full = any(value.probe is False for axis in matrix.axes for value in axis.values)
    if matrix.probe is not None and not says_full:
        return matrix
    name = f"{matrix.name}.{PROBE}"
    return replace(matrix, name=name, folder=matrix.folder.with_name(name), all_are_probes=True)


def _order(file: MatrixFile, found: Any) -> Order:
    for order in ORDERS:
        if found == order:
            return order
    file.refuse(f"order is {describe_value(found)}; allowed: {' or '.join(ORDERS)}", "order")
    return "given"


def _unknown(file: MatrixFile, key: Any) -> None:
    near = did_you_mean(str(key), KEYS)
    if not near and str(key).partition(".")[0] in (
        "task",
        "data",
        "model",
        "train",
        "batch",
        "evaluate",
        "strategy",
    ):
        near = "; options of all runs belong below base:"
    file.refuse(
        f"{key} is not a key of a matrix{near or '; it has: ' + ', '.join(KEYS)}", str(key), "config.unknown_key"
    )


def _name(file: MatrixFile, found: Mapping[Any, Any]) -> str:
    name = found.get("name")
    if name is None:
        name = slug(file.path.stem)
    if not isinstance(name, str) or not NAME.fullmatch(name):
        file.refuse(
            f"name is {describe_value(name)}; allowed: letters, digits, '.', '_' and '-', with a letter or digit first",
            "name",
        )
        return "matrix"
    return name


def _base(file: MatrixFile, found: Mapping[Any, Any]) -> tuple[Layer, Layer]:
    base = found.get("base")
    is_name = isinstance(base, str | list)
    if is_name:
        base = {EXTENDS: base}
        file.places[f"base.{EXTENDS}"] = file.places["base"]
    if not isinstance(base, dict):
        what, code = "is required", "config.required"
        if "base" in found:
            what, code = f"is {describe_value(base)}", "config.invalid_value"
        file.refuse(f"base {what}; allowed: a configuration file, a list of files, or sections (task:)", "base", code)
        return Layer(), Layer()
    return file.layers(base, "base", called="base" if is_name else EXTENDS)


def _exclude(
    file: MatrixFile, found: Any, axes: Sequence[AxisOfValues], labels: Mapping[str, str]
) -> Iterator[Mapping[str, Any]]:
    if found is None:
        return
    if not isinstance(found, list):
        file.refuse(f"exclude is {describe_value(found)}; allowed: a list of mappings of axes to values", "exclude")
        return
    known = {each.axis.label: each for each in axes}
    for number, each in enumerate(found):
        at = f"exclude[{number}]"
        if not isinstance(each, dict) or not each:
            file.refuse(f"{at} is {describe_value(each)}; allowed: a mapping of axes to values", at)
            continue
        yield dict(_combination(file, each, at, known, labels))


def _combination(
    file: MatrixFile, found: Mapping[Any, Any], at: str, known: Mapping[str, AxisOfValues], labels: Mapping[str, str]
) -> Iterator[tuple[str, list[str]]]:
    """Yield the label of each axis that is named, with the names of its values."""
    for key, value in found.items():
        if key not in labels:
            file.refuse(f"{at}: {key} is not an axis{_near(key, labels, known)}", at, "config.unknown_key")
            continue
        axis = known[labels[key]]
        wanted = value if isinstance(value, list) else [value]
        names = [each for one in wanted if (each := find_value(axis, one)) is not None]
        if len(names) < len(wanted):
            file.refuse(
                f"{at}: {show(value)} is not on the axis {key}; it has: {', '.join(axis.axis.values.values())}",
                at,
            )
        yield labels[key], names


def _baseline(
    file: MatrixFile, found: Any, axes: Sequence[AxisOfValues], labels: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Yield the value of each axis that `baseline` names."""
    if found is None:
        return
    known = {each.axis.label: each for each in axes}
    if not isinstance(found, dict) or not found:
        file.refuse(
            f"baseline is {describe_value(found)}; allowed: a mapping of axes to values, such as "
            "{strategy: ddp, nproc: 4}",
            "baseline",
        )
        return
    for label, names in _combination(file, found, "baseline", known, labels):
        if known[label].axis.is_seed:
            file.refuse(f"baseline: {label} holds seeds, over which the mean is taken; leave it out", "baseline")
        elif len(names) > 1:
            file.refuse(f"baseline: {label} has {len(names)} values; name one", "baseline")
        elif names:
            yield label, names[0]


def _groups(
    file: MatrixFile, found: Any, axes: Sequence[AxisOfValues], labels: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, tuple[str, ...]]]]:
    """Yield the label of each axis of `groups`, with the names of its values under each heading."""
    if found is None:
        return
    known = {each.axis.label: each for each in axes}
    if not isinstance(found, dict):
        file.refuse(f"groups is {describe_value(found)}; allowed: a mapping of axes to headings", "groups")
        return
    for key, headings in found.items():
        at = f"groups.{key}"
        if not isinstance(headings, dict):
            file.refuse(f"{at} is {describe_value(headings)}; allowed: a mapping of headings to values", at)
            continue
        names: dict[str, tuple[str, ...]] = {}
        for heading, values in headings.items():
            combination = dict(_combination(file, {key: values}, f"{at}.{heading}", known, labels))
            names[str(heading)] = tuple(name for each in combination.values() for name in each)
        listed = [name for each in names.values() for name in each]
        for name in dict.fromkeys(listed):
            if listed.count(name) > 1:
                file.refuse(f"{at} lists {name} twice; keep one", at)
        if key in labels:
            yield labels[key], names


def _select_per(
    file: MatrixFile, found: Mapping[Any, Any], axes: Sequence[AxisOfValues], labels: Mapping[str, str]
) -> tuple[str, ...]:
    per = found.get("select_per")
    if per is None:
        return tuple(
            each.axis.label
            for each in axes
            if not each.axis.is_seed
            and any(overlap(key, part) for key in each.keys for part in ("task", "data", "model"))
        )
    if not isinstance(per, list):
        file.refuse(f"select_per is {describe_value(per)}; allowed: a list of axes", "select_per")
        return ()
    known = {each.axis.label: each for each in axes}
    for name in per:
        if name not in labels:
            near = _near(name, labels, known)
            file.refuse(f"select_per: {name} is not an axis{near}", "select_per", "config.unknown_key")
        elif known[labels[name]].axis.is_seed:
            file.refuse(f"select_per: {name} holds seeds, over which the mean is taken", "select_per")
    return tuple(dict.fromkeys(labels[name] for name in per if name in labels))


def _near(name: Any, labels: Mapping[str, str], known: Mapping[str, AxisOfValues]) -> str:
    return did_you_mean(str(name), labels) or f"; there are: {', '.join(known)}"
