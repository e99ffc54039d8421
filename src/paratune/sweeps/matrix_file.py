"""A matrix file while it is read, with its lines and its problems."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from paratune.config.layers import EXTENDS, Layer, label, layers_within, read_text, refuse_other_file
from paratune.config.options import section_options
from paratune.config.problems import Problem, SourceLocation
from paratune.config.section import Section
from paratune.config.validate import describe_value, validate_as
from paratune.config.yaml_tree import read_tree

S = TypeVar("S", bound=Section)


class MatrixFile:
    """One file; problems are collected, so that all of them are reported at once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.label = label(path, path.parent)
        """Its name in messages."""
        refuse_other_file(path)
        tree = read_tree(read_text(path), self.label)
        self.value, self.places = tree.value, tree.places
        """Its content, and the line of each value by dotted key."""
        self.problems: list[Problem] = list(tree.problems)

    def refuse(self, message: str, key: str, code: str = "config.invalid_value") -> None:
        """Add a problem of a key."""
        keys = (key,)
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        self.problems.append(Problem(message, keys, self.places.get(key, SourceLocation(self.label, 1)), code=code))

    def add(self, problems: Iterable[Problem], at: str, code: str | None = None) -> None:
        """Add problems of the key `at` or of keys inside it, with this code or their own."""
        for problem in problems:
            self.refuse(f"{at}: {problem.message}", problem.keys[0], code or problem.code)

    def section(self, kind: type[S], content: Any, at: str = "") -> S | None:
        """Return the options of a section, or of the file; None where they have problems, which are collected."""
        called = at or "the file"
        if not isinstance(content, dict):
            allowed = f"a mapping of options ({', '.join(section_options(kind))})"
            self.refuse(f"{called} is {describe_value(content)}; allowed: {allowed}", at)
            return None
        values, findings = validate_as(kind, content, called, at)
        for problem in findings.problems:
            self.refuse(problem.message, problem.keys[0], problem.code)
        return None if findings.problems else kind.model_validate(values)

    def count(self, value: Any, key: str) -> int:
        """Return a whole number of at least 1; 1 when the value is invalid."""
        if type(value) is not int or value < 1:
            self.refuse(f"{key} is {describe_value(value)}; allowed: a whole number at least 1", key)
            return 1
        return value

    def layers(self, settings: Mapping[Any, Any], at: str, *, called: str = EXTENDS) -> tuple[Layer, Layer]:
        """Return the settings of extended files and the own settings; `called` is the key that names the files."""
        below, own = layers_within(settings, self.places, at, self.path, called=called)
        self.problems += [*below.problems, *own.problems]
        return replace(below, problems=[]), replace(own, problems=[])
