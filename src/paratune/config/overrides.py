"""Applies `--set` to the layers of a configuration: what a setting replaces, and texts as they are typed."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from paratune.config.choices import EFFECTIVE_WITH, INSTEAD_OF
from paratune.config.layers import EXTENDS, Layer, expand_shorthands, keys_inside, layer_of, merge, read_file
from paratune.config.options import section_options, sections_at
from paratune.config.problems import SET, Problem, SourceLocation
from paratune.config.yaml_tree import read_scalar


def read_layers(path: Path, overrides: Sequence[str]) -> Layer:
    """Return a file merged with all files that it extends and with `--set`; `task` and `strategy` are mappings in it.

    Raises:
        ConfigError: The file itself is missing or cannot be read as text.
    """
    return expand_shorthands(read_overrides(read_file(path, path.parent, ()), overrides))


def read_overrides(layer: Layer, overrides: Sequence[str]) -> Layer:
    """Return a layer with `--set` applied: a list of `section.key=value`; later ones win."""
    for override in overrides:
        part = _read_override(override)
        layer = merge(drop_superseded_settings(layer, part), part)
    return layer


def drop_superseded_settings(base: Layer, part: Layer) -> Layer:
    """Return a layer without the settings that `part`, which is merged on top, supersedes; their place is that of it.

    Merged key by key, `batch.per_device` would be next to the `batch.global` of the layer, `schedule: constant` next to
    the exponent of its polynomial, and the stages of a pipeline next to the offload of its zero3. Two settings of the
    command line that exclude each other both stay.
    """
    superseded = dict[str, SourceLocation | None]()
    for key, others in INSTEAD_OF.items():
        is_other = _value(part, key) not in (None, _value(base, key))
        superseded |= dict.fromkeys(others if is_other else (), part.place(key))
    if _value(base, "data.split.validation") is not None:  # then a fold is the test set
        superseded = {key: at for key, at in superseded.items() if key not in ("data.split.folds", "data.split.fold")}
    for key, (other, allowed) in EFFECTIVE_WITH.items():
        value = _value(part, other)
        value = value.get("function", value) if isinstance(value, dict) else value
        if value is not None and not isinstance(value, dict) and value not in allowed:
            superseded[key] = part.place(other) or part.place(f"{other}.function")
    for key in [key.removesuffix(".kind") for key in ("strategy.kind", *part.places) if key.endswith(".kind")]:
        kinds = [_value(layer, f"{key}.kind") or _value(layer, key) for layer in (base, part)]
        if not all(isinstance(kind, str) for kind in kinds) or kinds[0] == kinds[1]:
            continue
        if part.place(f"{key}.kind") != SET or key in part.places:
            superseded |= {key: part.place(key)} if key == "strategy" else {}
            continue
        of_kind = (of for of in sections_at(key) if kinds[1] in get_args(of.model_fields["kind"].annotation))
        if (section := next(of_kind, None)) is not None and isinstance(_value(base, key), dict):
            others = _value(base, key).keys() - section_options(section).keys()
            superseded |= dict.fromkeys([f"{key}.{name}" for name in others], part.place(f"{key}.kind"))
    layer = replace(base, values=deepcopy(base.values), places=dict(base.places))
    for key, place in superseded.items():
        if _value(layer, key) is not None and base.place(key) != SET:
            _remove(layer, key, place)
            split = _value(layer, "data.split")
            if key.startswith("data.split.") and not {"validation", "test", "folds", "held_out"} & {*split}:
                _remove(layer, "data.split", place)  # what is left of it has no effect
    return layer


def _value(layer: Layer, key: str) -> Any:
    """Return the value of a dotted key; None where it is not set."""
    value: Any = layer.values
    for name in key.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _remove(layer: Layer, key: str, place: SourceLocation | None) -> None:
    """Remove, in place, a setting and its places; `place` is why it is absent, if any."""
    above, _, last = key.rpartition(".")
    del (_value(layer, above) if above else layer.values)[last]
    for old in [old for old in layer.places if old == key or old.startswith((f"{key}.", f"{key}["))]:
        del layer.places[old]
    layer.places.update({} if place is None else {key: place})


def _read_override(override: str) -> Layer:
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts) or parts[0] == EXTENDS:
        hint = "write extends in a file" if parts[0] == EXTENDS else "allowed: section.key=value"
        return Layer(problems=[Problem(f"{override!r} cannot be set; {hint}", place=SET, code="cli.invalid_value")])
    try:
        value = read_scalar(text)
    except ValueError as error:
        value = error
    # A text is taken as it is typed, but in quotes; YAML would cut "a # b" and read 1e5 as a number.
    text = text.strip()
    is_yaml = text[:1] in "'\"" or text.lower() in ("null", "~") or (text[:1] == "[" and isinstance(value, list))
    is_yaml = is_yaml or (parts[1:2] == ["columns"] and isinstance(value, int | float))  # a column by its number
    found = [section_options(section).get(parts[-1]) for section in sections_at(".".join(parts[:-1]))]
    is_text = any(found) and all(option is None or option.is_text for option in found)
    if is_text and (isinstance(value, ValueError) or not is_yaml):
        value = text
    if isinstance(value, ValueError):
        message = f"{key}: {text!r} is {value}; put text with special characters in quotes"
        return Layer(problems=[Problem(message, place=SET, code="cli.invalid_value")])
    name = ".".join(parts)
    return layer_of(name, value, dict.fromkeys([name, *keys_inside(value, name)], SET))
