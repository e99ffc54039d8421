"""Reads YAML 1.2 as plain values, with the line of each key, and explains mistakes to the author of a file.

PyYAML itself follows YAML 1.1: `2e-5` is text, `no` is false, and a duplicate key is no error.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from paratune.config.problems import Problem, SourceLocation

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


_SCALARS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "null": lambda text: None,
    "bool": lambda text: text.lower() == "true",
    "int": lambda text: int(text, 0) if text[:2] in ("0o", "0x") else int(text),
    "float": lambda text: float(text.lower().replace(".inf", "inf").replace(".nan", "nan")),
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


_PLAIN = re.compile(r"(?!\.\.\.)[A-Za-z0-9_./][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*")


def is_plain_text(text: str) -> bool:
    """Return whether text needs no quotes: YAML reads it as the same text, also in a list or a mapping."""
    resolvers = _Loader.yaml_implicit_resolvers.get(text[:1], ())
    return bool(_PLAIN.fullmatch(text)) and not any(pattern.match(text) for _, pattern in resolvers)


class _Reader:
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
            reason, line = _explain(error, text.splitlines())
            self._refuse(f"not valid YAML: {reason}", line)
        except yaml.reader.ReaderError as error:
            line = text[: error.position].count("\n") + 1
            self._refuse(f"not valid YAML: character #x{int(error.character):04x} is not allowed", line)
        except RecursionError:
            self._refuse("not valid as a configuration: brackets are nested too deep", 1)
        return self._tree

    def _refuse(self, message: str, line: int, code: str = "") -> None:
        self._tree.problems.append(
            Problem(message, place=SourceLocation(self._file, line), code=code or "config.syntax")
        )

    def _build(self, node: yaml.Node, path: str) -> Any:
        """Return the value of a node; None for one that is not allowed, which is a problem."""
        line = node.start_mark.line + 1
        self._num_nodes += 1
        if self._num_nodes > MAX_NODES:
            raise yaml.MarkedYAMLError(problem=f"more than {MAX_NODES:,} values", problem_mark=node.start_mark)
        if id(node) in self._open:
            raise yaml.MarkedYAMLError(problem="an alias that contains itself", problem_mark=node.start_mark)
        kind = node.tag.removeprefix(_TAG) if node.tag.startswith(_TAG) else ""
        if kind not in (_SCALARS if isinstance(node, yaml.ScalarNode) else ("map", "seq")):
            shown = node.tag.replace(_TAG, "!!")
            self._refuse(f"the tag {shown} is not allowed; write plain values", line)
            return None
        if isinstance(node, yaml.ScalarNode):
            try:
                return _SCALARS[kind](node.value)
            except ValueError:
                self._refuse(f"{node.value[:40]!r} cannot be read as {kind}", line)
                return None
        self._open.add(id(node))
        values: Any = []
        if isinstance(node, yaml.MappingNode):
            values = self._mapping(node, path)
        else:
            for index, item in enumerate(node.value):
                self._tree.places[f"{path}[{index}]"] = SourceLocation(self._file, item.start_mark.line + 1)
                values.append(self._build(item, f"{path}[{index}]"))
        self._open.discard(id(node))
        return values

    def _mapping(self, node: yaml.Node, path: str) -> dict[Any, Any]:
        values: dict[Any, Any] = {}
        lines: dict[Any, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self._refuse("a key must be a word or a number", line)
                continue
            key = self._build(key_node, path)
            dotted = f"{path}.{key}" if path else str(key)
            if key in lines:
                where = f"lines {lines[key]} and {line}" if lines[key] != line else f"twice on line {line}"
                self._refuse(f"{dotted} is given twice: {where}; keep one of them", line, "config.duplicate_key")
                continue
            lines[key] = line
            self._tree.places[dotted] = SourceLocation(self._file, line)
            values[key] = self._build(value_node, dotted)
        return values


_KEY_EXPECTED = ("mapping values are not", "could not find expected ':'", "expected <block end>")
"""Words of PyYAML's messages where a line above may lack its colon."""
_AT_START = ("could not find expected ':'", "parsing a flow", "unexpected end of stream")
"""Words of messages about the line where a value begins, not about the one where PyYAML notices the mistake."""
_ADVICE = (
    ("'\\t' that cannot start", "a tab character; replace it with spaces"),
    ("unknown escape character", "a backslash in double quotes starts an escape; use single quotes: {line}"),
    ("sequence entries are not", "a list starts behind its key; write [a, b], or each item on its own line: {line}"),
    ("mapping values are not", "a value with a colon needs quotes, or its line starts with too many spaces: {line}"),
    ("could not find expected ':'", "a colon with a space is missing: {line}"),
    ("parsing a flow", "a bracket is not closed, or a comma is missing: {line}"),
    ("unexpected end of stream", "a quote is not closed: {line}"),
    ("but found '<scalar>'", "check quotes and colons: {line}"),
    ("expected <block end>", "all lines of a section have the same number of spaces: {line}"),
    ("found another document", "a second document starts; a file has one"),
    ("scanning an alias", "a value that starts with * needs quotes: {line}"),
    ("scanning an anchor", "a value that starts with & needs quotes: {line}"),
    ("scanning a directive", "a value that starts with % needs quotes: {line}"),
    ("that cannot start", "the first character of a value needs quotes: {line}"),
)
"""Words of PyYAML's messages, and what to tell the author of a file."""


def _explain(error: yaml.MarkedYAMLError, lines: Sequence[str]) -> tuple[str, int]:
    """Return a message with the mistake and the correction, and the number of the line to correct, from 1."""
    context, problem = error.context or "", error.problem or ""
    mark = error.problem_mark or error.context_mark
    start = error.context_mark or mark
    if mark is None or start is None:
        return problem, 1
    words = f"{context} {problem}"
    # The nearest line above that is neither empty nor a comment.
    above = next((n for n in range(mark.line - 1, -1, -1) if lines[n].strip() and lines[n].lstrip()[0] != "#"), None)
    lacks_colon = above is not None and not re.search(r":(\s|$)|^\s*-\s", lines[above])
    if above is not None and lacks_colon and any(text in words for text in _KEY_EXPECTED):
        return _missing_colon(lines[above]), above + 1
    fallback = "", "check quotes, brackets and colons: {line}"
    text, advice = next((entry for entry in _ADVICE if entry[0] in words), fallback)
    if not text and not context and not problem.startswith(("expected", "found")):
        return problem, mark.line + 1  # of `_Reader`
    number = (start if text in _AT_START else mark).line
    if number >= len(lines):  # the end of the file: the last line that may have an open bracket
        number = max((n for n, line in enumerate(lines) if "[" in line or "{" in line), default=0)
    return advice.format(line=_short(lines[number])), number + 1


def _missing_colon(line: str) -> str:
    text = line.partition(" #")[0].strip()
    if re.match(r"-[^\s-]", text):
        return f"a hyphen needs a space: write - {text[1:]}"
    name, rest = re.match(r"([\w.-]*)\s*[:=]?\s*(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if not name:
        return f"a colon is missing: {_short(line)}"
    return f"{_short(line)} has no colon with a space; write {_short(f'{name}: {rest}')}"


def _short(line: str) -> str:
    text = line.strip()
    return text if len(text) <= 60 else f"{text[:56]} ..."
