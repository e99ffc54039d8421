"""A matrix file while it is read, and its axes: the settings of each value, names in tables and in names of runs.

Each axis is a list of values of one option, or a mapping of names to settings that go together.
"""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from paratune.base.text import plain
from paratune.config.layers import (
    EXTENDS,
    SHORTHAND,
    Layer,
    label,
    layer_of,
    layers_within,
    merge,
    read_text,
    refuse_other_file,
)
from paratune.config.options import section_options
from paratune.config.plain import flatten, one_line
from paratune.config.problems import Problem, SourceLocation, overlap
from paratune.config.section import Section
from paratune.config.validate import describe_value, validate_as
from paratune.config.yaml_tree import read_scalar, read_tree
from paratune.errors import did_you_mean
from paratune.hardware.environment import RECORD_VARIABLE, UNSET, record_words, why_not_to_set
from paratune.records.sweep import NAME, Axis

S = TypeVar("S", bound=Section)


class MatrixFile:
    """One file; problems are collected, so that all of them are reported at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = label(path, path.parent)
        """Its name in messages."""
        refuse_other_file(path)
        tree = read_tree(read_text(path), self.label)
        self.value, self.places = tree.value, tree.places
        """Its content, and the line of each value by dotted key."""
        self.problems: list[Problem] = list(tree.problems)

    def refuse(self, message: str, key: str, code: str = "config.invalid_value") -> None:
        """Add a problem of a key."""
        keys = (key,)
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        self.problems.append(Problem(message, keys, self.places.get(key, SourceLocation(self.label, 1)), code=code))

    def add(self, problems: Iterable[Problem], at: str, code: str | None = None) -> None:
        """Add problems of the key `at` or of keys inside it, with this code or their own."""
        for problem in problems:
            self.refuse(f"{at}: {problem.message}", problem.keys[0], code or problem.code)

    def section(self, kind: type[S], content: Any, at: str = "") -> S | None:
        """Return the options of a section, or of the file; None where they have problems, which are collected."""
        called = at or "the file"
        if not isinstance(content, dict):
            allowed = f"a mapping of options ({', '.join(section_options(kind))})"
            self.refuse(f"{called} is {describe_value(content)}; allowed: {allowed}", at)
            return None
        values, findings = validate_as(kind, content, called, at)
        for problem in findings.problems:
            self.refuse(problem.message, problem.keys[0], problem.code)
        return None if findings.problems else kind.model_validate(values)

    def count(self, value: Any, key: str) -> int:
        """Return a whole number of at least 1; 1 when the value is invalid."""
        if type(value) is not int or value < 1:
            self.refuse(f"{key} is {describe_value(value)}; allowed: a whole number at least 1", key)
            return 1
        return value

    def layers(self, settings: Mapping[Any, Any], at: str, *, called: str = EXTENDS) -> tuple[Layer, Layer]:
        """Return the settings of extended files and the own settings; `called` is the key that names the files."""
        below, own = layers_within(settings, self.places, at, self.path, called=called)
        self.problems += [*below.problems, *own.problems]
        return replace(below, problems=[]), replace(own, problems=[])


SEED = "run.seed"
FOLD = "data.split.fold"
SEEDS = frozenset({SEED, "data.split.seed", FOLD})
"""Settings in which repetitions of a run differ."""
OURS = ("run.name", "run.folder")
"""Settings that the matrix sets for each run."""
NPROC, NODES, ENV = "nproc", "nodes", "env"
"""Settings that are not options of a run, for all runs, for a named value, or as axes (one for each `env.NAME`)."""
Environment = dict[str, str | None]
"""Variables by name; None unsets one that runs would inherit."""


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
    """Its settings that are not options of a run: `nproc`, `nodes` and `env.NAME`."""

    @property
    def above(self) -> dict[str, Any]:
        """Its settings in the matrix file itself, by dotted key."""
        return {**flatten(self.own.values), **self.beside}

    @property
    def settings(self) -> dict[str, Any]:
        """All its settings, also those of files, by dotted key."""
        return flatten(merge(self.below, self.own).values) | self.above


def _listed(file: MatrixFile, key: str, name: str, value: Any, at: str) -> Value:
    """Return a value of the option or variable that the axis `key` sets; `name` is that of the axis in runs' names."""
    if key in (NPROC, NODES):
        count = file.count(value, at)
        return Value(f"{key}-{count}", str(count), value, beside={key: count})
    if key.startswith(f"{ENV}."):
        beside = {key: _read_variable(file, key.removeprefix(f"{ENV}."), value, at)}
        if value is None:
            return Value(slug(f"{name}-{UNSET}"), UNSET, value, beside=beside)
        return Value(value_name(value, name), show(value), value, beside=beside)
    places = {
        place.replace(at, key, 1): line
        for place, line in file.places.items()
        if place == at or place.startswith((f"{at}.", f"{at}["))
    }
    return Value(value_name(value, name), show(value), value, own=layer_of(key, value, places))


