"""Reads a YAML file that contains one section, and reports all problems at once."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from paratune.config.layers import read_text
from paratune.config.options import section_options
from paratune.config.problems import Problem, SourceLocation, failure, place_of
from paratune.config.section import Section
from paratune.config.validate import describe_value, validate_as
from paratune.config.yaml_tree import read_tree

S = TypeVar("S", bound=Section)


def read_section_file(
    path: Path, section: type[S], name: str, check: Callable[[dict[str, Any], dict[str, Any], bool], list[Problem]]
) -> S:
    """Return the section in a file.

    Args:
        name: Name of the section in messages, with its article.
        check: Takes valid values, the options in the file, and whether all options are valid; returns further problems.

    Raises:
        ConfigError: The file is unreadable, or has problems, which are listed with their lines.
    """
    tree = read_tree(read_text(path), path.name)
    options = {} if tree.value is None else tree.value
    if not isinstance(options, dict):
        allowed = f"{name} is a mapping of options ({', '.join(section_options(section))})"
        problem = Problem(f"it is {describe_value(options)}; {allowed}", code="config.not_mapping")
        raise failure(path, [*tree.problems, problem], path.name)
    values, findings = validate_as(section, options, name)
    problems = [*tree.problems, *findings.problems]
    problems += check(values, options, not problems)
    if not problems:
        return section.model_validate(values)
    top = SourceLocation(path.name, 1)
    placed = [
        replace(problem, place=problem.place or (place_of(problem.keys[0], tree.places) or top))
        if problem.keys
        else problem
        for problem in problems
    ]
    raise failure(path, placed, path.name)
