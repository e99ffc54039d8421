"""Merges the layers of a configuration, files that extend each other, with the place of each value."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from paratune.config.problems import Problem, SourceLocation, place_of, without_content
from paratune.config.yaml_tree import read_tree
from paratune.errors import ConfigError, did_you_mean

EXTENDS = "extends"
OPAQUE = frozenset({"task.labels"})
"""Mappings that are values, not sections: a higher layer replaces the whole mapping."""
OWN_CODE = ("model.head", "task.loss", "train.optimizer", "train.schedule")
"""Sections of own code: a higher layer with another `function` replaces the whole section, which is about this one."""
MAPPINGS = frozenset(
    {"data.extra", "data.predict", "model.overrides", "strategy.options", "task.options"}
    | {f"{key}.options" for key in OWN_CODE}
)
"""Mappings to which a higher layer adds; an empty mapping there removes all lower entries."""
SHORTHAND = ("task", "strategy", "baseline")
"""Sections that may be written as their kind only: `strategy: ddp`."""


@dataclass
class Layer:
    """Values of one file or of several merged ones, not yet checked."""

    values: dict[Any, Any] = field(default_factory=dict)
    places: dict[str, SourceLocation] = field(default_factory=dict)
    """By dotted key; list items as `key[0]`."""
    problems: list[Problem] = field(default_factory=list)
    whole: bool = True
    """Whether every file could be read; if not, missing options may be in an unread file."""

    def place(self, key: str) -> SourceLocation | None:
        """Return the place of a key, or of the nearest section that contains it and has one."""
        return place_of(key, self.places)


def expand_shorthands(layer: Layer) -> Layer:
    """Replace, in place, sections that are written as a word by mappings; call it last, on merged layers."""
    for key in SHORTHAND:
        if isinstance(layer.values.get(key), str):
            _expand_shorthand(layer.values, layer.places, key)
    return layer


def layers_within(
    values: Mapping[Any, Any], places: Mapping[str, SourceLocation], at: str, path: Path, *, called: str = EXTENDS
) -> tuple[Layer, Layer]:
    """Return the layers of a mapping of settings in another kind of file, such as a matrix of runs.

    Args:
        values: Sections, or single settings by dotted key (`train.learning_rate: 1e-4`), and perhaps `extends`.
        at: Dotted key of the mapping in the file.
        path: The file; paths of `extends` are relative to it.

    Returns:
        The layer of the extended files, and the layer of the settings.
    """
    own = Layer()
    for key, value in values.items():
        if key == EXTENDS:
            continue
        inside, nested = f"{at}.{key}", (f"{at}.{key}.", f"{at}.{key}[")
        inner_places = {
            name.removeprefix(f"{at}."): place
            for name, place in places.items()
            if name == inside or name.startswith(nested)
        }
        for name in inner_places.keys() & own.places.keys():
            message = f"{at}.{name} is also given on line {own.places[name].line}; keep one of them"
            own.problems.append(Problem(message, place=inner_places[name], code="config.duplicate_key"))
        own = merge(own, layer_of(str(key), value, inner_places))
    below = Layer()
    if EXTENDS in values:
        place = places.get(f"{at}.{EXTENDS}", SourceLocation(label(path, path.parent), 1))
        below = _on_top_of(below, values[EXTENDS], place, path, path.parent, (path.resolve(),), called)
    return below, own


def plain_mappings(value: Any) -> Any:
    """Return a value with new dicts and lists in place of any mappings, tuples and lists, and texts for paths."""
    if isinstance(value, Mapping):
        return {key: plain_mappings(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_mappings(item) for item in value]
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def layer_of(key: str, value: Any, places: Mapping[str, SourceLocation]) -> Layer:
    """Return the layer of one setting; `places` has its dotted key and all keys in its value."""
    *above, last = key.split(".")
    values: dict[Any, Any] = {last: value}
    for part in reversed(above):
        values = {part: values}
    return Layer(values, dict(places))


def label(path: Path, folder: Path) -> str:
    """Return the name of a file in places: relative to the folder of the main file, so that records contain no paths
    of the machine."""
    return Path(os.path.relpath(path, folder)).as_posix()


def merge(lower: Layer, upper: Layer) -> Layer:
    """Return `lower` with `upper` applied: mappings are merged by key, other values are replaced, also by null."""
    places = dict(lower.places)
    values = _merge(lower.values, upper.values, "", places, upper.places)
    return Layer(values, places, [*lower.problems, *upper.problems], lower.whole and upper.whole)


def _merge(
    lower: Mapping[Any, Any],
    upper: Mapping[Any, Any],
    prefix: str,
    places: dict[str, SourceLocation],
    above: dict[str, SourceLocation],
) -> dict[Any, Any]:
    values = dict(lower)
    for key, value in upper.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, dict) and dotted in SHORTHAND and isinstance(values.get(key), str):
            _expand_shorthand(values, places, key)
        below = values.get(key)
        # Replaced, not merged: options of another function, or other labels, would be mixed with the new ones.
        functions = [section.get("function") for section in (below, value) if isinstance(section, dict)]
        is_other = dotted in OWN_CODE and None not in functions and functions[1:] not in ([], functions[:1])
        is_whole = dotted in OPAQUE or (dotted in MAPPINGS and not value) or is_other
        if isinstance(value, dict) and isinstance(below, dict) and not is_whole:
            values[key] = _merge(below, value, f"{dotted}.", places, above)
            inside: tuple[str, ...] = ()
        else:
            values[key] = value
            inside = (f"{dotted}.", f"{dotted}[")
            for old in [old for old in places if old == dotted or old.startswith(inside)]:
                del places[old]
        places.update({new: at for new, at in above.items() if new == dotted or (inside and new.startswith(inside))})
    return values


def _expand_shorthand(values: dict[Any, Any], places: dict[str, SourceLocation], key: str) -> None:
    values[key] = {"kind": values[key]}
    if key in places:
        places[f"{key}.kind"] = places[key]


def read_file(path: Path, folder: Path, chain: tuple[Path, ...]) -> Layer:
    refuse_other_file(path)
    name = label(path, folder)
    tree = read_tree(read_text(path), name)
    is_mapping = isinstance(tree.value, dict)
    layer = Layer(tree.value if is_mapping else {}, tree.places, tree.problems, is_mapping)
    if not is_mapping and not tree.problems:
        content = f"has {'a list' if isinstance(tree.value, list) else repr(str(tree.value)[:40])}; write sections"
        content = "is empty; `paratune config init` writes a file with sections" if tree.value is None else content
        message = f"{name} {content} (task:, data:, ...), each with `key: value` lines"
        layer.problems.append(Problem(message, place=SourceLocation(name, 1), code="config.syntax"))
    if _is_outside(path, folder):
        layer.places = {key: replace(place, is_outside=True) for key, place in layer.places.items()}
        for number, problem in enumerate(layer.problems):
            place = SourceLocation(name, problem.place.line if problem.place else 1, is_outside=True)
            layer.problems[number] = without_content(replace(problem, place=place))
    place = layer.places.pop(EXTENDS, SourceLocation(name, 1))
    return _on_top_of(layer, layer.values.pop(EXTENDS, []), place, path, folder, (*chain, path.resolve()))


def _is_outside(path: Path, folder: Path) -> bool:
    return not path.resolve().is_relative_to(folder.resolve())


def _on_top_of(
    layer: Layer,
    names: Any,
    place: SourceLocation,
    path: Path,
    folder: Path,
    chain: tuple[Path, ...],
    called: str = EXTENDS,
) -> Layer:
    """Return the layer merged with the files of its `extends`."""
    names, below, reasons = [names] if isinstance(names, str) else names, Layer(), []
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        names, reasons = [], ["allowed: a file name, or a list of file names"]
    for name in names:
        base = path.parent / name
        if base.resolve() in chain:
            cycle = " -> ".join(label(file, folder.resolve()) for file in (*chain, base.resolve()))
            reasons.append(f"{name} extends itself: {cycle}")
            continue
        try:
            below = merge(below, read_file(base, folder, chain))
        except ConfigError as error:
            reason = str(error)
            if _is_outside(base, folder):  # else names of a foreign folder would be shown, or bytes of a foreign file
                reason = f"{base} {'is no configuration' if base.exists() else 'does not exist'}"
            reasons.append(reason)
    for reason in reasons:
        layer.problems.append(Problem(f"{called}: {reason}", place=place, code="config.extends"))
        layer.whole = False
    return merge(below, layer)


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises:
        ConfigError: It is missing, or no text.
    """
    try:
        return path.read_bytes().decode("utf-8-sig")
    except FileNotFoundError:
        message = f"{path} does not exist{_nearest_file(path)}"
        raise ConfigError(message, code="config.file_unreadable", path=path) from None
    except IsADirectoryError:
        message = f"{path} is a folder; name a YAML file in it{_nearest_file(path / 'x')}"
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start}; save it as UTF-8"
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
    raise ConfigError(message, code="config.file_unreadable", path=path)


