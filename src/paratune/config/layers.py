"""Layers of a configuration: files that extend each other, then `--set`, merged with the place of each value kept."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paratune.config.problems import SET, Problem, SourceLocation
from paratune.config.yaml_tree import read_scalar, read_tree
from paratune.errors import ConfigError, did_you_mean

EXTENDS = "extends"
OPAQUE = frozenset({"task.labels"})
"""Mappings that are values, not sections: a layer above replaces them whole."""
MAPPINGS = frozenset({"data.extra", "data.predict", "model.overrides", "strategy.options"})
"""Mappings to which a layer above adds; an empty one there takes away all that is below."""
SHORTHAND = ("task", "strategy", "baseline")
"""Sections that may be written as a word, their kind: `strategy: ddp`."""


@dataclass
class Layer:
    """Values of one file or of several merged ones, not yet checked."""

    values: dict[Any, Any] = field(default_factory=dict)
    places: dict[str, SourceLocation] = field(default_factory=dict)
    """By dotted key; list items as `key[0]`."""
    problems: list[Problem] = field(default_factory=list)
    whole: bool = True
    """Whether every file could be read; if not, what seems to be missing may be there."""

    def place(self, key: str) -> SourceLocation | None:
        """Return the place of a key, or of the nearest section around it that has one."""
        while key:
            if key in self.places:
                return self.places[key]
            key = key.rpartition(".")[0]
        return None


def read_layers(path: Path, overrides: Sequence[str]) -> Layer:
    """Return a file on top of all that it extends, under `--set`; `task` and `strategy` are mappings in it.

    Raises:
        ConfigError: The file itself is missing or cannot be read as text.
    """
    return expand_shorthands(read_overrides(_read_file(path, path.parent, ()), overrides))


def read_overrides(layer: Layer, overrides: Sequence[str]) -> Layer:
    """Return a layer under `--set`: `section.key=value` each, in the order given."""
    for override in overrides:
        layer = merge(layer, _read_override(override))
    return layer


def expand_shorthands(layer: Layer) -> Layer:
    """Turn, in place, what may be written as a word into a mapping; the last thing done to merged layers."""
    for key in SHORTHAND:
        if isinstance(layer.values.get(key), str):
            _expand_shorthand(layer.values, layer.places, key)
    return layer


def layers_within(
    values: Mapping[Any, Any], places: Mapping[str, SourceLocation], at: str, path: Path, *, called: str = EXTENDS
) -> tuple[Layer, Layer]:
    """Return a mapping of settings that stands within a file of another kind, such as a matrix of runs.

    Args:
        values: Sections, or single settings by dotted key (`train.learning_rate: 1e-4`), and perhaps `extends`.
        places: Of all keys of the file.
        at: Dotted key of the mapping in it.
        path: The file; what `extends` names is relative to it.
        called: What the file has in place of `extends`, for messages.

    Returns:
        What `extends` names, and the settings themselves.
    """
    own = Layer()
    for key, value in values.items():
        if key == EXTENDS:
            continue
        inside = f"{at}.{key}"
        found = {name.removeprefix(f"{at}."): place for name, place in places.items() if _is_within(name, inside)}
        for name in found.keys() & own.places.keys():
            message = f"{at}.{name} is also given on line {own.places[name].line}; keep one of them"
            own.problems.append(Problem(message, place=found[name], code="config.duplicate_key"))
        own = merge(own, layer_of(str(key), value, found))
    below = Layer()
    if EXTENDS in values:
        place = places.get(f"{at}.{EXTENDS}", SourceLocation(label(path, path.parent), 1))
        below = _on_top_of(below, values[EXTENDS], place, path, path.parent, (path.resolve(),), called)
    return below, own


def layer_of(key: str, value: Any, places: Mapping[str, SourceLocation]) -> Layer:
    """Return the layer of one setting; `places` are those of its dotted key and of what is in its value."""
    *above, last = key.split(".")
    values: dict[Any, Any] = {last: value}
    for part in reversed(above):
        values = {part: values}
    return Layer(values, dict(places))


def _is_within(key: str, other: str) -> bool:
    return key == other or key.startswith((f"{other}.", f"{other}["))


def label(path: Path, folder: Path) -> str:
    """Return the name of a file in places: relative to the folder of the main file, so that records hold no
    machine's paths where it can be helped."""
    return Path(os.path.relpath(path, folder)).as_posix()


