"""A matrix file: a configuration, the axes along which it varies, and what is left out.

Each axis is a list of values of one option, or a mapping of names to settings that go together.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paratune.config.differences import flatten
from paratune.config.layers import EXTENDS, Layer, label, layer_of, layers_within, merge, read_text
from paratune.config.plain import one_line
from paratune.config.problems import Place, Problem, failure, overlap
from paratune.config.validate import describe_value
from paratune.config.yaml_tree import read_scalar, read_tree
from paratune.errors import did_you_mean
from paratune.sweep.names import short, show, slug, value_name
from paratune.sweep_record import NAME, Axis

NPROC = "nproc"
"""Processes of each run; also a setting of an axis, or an axis by itself."""
SEED = "run.seed"
SEEDS = frozenset({SEED, "data.split.seed"})
"""What repetitions of a run differ in."""
OURS = ("run.name", "run.folder")
"""What the matrix gives each run."""
KEYS = {
    "name": "name of the matrix and of its folder; the file's name when not given",
    "folder": "folder that holds the matrix' folder; runs when not given",
    "base": "a configuration file, a list of them, or the sections of one",
    "axes": "what varies",
    "exclude": "combinations to leave out",
    NPROC: "processes of each run; 1 when not given",
    "select_per": "axes for each of whose values the best is chosen; those that change task, data or model",
    "select_by": "metric on validation by which to choose; evaluate.best, or the first of the task",
}
"""What a matrix file may say."""


@dataclass(frozen=True)
class Value:
    """One value of an axis."""

    name: str
    """In names of runs."""
    shown: str
    """In tables."""
    plain: Any
    """As in the file; the name, of settings that go together."""
    below: Layer
    """What its settings extend."""
    own: Layer
    """What it sets."""
    num_processes: int | None
    """None where the axis does not say."""

    @property
    def above(self) -> dict[str, Any]:
        """What the matrix itself sets, by dotted key."""
        return flatten(self.own.values) | ({NPROC: self.num_processes} if self.num_processes else {})

    @property
    def settings(self) -> dict[str, Any]:
        """All that it sets, also through files, by dotted key."""
        return flatten(merge(self.below, self.own).values) | self.above


@dataclass(frozen=True)
class AxisOfValues:
    """An axis with what each value sets."""

    axis: Axis
    values: tuple[Value, ...]

    @property
    def keys(self) -> list[str]:
        """The dotted keys that it sets, also through files."""
        return list(dict.fromkeys(key for each in self.values for key in (*each.below.places, *each.own.places)))

    @property
    def varied(self) -> list[str]:
        """The dotted keys, also of files, in which its values differ."""
        return _varied([value.settings for value in self.values])


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
    select_per: tuple[str, ...]
    select_by: str | None


def read_matrix(path: Path) -> Matrix:
    """Read a matrix file.

    Raises:
        ConfigError: It cannot be read, or something in it is wrong: all of it is listed, each with its line.
    """
    reader = _Reader(path)
    matrix = reader.read()
    if matrix is None or reader.problems:
        raise failure(path, reader.problems, label(path, path.parent))
    return matrix


class _Reader:
    """Reads one file; holds what is wrong with it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = label(path, path.parent)
        tree = read_tree(read_text(path), self._file)
        self._places, self._tree = tree.places, tree
        self.problems: list[Problem] = list(tree.problems)

    def read(self) -> Matrix | None:
        found = self._tree.value
        if not isinstance(found, dict):
            if not self.problems:
                what = f"found {describe_value(found)}" if found is not None else "it is empty"
                self._refuse(f"a matrix is a mapping ({', '.join(KEYS)}); {what}", "")
            return None
        for key in found:
            if key not in KEYS:
                self._unknown(key)
        below, own = self._base(found)
        axes = self._axes(found.get("axes"), own)
        labels = {
            **{each.axis.key: each.axis.label for each in axes},
            **{each.axis.label: each.axis.label for each in axes},
        }
        name = self._name(found)
        return Matrix(
            name=name,
            folder=Path(self._text(found, "folder", "runs")) / name,
            source=self._path,
            below=below,
            own=own,
            axes=axes,
            exclude=tuple(self._exclude(found.get("exclude"), axes, labels)),
            num_processes=self._count(found.get(NPROC, 1), NPROC),
            select_per=self._select_per(found, axes, labels),
            select_by=self._text(found, "select_by", None),
        )

    def _refuse(self, message: str, key: str) -> None:
        while key and key not in self._places:
            key = key.rpartition(".")[0]
        self.problems.append(Problem(message, place=self._places.get(key, Place(self._file, 1))))

    def _unknown(self, key: Any) -> None:
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
        self._refuse(f"{key} is not a key of a matrix{near or '; it has: ' + ', '.join(KEYS)}", str(key))

    def _name(self, found: Mapping[Any, Any]) -> str:
        name = found.get("name")
        if name is None:
            name = slug(self._path.stem)
        if not isinstance(name, str) or not NAME.fullmatch(name):
            self._refuse(
                f"name is {describe_value(name)}; allowed: letters, digits, '.', '_' and '-', with a letter or digit "
                "first",
                "name",
            )
            return "matrix"
        return name

    def _text(self, found: Mapping[Any, Any], key: str, default: Any) -> Any:
        value = found.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            self._refuse(f"{key} is {describe_value(value)}; allowed: text", key)
            return default
        return value

    def _count(self, value: Any, key: str) -> int:
        if type(value) is not int or value < 1:
            self._refuse(f"{key} is {describe_value(value)}; allowed: a whole number, at least 1", key)
            return 1
        return value

    def _base(self, found: Mapping[Any, Any]) -> tuple[Layer, Layer]:
        base = found.get("base")
        if isinstance(base, str | list):
            base = {EXTENDS: base}
            self._places[f"base.{EXTENDS}"] = self._places["base"]
        if not isinstance(base, dict):
            what = f"is {describe_value(base)}" if "base" in found else "is required"
            self._refuse(
                f"base {what}; allowed: a configuration file, a list of files, or sections (task:, ...)", "base"
            )
            return Layer(), Layer()
        return self._layers(base, "base")

    def _layers(self, settings: Mapping[Any, Any], at: str) -> tuple[Layer, Layer]:
        below, own = layers_within(settings, self._places, at, self._path)
        self.problems += [*below.problems, *own.problems]
        return replace(below, problems=[]), replace(own, problems=[])

    def _axes(self, found: Any, base: Layer) -> tuple[AxisOfValues, ...]:
        if not isinstance(found, dict) or not found:
            what = f"axes is {describe_value(found)}" if found is not None else "axes is required"
            self._refuse(f"{what}; allowed: a mapping, such as axes: {{run.seed: [41, 42, 43]}}", "axes")
            return ()
        shorts = [short(str(key)) for key in found]
        axes = []
        for key, values in found.items():
            name = short(str(key))
            axis = self._axis(str(key), name if shorts.count(name) == 1 else str(key), values)
            if axis is not None:
                axes.append(axis)
        self._check_apart(axes)
        says_seed = SEED in flatten(base.values) or any(SEED in value.above for axis in axes for value in axis.values)
        return tuple(self._with_seeds(axis, through_files=not says_seed) for axis in axes)

    def _with_seeds(self, axis: AxisOfValues, *, through_files: bool) -> AxisOfValues:
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
            self._refuse(
                f"{at}: its values differ in {SEED}, and {found}; the mean is taken over seeds, and the best of all "
                f"else is chosen: put {SEED} on an axis of its own ({SEED}: [41, 42, 43])",
                at,
            )
        return axis

    def _axis(self, key: str, name: str, found: Any) -> AxisOfValues | None:
        at = f"axes.{key}"
        if isinstance(found, list) and found:
            values = [self._listed(key, name, value, f"{at}[{number}]") for number, value in enumerate(found)]
        elif isinstance(found, dict) and found:
            values = [self._named(str(value), settings, f"{at}.{value}") for value, settings in found.items()]
        else:
            self._refuse(
                f"{at} is {describe_value(found)}; allowed: a list of values of the option {key}, or a mapping of "
                "names to settings, such as {small: {train.learning_rate: 1e-5, train.epochs: 3}}",
                at,
            )
            return None
        if key in OURS or any(own in value.own.places for own in OURS for value in values):
            self._refuse(f"{at}: the matrix gives each run its folder and name; see folder: and name:", at)
        names = [value.name.lower() for value in values]  # some file systems do not tell A from a
        for value in values:
            if names.count(value.name.lower()) > 1:
                self._refuse(
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

    def _listed(self, key: str, name: str, value: Any, at: str) -> Value:
        """Return a value of the option `key`."""
        if key == NPROC:
            count = self._count(value, at)
            return Value(f"{NPROC}-{count}", str(count), value, Layer(), Layer(), count)
        places = {at.replace(f"axes.{key}", key, 1).partition("[")[0]: self._places[at]}
        inside = {
            each.replace(at, key, 1): place
            for each, place in self._places.items()
            if each.startswith((f"{at}.", f"{at}["))
        }
        own = layer_of(key, value, {**places, **inside})
        shown = show(value)
        return Value(value_name(value, name), shown, value, Layer(), own, None)

    def _named(self, name: str, settings: Any, at: str) -> Value:
        """Return settings that go together under a name."""
        if not NAME.fullmatch(name):
            self._refuse(
                f"{at}: {name!r} becomes part of the names of runs; allowed: letters, digits, '.', '_' and '-', with a "
                "letter or digit first",
                at,
            )
            name = slug(name)
        if not isinstance(settings, dict) or not settings:
            self._refuse(
                f"{at} is {describe_value(settings)}; allowed: a mapping of settings, such as "
                "{train.learning_rate: 1e-5}",
                at,
            )
            return Value(name, name, name, Layer(), Layer(), None)
        count = self._count(settings[NPROC], f"{at}.{NPROC}") if NPROC in settings else None
        below, own = self._layers({key: value for key, value in settings.items() if key != NPROC}, at)
        return Value(name, name, name, below, own, count)

    def _check_apart(self, axes: Sequence[AxisOfValues]) -> None:
        """Refuse axes that set the same option, of which one would have no effect.

        What files say in the same words does no harm, and lies below what an axis says itself.
        """
        for number, axis in enumerate(axes):
            for other in axes[:number]:
                both = _common(_own_leaves(axis), _own_leaves(other)) or _common(_of_files(axis), _of_files(other))
                if both:
                    self._refuse(
                        f"axes.{axis.axis.key} sets {both[0]}, which axes.{other.axis.key} sets too; put values that "
                        "go together on one axis",
                        f"axes.{axis.axis.key}",
                    )
            if sum(any(value.num_processes for value in each.values) for each in axes[: number + 1]) > 1:
                self._refuse(f"two axes set {NPROC}; put values that go together on one axis", f"axes.{axis.axis.key}")
                return

    def _exclude(
        self, found: Any, axes: Sequence[AxisOfValues], labels: Mapping[str, str]
    ) -> Iterator[Mapping[str, Any]]:
        if found is None:
            return
        if not isinstance(found, list):
            self._refuse(
                f"exclude is {describe_value(found)}; allowed: a list of mappings of axes to values", "exclude"
            )
            return
        known = {each.axis.label: each for each in axes}
        for number, each in enumerate(found):
            at = f"exclude[{number}]"
            if not isinstance(each, dict) or not each:
                self._refuse(f"{at} is {describe_value(each)}; allowed: a mapping of axes to values", at)
                continue
            combination = {}
            for key, value in each.items():
                if key not in labels:
                    self._refuse(f"{at}: {key} is not an axis{_near(key, labels, known)}", at)
                    continue
                axis = known[labels[key]]
                wanted = value if isinstance(value, list) else [value]
                names = [each for one in wanted if (each := find_value(axis, one)) is not None]
                if len(names) < len(wanted):
                    self._refuse(
                        f"{at}: {show(value)} is not on the axis {key}; it has: {', '.join(axis.axis.values.values())}",
                        at,
                    )
                combination[labels[key]] = names
            yield combination

    def _select_per(
        self, found: Mapping[Any, Any], axes: Sequence[AxisOfValues], labels: Mapping[str, str]
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
            self._refuse(f"select_per is {describe_value(per)}; allowed: a list of axes", "select_per")
            return ()
        known = {each.axis.label: each for each in axes}
        for name in per:
            if name not in labels:
                self._refuse(f"select_per: {name} is not an axis{_near(name, labels, known)}", "select_per")
            elif known[labels[name]].axis.is_seed:
                self._refuse(f"select_per: {name} holds seeds, over which the mean is taken", "select_per")
        return tuple(dict.fromkeys(labels[name] for name in per if name in labels))


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
    places = {key.partition("[")[0] for value in axis.values for key in value.own.places}
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


def _near(name: Any, labels: Mapping[str, str], known: Mapping[str, AxisOfValues]) -> str:
    return did_you_mean(str(name), labels) or f"; there are: {', '.join(known)}"
