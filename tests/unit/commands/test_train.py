"""What `paratune train` refuses before it imports torch; tests/e2e runs the rest."""

import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from raised import raises_code

from paratune.commands import train as command
from paratune.config.load import load_config
from paratune.errors import EXIT_LAUNCH
from paratune.records import RUN_FILE, SUMMARY_FILE

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


def _train(
    config: Path,
    *,
    num_processes: int = 1,
    resume: bool = False,
    overwrite: bool = False,
    overrides: Sequence[str] = (),
    as_json: bool = False,
) -> int:
    return command.train_command(
        config,
        overrides,
        num_processes=num_processes,
        resume=resume,
        overwrite=overwrite,
        as_json=as_json,
        began=0.0,
    )


@pytest.mark.parametrize(
    ("named", "refused"),
    [
        ({"resume": True, "overwrite": True}, ("cli.conflict",)),
        ({"num_processes": 0}, ("cli.out_of_range", "--nproc", "0", "1")),
        ({"num_processes": -2}, ("cli.out_of_range", "--nproc", "2", "1")),
        ({"num_processes": 4}, ("batch.uneven_share", "6", "4")),
    ],
)
def test_what_cannot_be_run_is_said_before_anything_starts(
    named: dict, refused: tuple[str, ...], config: Path, monkeypatch
):
    monkeypatch.setattr(command, "launch_until_it_fits", lambda *_: pytest.fail("processes were started"))
    with raises_code(*refused):
        _train(config, **named)


def test_torchrun_and_nproc_exclude_each_other(config: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with raises_code("launch.started_twice", option="--nproc", value=2, world_size=2):
        _train(config, num_processes=2)


def test_nproc_starts_the_same_command_line_in_every_process(config: Path, monkeypatch: pytest.MonkeyPatch):
    started = []
    monkeypatch.setattr(
        command, "launch_until_it_fits", lambda arguments, count: started.append((arguments, count)) or 75
    )
    monkeypatch.setattr("sys.argv", ["paratune", "train", "c.yaml", "--nproc", "2"])

    assert _train(config, num_processes=2) == 75
    assert started == [(["train", "c.yaml", "--nproc", "2"], 2)]


def test_a_process_of_the_launcher_starts_no_others(config: Path, monkeypatch: pytest.MonkeyPatch):
    values = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", command.RENDEZVOUS_VARIABLE: "file:///nowhere"}
    monkeypatch.setattr(os, "environ", {**os.environ, **values})
    monkeypatch.setattr(command, "launch_until_it_fits", lambda *_: pytest.fail("processes were started"))
    monkeypatch.setattr(command, "_train_here", lambda *_, rank, **__: rank)

    assert _train(config, num_processes=2) == 1


def _begun(config: Path, *, finished: bool = False) -> Path:
    """A run of the configuration, begun by two ranks of three samples."""
    folder = config.parent / "runs" / "c"
    folder.mkdir(parents=True)
    record = {"config": load_config(config).values, "batch": {"global_batch_size": 6}, "data": {}}
    (folder / RUN_FILE).write_text(json.dumps(record))
    if finished:
        (folder / SUMMARY_FILE).write_text(json.dumps({"scores": {}, "num_steps": 10}))
    return folder


@pytest.mark.parametrize("rank", ["0", "1"])
@pytest.mark.parametrize(
    ("resume", "override", "refused"),
    [
        (False, [], ("run.exists",)),
        (True, ["run.seed=7"], ("run.other_configuration", "run.seed: 42", "7")),
        (True, ["batch.global=8"], ("run.other_configuration", "global batch: 6", "8")),
    ],
)
def test_every_rank_finds_out_by_itself_before_it_waits_for_others(
    rank: str,
    resume: bool,
    override: list[str],
    refused: tuple[str, ...],
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    _begun(config)
    for name, value in {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(command, "_train_here", lambda *_, **__: pytest.fail("it went on to load torch"))

    with raises_code(*refused):
        _train(config, resume=resume, overrides=override)


def test_the_same_global_batch_may_be_said_otherwise(config: Path, monkeypatch: pytest.MonkeyPatch):
    _begun(config)
    monkeypatch.setattr(command, "launch_until_it_fits", lambda *_: 0)

    # 6 = 3 a device on 2 ranks
    assert _train(config, resume=True, num_processes=2, overrides=["batch.global=", "batch.per_device=3"]) == 0
    with raises_code("run.other_configuration", "global batch", "6", "4"):
        _train(config, resume=True, num_processes=2, overrides=["batch.global=", "batch.per_device=2"])


def test_a_finished_run_is_gone_on_with_by_saying_so(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    _begun(config, finished=True)
    monkeypatch.setattr(command, "launch_until_it_fits", lambda *_: pytest.fail("processes were started"))

    assert _train(config, resume=True, num_processes=2, as_json=True) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {"scores": {}, "num_steps": 10}
    assert "runs/c is already finished: nothing was done" in shown.err
    with raises_code("run.other_configuration"):
        _train(config, resume=True, overrides=["run.seed=7"])


@pytest.mark.parametrize(
    ("code", "resume", "is_old", "named"),
    [
        (EXIT_LAUNCH, False, False, True),
        (EXIT_LAUNCH, True, True, True),
        (EXIT_LAUNCH, False, True, False),  # of what --overwrite was to delete
        (75, False, False, False),
    ],
)
def test_when_processes_died_the_checkpoint_to_go_on_from_is_named(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys, code: int, resume: bool, is_old: bool, named: bool
):
    def start(arguments: list[str], count: int) -> int:
        for step in (900, 1000):
            folder = Path(f"runs/c/checkpoints/step_{step:06d}")
            folder.mkdir(parents=True)
            os.utime(folder, (0, 0) if is_old else None)
        return code

    monkeypatch.setattr(command, "launch_until_it_fits", start)
    assert _train(config, num_processes=2, resume=resume) == code
    said = "--resume continues from runs/c/checkpoints/step_001000\n"
    assert capsys.readouterr().err == (said if named else "")
