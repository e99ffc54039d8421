"""Starts by torchrun: the first one, a restart, and one after a request to stop."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.processes.elastic import (
    TorchrunStart,
    note_micro_batch,
    note_stop,
    noted_micro_batch,
    read_torchrun,
    start_mode,
    stop_was_requested,
    will_restart,
)
from paratune.records import RUN_FILE, write_json
from paratune.records.run_folder import Mode


def variables(run_id: str = "a-7", restart: int = 0, **more: str) -> dict[str, str]:
    return {
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": str(restart),
        "TORCHELASTIC_MAX_RESTARTS": "3",
        **more,
    }


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run that was begun by hand, and gone on with under the rendezvous a-7."""
    folder = tmp_path / "run"
    folder.mkdir()
    sessions = [{"torchrun": None}, {"torchrun": {"run_id": "a-7", "num_restarts": 0, "max_restarts": 3}}]
    write_json(folder / RUN_FILE, {"sessions": sessions})
    return folder


def test_torchruns_variables_are_read():
    assert read_torchrun({}) is None
    assert read_torchrun(variables(restart=2)) == TorchrunStart("a-7", 2, 3)
    assert read_torchrun({"TORCHELASTIC_RUN_ID": "none"}) == TorchrunStart("none", 0, 0)
    # Digits to Python's isdigit, and no number to int.
    odd = {"TORCHELASTIC_RUN_ID": "a", "TORCHELASTIC_RESTART_COUNT": "²", "TORCHELASTIC_MAX_RESTARTS": "9" * 5000}
    assert read_torchrun(odd) == TorchrunStart("a", 0, 0)


@pytest.mark.parametrize(
    ("environ", "mode", "becomes"),
    [
        ({}, "new", "new"),
        ({}, "overwrite", "overwrite"),
        (variables(restart=1), "new", "resume"),
        (variables(restart=1), "overwrite", "resume"),
        (variables(restart=1), "resume", "resume"),
        # A node joined, which counts as no restart.
        (variables(), "new", "resume"),
        # A run of another torchrun: it is an error, or is deleted with --overwrite.
        (variables("b-8", restart=1), "new", "new"),
        (variables("b-8", restart=1), "overwrite", "overwrite"),
        (variables("none"), "overwrite", "overwrite"),
        (variables("none", restart=1), "resume", "resume"),
    ],
)
def test_a_restart_by_torchrun_resumes(run: Path, environ: dict[str, str], mode: Mode, becomes: Mode):
    assert start_mode(mode, run, environ) == becomes


@pytest.mark.parametrize("mode", ["new", "overwrite"])
def test_a_restart_before_there_was_a_run_begins_one(tmp_path: Path, mode: Mode):
    assert start_mode(mode, tmp_path / "run", variables(restart=1)) == mode
    assert start_mode(mode, tmp_path / "run", variables("none", restart=1)) == mode


@pytest.mark.parametrize("mode", ["new", "overwrite"])
def test_a_restart_without_a_run_id_is_refused(run: Path, mode: Mode):
    with raises_code("elastic.restart", "2 of 3"):
        start_mode(mode, run, variables("none", restart=2))


def test_without_a_run_id_a_damaged_record_can_be_overwritten(run: Path):
    (run / "run.json").write_text("{")
    assert start_mode("overwrite", run, variables("none")) == "overwrite"


def test_a_possible_new_node_deletes_nothing(run: Path):
    with raises_code("elastic.restart", "--rdzv-id", "a-7"):
        start_mode("overwrite", run, variables())


def test_a_stopped_run_is_not_resumed_by_torchrun(run: Path, tmp_path: Path):
    def at(attempt: int) -> dict[str, str]:
        folder = tmp_path / "torchelastic_x" / "a-7_y" / f"attempt_{attempt}" / "1"
        folder.mkdir(parents=True)
        return variables(restart=attempt, TORCHELASTIC_ERROR_FILE=str(folder / "error.json"))

    first, second = at(0), at(1)
    assert not stop_was_requested(second)
    note_stop(first)
    for mode in ("new", "resume", "overwrite"):
        with raises_code("stopped.signal", "--max-restarts"):
            start_mode(mode, run, second)


@pytest.mark.parametrize("file", [None, "", "/dev/null", "error.json", "/a/b/c/error.json"])
def test_without_a_folder_of_torchrun_nothing_is_noted(file: str | None):
    environ = variables() if file is None else variables(TORCHELASTIC_ERROR_FILE=file)
    note_stop(environ)
    assert not stop_was_requested(environ)


def test_the_smallest_recorded_micro_batch_limits_later_starts(tmp_path: Path):
    def start(attempt: int, rank: int) -> dict[str, str]:
        return variables(TORCHELASTIC_ERROR_FILE=str(tmp_path / f"attempt_{attempt}" / str(rank) / "error.json"))

    assert noted_micro_batch(start(0, 0)) is None
    note_micro_batch(8, 1, start(0, 1))
    note_micro_batch(4, 0, start(0, 0))
    assert noted_micro_batch(start(1, 1)) == 4
    note_micro_batch(2, 1, {})  # without torchrun there is no place for it
    assert noted_micro_batch({}) is None
    assert noted_micro_batch(start(1, 0)) == 4
    (tmp_path / "paratune.micro_batch.rank2.1").write_text("9" * 5000)
    assert noted_micro_batch(start(1, 0)) == 4


def test_whether_torchrun_starts_the_processes_again():
    # 3 restarts are allowed.
    assert [will_restart(environ) for environ in ({}, variables(restart=2), variables(restart=3))] == [
        False,
        True,
        False,
    ]
