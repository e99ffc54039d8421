"""Loads and checks a configuration from a YAML file and `--set`, with the origin of each value."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paratune.config.check import check
from paratune.config.glue import fill_implied
from paratune.config.layers import Layer, expand_shorthands, keys_inside, label, layers_within, merge, plain_mappings
from paratune.config.optional_sections import teacher_names
from paratune.config.overrides import read_layers, read_overrides
from paratune.config.own_code import add_to_path, named_code
from paratune.config.permission import allow, trust
from paratune.config.plain import flatten, yaml_lines
from paratune.config.problems import SET, Problem, SourceLocation, failure, overlap, without_content
from paratune.config.sections import Config
from paratune.config.validate import validate_as
from paratune.config.yaml_tree import read_tree
from paratune.errors import ConfigError, Fault

DEFAULT = "default"
"""Origin of a value that was not given."""
MAPPING = Path("configuration")
"""Takes the place of the file for a configuration that was given as a mapping."""


@dataclass(frozen=True)
class LoadedConfig:
    """A checked configuration with its origins."""

    config: Config
    """All options; `run.name` is filled in."""
    origin: dict[str, str]
    """For each leaf of `values` by dotted key: "file.yaml:14", "--set", "task.glue: mrpc" or "default"."""
    values: dict[str, Any]
    """The configuration as JSON data, with the names of the file (`batch.global`)."""
    source: Path
    """The file, as the user named it."""
    replaced: tuple[str, ...] = ()
    """Settings of the file that `--set` removed, because another setting excludes them."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration file, the files that it extends, and `--set`; check the result.

    Code that it names is not imported, and may not be imported afterwards either, see `allow_code`.

    Args:
        overrides: A list of `section.key=value`; later ones win.

    Raises:
        ConfigError: The file cannot be read, or it has problems; the message lists all problems with their lines.
    """
    loaded, problems = check_layer(read_layers(path, overrides), path)
    if loaded is None or problems:
        raise failure(path, problems, label(path, path.parent))
    return loaded


def check_text(text: str, path: Path) -> Config:
    """Return the configuration of a text that a command made from given options, before it is written to a file."""
    tree = read_tree(text, str(path))
    assert isinstance(tree.value, dict), tree.problems
    loaded, problems = check_layer(expand_shorthands(Layer(tree.value, tree.places)), path)
    if loaded is None or problems:
        faults = [Fault(problem.code, problem.message) for problem in problems]
        raise ConfigError(
            "the given settings and options are not a valid configuration", code=problems[0].code, faults=faults
        )
    return loaded.config


def allow_code(loaded: LoadedConfig, *, with_models: bool = False) -> None:
    """Let this process import the code that a configuration of the user names, also from beside its file.

    For commands that run a configuration; those that check one call it with --run-code only.

    Args:
        with_models: Also the code that the folders of its model and teachers name (--run-code).
    """
    if with_models:
        model, distil = loaded.config.model, loaded.config.distil
        trust(*(name for name in (model.name, model.tokenizer) if name), *(teacher_names(distil) if distil else ()))
    code = named_code(loaded.config.model_dump(by_alias=True))
    allow(code)
    if code and loaded.source != MAPPING:
        add_to_path(loaded.source.parent)


def load_values(values: Mapping[str, Any], overrides: Sequence[str] = ()) -> LoadedConfig:
    """Check a configuration that was not read from a file; see `load_config`.

    Args:
        values: Sections, or single settings by dotted key, and perhaps `extends`, relative to the working directory.

    Raises:
        ConfigError: The configuration has problems, or no `run.name`.
    """
    plain, name = plain_mappings(values), MAPPING.name
    below, own = layers_within(plain, dict.fromkeys(keys_inside(plain, name), SourceLocation(name)), name, MAPPING)
    layer = expand_shorthands(read_overrides(merge(below, own), overrides))
    run = layer.values.get("run")
    if not (isinstance(run, Mapping) and run.get("name")):
        message = "run.name is required: a configuration without a file has no name"
        raise ConfigError(message, code="config.required", key="run.name")
    loaded, problems = check_layer(layer, MAPPING)
    if loaded is None or problems:
        raise failure(MAPPING, problems, MAPPING.name)
    return loaded


def check_layer(layer: Layer, path: Path) -> tuple[LoadedConfig | None, list[Problem]]:
    """Check merged layers.

    Args:
        layer: A whole configuration, with its shorthands expanded.
        path: Its file; a run without a name gets the name of the file.

    Returns:
        The configuration and its problems with their places. The configuration is None, unless all problems are
        settings that cannot be combined (`Problem.is_impossible`).
    """
    if not layer.whole:
        return None, [_placed(problem, layer) for problem in layer.problems]
    fill_implied(layer)
    name, run = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-"), layer.values.get("run") or {}
    is_unnamed = isinstance(run, dict) and run.get("name") is None
    if is_unnamed and name:
        layer.values["run"] = {**run, "name": name}
    values, findings = validate_as(Config, layer.values, "")
    if is_unnamed and not name and "run.name" not in findings.bad:
        message = f"run.name is required: the file's name, {path.name}, cannot be the name of a folder"
        findings.add(message, "run.name", code="config.required")
    try:
        config: Config | None = Config.model_validate(values)
    except ValidationError:
        if not findings.problems:
            raise
        config = None
    problems = [*layer.problems, *findings.problems]
    for problem in check(config) if config else ():
        # Without those that could come from a problem already found.
        if not any(overlap(key, bad) for key in problem.keys for bad in findings.bad):
            problems.append(problem)
    placed = [_placed(problem, layer) for problem in problems]
    if config is None or not all(problem.is_impossible for problem in problems):
        return None, placed
    plain = config.model_dump(mode="json", by_alias=True)
    origins = {key: layer.places[key].origin if key in layer.places else DEFAULT for key in flatten(plain)}
    set_keys, leaves = [key for key, place in layer.places.items() if place == SET], flatten(layer.values)
    replaced = tuple(key for key in set_keys if not any(overlap(key, leaf) for leaf in leaves))
    return LoadedConfig(config, origins, plain, path, replaced), placed


def show_text(loaded: LoadedConfig) -> str:
    """Return the resolved configuration as YAML, with the origin of each value as a comment; it loads as the same."""
    values = loaded.config.model_dump(by_alias=True)
    return "\n".join(yaml_lines(values, lambda key: loaded.origin.get(key, DEFAULT))) + "\n"


def _placed(problem: Problem, layer: Layer) -> Problem:
    """Return the problem with the place of its first key in the file, or of a key inside or around it."""
    if problem.place is not None:
        return without_content(problem)
    written = [layer.places[key] for key in problem.keys if key in layer.places]
    inside = [at for key in problem.keys for name, at in layer.places.items() if name.startswith(f"{key}.")]
    around = [place for key in problem.keys if (place := layer.place(key))]
    return without_content(replace(problem, place=next(iter((*written, *inside, *around)), None)))
