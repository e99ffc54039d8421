"""The codes of errors, warnings and findings: those in the source, and what causes.toml says about them."""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import paratune
from paratune import errors
from paratune.config.problems import ERRORS
from paratune.doctor.options import FINDINGS

SOURCE = Path(paratune.__file__).parent
TEXTS = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
"""The cause of each error, and what each finding of doctor looks at."""
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


def exit_codes() -> dict[str, list[str]]:
    """Return the exit codes of each code in the source, in order; "warning" is the last."""
    found: dict[str, set[str]] = {}
    for site in sites():
        found.setdefault(site.code, set()).add("warning" if site.exit_code is None else str(site.exit_code))
    return {code: sorted(found[code]) for code in sorted(found)}


def finding_codes() -> set[str]:
    """Return the codes of the findings of `paratune doctor` about a machine and about a run."""
    folder = SOURCE / "doctor"
    files = [*folder.glob("*.py"), *(SOURCE / "commands").glob("doctor_*.py")]
    sources = "".join(path.read_text(encoding="utf-8") for path in files)
    codes = set(re.findall(r'(?:[Ff]inding|_problem)\(\s*(?:setup, )?"(\w+)"', sources))
    codes |= {"run_disk", "cache_disk", "data_column"}
    # The file decides on the first, nodes have equal numbers of processes, and `device: cpu` hides GPUs.
    elsewhere = {"strategy.excluded", "ranks.uneven_nodes", "device.is_gpu"}
    return codes | {FINDINGS.get(code, (code, ""))[0] for code in feasibility_codes() - elsewhere}
