"""Explains mistakes in YAML to the author of a configuration, from the errors of PyYAML."""

import re
from collections.abc import Sequence

import yaml

_SHOWN = 60
"""Characters of a line that a message shows."""
_CLOSING = {"[": "]", "{": "}"}
_SPECIAL = {"alias": "*", "anchor": "&", "directive": "%"}
"""First characters with a meaning in YAML, by a word in PyYAML's messages."""


def explain(error: yaml.MarkedYAMLError, lines: Sequence[str]) -> tuple[str, int]:
    """Return a message with the mistake and the correction, and the number of the line to correct, from 1.

    Args:
        error: From PyYAML, or from `yaml_tree`, whose message is returned.
    """
    context, problem = error.context or "", error.problem or ""
    mark = error.problem_mark or error.context_mark
    start = error.context_mark or mark
    if mark is None or start is None:
        return problem, 1
    line = lines[mark.line] if mark.line < len(lines) else ""
    first = lines[start.line] if start.line < len(lines) else ""
    if "'\\t' that cannot start" in problem:
        return "a tab character; replace it with spaces", mark.line + 1
    if problem.startswith("mapping values are not allowed"):
        return _unexpected_colon(lines, mark.line, mark.column)
    if problem.startswith("could not find expected ':'"):
        return _missing_colon(first), start.line + 1
    if problem.startswith("expected <block end>") and not problem.endswith("'<scalar>'"):
        return _indentation(lines, mark.line)
    opening = first[start.column : start.column + 1]
    if "while parsing a flow" in context and opening in _CLOSING:
        return f"{opening} has no {_CLOSING[opening]}, or a comma is missing: {_short(first)}", start.line + 1
    if problem.startswith("found unexpected end of stream"):
        return f"the closing {opening} is missing: {_short(first)}", start.line + 1
    if problem.startswith("found unknown escape character"):
        return f"a backslash in double quotes starts an escape; use single quotes: {_short(line)}", mark.line + 1
    if problem.startswith("sequence entries are not allowed"):
        return (
            f"a list starts behind its key; write [a, b], or each item on its own line: {_short(line)}",
            mark.line + 1,
        )
    if problem.startswith("but found another document"):
        return "a second document starts; a file has one", mark.line + 1
    if problem.endswith("'<stream end>'"):
        number = max((n for n, text in enumerate(lines) if "[" in text or "{" in text), default=0)
        return f"a bracket is not closed: {_short(lines[number])}", number + 1
    if not context and not problem.startswith(("expected", "found")):
        return problem, mark.line + 1  # of `yaml_tree`
    sign = next((sign for name, sign in _SPECIAL.items() if name in f"{context} {problem}"), None)
    cannot_start = re.match(r"found character '(.)' that cannot start", problem)
    if sign or cannot_start:
        sign = sign or (cannot_start[1] if cannot_start else "")
        return f"a value that starts with {sign} needs quotes: {_short(line)}", mark.line + 1
    return f"check quotes, brackets and colons: {_short(line)}", mark.line + 1


def _unexpected_colon(lines: Sequence[str], number: int, column: int) -> tuple[str, int]:
    """Explain a key where a value was expected: a colon in a value, a line too far right, or no colon before it."""
    line, above = lines[number], _line_above(lines, number)
    name = line[:column].strip()
    if ": " in name:
        return f"the value has a colon and needs quotes: {_short(line)}", number + 1
    if above is None or re.search(r":(\s|$)", lines[above]):
        return f"{name} is indented by more spaces than the line above, which has a value", number + 1
    return _missing_colon(lines[above]), above + 1


def _missing_colon(line: str) -> str:
    text = line.partition(" #")[0].strip()
    if re.match(r"-[^\s-]", text):
        return f"a hyphen needs a space: write - {text[1:]}"
    name, rest = re.match(r"([\w.-]*)\s*[:=]?\s*(.*)", text, re.DOTALL).groups()  # type: ignore[union-attr]
    if not name:
        return f"a colon is missing: {_short(line)}"
    return f"{_short(line)} has no colon with a space; write {_short(f'{name}: {rest}')}"


def _indentation(lines: Sequence[str], number: int) -> tuple[str, int]:
    line, above = lines[number], _line_above(lines, number)
    if above is not None and not re.search(r":(\s|$)|^\s*-", lines[above]):
        return _missing_colon(lines[above]), above + 1
    before = "" if above is None else f", and the line above by {_num_spaces(lines[above])}"
    return (
        f"{_short(line)} is indented by {_num_spaces(line)}{before}; the lines of a section have the same number of "
        "spaces"
    ), number + 1


def _line_above(lines: Sequence[str], number: int) -> int | None:
    """Return the number of the nearest line above that is neither empty nor a comment."""
    return next((n for n in range(number - 1, -1, -1) if lines[n].strip() and lines[n].lstrip()[0] != "#"), None)


def _num_spaces(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _short(line: str) -> str:
    text = line.strip()
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 4]} ..."