def _nearest_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"; the folder {folder} does not exist either"
    names = sorted(file.name for file in folder.iterdir() if file.suffix in (".yaml", ".yml"))
    if not names:
        return f"; there is no .yaml file in {folder}"
    near = did_you_mean(path.name, names)
    return near.replace("mean ", f"mean {folder}/", 1) if near else f"; in {folder}: {', '.join(names[:8])}"


def keys_inside(value: Any, path: str) -> Iterator[str]:
    for key, item in value.items() if isinstance(value, dict) else ():
        yield f"{path}.{key}"
        yield from keys_inside(item, f"{path}.{key}")


_HEAD_BYTES = 65_536
"""Bytes at the start of a file that are read."""
_DATA_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow")
_BINARIES = (b"PAR1", b"ARROW1", b"\x1f\x8b", b"PK\x03\x04", b"\x80", b"\x89PNG", b"%PDF")
"""First bytes of Parquet, Arrow, compressed files, zip archives, pickles, pictures and PDF files."""
_KINDS = {
    "data": ("a data file", "name it in a configuration as data.train; `paratune config init` writes one"),
    "trainer": ("settings of a Trainer", "convert it: paratune config from-trainer {path} -o my.yaml"),
    "model": ("the config.json of a model", "name its folder in a configuration as model.name"),
    "binary": ("a binary file", "name a YAML file"),
}
"""By kind, what a file is, and what to do."""


