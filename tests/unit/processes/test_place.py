from pathlib import Path

import pytest
from raised import raises_code

from paratune.errors import LaunchError
from paratune.processes.place import (
    EXIT_CODES_VARIABLE,
    Place,
    local_world_size,
    note_exit_code,
    place_from_environment,
)

NAMES = ("RANK", "LOCAL_RANK", "WORLD_SIZE")


def place(monkeypatch: pytest.MonkeyPatch, **values: str) -> Place:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    return place_from_environment()


def test_a_process_that_was_not_launched_is_the_only_one(monkeypatch: pytest.MonkeyPatch):
    assert place(monkeypatch) == Place(0, 0, 1)


def test_torchrun_is_identified_by_its_variables(monkeypatch: pytest.MonkeyPatch):
    assert place(monkeypatch, RANK="5", LOCAL_RANK="1", WORLD_SIZE="8") == Place(5, 1, 8)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"RANK": "0"}, "RANK=0 without LOCAL_RANK, WORLD_SIZE; start with torchrun"),
        ({"WORLD_SIZE": "2", "RANK": "1"}, "RANK=1, WORLD_SIZE=2 without LOCAL_RANK"),
        (
            {"RANK": "one", "LOCAL_RANK": "0", "WORLD_SIZE": "2"},
            "RANK=one, LOCAL_RANK=0, WORLD_SIZE=2; allowed: whole numbers",
        ),
        (
            {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"},
            "RANK=2, LOCAL_RANK=0, WORLD_SIZE=2; allowed: RANK and LOCAL_RANK below WORLD_SIZE",
        ),
        ({"RANK": "-1", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK=-1, LOCAL_RANK=0, WORLD_SIZE=2; allowed"),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "0"}, "RANK=0, LOCAL_RANK=0, WORLD_SIZE=0; allowed: RANK"),
        ({"RANK": "0", "LOCAL_RANK": "7", "WORLD_SIZE": "2"}, "LOCAL_RANK=7"),
        # Neither is a number of processes; Python itself refuses to read the second one.
        (
            {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "99999999999"},
            "WORLD_SIZE=99999999999; allowed: whole numbers",
        ),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "9" * 5000}, "at most 1000000"),
    ],
)
def test_contradictory_settings_are_refused(monkeypatch: pytest.MonkeyPatch, values: dict[str, str], expected: str):
    with pytest.raises(LaunchError) as caught:
        place(monkeypatch, **values)
    assert expected in str(caught.value)


def test_a_task_of_srun_is_a_rank(monkeypatch: pytest.MonkeyPatch):
    step = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "3", "SLURM_LOCALID": "1"}
    assert place(monkeypatch, **step) == Place(3, 1, 4)
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "2(x2)")
    assert local_world_size(Place(3, 1, 4)) == 2
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "9" * 5000)
    assert local_world_size(Place(3, 1, 4)) == 1
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "9999999")
    assert local_world_size(Place(3, 1, 4)) == 4
    # The variables of torchrun inside a task have priority.
    assert place(monkeypatch, **step, RANK="1", LOCAL_RANK="0", WORLD_SIZE="2") == Place(1, 0, 2)
    monkeypatch.delenv("SLURM_PROCID")
    with raises_code("launch.not_started", "SLURM_PROCID"):
        place(monkeypatch)


def test_a_process_writes_its_exit_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.delenv(EXIT_CODES_VARIABLE, raising=False)
    note_exit_code(3)
    monkeypatch.setenv(EXIT_CODES_VARIABLE, str(tmp_path))
    note_exit_code(3)
    monkeypatch.setenv("RANK", "2")
    note_exit_code(75)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"command": "3\n", "rank2": "75\n"}
    monkeypatch.setenv(EXIT_CODES_VARIABLE, str(tmp_path / "gone"))
    note_exit_code(75)  # no folder is set: nothing is written


@pytest.mark.parametrize(
    ("has_folder", "is_torchrun", "codes"),
    [(True, True, [0, 0, 5, 1]), (True, False, [75, 0, 5, 1]), (False, True, [75, 0, 5, 1])],
)
def test_a_stopped_rank_of_torchrun_ends_with_0_where_its_code_is_written(
    has_folder: bool, is_torchrun: bool, codes: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv(EXIT_CODES_VARIABLE, str(tmp_path if has_folder else tmp_path / "gone"))
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    if is_torchrun:
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "7")
    assert [note_exit_code(code) for code in (75, 0, 5, 1)] == codes
