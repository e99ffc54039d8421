"""Reads YAML 1.2 as plain values, with the line of each key.

PyYAML itself follows YAML 1.1: `2e-5` is text, `no` is false, and a duplicate key is no error.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from paratune.config.problems import Problem, SourceLocation
from paratune.config.yaml_errors import explain

MAX_NODES = 100_000
"""Maximum number of values in one file; aliases of aliases could otherwise fill the memory."""

_TAG = "tag:yaml.org,2002:"


class _Loader(yaml.SafeLoader):
    """The core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema)."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own attribute


for _name, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+.0123456789"),
    ),
):
    _Loader.add_implicit_resolver(_TAG + _name, re.compile(rf"^(?:{_pattern})\Z"), _first)


def _integer(text: str) -> int:
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _float(text: str) -> float:
    lowered = text.lower()
    return float(lowered.replace(".inf", "inf").replace(".nan", "nan") if lowered[-1:] in "fn" else lowered)


_SCALARS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": _integer,
    "float": _float,
}


@dataclass
class Tree:
    """Content of a YAML text."""

    value: Any = None
    """Plain dicts, lists, text, numbers, booleans and None."""
    places: dict[str, SourceLocation] = field(default_factory=dict)
    """The place of each dotted key, and of each list item as `key[0]`."""
    problems: list[Problem] = field(default_factory=list)
    """Mistakes in the YAML itself."""


def read_tree(text: str, file: str) -> Tree:
    """Read one YAML document.

    Returns:
        The tree. `value` is None for an empty document, and for invalid YAML, which has a problem.
    """
    return _Reader(file).read(text)


def read_scalar(text: str) -> Any:
    """Return the value of a YAML text given on the command line: a scalar, or a list or mapping in brackets.

    Raises:
        ValueError: It is not YAML; the message has the reason.
    """
    tree = read_tree(text, "--set")
    if tree.problems:
        raise ValueError("; ".join(problem.message for problem in tree.problems))
    return tree.value


@lru_cache(maxsize=16_384)
def is_plain_text(text: str) -> bool:
    """Return whether YAML reads text without quotes as the same text, also in a list or a mapping.

    Results are cached: a matrix writes the same names again for each of its runs.
    """
    try:
        return bool(read_scalar(text) == text and read_scalar(f"{{a: [{text}, {text}]}}") == {"a": [text, text]})
    except ValueError:
        return False


class _Reader:
    """Reads one document."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._tree = Tree()
        self._open: set[int] = set()
        self._num_nodes = 0

    def read(self, text: str) -> Tree:
        try:
            loader = _Loader(text)
            try:
                root = loader.get_single_node()
            finally:
                loader.dispose()
            if root is not None:
                self._tree.value = self._build(root, "")
        except yaml.MarkedYAMLError as error:
            reason, line = explain(error, text.splitlines())
            self._refuse(f"not valid YAML: {reason}", line)
        except yaml.reader.ReaderError as error:
            line = text[: error.position].count("\n") + 1
            self._refuse(f"not valid YAML: character #x{int(error.character):04x} is not allowed", line)
        except RecursionError:
            self._refuse("not valid as a configuration: brackets are nested too deep", 1)
        return self._tree

    def _refuse(self, message: str, line: int) -> None:
        self._tree.problems.append(Problem(message, place=SourceLocation(self._file, line), code="config.syntax"))

    def _build(self, node: yaml.Node, path: str) -> Any:
        line = node.start_mark.line + 1
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES:,} values", problem_mark=node.start_mark)
        if id(node) in self._open:
            raise yaml.MarkedYAMLError(problem="an alias that contains itself", problem_mark=node.start_mark)
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, line)
        if node.tag not in (f"{_TAG}map", f"{_TAG}seq"):
            self._refuse(f"the tag {_short(node.tag)} is not allowed; write plain values", line)
            return None
        self._open.add(id(node))
        value = self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._sequence(node, path)
        self._open.discard(id(node))
        return value

    def _scalar(self, node: yaml.ScalarNode, line: int) -> Any:
        convert = _SCALARS.get(node.tag.removeprefix(_TAG)) if node.tag.startswith(_TAG) else None
        if convert is None:
            self._refuse(f"the tag {_short(node.tag)} is not allowed; write plain values", line)
            return None
        try:
            return convert(node.value)
        except ValueError:
            self._refuse(f"{node.value[:40]!r} cannot be read as {node.tag.removeprefix(_TAG)}", line)
            return None

    def _sequence(self, node: yaml.Node, path: str) -> list[Any]:
        values = []
        for index, item in enumerate(node.value):
            self._tree.places[f"{path}[{index}]"] = SourceLocation(self._file, item.start_mark.line + 1)
            values.append(self._build(item, f"{path}[{index}]"))
        return values

    def _mapping(self, node: yaml.Node, path: str) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        lines: dict[Any, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse("a key must be a word or a number", line)
                continue
            key = self._scalar(key_node, line)
            dotted = f"{path}.{key}" if path else str(key)
            if key in lines:
                where = f"lines {lines[key]} and {line}" if lines[key] != line else f"twice on line {line}"
                message, place = f"{dotted} is given twice: {where}; keep one of them", SourceLocation(self._file, line)
                self._tree.problems.append(Problem(message, place=place, code="config.duplicate_key"))
                continue
            lines[key] = line
            self._tree.places[dotted] = SourceLocation(self._file, line)
            values[key] = self._build(value_node, dotted)
        return values


def _short(tag: str) -> str:
    return f"!!{tag.removeprefix(_TAG)}" if tag.startswith(_TAG) else tag
