"""From a YAML file and `--set` to a checked configuration, with where each value came from."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from paratune.config.check import check
from paratune.config.differences import flatten
from paratune.config.glue import fill_glue
from paratune.config.implied import fill_columns
from paratune.config.layers import Layer, label, read_layers
from paratune.config.plain import yaml_lines
from paratune.config.problems import Problem, failure, overlap
from paratune.config.sections import Config
from paratune.config.validate import Findings, validate

DEFAULT = "default"
"""Origin of a value that was not given."""


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration that can be run, and where it came from."""

    config: Config
    """Every option, checked; `run.name` is filled in."""
    origin: dict[str, str]
    """For each leaf of `values` by dotted key: "file.yaml:14", "--set", "task.glue: mrpc" or "default"."""
    values: dict[str, Any]
    """The configuration as JSON keeps it, under the names of the file (`batch.global`)."""
    source: Path
    """The file, as it was named."""


def load_config(path: Path, overrides: Sequence[str] = ()) -> LoadedConfig:
    """Read a configuration file, what it extends, and `--set`, and check all of it.

    Args:
        path: A YAML file.
        overrides: `section.key=value` each, in the order given; later ones win.

    Raises:
        ConfigError: The file cannot be read, or it has problems: all of them are in the text, each with its line.
    """
    loaded, problems = check_layer(read_layers(path, overrides), path)
    if loaded is None or problems:
        raise failure(path, problems, label(path, path.parent))
    return loaded


def check_layer(layer: Layer, path: Path) -> tuple[LoadedConfig | None, list[Problem]]:
    """Check merged layers.

    Args:
        layer: All of a configuration, with its shorthands expanded.
        path: The file it is from; a run without a name gets that of the file.

    Returns:
        The configuration, or None and what is wrong with it, each problem with its place. One of which nothing is
        wrong but that settings cannot go together (`Problem.is_impossible`) is returned with these problems.
    """
    if not layer.whole:
        return None, [_placed(problem, layer) for problem in layer.problems]
    fill_glue(layer)
    fill_columns(layer)
    values, findings = validate(layer.values)
    _name_run(values, path, findings)
    try:
        config: Config | None = Config.model_validate(values)
    except ValidationError:
        if not findings.problems:
            raise
        config = None
    problems = [*layer.problems, *findings.problems, *(_cross_problems(config, findings) if config else [])]
    placed = [_placed(problem, layer) for problem in problems]
    if config is None or not all(problem.is_impossible for problem in problems):
        return None, placed
    plain = config.model_dump(mode="json", by_alias=True)
    return LoadedConfig(config, _origins(plain, layer), plain, path), placed


def show_text(loaded: LoadedConfig) -> str:
    """Return the resolved configuration as YAML, with the origin of each value behind it; it loads as the same."""
    values = loaded.config.model_dump(by_alias=True)
    return "\n".join(yaml_lines(values, lambda key: loaded.origin.get(key, DEFAULT))) + "\n"


def _cross_problems(config: Config, findings: Findings) -> list[Problem]:
    """Return the problems between sections, without those that could come from a problem already found."""

    def is_known(problem: Problem) -> bool:
        return any(overlap(key, bad) for key in problem.keys for bad in findings.bad)

    return [problem for problem in check(config) if not is_known(problem)]


def _placed(problem: Problem, layer: Layer) -> Problem:
    """Return the problem with the place of the first of its keys that was written, or of something in or around it."""
    if problem.place is not None:
        return problem
    written = [layer.places[key] for key in problem.keys if key in layer.places]
    inside = [at for key in problem.keys for name, at in layer.places.items() if name.startswith(f"{key}.")]
    around = [place for key in problem.keys if (place := layer.place(key))]
    return replace(problem, place=next(iter((*written, *inside, *around)), None))


def _name_run(values: dict[str, Any], path: Path, findings: Findings) -> None:
    if values["run"].get("name") is not None or "run.name" in findings.bad:
        return
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", path.stem).lstrip("._-")
    if name:
        values["run"]["name"] = name
    else:
        findings.add(
            f"run.name is required: the file's name, {path.name}, cannot be the name of a folder",
            "run.name",
            code="config.required",
        )


def _origins(values: Mapping[str, Any], layer: Layer) -> dict[str, str]:
    return {key: layer.places[key].origin if key in layer.places else DEFAULT for key in flatten(values)}
