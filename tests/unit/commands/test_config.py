"""`paratune config show|schema|init`."""

import json
from pathlib import Path

import pytest
from raised import raises_code

from paratune.commands.config import init_command, schema_command, show_command
from paratune.config.load import load_config
from paratune.errors import EXIT_OK


@pytest.mark.parametrize("task", ["classification", "regression"])
def test_init_writes_a_file_that_loads_and_touches_none(task: str, tmp_path: Path, capsys):
    path = tmp_path / "mine.yaml"
    assert init_command(path, task) == EXIT_OK
    assert f"paratune data {path}" in capsys.readouterr().out
    assert load_config(path).config.task.kind == task

    written = path.read_text()
    with raises_code("output.exists"):
        init_command(path, "regression")
    assert path.read_text() == written


def test_init_says_where_it_cannot_write(tmp_path: Path):
    with raises_code("output.not_writable"):
        init_command(tmp_path / "nowhere" / "mine.yaml", "regression")


def test_show_prints_a_configuration_that_loads_as_the_same(tmp_path: Path, capsys):
    first = tmp_path / "mine.yaml"
    init_command(first, "regression")
    capsys.readouterr()
    assert show_command(first, ["train.learning_rate=1e-4"], as_json=False) == EXIT_OK
    second = tmp_path / "again" / "mine.yaml"
    second.parent.mkdir()
    second.write_text(capsys.readouterr().out)
    assert load_config(second).values == load_config(first, ["train.learning_rate=1e-4"]).values


def test_show_as_json_says_where_values_are_from(tmp_path: Path, capsys):
    path = tmp_path / "mine.yaml"
    init_command(path, "regression")
    capsys.readouterr()
    show_command(path, ["train.learning_rate=1e-4"], as_json=True)
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["train"]["learning_rate"] == 1e-4
    assert shown["origin"]["train.learning_rate"] == "--set"


def test_the_schema_is_json(capsys):
    assert schema_command() == EXIT_OK
    assert json.loads(capsys.readouterr().out)["$schema"].startswith("https://json-schema.org/")