def merge(lower: Layer, upper: Layer) -> Layer:
    """Return `upper` on top of `lower`: mappings are merged key by key, all else is replaced, also by null."""
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
        is_whole = dotted in OPAQUE or (dotted in MAPPINGS and not value)
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


def _read_file(path: Path, folder: Path, chain: tuple[Path, ...]) -> Layer:
    name = label(path, folder)
    tree = read_tree(read_text(path), name)
    layer = Layer({}, tree.places, tree.problems, isinstance(tree.value, dict))
    if isinstance(tree.value, dict):
        layer.values = tree.value
    elif tree.value is None and not tree.problems:
        layer.problems.append(
            Problem(f"{name} is empty; `paratune config init` writes a file to start from", code="config.empty")
        )
    elif not tree.problems:
        found = "a list" if isinstance(tree.value, list) else repr(tree.value)
        message = f"a configuration is a mapping of sections (task:, data:, ...); found {found}"
        layer.problems.append(Problem(message, place=SourceLocation(name, 1), code="config.not_mapping"))
    place = layer.places.pop(EXTENDS, SourceLocation(name, 1))
    return _on_top_of(layer, layer.values.pop(EXTENDS, []), place, path, folder, (*chain, path.resolve()))


def _on_top_of(
    layer: Layer,
    names: Any,
    place: SourceLocation,
    path: Path,
    folder: Path,
    chain: tuple[Path, ...],
    called: str = EXTENDS,
) -> Layer:
    """Return the layer on top of the files that its `extends` names."""
    names = [names] if isinstance(names, str) else names
    below = Layer()
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        layer.problems.append(
            Problem(f"{called}: allowed is a file name, or a list of file names", place=place, code="config.extends")
        )
        layer.whole = False
        return layer
    for name in names:
        base = path.parent / name
        if base.resolve() in chain:
            circle = " -> ".join(label(each, folder.resolve()) for each in (*chain, base.resolve()))
            layer.problems.append(
                Problem(f"{called}: {name} goes round in a circle: {circle}", place=place, code="config.extends")
            )
            layer.whole = False
            continue
        try:
            below = merge(below, _read_file(base, folder, chain))
        except ConfigError as error:
            layer.problems.append(Problem(f"{called}: {error}", place=place, code="config.extends"))
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
        raise ConfigError(
            f"{path} does not exist{_nearest_file(path)}", code="config.file_not_found", path=path
        ) from None
    except IsADirectoryError:
        raise ConfigError(
            f"{path} is a folder; name a YAML file in it{_nearest_file(path / 'x')}",
            code="config.file_unreadable",
            path=path,
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 text: byte {error.object[error.start]:#04x} at {error.start}",
            code="config.file_unreadable",
            path=path,
            start=error.start,
        ) from None
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", code="config.file_unreadable", path=path
        ) from None


def _nearest_file(path: Path) -> str:
    folder = path.parent
    if not folder.is_dir():
        return f"; the folder {folder} does not exist either"
    names = sorted(each.name for each in folder.iterdir() if each.suffix in (".yaml", ".yml"))
    if not names:
        return f"; there is no .yaml file in {folder}"
    near = did_you_mean(path.name, names)
    return near.replace("mean ", f"mean {folder}/", 1) if near else f"; in {folder}: {', '.join(names[:8])}"


def _read_override(override: str) -> Layer:
    """Return the layer of one `section.key=value`."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts) or parts[0] == EXTENDS:
        hint = "extends belongs into a file" if parts[0] == EXTENDS else "allowed: section.key=value"
        return Layer(problems=[Problem(f"{override!r} cannot be set; {hint}", place=SET, code="config.set_syntax")])
    try:
        value = read_scalar(text)
    except ValueError as error:
        message = f"{key}: {text!r} is {error}; put text with special characters in quotes"
        return Layer(problems=[Problem(message, place=SET, code="config.set_syntax")])
    name = ".".join(parts)
    return layer_of(name, value, dict.fromkeys([name, *_keys_inside(value, name)], SET))


def _keys_inside(value: Any, path: str) -> list[str]:
    if not isinstance(value, dict):
        return []
    return [each for key, item in value.items() for each in (f"{path}.{key}", *_keys_inside(item, f"{path}.{key}"))]
