"""`paratune data`: its exit code is that of a training where that would refuse the rows."""

import json
import os
import subprocess
import sys

import pytest
from patience import PATIENCE_S
from tiny import tiny_model

from paratune.commands import data as command
from paratune.commands.data import data
from paratune.data.load import PSEUDO
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
    monkeypatch.setattr(command, "set_up_logging", lambda **_: None)
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    tiny_model(tmp_path / "model")
    train, path = tmp_path / "train.csv", tmp_path / "c.yaml"
    path.write_text(CONFIG.replace("TRAIN", str(train)).replace("MODEL", str(tmp_path / "model")))

    def run(rows, *overrides):
        capsys.readouterr()
        train.write_text("\n".join([f"text,label,group,{PSEUDO}", *rows]))
        code = data(path, set_=overrides, json=True)
        return code, json.loads(capsys.readouterr().out)

    return run


def test_missing_values_give_the_exit_code_of_data_errors(described):
    code, result = described([*ROWS, "bad film,,9,false"])
    assert code == EXIT_DATA == 3
    assert result["splits"]["train"]["num_dropped"] == {"label": 1}
    assert any("training fails with this data: 1 rows have missing" in text for text in result["warnings"])


def test_the_description_is_one_screen_with_the_conclusion_first(described, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    described([*ROWS, *(f"word{number} film,pos,{number},false" for number in range(30))])
    path, labels = tmp_path / "c.yaml", [f"l{number}" for number in range(40)]
    path.write_text(path.read_text().replace("[neg, pos]", f"[neg, pos, {', '.join(labels)}]"))
    assert data(path) == EXIT_OK
    first, *_ = lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 40
    assert first.startswith("ready to train: 18 train and 16 validation rows")
    assert data(path, all_=True) == EXIT_OK
    assert capsys.readouterr().out.count("\nRow ") == 3


def test_dropped_rows_are_no_error_with_missing_drop(described):
    code, result = described([*ROWS, "bad film,,9,false"], "data.missing=drop")
    assert code == EXIT_OK
    assert result["splits"]["train"]["num_dropped"] == {"label": 1}


def test_pseudo_labelled_rows_of_held_out_groups_are_no_error(described):
    # Each of the four groups has a pseudo-labelled row; two groups are held out.
    code, result = described([*ROWS, *(f"bad film {number},neg,{number},true" for number in range(4))])
    assert code == EXIT_OK
    assert result["splits"]["train"]["num_dropped"] == {"pseudo_of_held_out_group": 2}
    assert "train: dropped rows: 2 pseudo-labelled in a held-out group" in result["warnings"]
    assert not any("refuse" in entry for entry in result["warnings"])


def test_rows_with_a_text_of_other_rows_are_left_out_of_train(described):
    rows = [*ROWS, "good film 0,neg,7,false", "good  film 1,pos,8,false", "fine,neg,9,false"]
    settings = ("data.split.group_by=null", "data.split.validation=0.4", "data.drop_duplicates=true")
    code, result = described(rows, *settings)
    assert code == EXIT_OK
    assert result["overlaps"] == []
    splits = result["splits"].values()
    assert sum(about["num_rows"] + about["num_dropped"].get("duplicate", 0) for about in splits) == len(rows)
    assert result["splits"]["train"]["repeats"]["num_rows"] == 0
    _, kept = described(rows, *settings[:2])
    assert result["splits"]["validation"] == kept["splits"]["validation"]
    assert "drop_duplicates" in " ".join(kept["warnings"])


def test_the_command_loads_no_torch(tmp_path):
    tiny_model(tmp_path / "model")
    (tmp_path / "t.csv").write_text("text,label,group\ngood film,pos,1\nbad film,neg,2\n")
    config = CONFIG.replace("TRAIN", "t.csv").replace("MODEL", "model")
    (tmp_path / "c.yaml").write_text(config)
    code = (
        "import atexit, runpy, sys\n"
        "atexit.register(lambda: print('torch' in sys.modules, file=sys.stderr))\n"
        "sys.argv[1:] = ['data', 'c.yaml', '--json']\n"
        "runpy.run_module('paratune', run_name='__main__', alter_sys=True)\n"
    )
    environment = {**os.environ, "PARATUNE_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.stderr.splitlines()[-1] == "False", result.stderr
    assert json.loads(result.stdout)["examples"][0]["tokens"][2:] == ["film", "[SEP]"]