def _named(file: MatrixFile, name: str, settings: Any, at: str) -> Value:
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
    return {str(name): _read_variable(file, str(name), value, f"{at}.{name}") for name, value in content.items()}


def _read_variable(file: MatrixFile, name: str, value: Any, at: str) -> str | None:
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


@dataclass(frozen=True)
class MatrixAxis(Axis):
    """An axis with the settings of each value."""

    read: tuple[Value, ...] = ()

    @property
    def record(self) -> Axis:
        """The axis in `sweep.json`."""
        return Axis(self.key, self.label, self.values, self.is_seed, self.is_column, self.keys)

    @property
    def varied(self) -> list[str]:
        """The dotted keys, also of files, in which its values differ."""
        return _varied(value.settings for value in self.read)


def read_axes(file: MatrixFile, content: Mapping[str, Any], base: Layer) -> tuple[MatrixAxis, ...]:
    """Return the axes of a file; `base` has the settings of the matrix for all runs."""
    shorts = [short(str(key)) for key in content]
    read = (
        _axis(file, str(key), name if shorts.count(name) == 1 else str(key), values)
        for (key, values), name in zip(content.items(), shorts, strict=True)
    )
    axes = [axis for axis in read if axis is not None]
    _check_apart(file, axes)
    # A seed that the matrix sets itself has priority over seeds in files.
    says_seed = SEED in flatten(base.values) or any(SEED in value.above for axis in axes for value in axis.read)
    axes = [_finished(file, axis, through_files=not says_seed) for axis in axes]
    repeated = [axis.key for axis in axes if axis.is_seed]
    if len(repeated) > 1 and any(axis.is_seed and FOLD in axis.varied for axis in axes):
        message = (
            f"axes.{repeated[0]} and axes.{repeated[1]} both repeat runs, and the mean is taken over one axis; name "
            f"pairs of values on one axis: {{first: {{{SEED}: 41, {FOLD}: 0}}, second: ...}}"
        )
        file.refuse(message, f"axes.{repeated[1]}", code="config.conflict")
    return tuple(axes)


def _axis(file: MatrixFile, key: str, name: str, content: Any) -> MatrixAxis | None:
    at, before = f"axes.{key}", len(file.problems)
    if isinstance(content, list) and content:
        values = [_listed(file, key, name, value, f"{at}[{number}]") for number, value in enumerate(content)]
    elif isinstance(content, dict) and content:
        values = [_named(file, str(value), settings, f"{at}.{value}") for value, settings in content.items()]
    else:
        allowed = (
            f"a list of values of the option {key}, or a mapping of names to settings, such as "
            "{small: {train.learning_rate: 1e-5, train.epochs: 3}}"
        )
        file.refuse(f"{at} is {describe_value(content)}; allowed: {allowed}", at)
        return None
    if key == ENV:
        allowed = f"{ENV}.NAME: [...], or settings that go together, {{first: {{{ENV}: {{NAME: value}}}}, second: ...}}"
        file.refuse(f"{at}: an axis is of one variable, {allowed} under a name that is not {ENV}", at)
        return None
    if key in OURS or any(own in value.own.places for own in OURS for value in values):
        file.refuse(f"{at}: the matrix gives each run its folder and name; see folder: and name:", at)
    if len(file.problems) == before:  # a wrong value was replaced by another one, which may be there twice
        names = [value.name.lower() for value in values]  # some file systems do not distinguish A and a
        twice = next((value.shown for value in values if names.count(value.name.lower()) > 1), None)
        if twice is not None:
            message = f"{at} has {twice} twice, or two values that make one name of a run; keep one, or give them names"
            file.refuse(f"{message}: {{first: {{{key}: ...}}, second: {{...}}}}", at)
    settings = [setting for value in values for setting in (*value.below.places, *value.own.places)]
    columns = ("task", "data.train", "data.validation")
    is_column = any(overlap(setting, part) for setting in settings for part in columns)
    shown = {value.name: value.shown for value in values}
    return MatrixAxis(key, name, shown, is_column=is_column, read=tuple(values))


def _check_apart(file: MatrixFile, axes: Sequence[MatrixAxis]) -> None:
    """Refuse axes that set the same option, because one of them would have no effect.

    Equal settings of files are allowed: an axis' own settings have priority over them.
    """

    def own(axis: MatrixAxis) -> list[str]:
        places = {key.partition("[")[0] for value in axis.read for key in (*value.own.places, *value.beside)}
        return [key for key in places if not any(other.startswith(f"{key}.") for other in places)]

    def of_files(axis: MatrixAxis) -> list[str]:
        return _varied(flatten(value.below.values) for value in axis.read)

    for other, axis in itertools.combinations(axes, 2):
        for keys in (own, of_files):
            both = [key for key in keys(axis) if any(overlap(key, taken) for taken in keys(other))]
            if both:
                message = f"axes.{axis.key} sets {both[0]}, which axes.{other.key} sets too"
                remedy = "put values that go together on one axis"
                file.refuse(f"{message}; {remedy}", f"axes.{axis.key}", code="config.conflict")
                break


