"""Files with one section: problems of all checks at once, each with its line."""

import pytest
from raised import check_code

from paratune.config.problems import Problem
from paratune.config.section import Positive, Section
from paratune.config.validate import read_section_file
from paratune.errors import ConfigError


class Inner(Section):
    size: Positive = 1


class Outer(Section):
    count: Positive = 1
    inner: Inner = Inner()


def read(tmp_path, text, problems=()):
    (tmp_path / "a.yaml").write_text(text)
    return read_section_file(tmp_path / "a.yaml", Outer, "an outer", lambda *_: list(problems))


def test_the_section_is_returned(tmp_path):
    assert read(tmp_path, "count: 2\ninner: {size: 3}\n") == Outer(count=2, inner=Inner(size=3))
    assert read(tmp_path, "") == Outer()


def test_a_problem_has_the_line_of_its_key_or_of_the_closest_parent(tmp_path):
    keys = ("inner.size", "inner.other[2].name", "absent")
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, "\ncount: 2\ninner:\n  size: 3\n", [Problem("x", (key,), code="a.b") for key in keys])
    assert sorted(fault.facts["line"] for fault in raised.value.faults) == [1, 3, 4]


def test_problems_of_values_and_of_the_check_are_listed_together(tmp_path):
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, "count: 0\n", [Problem("x", ("inner",), code="a.b")])
    assert len(raised.value.faults) == 2


def test_a_file_that_is_not_a_mapping_is_refused(tmp_path):
    with pytest.raises(ConfigError) as raised:
        read(tmp_path, "- a\n")
    check_code(raised.value, "config.syntax")
