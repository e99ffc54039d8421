"""The axes of a matrix: the settings of each value, and the axes of seeds.

Each axis is a list of values of one option, or a mapping of names to settings that go together.
"""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from paratune.base.text import plain
from paratune.config.differences import flatten
from paratune.config.layers import SHORTHAND, Layer
from paratune.config.plain import one_line
from paratune.config.problems import overlap
from paratune.config.validate import describe_value
from paratune.config.yaml_tree import read_scalar
from paratune.errors import did_you_mean
from paratune.records.sweep import Axis
from paratune.sweeps.matrix_file import MatrixFile
from paratune.sweeps.values import ENV, Value, read_listed, read_named, short, show

SEED = "run.seed"
FOLD = "data.split.fold"
SEEDS = frozenset({SEED, "data.split.seed", FOLD})
"""Settings in which repetitions of a run differ."""
OURS = ("run.name", "run.folder")
"""Settings that the matrix sets for each run."""


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
        values = [read_listed(file, key, name, value, f"{at}[{number}]") for number, value in enumerate(content)]
    elif isinstance(content, dict) and content:
        values = [read_named(file, str(value), settings, f"{at}.{value}") for value, settings in content.items()]
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
    axes: Sequence[MatrixAxis], wanted: Mapping[Any, Any]
) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Return the names of the wanted values by the label of their axis, and each problem as a message and a code."""
    found: dict[str, list[str]] = {}
    problems = []
    for key, given in wanted.items():
        axis = find_axis(axes, key)
        if axis is None:
            problems.append((no_axis(axes, key), "config.unknown_key"))
            continue
        # A list names several values, unless it is one value.
        items = given if isinstance(given, list) and _find_value(axis, given) is None else [given]
        names = [name for item in items if (name := _find_value(axis, item)) is not None]
        if not items or len(names) < len(items):
            known = ", ".join(axis.values.values())
            problems.append((f"{show(given)} is not on the axis {key}; it has: {known}", "config.invalid_value"))
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
    found, problems = find_values(axes, wanted)
    for label, names in found.items():
        if find_axis(axes, label).is_seed:  # type: ignore[union-attr]
            message = f"{label} has seeds, and figures are means over seeds; leave it out"
            problems.append((message, "config.invalid_value"))
        elif len(names) > 1:
            problems.append((f"{label} has {len(names)} values; name one", "config.invalid_value"))
    for message, own_code in problems:
        file.refuse(f"{at}: {message}", at, code or own_code)
    return None if problems else {label: name for label, (name,) in found.items()}
