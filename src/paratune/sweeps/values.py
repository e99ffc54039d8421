"""One value of an axis: its settings, and names of axes and values in tables and in the names of runs."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from paratune.config.differences import flatten
from paratune.config.layers import Layer, layer_of, merge
from paratune.config.plain import one_line
from paratune.config.validate import describe_value
from paratune.hardware.environment import UNSET
from paratune.records.sweep import NAME
from paratune.sweeps.environment import ENV, Environment, read_environment, read_variable, variable_of
from paratune.sweeps.matrix_file import MatrixFile
from paratune.sweeps.probe import PROBE, ProbeLength, read_probe

NPROC = "nproc"
"""Processes of each run; also a setting of an axis, or an axis by itself."""
NODES = "nodes"
"""Nodes over which the processes of a run are distributed; given in the same ways as `nproc`."""


@dataclass(frozen=True)
class Value:
    """One value of an axis."""

    name: str
    """In names of runs."""
    shown: str
    """In tables."""
    plain: Any
    """As in the file; for named settings the name."""
    below: Layer = field(default_factory=Layer)
    """Settings of the files that it extends."""
    own: Layer = field(default_factory=Layer)
    """Its own settings."""
    num_processes: int | None = None
    """None where the axis does not set it."""
    num_nodes: int | None = None
    """None where the axis does not set it."""
    environment: Mapping[str, str | None] = field(default_factory=dict)
    """Variables that it gives; None unsets one."""
    probe: ProbeLength | Literal[False] | None = None
    """Length of its probes; False for full runs, None when the axis does not set it."""

    @property
    def beside(self) -> dict[str, Any]:
        """Its settings of a run that are not options, by dotted key."""
        count: dict[str, Any] = {NPROC: self.num_processes} if self.num_processes else {}
        count |= {NODES: self.num_nodes} if self.num_nodes else {}
        count |= {} if self.probe is None else {PROBE: asdict(self.probe) if self.probe else False}
        return count | {f"{ENV}.{name}": text for name, text in self.environment.items()}

    @property
    def above(self) -> dict[str, Any]:
        """Its settings in the matrix file itself, by dotted key."""
        return flatten(self.own.values) | self.beside

    @property
    def settings(self) -> dict[str, Any]:
        """All its settings, also those of files, by dotted key."""
        return flatten(merge(self.below, self.own).values) | self.above


def read_listed(file: MatrixFile, key: str, name: str, value: Any, at: str) -> Value:
    """Return a value of the option or variable that the axis `key` sets.

    Args:
        name: Name of the axis in names of runs.
    """
    if key == NPROC:
        count = file.count(value, at)
        return Value(f"{NPROC}-{count}", str(count), value, num_processes=count)
    if key == NODES:
        count = file.count(value, at)
        return Value(f"{NODES}-{count}", str(count), value, num_nodes=count)
    variable = variable_of(key)
    if variable is not None:
        environment: Environment = {variable: read_variable(file, variable, value, at)}
        if value is None:
            return Value(slug(f"{name}-{UNSET}"), UNSET, value, environment=environment)
        return Value(value_name(value, name), show(value), value, environment=environment)
    places = {at.replace(f"axes.{key}", key, 1).partition("[")[0]: file.places[at]}
    inside = {
        inner.replace(at, key, 1): place
        for inner, place in file.places.items()
        if inner.startswith((f"{at}.", f"{at}["))
    }
    own = layer_of(key, value, {**places, **inside})
    return Value(value_name(value, name), show(value), value, own=own)


def read_named(file: MatrixFile, name: str, settings: Any, at: str) -> Value:
    """Return a named value with several settings; arguments as for `read_listed`."""
    if not NAME.fullmatch(name):
        file.refuse(
            f"{at}: {name!r} becomes part of the names of runs; allowed: letters, digits, '.', '_' and '-', with a "
            "letter or digit first",
            at,
        )
        name = slug(name)
    if not isinstance(settings, dict) or not settings:
        message = f"{at} is {describe_value(settings)}; allowed: a mapping, such as {{train.learning_rate: 1e-5}}"
        file.refuse(message, at)
        return Value(name, name, name)
    count = file.count(settings[NPROC], f"{at}.{NPROC}") if NPROC in settings else None
    num_nodes = file.count(settings[NODES], f"{at}.{NODES}") if NODES in settings else None
    environment = _environment(file, settings, at)
    below, own = file.layers({key: value for key, value in settings.items() if not _is_beside(key)}, at)
    probe: ProbeLength | Literal[False] | None = None
    if PROBE in settings:
        probe = read_probe(file, settings[PROBE], f"{at}.{PROBE}") or False
    return Value(name, name, name, below, own, count, num_nodes, environment, probe)


def _is_beside(key: Any) -> bool:
    return key in (NPROC, NODES, ENV, PROBE) or variable_of(str(key)) is not None


def _environment(file: MatrixFile, settings: Mapping[Any, Any], at: str) -> Environment:
    """Return the variables among settings: below `env`, or each as `env.NAME`."""
    variables = read_environment(file, settings.get(ENV), f"{at}.{ENV}")
    for key, value in settings.items():
        variable = variable_of(str(key))
        if variable is not None:
            if variable in variables:
                file.refuse(f"{at}.{key} is also given below {ENV}; keep one of them", f"{at}.{key}", "config.conflict")
            variables[variable] = read_variable(file, variable, value, f"{at}.{key}")
    return variables


def show(value: Any) -> str:
    """Return a value for tables: short numbers, a kind followed by its options, other values as YAML."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(show(item) for item in value)}]"
    if _has_kind(value):
        rest = ", ".join(f"{key}: {show(item)}" for key, item in value.items() if key != "kind")
        return f"{value['kind']} ({rest})" if rest else str(value["kind"])
    return value if isinstance(value, str) and value else one_line(value)


def value_name(value: Any, axis: str) -> str:
    """Return a value as part of the name of a run: a text by itself, other values after the name of the axis."""
    text = slug(show(value)) if isinstance(value, str | dict) else ""
    return text or slug(f"{axis}-{show(value)}")


def _has_kind(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("kind"), str)


def slug(text: str) -> str:
    """Return text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")


def short(key: str) -> str:
    """Return the last part of a key; for `name` and `kind` the part before: model of model.name."""
    *above, last = key.split(".")
    return above[-1] if above and last in ("name", "kind") else last
