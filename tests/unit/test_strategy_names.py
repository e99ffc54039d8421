"""No module branches on the name of a strategy, or on the class of its options: traits describe the differences.

Strategies are in `strategies/`, their options and traits in `config/`, their arithmetic of plans in tables and in
functions of their own; those functions name the class of the options that they read in an `assert`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from paratune.config import strategy_sections
from paratune.config.traits import TRAITS

PACKAGE = Path(__file__).parents[2] / "src" / "paratune"
CLASSES = {name for name in vars(strategy_sections) if name.endswith("Options")}
PER_KIND = {"config/check_train.py", "config/traits.py", "config/trainer/convert.py"}
"""Checks of the options of each strategy, their traits, and the conversion of the files of other tools."""


def branches(source: str) -> Iterator[int]:
    """Yield the lines that compare with a strategy's name, or ask for the class of its options outside of `assert`."""
    tree = ast.parse(source)
    asserted = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Assert) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in asserted:
            continue
        if isinstance(node, ast.Compare) and _is_of_strategy(node) and _names(node):
            yield node.lineno
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance" and _classes(node):
            yield node.lineno


def _is_of_strategy(node: ast.Compare) -> bool:
    """Return whether a comparison is of something called a kind, a name or a strategy."""
    words = {getattr(inner, "attr", getattr(inner, "id", "")) for inner in ast.walk(node)}
    return bool(words & {"kind", "name", "strategy"}) or any(
        isinstance(inner, ast.Constant) and inner.value == "strategy.kind" for inner in ast.walk(node)
    )


def _names(node: ast.AST) -> set[str]:
    return {inner.value for inner in ast.walk(node) if isinstance(inner, ast.Constant) and inner.value in TRAITS}


def _classes(node: ast.AST) -> set[str]:
    return {getattr(inner, "attr", getattr(inner, "id", "")) for inner in ast.walk(node)} & CLASSES


def test_nothing_branches_on_the_name_of_a_strategy():
    found = [
        f"{path.relative_to(PACKAGE)}:{line}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] != "strategies" and str(path.relative_to(PACKAGE)) not in PER_KIND
        for line in branches(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('if strategy.kind == "ddp": pass', 1),
        ('x = setup.strategy.kind in ("zero2", "hsdp")', 1),
        ('x = kind != "zero3" and kind != "pipeline"', 2),
        ("x = isinstance(strategy, DDPOptions)", 1),
        ("x = isinstance(strategy, (DDPOptions, sections.HSDPOptions))", 1),
        ("assert isinstance(strategy, DDPOptions)", 0),
        ("x = isinstance(strategy, OutsideStrategy)", 0),
        ('x = program == "deepspeed"', 0),  # of a program in a batch script
        ('x = {"ddp": 1}[strategy.kind]', 0),  # a table
    ],
)
def test_what_counts_as_a_branch(source: str, count: int):
    assert len(list(branches(source))) == count
