"""Packages: their metadata, and recipes that agree with pyproject.toml."""

import tomllib
from importlib.metadata import metadata
from pathlib import Path

import yaml
from packaging.requirements import Requirement

from paratune import __version__
from paratune.config.sources import DEMO

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CONDA_NAMES = {"torch": "pytorch"}
"""Name in pyproject.toml -> name on conda-forge, where they differ."""


def test_the_conda_recipe_has_the_version_and_the_requirements_of_the_package():
    recipe = yaml.safe_load((ROOT / "deploy" / "conda" / "meta.yaml").read_text())
    wanted = {f"python {PROJECT['requires-python']}"}
    for requirement in map(Requirement, PROJECT["dependencies"]):
        wanted.add(f"{CONDA_NAMES.get(requirement.name, requirement.name)} {requirement.specifier}")
    assert set(recipe["requirements"]["run"]) == wanted
    assert recipe["package"]["version"] == __version__
    assert recipe["build"]["entry_points"] == [f"paratune = {PROJECT['scripts']['paratune']}"]


def test_images_install_from_files_that_exist():
    for name in ("Dockerfile", "paratune.def"):
        text = (ROOT / "deploy" / name).read_text()
        copied = [word for word in ("pyproject.toml", "constraints.txt", "README.md", "LICENSE", "src") if word in text]
        assert [word for word in copied if not (ROOT / word).exists()] == []
        assert len(copied) == 5


def test_the_package_is_typed_and_has_its_metadata():
    about = metadata("paratune")
    assert about["License-Expression"] == "Apache-2.0"
    assert "Typing :: Typed" in PROJECT["classifiers"]
    assert (ROOT / "src" / "paratune" / "py.typed").exists()


def test_the_demo_sets_are_in_the_package():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "demo/*" in about["tool"]["setuptools"]["package-data"]["paratune"]
    folder = ROOT / "src" / "paratune" / "demo"
    assert {path.name for path in folder.iterdir()} == {*DEMO.values(), "ATTRIBUTION.md"}
