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

    def refuse_value(self, value: Any, allowed: str, at: str, code: str = "config.invalid_value") -> None:
        """Add the problem that the value of a key, or the content of the file, is none of those allowed."""
        self.refuse(f"{at or 'the file'} is {describe_value(value)}; allowed: {allowed}", at, code)

    def section(self, kind: type[S], content: Any, at: str = "") -> S | None:
        """Return the options of a section, or of the file; None where they have problems, which are collected."""
        if not isinstance(content, dict):
            self.refuse_value(content, f"a mapping of options ({', '.join(section_options(kind))})", at)
            return None
        values, findings = validate_as(kind, content, at or "the file", at)
        for problem in findings.problems:
            self.refuse(problem.message, problem.keys[0], problem.code)
        return None if findings.problems else kind.model_validate(values)

    def layers(self, settings: Mapping[Any, Any], at: str, *, called: str = EXTENDS) -> tuple[Layer, Layer]:
        """Return the settings of extended files and the own settings; `called` is the key that names the files."""
        below, own = layers_within(settings, self.places, at, self.path, called=called)
        self.problems += [*below.problems, *own.problems]
        return replace(below, problems=[]), replace(own, problems=[])


SEED = "run.seed"
FOLD = "data.split.fold"
HELD_OUT = "data.split.held_out"
SEEDS = frozenset({SEED, "data.split.seed", FOLD, HELD_OUT})
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
    own = Layer()
    beside: dict[str, Any] = {}
    if key in (NPROC, NODES) or key.startswith(f"{ENV}."):
        beside = {key: _read_beside(file, key, value, at)}
        if value is None:
            return Value(slug(f"{name}-{UNSET}"), UNSET, value, beside=beside)
    else:
        inside = [place for place in file.places if place == at or place.startswith((f"{at}.", f"{at}["))]
        own = layer_of(key, value, {place.replace(at, key, 1): file.places[place] for place in inside})
    # A text is its own name in names of runs; other values follow the name of the axis.
    text = slug(show(value)) if isinstance(value, str | dict) else ""
    return Value(text or slug(f"{name}-{show(value)}"), show(value), value, own=own, beside=beside)


def _named(file: MatrixFile, name: str, settings: Any, at: str) -> Value:
    if not NAME.fullmatch(name):
        allowed = "letters, digits, '.', '_' and '-', with a letter or digit first"
        file.refuse(f"{at}: {name!r} becomes part of the names of runs; allowed: {allowed}", at)
        name = slug(name)
    if not isinstance(settings, dict) or not settings:
        file.refuse_value(settings, "a mapping, such as {train.learning_rate: 1e-5}", at)
        return Value(name, name, name)
    options = dict(settings)
    counts = [key for key in (NPROC, NODES) if key in settings]
    beside: dict[str, Any] = {key: _read_beside(file, key, options.pop(key), f"{at}.{key}") for key in counts}
    if ENV in options:
        variables = read_environment(file, options.pop(ENV), f"{at}.{ENV}")
        beside |= {f"{ENV}.{variable}": text for variable, text in variables.items()}
    return Value(name, name, name, *file.layers(options, at), beside)


def read_environment(file: MatrixFile, content: Any, at: str) -> Environment:
    """Return the variables of `env`."""
    if not isinstance(content, dict) or not content:
        file.refuse_value(content, "a mapping of variables to values, such as {NCCL_DEBUG: WARN}", at)
        return {}
    return {str(name): _read_beside(file, f"{ENV}.{name}", value, f"{at}.{name}") for name, value in content.items()}


def _read_beside(file: MatrixFile, key: str, value: Any, at: str) -> Any:
    """Return the number of `nproc` or `nodes`, or the text of a variable, None to unset it.

    The file collects problems.
    """
    if key in (NPROC, NODES):
        if type(value) is int and value > 0:
            return value
        file.refuse_value(value, "a whole number at least 1", at)
        return 1
    name, problem = key.removeprefix(f"{ENV}."), None
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
    varied: tuple[str, ...] = ()
    """The dotted keys, also of files, in which its values differ."""


def read_axes(file: MatrixFile, content: Mapping[str, Any], base: Layer) -> tuple[MatrixAxis, ...]:
    """Return the axes of a file; `base` has the settings of the matrix for all runs."""
    shorts = [short(str(key)) for key in content]
    read = {}
    for (key, values), name in zip(content.items(), shorts, strict=True):
        label = name if shorts.count(name) == 1 else str(key)
        if found := _values(file, str(key), label, values):
            read[str(key)] = label, found
    _check_apart(file, {key: values for key, (_, values) in read.items()})
    # A seed that the matrix sets itself has priority over seeds in files.
    own_settings = (value.above for _, values in read.values() for value in values)
    says_seed = any(SEED in settings for settings in (flatten(base.values), *own_settings))
    axes = tuple(_axis(file, key, label, values, through_files=not says_seed) for key, (label, values) in read.items())
    repeated = [axis.key for axis in axes if axis.is_seed]
    if len(repeated) > 1 and any(axis.is_seed and {FOLD, HELD_OUT} & {*axis.varied} for axis in axes):
        message = (
            f"axes.{repeated[0]} and axes.{repeated[1]} both repeat runs, and the mean is taken over one axis; name "
            f"pairs of values on one axis: {{first: {{{SEED}: 41, {FOLD}: 0}}, second: ...}}"
        )
        file.refuse(message, f"axes.{repeated[1]}", code="config.conflict")
    return axes


