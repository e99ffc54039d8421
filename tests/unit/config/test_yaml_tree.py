import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from paratune.config.problems import SourceLocation
from paratune.config.yaml_tree import MAX_NODES, is_plain_text, read_scalar, read_tree


@pytest.mark.parametrize(
    ("text", "value"),
    [
        # https://yaml.org/spec/1.2.2/#103-core-schema; PyYAML itself reads those marked 1.1 otherwise.
        ("2e-5", 2e-5),  # 1.1: text
        ("5E3", 5000.0),
        (".5", 0.5),
        ("1.", 1.0),
        ("-.inf", -math.inf),
        ("no", "no"),  # 1.1: false
        ("Yes", "Yes"),
        ("on", "on"),
        ("y", "y"),
        ("true", True),
        ("False", False),
        ("tRUE", "tRUE"),
        ("010", 10),  # 1.1: 8
        ("0o10", 8),
        ("0x1F", 31),
        ("+3", 3),
        ("1_000", "1_000"),  # 1.1: 1000
        ("12:30", "12:30"),  # 1.1: 750
        ("2024-01-31", "2024-01-31"),  # 1.1: a date
        ("~", None),
        ("null", None),
        ("", None),
        ("'3'", "3"),
        ("demo:sentences", "demo:sentences"),
        ("[0.9, 1e-3]", [0.9, 1e-3]),
        ("{0: no, b: 1}", {0: "no", "b": 1}),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    result = read_scalar(text)
    assert result == value
    assert type(result) is type(value)


def test_nan_is_a_number():
    assert math.isnan(read_scalar(".nan"))


def test_each_key_and_item_has_its_line():
    tree = read_tree("a: 1\nb:\n  c:\n    - x\n    - y\n  d: {e: 2}\n", "f.yaml")
    assert tree.value == {"a": 1, "b": {"c": ["x", "y"], "d": {"e": 2}}}
    assert {key: place.line for key, place in tree.places.items()} == {
        "a": 1, "b": 2, "b.c": 3, "b.c[0]": 4, "b.c[1]": 5, "b.d": 6, "b.d.e": 6,
    }  # fmt: skip
    assert tree.places["a"] == SourceLocation("f.yaml", 1)


def test_a_duplicate_key_is_a_problem_with_both_lines_and_the_first_value_counts():
    tree = read_tree("train:\n  epochs: 1\n  seed: 2\n  epochs: 3\n", "f.yaml")
    (problem,) = tree.problems
    assert (problem.code, problem.place) == ("config.duplicate_key", SourceLocation("f.yaml", 4))
    assert "train.epochs is given twice: lines 2 and 4" in problem.message
    assert tree.value == {"train": {"epochs": 1, "seed": 2}}


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("a: 1\nb: \x07\n", 2, "character #x0007"),
        ("a: &x [*x]\n", 1, "an alias that contains itself"),
        ("a: !!python/object/apply:os.system [ls]\n", 1, "!!python/object/apply:os.system"),
        ("a: 1\nb: !mine 3\n", 2, "!mine"),
        ("a: !!int three\n", 1, "'three' cannot be read as int"),
        ("? [a, b]\n: 1\n", 1, "a key must be a word or a number"),
        ("a: 0x\n", None, ""),
    ],
)
def test_invalid_yaml_is_a_problem_with_its_line(text, line, what):
    problems = read_tree(text, "f.yaml").problems
    if line is None:
        assert problems == []
        return
    assert len(problems) == 1
    assert what in problems[0].message
    assert problems[0].place == SourceLocation("f.yaml", line)


