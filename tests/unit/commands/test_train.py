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
from paratune.processes.place import RENDEZVOUS_VARIABLE
from paratune.records import RUN_FILE, SUMMARY_FILE

CONFIG = """\
task: regression
data: {train: x.csv, columns: {text: text, label: score}}
model: {name: model}
train: {max_steps: 10}
batch: {global: 6}
strategy: ddp
"""

TRAIN_HERE = "paratune.api.train.train_here"
LAUNCH = "paratune.processes.local.launch_with_smaller_batches"


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", RENDEZVOUS_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "c.yaml"
    path.write_text(CONFIG)
    (tmp_path / "x.csv").touch()
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
    return command.train(config, set_=overrides, nproc=num_processes, resume=resume, overwrite=overwrite, json=as_json)


@pytest.mark.parametrize(
    ("named", "refused"),
    [
        ({"resume": True, "overwrite": True}, ("cli.conflict",)),
        ({"num_processes": 0}, ("cli.invalid_value", "--nproc", "0", "1")),
        ({"num_processes": -2}, ("cli.invalid_value", "--nproc", "2", "1")),
        ({"num_processes": 4}, ("batch.uneven_share", "6", "4")),
    ],
)
def test_invalid_runs_are_refused_before_processes_start(
    named: dict, refused: tuple[str, ...], config: Path, monkeypatch
):
    monkeypatch.setattr(LAUNCH, lambda *_: pytest.fail("processes were started"))
    with raises_code(*refused):
        _train(config, **named)


def test_torchrun_and_nproc_exclude_each_other(config: Path, monkeypatch: pytest.MonkeyPatch):
    for name, value in {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with raises_code("launch.started_twice", option="--nproc", value=2, world_size=2):
        _train(config, num_processes=2)


def test_nproc_starts_the_same_command_line_in_every_process(config: Path, monkeypatch: pytest.MonkeyPatch):
    started = []
    monkeypatch.setattr(LAUNCH, lambda arguments, count: started.append((arguments, count)) or 75)
    monkeypatch.setattr("sys.argv", ["paratune", "train", "c.yaml", "--nproc", "2"])

    assert _train(config, num_processes=2) == 75
    assert started == [(["train", "c.yaml", "--nproc", "2"], 2)]


def test_a_process_of_the_launcher_starts_no_others(config: Path, monkeypatch: pytest.MonkeyPatch):
    values = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", RENDEZVOUS_VARIABLE: "file:///nowhere"}
    monkeypatch.setattr(os, "environ", {**os.environ, **values})
    monkeypatch.setattr(LAUNCH, lambda *_: pytest.fail("processes were started"))
    ranks = []
    monkeypatch.setattr(TRAIN_HERE, lambda *_, rank, **__: ranks.append(rank))

    assert _train(config, num_processes=2) == 0
    assert ranks == [1]


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
def test_every_rank_checks_the_run_before_it_waits_for_others(
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
    monkeypatch.setattr(TRAIN_HERE, lambda *_, **__: pytest.fail("it went on to load torch"))

    with raises_code(*refused):
        _train(config, resume=resume, overrides=override)


def test_the_same_global_batch_resumes_under_another_option(config: Path, monkeypatch: pytest.MonkeyPatch):
    _begun(config)
    monkeypatch.setattr(LAUNCH, lambda *_: 0)

    # 6 = 3 a device on 2 ranks
    assert _train(config, resume=True, num_processes=2, overrides=["batch.global=", "batch.per_device=3"]) == 0
    with raises_code("run.other_configuration", "global batch", "6", "4"):
        _train(config, resume=True, num_processes=2, overrides=["batch.global=", "batch.per_device=2"])


def test_resume_of_a_finished_run_prints_its_result(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    _begun(config, finished=True)
    monkeypatch.setattr(LAUNCH, lambda *_: pytest.fail("processes were started"))

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
def test_a_failed_launch_prints_the_checkpoint_to_resume_from(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys, code: int, resume: bool, is_old: bool, named: bool
):
    def start(arguments: list[str], count: int) -> int:
        for step in (900, 1000):
            folder = Path(f"runs/c/checkpoints/step_{step:06d}")
            folder.mkdir(parents=True)
            os.utime(folder, (0, 0) if is_old else None)
        return code

    monkeypatch.setattr(LAUNCH, start)
    assert _train(config, num_processes=2, resume=resume) == code
    output = "--resume continues from runs/c/checkpoints/step_001000\n"
    assert capsys.readouterr().err == (output if named else "")


@pytest.mark.parametrize(
    ("overrides", "refused"),
    [
        (["data.train=x.cvs"], ("data.not_found", "data.train", "x.cvs", "x.csv")),
        (["model.name=./nowhere"], ("model.not_found", "./nowhere")),
    ],
)
def test_missing_files_are_found_before_torch_is_imported(
    overrides: list[str], refused: tuple[str, ...], config: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(TRAIN_HERE, lambda *_, **__: pytest.fail("torch would be imported"))
    with raises_code(*refused):
        _train(config, overrides=overrides)