def _values(file: MatrixFile, key: str, name: str, content: Any) -> tuple[Value, ...]:
    """Return the values of an axis; none where it is not an axis."""
    at, before = f"axes.{key}", len(file.problems)
    if not isinstance(content, list | dict) or not content:
        allowed = f"a list of values of the option {key}, or a mapping of names to settings, such as "
        file.refuse_value(content, allowed + "{small: {train.learning_rate: 1e-5, train.epochs: 3}}", at)
        return ()
    if isinstance(content, list):
        values = [_listed(file, key, name, value, f"{at}[{number}]") for number, value in enumerate(content)]
    else:
        values = [_named(file, str(value), settings, f"{at}.{value}") for value, settings in content.items()]
    if key == ENV:
        allowed = f"{ENV}.NAME: [...], or settings that go together, {{first: {{{ENV}: {{NAME: value}}}}, second: ...}}"
        file.refuse(f"{at}: an axis is of one variable, {allowed} under a name that is not {ENV}", at)
        return ()
    if key in OURS or any(own in value.own.places for own in OURS for value in values):
        file.refuse(f"{at}: the matrix gives each run its folder and name; see folder: and name:", at)
    if len(file.problems) == before:  # a wrong value was replaced by another one, which may be there twice
        names = [value.name.lower() for value in values]  # some file systems do not distinguish A and a
        twice = next((value.shown for value in values if names.count(value.name.lower()) > 1), None)
        if twice is not None:
            message = f"{at} has {twice} twice, or two values that make one name of a run; keep one, or give them names"
            file.refuse(f"{message}: {{first: {{{key}: ...}}, second: {{...}}}}", at)
    return tuple(values)


def _check_apart(file: MatrixFile, axes: Mapping[str, Sequence[Value]]) -> None:
    """Refuse axes that set the same option, because one of them would have no effect.

    Equal settings of files are allowed: an axis' own settings have priority over them.
    """
    set_by: list[tuple[str, tuple[list[str], ...]]] = []
    for key, values in axes.items():
        set_here = (place for value in values for place in (*value.own.places, *value.beside))
        places = dict.fromkeys(place.partition("[")[0] for place in set_here)
        own = [place for place in places if not any(other.startswith(f"{place}.") for other in places)]
        set_by.append((key, (own, _varied(flatten(value.below.values) for value in values))))
    for (other, theirs), (key, ours) in itertools.combinations(set_by, 2):
        for taken, keys in zip(theirs, ours, strict=True):
            both = [set_key for set_key in keys if any(overlap(set_key, other_key) for other_key in taken)]
            if both:
                message = f"axes.{key} sets {both[0]}, which axes.{other} sets too"
                remedy = "put values that go together on one axis"
                file.refuse(f"{message}; {remedy}", f"axes.{key}", code="config.conflict")
                break


def _axis(file: MatrixFile, key: str, label: str, values: tuple[Value, ...], *, through_files: bool) -> MatrixAxis:
    """Return an axis of these values, marked when it is an axis of seeds, among which nothing is chosen.

    Refuses an axis that varies the seed and something else: the mean would be over more than seeds.
    """
    given = [value.settings if through_files else value.above for value in values]
    varied = _varied(given) if len(given) > 1 else list(given[0])
    without = [value.name for value, settings in zip(values, given, strict=True) if SEED not in settings]
    others = [other for other in varied if other not in SEEDS]
    is_seed = varied in ([FOLD], [HELD_OUT]) or (SEED in varied and not without and not others)
    if SEED in varied and not is_seed and len(given) > 1:
        fault = f"{without[0]} does not set {SEED}" if without else f"they differ in {others[0]} too"
        message = (
            f"axes.{key}: its values differ in {SEED}, and {fault}; the mean is taken over seeds, and the "
            f"best of all else is chosen: put {SEED} on a separate axis ({SEED}: [41, 42, 43])"
        )
        file.refuse(message, f"axes.{key}")
    expanded = [
        {f"{key}.kind" if key in SHORTHAND and isinstance(text, str) else key: text for key, text in settings.items()}
        for settings in (value.settings for value in values)
    ]
    places = [place for value in values for place in (*value.below.places, *value.own.places)]
    columns = ("task", "data.train", "data.validation")
    return MatrixAxis(
        key,
        label,
        {value.name: value.shown for value in values},
        is_seed=is_seed,
        is_column=any(overlap(place, column) for place in places for column in columns),
        keys=tuple(_varied(expanded) if len(expanded) > 1 else expanded[0]),
        read=values,
        varied=tuple(_varied(value.settings for value in values)),
    )


def _varied(values: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys in which settings differ, or that only some of them have."""
    values = list(values)
    keys = dict.fromkeys(key for settings in values for key in settings)
    texts = {key: {one_line(settings[key]) if key in settings else None for settings in values} for key in keys}
    return [key for key in keys if len(texts[key]) > 1]


def find_axis(axes: Sequence[MatrixAxis], key: Any) -> MatrixAxis | str:
    """Return the axis with this key or label, or what is wrong with the key."""
    if (axis := next((axis for axis in axes if key in (axis.key, axis.label)), None)) is not None:
        return axis
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
        if isinstance(axis, str):
            problems.append(Problem(axis, (place,), code="config.unknown_key"))
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
        file.refuse_value(wanted, "values of axes, such as {nproc: 4}", at)
        return None
    found, problems = find_values(axes, wanted, at)
    for key in wanted:
        axis, message = find_axis(axes, key), None
        if isinstance(axis, MatrixAxis) and axis.is_seed:
            message = f"{key} has seeds, and figures are means over seeds; leave it out"
        elif isinstance(axis, MatrixAxis) and len(found[axis.label]) > 1:
            message = f"{key} has {len(found[axis.label])} values; name one"
        if message is not None:
            problems.append(Problem(message, (f"{at}.{key}",), code="config.invalid_value"))
    for problem in problems:
        file.refuse(f"{at}: {problem.message}", problem.keys[0], code or problem.code)
    return None if problems else {label: name for label, (name,) in found.items()}
