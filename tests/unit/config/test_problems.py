from pathlib import Path

import pytest

from paratune.config.problems import SET, Problem, SourceLocation, failure, overlap


def test_failure_lists_the_main_file_by_line_then_other_files_then_the_command_line():
    problems = [
        Problem("no place", code="config.invalid_value"),
        Problem("set", place=SET, code="config.invalid_value"),
        Problem("base", place=SourceLocation("base.yaml", 1), code="config.invalid_value"),
        Problem("late", place=SourceLocation("x.yaml", 20), code="config.invalid_value"),
        Problem("early", place=SourceLocation("x.yaml", 3), code="config.invalid_value"),
        Problem("early", place=SourceLocation("x.yaml", 3), code="config.invalid_value"),
    ]
    assert str(failure(Path("configs/x.yaml"), problems, "x.yaml")) == (
        "configs/x.yaml: 5 problems\n"
        "  line 3: early\n"
        "  line 20: late\n"
        "  base.yaml line 1: base\n"
        "  --set: set\n"
        "  no place"
    )


def test_a_place_has_the_origin_of_a_value():
    assert (SourceLocation("a.yaml", 3).origin, SET.origin) == ("a.yaml:3", "--set")


@pytest.mark.parametrize(
    ("key", "other", "expected"),
    [("a.b", "a.b", True), ("a", "a.b", True), ("a.b.c", "a", True), ("a.bc", "a.b", False), ("a.b", "a.c", False)],
)
def test_overlap(key, other, expected):
    assert overlap(key, other) is expected
