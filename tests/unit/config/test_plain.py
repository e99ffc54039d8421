import math

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paratune.config.plain import one_line, yaml_lines
from paratune.config.yaml_tree import read_tree

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
TREES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(), inner, max_size=4)
)


@given(value=TREES)
def test_one_line_can_be_read_back(value):
    # A mapping with the keys 1 and "1" is fine for YAML; places are by text, which does not matter here.
    tree = read_tree(one_line(value), "f")
    assert tree.problems == []
    assert tree.value == value
    assert "\n" not in one_line(value)


@given(values=st.dictionaries(st.text(), TREES, min_size=1))
def test_yaml_lines_are_read_back_as_the_same(values):
    text = "\n".join(yaml_lines(values, lambda key: "remark"))
    assert read_tree(text, "f").value == values


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2e-5, "2.0e-05"),
        (1.5e-7, "1.5e-07"),
        (math.inf, ".inf"),
        (math.nan, ".nan"),
        ("no", "no"),
        ("1", '"1"'),
        ("\n", '"\\n"'),
        ("ação é", '"ação é"'),
        ("demo:minilm", "demo:minilm"),
        ({0: "a", "b": None}, "{0: a, b: null}"),
        ([], "[]"),
    ],
)
def test_one_line_writes(value, text):
    assert one_line(value) == text


def test_small_numbers_are_numbers_to_readers_of_yaml_1_1_too():
    assert yaml.safe_load(one_line({"lr": 2e-5})) == {"lr": 2e-5}


def test_yaml_lines_put_a_remark_behind_each_leaf():
    lines = yaml_lines({"task": {"labels": {0: "a"}}, "b": {"c": {"d": 1}}, "e": {}}, lambda key: f"<{key}>")
    assert lines == [
        "task:",
        "  labels: {0: a}  # <task.labels>",
        "b:",
        "  c:",
        "    d: 1  # <b.c.d>",
        "e: {}  # <e>",
    ]