@pytest.mark.parametrize(
    ("text", "line", "values"),
    [
        ("train:\n\tepochs: 3\n", 2, ["tab"]),
        ("train:\n  epochs:\t3\n", 2, ["tab"]),
        ("train:\n  epochs: 3\n    eps: 1\n", 3, ["eps", "spaces"]),
        ("train:\n    epochs: 3\n  eps: 1\n", 3, ["eps: 1", "spaces"]),
        ("train:\n  epochs 3\n  eps: 1\n", 2, ["epochs 3", "epochs: 3"]),
        ("train:\n  eps: 1\n  epochs:3\n", 3, ["epochs:3", "epochs: 3"]),
        ("train:\n  epochs = 3 # all\n\n  # more\n  eps: 1\n", 2, ["epochs: 3"]),
        ("run:\n  name: a\ntrain\n  epochs: 3\n", 3, ["train:"]),
        ("run:\n  name: a: b\n", 2, ["name: a: b", "quotes"]),
        ("a: 1\nb: [1, 2\nc: 3\n", 2, ["["]),
        ("a: 1\nb: {c: 2\n", 2, ["{"]),
        ('a: "x\nb: 1\n', 1, ['"']),
        ('a: "C:\\data"\n', 1, ["backslash", "single quotes"]),
        ("a: *.csv\n", 1, ["*", "quotes"]),
        ("a: @x\n", 1, ["@", "quotes"]),
        ("a:\n  - x\n  -y\n", 3, ["- y"]),
        ("a: - x\n", 1, ["[a, b]"]),
        ("a: 1\n---\nb: 2\n", 2, ["second document"]),
        ("a: ]\n", 1, ["brackets"]),
        ('a: "b"c\n', 1, ['a: "b"c']),
    ],
)
def test_a_mistake_of_syntax_is_named_with_the_line_to_correct_and_what_to_write(text, line, values):
    (problem,) = read_tree(text, "f.yaml").problems
    assert (problem.code, problem.place) == ("config.syntax", SourceLocation("f.yaml", line))
    assert [value for value in values if value not in problem.message] == [], problem.message
    assert not re.search("block|flow|scanning|token|mapping values|'\\\\t'", problem.message)


def test_every_broken_text_is_explained():
    # Mistakes at every place of a correct text: a character taken out, doubled, or replaced.
    text = 'a:\n  b: "x y"\n  c: [1, {d: 2}]\ne:\n- f: |\n    g\n- *h\n'
    for place in range(len(text)):
        for mistake in ("", "\t", ":", "[", "}", "'", "&", "\n", " "):
            for problem in read_tree(text[:place] + mistake + text[place + 1 :], "f").problems:
                assert problem.place is not None
                assert 1 <= (problem.place.line or 0) <= text.count("\n") + 2


def test_aliases_are_values_and_their_number_is_limited():
    assert read_tree("a: &x {b: 1}\nc: *x\n", "f").value == {"a": {"b": 1}, "c": {"b": 1}}
    # Ten lists of ten of the one before: 10^6 values from ten lines.
    bomb = "a0: &a0 [0]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 7))
    problems = read_tree(bomb, "f").problems
    assert [problem.message for problem in problems] == [f"not valid YAML: more than {MAX_NODES:,} values"]


def test_deeply_nested_brackets_are_a_problem_and_not_a_crash():
    assert "nested too deep" in read_tree("[" * 5000, "f").problems[0].message


def test_an_empty_document_has_no_value_and_no_problem():
    assert read_tree("# only a remark\n", "f").value is None
    assert read_tree("", "f").problems == []


@pytest.mark.parametrize("text", ["abc", "a/b.csv", "demo:minilm", "a-b"])
def test_plain_text_needs_no_quotes(text):
    assert is_plain_text(text)


@pytest.mark.parametrize("text", ["1", "true", "null", "", "a: b", "a #b", "-", "---", "a,b", "]", "2e-5", "*a", "a:"])
def test_other_text_needs_quotes(text):
    assert not is_plain_text(text)


def _booleans(value: Any) -> int:
    if isinstance(value, dict | list):
        return sum(map(_booleans, [*value, *value.values()] if isinstance(value, dict) else value))
    return int(isinstance(value, bool))


def test_configs_and_docs_have_no_booleans_that_only_yaml_1_1_knows():
    root = Path(__file__).parents[3]
    texts = [path.read_text() for path in (root / "configs").rglob("*.yaml")]
    for page in (root / "README.md", *(root / "docs").rglob("*.md")):
        texts += re.findall(r"^```yaml\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    assert len(texts) > 100
    for text in texts:
        tree = read_tree(text, "f")
        if not tree.problems:  # an example of a mistake
            assert _booleans(yaml.load(text, yaml.SafeLoader)) == _booleans(tree.value), text
