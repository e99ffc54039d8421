"""One value of an axis: its settings, a probe, and names of axes and values in tables and in the names of runs."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, model_validator

from paratune.config.differences import flatten
from paratune.config.layers import Layer, layer_of, merge
from paratune.config.plain import one_line
from paratune.config.section import Positive, Section
from paratune.config.validate import describe_value
from paratune.hardware.environment import RECORD_VARIABLE, UNSET, record_words, why_not_to_set
from paratune.records.sweep import NAME
from paratune.sweeps.matrix_file import MatrixFile

NPROC, NODES, ENV, PROBE = "nproc", "nodes", "env", "probe"
"""Settings that are not options of a run, for all runs, for a named value, or as axes (one for each `env.NAME`)."""
Environment = dict[str, str | None]
"""Variables by name; None unsets one that runs would inherit."""


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


def read_probe(file: MatrixFile, content: Any, at: str) -> ProbeLength | None:
    """Return the length of a probe from a mapping, or true for the defaults; None for a full run (false or null)."""
    if content is None or content is False:
        return None
    return file.section(ProbeLength, {} if content is True else content, at) or ProbeLength()


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
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Its settings that are not options of a run: `nproc`, `nodes`, `env.NAME`, and `probe` (false for a full run)."""

    @property
    def above(self) -> dict[str, Any]:
        """Its settings in the matrix file itself, by dotted key."""
        return {**flatten(self.own.values), **self.beside}

    @property
    def settings(self) -> dict[str, Any]:
        """All its settings, also those of files, by dotted key."""
        return flatten(merge(self.below, self.own).values) | self.above


def read_listed(file: MatrixFile, key: str, name: str, value: Any, at: str) -> Value:
    """Return a value of the option or variable that the axis `key` sets; `name` is that of the axis in runs' names."""
    if key in (NPROC, NODES):
        count = file.count(value, at)
        return Value(f"{key}-{count}", str(count), value, beside={key: count})
    if key.startswith(f"{ENV}."):
        beside = {key: read_variable(file, key.removeprefix(f"{ENV}."), value, at)}
        if value is None:
            return Value(slug(f"{name}-{UNSET}"), UNSET, value, beside=beside)
        return Value(value_name(value, name), show(value), value, beside=beside)
    places = {
        place.replace(at, key, 1): line
        for place, line in file.places.items()
        if place == at or place.startswith((f"{at}.", f"{at}["))
    }
    return Value(value_name(value, name), show(value), value, own=layer_of(key, value, places))


def read_named(file: MatrixFile, name: str, settings: Any, at: str) -> Value:
    """Return a named value with several settings."""
    if not NAME.fullmatch(name):
        allowed = "letters, digits, '.', '_' and '-', with a letter or digit first"
        file.refuse(f"{at}: {name!r} becomes part of the names of runs; allowed: {allowed}", at)
        name = slug(name)
    if not isinstance(settings, dict) or not settings:
        message = f"{at} is {describe_value(settings)}; allowed: a mapping, such as {{train.learning_rate: 1e-5}}"
        file.refuse(message, at)
        return Value(name, name, name)
    options = dict(settings)
    beside: dict[str, Any] = {
        key: file.count(options.pop(key), f"{at}.{key}") for key in (NPROC, NODES) if key in settings
    }
    if PROBE in options:
        probe = read_probe(file, options.pop(PROBE), f"{at}.{PROBE}")
        beside[PROBE] = False if probe is None else probe.model_dump()
    if ENV in options:
        variables = read_environment(file, options.pop(ENV), f"{at}.{ENV}")
        beside |= {f"{ENV}.{variable}": text for variable, text in variables.items()}
    return Value(name, name, name, *file.layers(options, at), beside)


def read_environment(file: MatrixFile, content: Any, at: str) -> Environment:
    """Return the variables of `env`."""
    if not isinstance(content, dict) or not content:
        allowed = "a mapping of variables to values, such as {NCCL_DEBUG: WARN}"
        file.refuse(f"{at} is {describe_value(content)}; allowed: {allowed}", at)
        return {}
    return {str(name): read_variable(file, str(name), value, f"{at}.{name}") for name, value in content.items()}


def read_variable(file: MatrixFile, name: str, value: Any, at: str) -> str | None:
    """Return the value of a variable as text, None to unset it; problems are added to `file`."""
    problem = None
    if (reason := why_not_to_set(name)) is not None:
        problem = f": {one_line(name)} {reason}"
    elif isinstance(value, bool):
        problem = f' is {describe_value(value)}, which some programs write "1" and some "true"; put it in quotes'
    elif not (value is None or isinstance(value, str | int | float)):
        problem = f" is {describe_value(value)}; allowed: text, a number, or null to unset it"
    elif not str(value).isprintable():
        problem = " has a line break or a control character; allowed: one line of text"
    if problem is not None:
        file.refuse(f"{at}{problem}", at)
    return None if value is None or problem is not None else str(value)


def for_a_run(environment: Mapping[str, str | None]) -> Environment:
    """Return the variables of a run, and one with their names, so that its record contains all of them."""
    return {**environment, RECORD_VARIABLE: record_words(environment)} if environment else {}


def show(value: Any) -> str:
    """Return a value for tables: short numbers, a kind followed by its options, other values as YAML."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(show(item) for item in value)}]"
    if isinstance(value, dict) and isinstance(value.get("kind"), str):
        rest = ", ".join(f"{key}: {show(item)}" for key, item in value.items() if key != "kind")
        return f"{value['kind']} ({rest})" if rest else value["kind"]
    return value if isinstance(value, str) and value else one_line(value)


def value_name(value: Any, axis: str) -> str:
    """Return a value as part of the name of a run: a text by itself, other values after the name of the axis."""
    text = slug(show(value)) if isinstance(value, str | dict) else ""
    return text or slug(f"{axis}-{show(value)}")


def slug(text: str) -> str:
    """Return text as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("._-")


def short(key: str) -> str:
    """Return the last part of a key; for `name` and `kind` the part before: model of model.name."""
    *above, last = key.split(".")
    return above[-1] if above and last in ("name", "kind") else last
