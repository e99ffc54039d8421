"""The axes of a matrix: what each value sets, and which axes hold seeds.

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
from paratune.records.sweep import Axis
from paratune.sweep.environment import ENV
from paratune.sweep.matrix_file import MatrixFile
from paratune.sweep.names import short
from paratune.sweep.values import Value, read_listed, read_named

SEED = "run.seed"
SEEDS = frozenset({SEED, "data.split.seed"})
"""What repetitions of a run differ in."""
OURS = ("run.name", "run.folder")
"""What the matrix gives each run."""


@dataclass(frozen=True)
class AxisOfValues:
    """An axis with what each value sets."""

    axis: Axis
    values: tuple[Value, ...]

    @property
    def keys(self) -> list[str]:
        """The dotted keys that it sets, also through files."""
        return list(dict.fromkeys(key for each in self.values for key in (*each.below.places, *each.own.places)))

    def by_name(self, name: str) -> Value:
        """Return the value of that name."""
        return next(value for value in self.values if value.name == name)

    @property
    def varied(self) -> list[str]:
        """The dotted keys, also of files, in which its values differ."""
        return _varied([value.settings for value in self.values])


def read_axes(file: MatrixFile, found: Any, base: Layer) -> tuple[AxisOfValues, ...]:
    """Return the axes of a file.

    Args:
        file: Takes what is wrong with them.
        found: What stands below `axes`.
        base: What the matrix says itself of all runs.
    """
    if not isinstance(found, dict) or not found:
        what = f"axes is {describe_value(found)}" if found is not None else "axes is required"
        code = "config.invalid_value" if found is not None else "config.required"
        file.refuse(
            f"{what}; allowed: a mapping of one axis or more, such as axes: {{run.seed: [41, 42, 43]}}", "axes", code
        )
        return ()
    shorts = [short(str(key)) for key in found]
    axes = []
    for key, values in found.items():
        name = short(str(key))
        axis = _axis(file, str(key), name if shorts.count(name) == 1 else str(key), values)
        if axis is not None:
            axes.append(axis)
    _check_apart(file, axes)
    says_seed = SEED in flatten(base.values) or any(SEED in value.above for axis in axes for value in axis.values)
    axes = [_with_seeds(file, axis, through_files=not says_seed) for axis in axes]
    return tuple(replace(each, axis=replace(each.axis, keys=_recorded_keys(each))) for each in axes)


def _recorded_keys(axis: AxisOfValues) -> tuple[str, ...]:
    """Return what an axis is of: the keys in which its values differ, shorthands (`strategy: ddp`) written out."""
    values = [
        {f"{key}.kind" if key in SHORTHAND and isinstance(each, str) else key: each for key, each in settings.items()}
        for settings in (value.settings for value in axis.values)
    ]
    return tuple(_varied(values) if len(values) > 1 else values[0])


def _with_seeds(file: MatrixFile, axis: AxisOfValues, *, through_files: bool) -> AxisOfValues:
    """Return the axis marked as one of seeds where it is one: nothing is chosen among its values.

    Refuses what is neither: the mean would be over more than seeds, or the best seed would be chosen.
    """
    # Seeds of files have no effect below one that the matrix says itself.
    values = [value.settings if through_files else value.above for value in axis.values]
    varied = _varied(values) if len(values) > 1 else list(values[0])
    if SEED not in varied:
        return axis
    without = [value.name for value, each in zip(axis.values, values, strict=True) if SEED not in each]
    others = [key for key in varied if key not in SEEDS]
    if not without and not others:
        return replace(axis, axis=replace(axis.axis, is_seed=True))
    if len(values) > 1:
        found = f"{without[0]} does not set {SEED}" if without else f"they differ in {others[0]} too"
        at = f"axes.{axis.axis.key}"
        file.refuse(
            f"{at}: its values differ in {SEED}, and {found}; the mean is taken over seeds, and the best of all "
            f"else is chosen: put {SEED} on an axis of its own ({SEED}: [41, 42, 43])",
            at,
        )
    return axis


def _axis(file: MatrixFile, key: str, name: str, found: Any) -> AxisOfValues | None:
    at = f"axes.{key}"
    before = len(file.problems)
    if isinstance(found, list) and found:
        values = [read_listed(file, key, name, value, f"{at}[{number}]") for number, value in enumerate(found)]
    elif isinstance(found, dict) and found:
        values = [read_named(file, str(value), settings, f"{at}.{value}") for value, settings in found.items()]
    else:
        file.refuse(
            f"{at} is {describe_value(found)}; allowed: a list of values of the option {key}, or a mapping of "
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
    is_right = len(file.problems) == before  # what is wrong is read as something else, which may be there twice
    names = [value.name.lower() for value in values if is_right]  # some file systems do not tell A from a
    for value in values:
        if names.count(value.name.lower()) > 1:
            file.refuse(
                f"{at} has {value.shown} twice, or two values that make one name of a run; keep one, or "
                f"give them names: {{first: {{{key}: ...}}, second: {{...}}}}",
                at,
            )
            break
    keys = [each for value in values for each in (*value.below.places, *value.own.places)]
    axis = Axis(
        key,
        name,
        {value.name: value.shown for value in values},
        is_column=any(overlap(each, part) for each in keys for part in ("task", "data.train", "data.validation")),
    )
    return AxisOfValues(axis, tuple(values))


def _check_apart(file: MatrixFile, axes: Sequence[AxisOfValues]) -> None:
    """Refuse axes that set the same option, of which one would have no effect.

    What files say in the same words does no harm, and lies below what an axis says itself.
    """
    for number, axis in enumerate(axes):
        for other in axes[:number]:
            both = _common(_own_leaves(axis), _own_leaves(other)) or _common(_of_files(axis), _of_files(other))
            if both:
                file.refuse(
                    f"axes.{axis.axis.key} sets {both[0]}, which axes.{other.axis.key} sets too; put values that "
                    "go together on one axis",
                    f"axes.{axis.axis.key}",
                    code="config.conflict",
                )


def find_value(axis: AxisOfValues, wanted: Any) -> str | None:
    """Return the name of the value that is `wanted`: as in the file, as shown, or by its name; None if none is."""
    readings = [wanted]
    if isinstance(wanted, str):  # of a command line, where 1e-4 is text
        with suppress(ValueError):
            readings.append(read_scalar(wanted))
    for value in axis.values:
        if any(type(each) is type(value.plain) and each == value.plain for each in readings):
            return value.name
    return next((value.name for value in axis.values if str(wanted) in (value.name, value.shown)), None)


def _own_leaves(axis: AxisOfValues) -> list[str]:
    places = {key.partition("[")[0] for value in axis.values for key in (*value.own.places, *value.beside)}
    return [key for key in places if not any(other.startswith(f"{key}.") for other in places)]


def _of_files(axis: AxisOfValues) -> list[str]:
    """Return the keys in which the files differ that an axis extends."""
    return _varied([flatten(value.below.values) for value in axis.values])


def _common(keys: Sequence[str], others: Sequence[str]) -> list[str]:
    return [key for key in keys if any(overlap(key, each) for each in others)]


def _varied(values: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys in which settings differ, or that only some of them have."""
    keys = dict.fromkeys(key for each in values for key in each)
    return [key for key in keys if len({one_line(each[key]) if key in each else None for each in values}) > 1]
