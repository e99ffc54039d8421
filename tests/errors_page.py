"""The codes of errors and warnings: their places in the source, and the table in docs/errors.md."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import paratune
from paratune import errors
from paratune.config.problems import ERRORS

SOURCE = Path(paratune.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "errors.md"
CODE = re.compile(r"[a-z0-9_]+\.[a-z0-9_]+")
EXIT_CODES = {
    **{
        name: kind.exit_code
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and hasattr(kind, "exit_code")
    },
    **dict.fromkeys(("Problem", "add", "Fault", "refuse", "refuse_value", "_unusable"), errors.EXIT_CONFIG),
    **dict.fromkeys(("Unavailable", "TooLarge"), errors.EXIT_DATA),
    **dict.fromkeys(
        ("lacks", "line_error", "source_error", "table_error", "usable_rows", "_wrong_column", "_wrong_values"),
        errors.EXIT_DATA,
    ),
    **dict.fromkeys(("UnreadableError", "_refused"), errors.EXIT_CHECKPOINT),
}
"""Exit code by the class of an error, or by the name of the function that records a configuration problem."""
WARNINGS = ("coded", "print_warning")


class Site(NamedTuple):
    """A place in the source that gives an error or a warning its code."""

    place: str
    code: str
    exit_code: int | None
    """None for a warning."""


class Row(NamedTuple):
    """A line of docs/errors.md."""

    code: str
    exit_codes: str
    cause: str


@cache
def _calls() -> tuple[tuple[str, ast.Call], ...]:
    return tuple(
        (f"{path.relative_to(SOURCE)}:{node.lineno}", node)
        for path in sorted(SOURCE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
    )


def sites() -> Iterator[Site]:
    """Yield every code in the source, with the error or warning that has it."""
    for place, call in _calls():
        yield from _of_call(call, place)


def _of_call(call: ast.Call, place: str) -> Iterator[Site]:
    name = getattr(call.func, "id", getattr(call.func, "attr", ""))
    codes = [keyword.value for keyword in call.keywords if keyword.arg == "code"]
    codes += {"coded": call.args[:1], "print_warning": call.args[1:2], "refuse": call.args[2:3]}.get(name, [])
    kind = getattr(call.args[0], "id", "") if name == "os_error_as" else {"option_error": "ConfigError"}.get(name, name)
    exit_code = EXIT_CODES.get(kind, EXIT_CODES["DataError"] if kind == "__init__" else None)
    for node in codes:
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and isinstance(part.value, str) and CODE.fullmatch(part.value):
                if name == "Problem" and part.value in ERRORS:
                    exit_code = ERRORS[part.value].exit_code
                yield Site(place, part.value, None if name in WARNINGS else exit_code)


def feasibility_codes() -> set[str]:
    """Return the codes of all rules of `config.feasibility`."""
    folders = ("config/feasibility.py", "config/batch_size.py")
    return {site.code for site in sites() if site.place.startswith(folders)}


def uncoded_warnings() -> Iterator[str]:
    """Yield the places of warnings that are logged without a code."""
    for place, call in _calls():
        is_coded = any(keyword.arg == "extra" for keyword in call.keywords)
        if getattr(call.func, "attr", "") == "warning" and not is_coded:
            yield place


def rows() -> list[Row]:
    """Return the table rows of docs/errors.md."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| `")]
    return [Row(code.strip("`"), *rest) for code, *rest in cells]
