"""Configurations from Python: a file or a mapping, with overrides."""

from pathlib import Path
from typing import Any

import pytest
from raised import raises_code

from paratune.api.configuration import load, written
from paratune.config.load import load_config

TEXT = """\
task: regression
data: {train: x.csv, columns: {text: text, label: score}}
model: {name: model}
train: {max_steps: 10}
batch: {global: 6}
"""
VALUES: dict[str, Any] = {
    "task": "regression",
    "data": {"train": Path("x.csv"), "columns": {"text": "text", "label": "score"}},
    "model.name": "model",
    "train": {"max_steps": 10},
    "batch": {"global": 6},
    "run": {"name": "c"},
}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "c.yaml"
    path.write_text(TEXT)
    return path


def test_a_mapping_is_the_same_as_its_file(file: Path):
    assert load(VALUES, None).values == load(file, None).values
    loaded = load({"extends": "c.yaml", "train": {"max_steps": 7}}, None, "other")
    assert (loaded.config.train.max_steps, loaded.config.run.name, loaded.config.model.name) == (7, "other", "model")
    assert loaded.origin["train.max_steps"] == "configuration"


def test_overrides_are_those_of_the_command_line(file: Path):
    overrides = {"train.learning_rate": 5e-5, "train": {"epochs": 2, "max_steps": None}, "data.train": Path("ü 1.csv")}
    expected = ["train.learning_rate=5e-05", "train.epochs=2", "train.max_steps=", "data.train=ü 1.csv", "run.name=d"]
    loaded = load(file, overrides, "d")
    assert loaded.values == load_config(file, expected).values
    assert (loaded.config.train.epochs, loaded.config.train.learning_rate) == (2, 5e-5)
    # A text stays a text, which YAML would read as a number or a boolean.
    assert load(file, {"model.name": "12", "data.test": "yes"}).values["model"]["name"] == "12"


@pytest.mark.parametrize("config", ["file", "mapping"])
def test_another_process_gets_the_same_configuration(file: Path, config: str):
    given = file if config == "file" else VALUES
    overrides = {"strategy": "ddp", "data.train": "a: b.csv"}
    with written(given, overrides, "d") as (path, *words):
        assert load_config(Path(path), words[1::2]).values == load(given, overrides, "d").values


def test_problems_are_listed_with_their_codes(file: Path):
    with raises_code("config.required", "run.name"):
        load({key: value for key, value in VALUES.items() if key != "run"}, None)
    with raises_code("config.unknown_key", "train.epoch"):
        load(VALUES, {"train.epoch": 1})
    with raises_code("cli.invalid_value", "train.epochs"):
        load(file, {"train.epochs": object()})
