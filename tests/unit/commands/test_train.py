"""What `paratune train` refuses before it imports torch; tests/e2e runs the rest."""

import os
from pathlib import Path

import pytest

from paratune.commands import train as command
from paratune.errors import ConfigError, LaunchError

CONFIG = """\
task: regression
data: {train: x.csv, columns: {text: text, label: score}}
model: {name: model}
train: {max_steps: 10}
batch: {global: 6}
strategy: ddp
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", command.RENDEZVOUS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    return path


def _train(config: Path, *, num_processes: int = 1, resume: bool = False, overwrite: bool = False) -> int:
    return command.train_command(
        config, [], num_processes=num_processes, resume=resume, overwrite=overwrite, as_json=False, began=0.0
    )


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ({"resume": True, "overwrite": True}, "say one of them"),
        ({"num_processes": 0}, "--nproc 0: at least 1"),
        ({"num_processes": -2}, "--nproc -2: at least 1"),
        ({"num_processes": 4}, "batch.global is 6, which 4 ranks cannot share evenly"),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_starts(named: dict, says: str, config: Path, monkeypatch):
    monkeypatch.setattr(command, "launch", lambda *_: pytest.fail("processes were started"))
    with pytest.raises(ConfigError, match=says):
        _train(config, **named)


def test_torchrun_and_nproc_exclude_each_other(config: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=r"--nproc 2 .*WORLD_SIZE=2"):
        _train(config, num_processes=2)


def test_nproc_starts_the_same_command_line_in_every_process(config: Path, monkeypatch: pytest.MonkeyPatch):
    started = []
    monkeypatch.setattr(command, "launch", lambda arguments, count: started.append((arguments, count)) or 75)
    monkeypatch.setattr("sys.argv", ["paratune", "train", "c.yaml", "--nproc", "2"])

    assert _train(config, num_processes=2) == 75
    assert started == [(["train", "c.yaml", "--nproc", "2"], 2)]


def test_a_process_of_the_launcher_starts_no_others(config: Path, monkeypatch: pytest.MonkeyPatch):
    values = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", command.RENDEZVOUS_VARIABLE: "file:///nowhere"}
    monkeypatch.setattr(os, "environ", {**os.environ, **values})
    monkeypatch.setattr(command, "launch", lambda *_: pytest.fail("processes were started"))
    monkeypatch.setattr(command, "_train_here", lambda *_, rank, **__: rank)

    assert _train(config, num_processes=2) == 1
