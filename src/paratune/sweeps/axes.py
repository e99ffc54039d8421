"""The axes of a matrix: the settings of each value, and the axes of seeds.

Each axis is a list of values of one option, or a mapping of names to settings that go together.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

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
ANY: Any = object()
"""In place of a value, for `find_values`: any value of the axis."""
OURS = ("run.name", "run.folder")
"""Settings that the matrix sets for each run."""


@dataclass(frozen=True)
class AxisOfValues:
    """An axis with the settings of each value."""

    axis: Axis
    values: tuple[Value, ...]

    def by_name(self, name: str) -> Value:
        """Return the value of that name."""
        return next(value for value in self.values if value.name == name)

    @property
    def varied(self) -> list[str]:
        """The dotted keys, also of files, in which its values differ."""
        return _varied([value.settings for value in self.values])


def read_axes(file: MatrixFile, content: Mapping[str, Any], base: Layer) -> tuple[AxisOfValues, ...]:
    """Return the axes of a file.

    Args:
        base: The settings of the matrix for all runs.
    """
    shorts = [short(str(key)) for key in content]
    axes = []
    for key, values in content.items():
        name = short(str(key))
        axis = _axis(file, str(key), name if shorts.count(name) == 1 else str(key), values)
        if axis is not None:
            axes.append(axis)
    _check_apart(file, axes)
    says_seed = SEED in flatten(base.values) or any(SEED in value.above for axis in axes for value in axis.values)
    axes = [_with_seeds(file, axis, through_files=not says_seed) for axis in axes]
    repeated = [axis.axis.key for axis in axes if axis.axis.is_seed]
    if len(repeated) > 1 and any(axis.axis.is_seed and FOLD in axis.varied for axis in axes):
        message = (
            f"axes.{repeated[0]} and axes.{repeated[1]} both repeat runs, and the mean is taken over one axis; name "
            f"pairs of values on one axis: {{first: {{{SEED}: 41, {FOLD}: 0}}, second: ...}}"
        )
        file.refuse(message, f"axes.{repeated[1]}", code="config.conflict")
    return tuple(replace(axis, axis=replace(axis.axis, keys=_recorded_keys(axis))) for axis in axes)


def _recorded_keys(axis: AxisOfValues) -> tuple[str, ...]:
    """Return the keys in which the values of an axis differ, with shorthands (`strategy: ddp`) expanded."""
    values = [
        {
            f"{key}.kind" if key in SHORTHAND and isinstance(setting, str) else key: setting
            for key, setting in settings.items()
        }
        for settings in (value.settings for value in axis.values)
    ]
    return tuple(_varied(values) if len(values) > 1 else values[0])


def _with_seeds(file: MatrixFile, axis: AxisOfValues, *, through_files: bool) -> AxisOfValues:
    """Return the axis, marked when it is an axis of seeds, among which nothing is chosen.

    Refuses an axis that varies the seed and something else: the mean would be over more than seeds.
    """
    # A seed that the matrix sets itself has priority over seeds in files.
    values = [value.settings if through_files else value.above for value in axis.values]
    varied = _varied(values) if len(values) > 1 else list(values[0])
    if varied == [FOLD]:
        return replace(axis, axis=replace(axis.axis, is_seed=True))
    if SEED not in varied:
        return axis
    without = [value.name for value, settings in zip(axis.values, values, strict=True) if SEED not in settings]
    others = [key for key in varied if key not in SEEDS]
    if not without and not others:
        return replace(axis, axis=replace(axis.axis, is_seed=True))
    if len(values) > 1:
        fault = f"{without[0]} does not set {SEED}" if without else f"they differ in {others[0]} too"
        at = f"axes.{axis.axis.key}"
        file.refuse(
            f"{at}: its values differ in {SEED}, and {fault}; the mean is taken over seeds, and the best of all "
            f"else is chosen: put {SEED} on a separate axis ({SEED}: [41, 42, 43])",
            at,
        )
    return axis


def _axis(file: MatrixFile, key: str, name: str, content: Any) -> AxisOfValues | None:
    at = f"axes.{key}"
    before = len(file.problems)
    if isinstance(content, list) and content:
        values = [read_listed(file, key, name, value, f"{at}[{number}]") for number, value in enumerate(content)]
    elif isinstance(content, dict) and content:
        values = [read_named(file, str(value), settings, f"{at}.{value}") for value, settings in content.items()]
    else:
        file.refuse(
            f"{at} is {describe_value(content)}; allowed: a list of values of the option {key}, or a mapping of "
            "names to settings, such as {small: {train.learning_rate: 1e-5, train.epochs: 3}}",
            at,
        )
        return None
    if key == ENV:
        file.refuse(
            f"{at}: an axis is of one variable, {ENV}.NAME: [...], or names settings that go together: "
            f"{{first: {{{ENV}: {{NAME: value}}}}, second: ...}} under a name that is not {ENV}",
            at,
        )
        return None
    if key in OURS or any(own in value.own.places for own in OURS for value in values):
        file.refuse(f"{at}: the matrix gives each run its folder and name; see folder: and name:", at)
    is_right = len(file.problems) == before  # a wrong value was replaced by another one, which may be there twice
    names = [value.name.lower() for value in values if is_right]  # some file systems do not distinguish A and a
    for value in values:
        if names.count(value.name.lower()) > 1:
            file.refuse(
                f"{at} has {value.shown} twice, or two values that make one name of a run; keep one, or "
                f"give them names: {{first: {{{key}: ...}}, second: {{...}}}}",
                at,
            )
            break
    keys = [key_set for value in values for key_set in (*value.below.places, *value.own.places)]
    axis = Axis(
        key,
        name,
        {value.name: value.shown for value in values},
        is_column=any(overlap(key_set, part) for key_set in keys for part in ("task", "data.train", "data.validation")),
    )
    return AxisOfValues(axis, tuple(values))


def _check_apart(file: MatrixFile, axes: Sequence[AxisOfValues]) -> None:
    """Refuse axes that set the same option, because one of them would have no effect.

    Equal settings of files are allowed: an axis' own settings have priority over them.
    """
    for number, axis in enumerate(axes):
        for other in axes[:number]:
            both = _common(_own_leaves(axis), _own_leaves(other)) or _common(_of_files(axis), _of_files(other))
            if both:
                message = (
                    f"axes.{axis.axis.key} sets {both[0]}, which axes.{other.axis.key} sets too; put values that "
                    "go together on one axis"
                )
                file.refuse(message, f"axes.{axis.axis.key}", code="config.conflict")


def find_value(axis: AxisOfValues, wanted: Any) -> str | None:
    """Return the name of a value that is given as in the file, as shown, or by its name; None when there is none."""
    readings = [wanted]
    if isinstance(wanted, str):  # of a command line, where 1e-4 is text
        with suppress(ValueError):
            readings.append(read_scalar(wanted))
    for value in axis.values:
        if any(type(reading) is type(value.plain) and reading == value.plain for reading in readings):
            return value.name
    return next((name for name, title in axis.axis.values.items() if str(wanted) in (name, title)), None)


def find_axis(axes: Sequence[AxisOfValues], key: Any) -> AxisOfValues | None:
    """Return the axis with this key or label."""
    return next((axis for axis in axes if key in (axis.axis.key, axis.axis.label)), None)


def find_values(
    axes: Sequence[AxisOfValues], wanted: Mapping[Any, Any]
) -> tuple[dict[str, list[str]], list[tuple[str, str]]]:
    """Return the values that a mapping of axes to values names, as names by the label of their axis.

    Args:
        wanted: A value, or a list of values, by the key or the label of an axis.

    Returns:
        The names, and each problem as a message and a code.
    """
    found: dict[str, list[str]] = {}
    problems = []
    for key, given in wanted.items():
        axis, items = find_axis(axes, key), given if isinstance(given, list) else [given]
        if axis is None:
            near = did_you_mean(str(key), [name for axis in axes for name in (axis.axis.key, axis.axis.label)])
            known = ", ".join(axis.axis.label for axis in axes)
            problems.append((f"{key} is not an axis{near or f'; there are: {known}'}", "config.unknown_key"))
            continue
        names = [name for item in items if (name := find_value(axis, item)) is not None]
        if given is not ANY and (not items or len(names) < len(items)):
            known = ", ".join(axis.axis.values.values())
            problems.append((f"{show(given)} is not on the axis {key}; it has: {known}", "config.invalid_value"))
        found[axis.axis.label] = names
    return found, problems


def _own_leaves(axis: AxisOfValues) -> list[str]:
    places = {key.partition("[")[0] for value in axis.values for key in (*value.own.places, *value.beside)}
    return [key for key in places if not any(other.startswith(f"{key}.") for other in places)]


def _of_files(axis: AxisOfValues) -> list[str]:
    """Return the keys in which the files differ that an axis extends."""
    return _varied([flatten(value.below.values) for value in axis.values])


def _common(keys: Sequence[str], others: Sequence[str]) -> list[str]:
    return [key for key in keys if any(overlap(key, other) for other in others)]


def _varied(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys in which settings differ, or that only some of them have."""
    keys = dict.fromkeys(key for settings in values for key in settings)
    return [
        key for key in keys if len({one_line(settings[key]) if key in settings else None for settings in values}) > 1
    ]
