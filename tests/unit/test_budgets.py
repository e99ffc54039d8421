"""Budgets: the lines of each part of the source, which may only become fewer."""

from fnmatch import fnmatch
from pathlib import Path

import pytest

import paratune

SOURCE = Path(paratune.__file__).parent
COUNTED = {".py", ".js", ".css", ".html", ".typ", ".yaml"}
"""`ruff format` gives all Python files the same width, so that lines can be compared."""
PLAN = ("planning/*", "commands/plan*", "api/plan*")
TRAINER = ("config/trainer/*",)
BUDGETS: dict[str, tuple[tuple[str, ...], tuple[str, ...], int, int]] = {
    "results": (("reports/*", "verdicts/*", "sweeps/*", "watch/*", "records/*"), (), 20_500, 14_500),
    "planning": (PLAN, (), 11_100, 6_000),
    "config": (("config/*",), TRAINER, 6_650, 4_300),
    "commands": (("commands/*", "api/*", "cli/*", "__init__.py", "__main__.py"), PLAN, 9_150, 5_600),
    "models": (("models/*",), (), 6_150, 4_900),
    "training": (("engine/*", "training/*", "strategies/*", "precision/*"), (), 11_050, 10_300),
    "after the training": (("explain/*", "feedback/*", "compress/*", "serving/*"), (), 4_900, 3_300),
    "doctor": (("doctor/*",), (), 3_000, 1_800),
    "corpus": (("corpus/*", "tokenizer/*"), (), 9_650, 6_500),
    "processes": (("cluster/*", "launch/*", "processes/*", "hangs/*"), (), 3_500, 3_000),
    "hf": (("hf/*",), (), 900, 450),
    "tasks": (("tasks/*", "metrics/*", "infer/*"), (), 4_900, 4_300),
    "data": (("data/*", *TRAINER), (), 7_850, 5_800),
    "the rest": (
        (
            *("hardware/*", "console/*", "base/*", "errors/*", "trackers/*", "hub/*", "bundle/*", "submission/*"),
            *("batch/*", "stages/*", "checkpoint/*", "demo/*"),
        ),
        (),
        5_050,
        4_400,
    ),
}
"""Part -> files, files that belong to another part, the most lines that it may have today, and the goal."""


def lines_by_file() -> dict[str, int]:
    return {
        path.relative_to(SOURCE).as_posix(): path.read_text(encoding="utf-8").count("\n")
        for path in SOURCE.rglob("*")
        if path.suffix in COUNTED
    }


def parts_of(file: str) -> list[str]:
    return [
        part
        for part, (files, others, *_) in BUDGETS.items()
        if any(fnmatch(file, name) for name in files) and not any(fnmatch(file, name) for name in others)
    ]


def test_each_file_is_in_one_part():
    assert {file: parts for file in lines_by_file() if len(parts := parts_of(file)) != 1} == {}


@pytest.mark.parametrize("part", BUDGETS)
def test_a_part_has_no_more_lines_than_its_budget(part: str):
    *_, most, _goal = BUDGETS[part]
    assert sum(lines for file, lines in lines_by_file().items() if parts_of(file) == [part]) <= most
