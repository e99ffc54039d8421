"""Reads a YAML file that contains one section, and reports all problems at once."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from paratune.config.layers import read_text
from paratune.config.options import section_options
from paratune.config.problems import Problem, SourceLocation, failure
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
    problems = list(tree.problems)
    options = {} if tree.value is None else tree.value
    if not isinstance(options, dict):
        message = (
            f"it is {describe_value(options)}; {name} is a mapping of options ({', '.join(section_options(section))})"
        )
        raise failure(path, [*problems, Problem(message, code="config.not_mapping")], path.name)
    values, findings = validate_as(section, options, name)
    problems += findings.problems
    problems += check(values, options, not problems)
    if problems:
        raise failure(path, [_located(problem, tree.places, path.name) for problem in problems], path.name)
    return section.model_validate(values)


def _located(problem: Problem, places: dict[str, SourceLocation], file: str) -> Problem:
    """Return a problem with the location of its key, or of the closest parent of the key."""
    if problem.place is not None or not problem.keys:
        return problem
    key = problem.keys[0]
    while key and key not in places:
        key = re.sub(r"(\.[^.]*|\[\d+\])$", "", key) if re.search(r"\.|\[", key) else ""
    return replace(problem, place=places.get(key, SourceLocation(file, 1)))