def refuse_other_file(path: Path) -> None:
    """Raise an error if a file is not a configuration but another kind of file; a missing file is accepted.

    Raises:
        ConfigError: It is another kind of file; the fact `kind` is data, trainer, model or binary.
    """
    try:
        if not path.is_file():
            return
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return  # `layers.read_text` reports it
    if (kind := _kind(path, head)) is not None:
        described, advice = _KINDS[kind]
        message = f"{path} is {described}, and a configuration is a YAML file; {advice.format(path=path)}"
        raise ConfigError(message, code="config.other_file", path=path, kind=kind)


def _kind(path: Path, head: bytes) -> str | None:
    """Return the kind of a file; None for one that may be a configuration."""
    if path.suffix in _DATA_SUFFIXES:
        return "data"
    is_utf_16 = head.startswith((b"\xff\xfe", b"\xfe\xff"))
    if head.startswith(_BINARIES) or (b"\0" in head and not is_utf_16):
        return "binary"
    text = head.decode("utf-8-sig", errors="replace").lstrip()
    first, _, rest = text.partition("\n")
    if text.startswith("{"):
        if re.search(r'"(per_device_train_batch_size|num_train_epochs|log_history)"\s*:', text):
            return "trainer"
        if re.search(r'"(model_type|architectures)"\s*:', text):
            return "model"
    has_json_rows = text.startswith("{") and first.rstrip().endswith("}") and rest.lstrip().startswith("{")
    # The first line of a table has commas or tabs, and no sign of YAML.
    is_table = re.fullmatch(r"[^:#\[{]*[,\t][^:#]*", first.rstrip()) and not first.startswith("-") and rest.strip()
    return "data" if has_json_rows or re.match(r"\[\s*\{", text) or is_table else None