def _finished(file: MatrixFile, axis: MatrixAxis, *, through_files: bool) -> MatrixAxis:
    """Return the axis with its keys, and marked when it is an axis of seeds, among which nothing is chosen.

    Refuses an axis that varies the seed and something else: the mean would be over more than seeds.
    """
    values = [value.settings if through_files else value.above for value in axis.read]
    varied = _varied(values) if len(values) > 1 else list(values[0])
    without = [value.name for value, settings in zip(axis.read, values, strict=True) if SEED not in settings]
    others = [key for key in varied if key not in SEEDS]
    is_seed = varied == [FOLD] or (SEED in varied and not without and not others)
    if SEED in varied and not is_seed and len(values) > 1:
        fault = f"{without[0]} does not set {SEED}" if without else f"they differ in {others[0]} too"
        message = (
            f"axes.{axis.key}: its values differ in {SEED}, and {fault}; the mean is taken over seeds, and the "
            f"best of all else is chosen: put {SEED} on a separate axis ({SEED}: [41, 42, 43])"
        )
        file.refuse(message, f"axes.{axis.key}")
    expanded = [
        {f"{key}.kind" if key in SHORTHAND and isinstance(text, str) else key: text for key, text in settings.items()}
        for settings in (value.settings for value in axis.read)
    ]
    keys = tuple(_varied(expanded) if len(expanded) > 1 else expanded[0])
    return replace(axis, is_seed=is_seed, keys=keys)


def _varied(values: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys in which settings differ, or that only some of them have."""
    values = list(values)
    keys = dict.fromkeys(key for settings in values for key in settings)
    return [
        key for key in keys if len({one_line(settings[key]) if key in settings else None for settings in values}) > 1
    ]


def find_axis(axes: Sequence[MatrixAxis], key: Any) -> MatrixAxis | None:
    """Return the axis with this key or label."""
    return next((axis for axis in axes if key in (axis.key, axis.label)), None)


def no_axis(axes: Sequence[MatrixAxis], key: Any) -> str:
    """Return what is wrong with a key that is none of an axis."""
    near = did_you_mean(str(key), [name for axis in axes for name in (axis.key, axis.label)])
    near = near or f"; there are: {', '.join(axis.label for axis in axes)}"
    return f"{plain(str(key))} is not an axis{near}"


def _find_value(axis: MatrixAxis, wanted: Any) -> str | None:
    """Return the name of a value that is given as in the file, as shown, or by its name; None when there is none."""
    readings = [wanted]
    if isinstance(wanted, str):  # of a command line, where 1e-4 is text
        with suppress(ValueError):
            readings.append(read_scalar(wanted))
    for value in axis.read:
        if any(type(reading) is type(value.plain) and reading == value.plain for reading in readings):
            return value.name
    return next((name for name, title in axis.values.items() if str(wanted) in (name, title)), None)


def find_values(
    axes: Sequence[MatrixAxis], wanted: Mapping[Any, Any], at: str = ""
) -> tuple[dict[str, list[str]], list[Problem]]:
    """Return the names of the wanted values by the label of their axis, and the problems of `wanted`, the key `at`."""
    found: dict[str, list[str]] = {}
    problems = []
    for key, given in wanted.items():
        place = f"{at}.{key}" if at else str(key)
        axis = find_axis(axes, key)
        if axis is None:
            problems.append(Problem(no_axis(axes, key), (place,), code="config.unknown_key"))
            continue
        # A list names several values, unless it is one value.
        items = given if isinstance(given, list) and _find_value(axis, given) is None else [given]
        names = [name for item in items if (name := _find_value(axis, item)) is not None]
        if not items or len(names) < len(items):
            message = f"{show(given)} is not on the axis {key}; it has: {', '.join(axis.values.values())}"
            problems.append(Problem(message, (place,), code="config.invalid_value"))
        found[axis.label] = names
    return found, problems


def find_one_of_each(
    file: MatrixFile, axes: Sequence[MatrixAxis], wanted: Any, at: str, code: str | None = None
) -> dict[str, str] | None:
    """Return one configuration: the name of one value by the label of each named axis, seeds not among them.

    None where something is wrong: `file` collects the problems, with this code or their own.
    """
    if not isinstance(wanted, dict):
        allowed = "values of axes, such as {nproc: 4}"
        file.refuse(f"{at} is {describe_value(wanted)}; allowed: {allowed}", at)
        return None
    found, problems = find_values(axes, wanted, at)
    for key in wanted:
        axis = find_axis(axes, key)
        message = None
        if axis is not None and axis.is_seed:
            message = f"{key} has seeds, and figures are means over seeds; leave it out"
        elif axis is not None and len(found[axis.label]) > 1:
            message = f"{key} has {len(found[axis.label])} values; name one"
        if message is not None:
            problems.append(Problem(message, (f"{at}.{key}",), code="config.invalid_value"))
    file.add(problems, at, code)
    return None if problems else {label: name for label, (name,) in found.items()}
