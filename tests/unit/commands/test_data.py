"""`paratune data`: its exit code is that of a training where that would refuse the rows."""

import json

import pytest
from tiny import tiny_model

from paratune.commands import data
from paratune.commands.data import data_command
from paratune.data.sources import PSEUDO
from paratune.errors import EXIT_DATA, EXIT_OK

CONFIG = """\
task: {kind: classification, labels: [neg, pos]}
data:
  train: TRAIN
  columns: {text: text, label: label}
  split: {validation: 0.5, group_by: group}
model: {name: MODEL}
train: {epochs: 1}
batch: {global: 2}
"""
ROWS = [f"good film {number},pos,{number},false" for number in range(4)]


@pytest.fixture
def described(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "set_up_logging", lambda **_: None)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    tiny_model(tmp_path / "model")
    train, path = tmp_path / "train.csv", tmp_path / "c.yaml"
    path.write_text(CONFIG.replace("TRAIN", str(train)).replace("MODEL", str(tmp_path / "model")))

    def run(rows, *overrides):
        capsys.readouterr()
        train.write_text("\n".join([f"text,label,group,{PSEUDO}", *rows]))
        code = data_command(path, overrides, as_json=True)
        return code, json.loads(capsys.readouterr().out)

    return run


def test_rows_that_training_refuses_are_counted_and_end_with_the_code_of_data(described):
    code, found = described([*ROWS, "bad film,,9,false"])
    assert code == EXIT_DATA == 3
    assert found["splits"]["train"]["num_dropped"] == {"label": 1}
    assert any("training will refuse this data: 1 rows lack something" in each for each in found["warnings"])


def test_rows_that_training_leaves_out_too_are_no_fault(described):
    code, found = described([*ROWS, "bad film,,9,false"], "data.missing=drop")
    assert code == EXIT_OK
    assert found["splits"]["train"]["num_dropped"] == {"label": 1}


def test_pseudo_labelled_rows_of_held_out_groups_are_no_fault(described):
    # Each of the four groups has a pseudo-labelled row; two groups are held out.
    code, found = described([*ROWS, *(f"bad film {number},neg,{number},true" for number in range(4))])
    assert code == EXIT_OK
    assert found["splits"]["train"]["num_dropped"] == {"pseudo_of_held_out_group": 2}
    assert "train: rows were left out: 2 pseudo-labelled of a group that is held out" in found["warnings"]
    assert not any("refuse" in each for each in found["warnings"])
