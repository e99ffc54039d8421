"""Runs and matrices together: what is shown, what is counted, what is found below a folder."""

import io
import json
import shutil
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import get_args

import pytest
from raised import raises_code
from rich.console import Console
from watched import event, finish, held, log, step, training

from paratune.records import RUN_FILE, SUMMARY_FILE
from paratune.records.sweep import Axis, CellRecord, State, SweepRecord, cell_run_folder, read_sweep, write_sweep
from paratune.watch import board as module
from paratune.watch.board import _STATES, Board, BoardView, SweepWatch
from paratune.watch.run import RunWatch
from paratune.watch.screen import _STYLES, Screen


def cell(name: str, state: str = "pending", **values) -> CellRecord:
    known = {"values": {"seed": name[-1]}, "num_processes": 1, "task": "classification", "metric": "accuracy"}
    return CellRecord(name, metrics=("accuracy",), fingerprint="f", state=state, **{**known, **values})


def took(seconds: int) -> tuple[dict, ...]:
    return (
        {"began": "2026-11-21T10:00:00+00:00", "ended": f"2026-11-21T10:{seconds // 60:02}:{seconds % 60:02}+00:00"},
    )


def matrix(folder: Path, *cells: CellRecord) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    names = {cell.values["seed"]: cell.values["seed"] for cell in cells}
    axes = (Axis("run.seed", "seed", names, is_seed=True),)
    write_sweep(folder, SweepRecord("m", "now", "m.yaml", ("paratune",), axes, (), tuple(cells)))
    return folder


def fresh(folder: Path) -> Path:
    """Make a run whose last step is now."""
    training(folder)
    log(folder, step(11, time=time.time()))
    return folder


def test_running_runs_in_a_folder_are_shown_and_others_counted(tmp_path: Path):
    for number in range(5):
        finish(tmp_path / "old" / f"r{number}")
    training(tmp_path / "dead")
    (tmp_path / "new" / "model").mkdir(parents=True)
    training(tmp_path / "dead" / "checkpoints" / "step")  # what is in a run is no run
    with held(fresh(tmp_path / "a" / "b" / "r")):
        view = Board([tmp_path]).look()
    assert [run.name for run in view.runs] == ["r"]
    assert view.others == {"finished": 5, "killed": 1}
    assert not view.is_finished


def test_a_run_that_was_running_is_shown_until_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "FIND_EVERY_S", 0.0)
    board = Board([tmp_path])
    folder = tmp_path / "r"
    with held(fresh(folder)):
        assert board.look().runs[0].state == "training"
    assert board.look().runs[0].state == "killed"
    finish(folder)
    assert board.look().runs[0].state == "finished"
    shutil.rmtree(folder)
    assert board.look().runs[0].state == "gone"
    with held(fresh(tmp_path / "later")):
        assert [run.state for run in board.look().runs] == ["training", "gone"]


def test_a_named_run_is_shown_in_every_state(tmp_path: Path):
    board = Board([finish(tmp_path / "r"), tmp_path / "r"])
    view = board.look()
    assert [run.state for run in view.runs] == ["finished"]
    assert view.is_finished


@pytest.mark.parametrize(("path", "code"), [("nowhere", "run.not_found"), ("file", "run.not_found")])
def test_a_path_that_is_not_a_folder_is_an_error(tmp_path: Path, path: str, code: str):
    (tmp_path / "file").touch()
    with raises_code(code, path):
        Board([tmp_path / path])


def test_the_cells_of_a_matrix_are_as_their_folders_say(tmp_path: Path):
    folder = matrix(
        tmp_path / "m",
        cell("r1", "finished", attempts=took(60)),
        cell("r2", "running"),
        cell("r3"),
        cell("r4", "failed", reason="the loss is nan"),
        cell("r5", "interrupted", reason="killed by signal 9", exit_code=-9),
        cell("r6", "running"),
        cell("r7"),
        cell("r8", "interrupted", reason="stopped by a signal", exit_code=75),
    )
    finish(cell_run_folder(folder, "r1"), time={"total_s": 60.0})
    finish(cell_run_folder(folder, "r7"))  # trained by hand
    with held(fresh(cell_run_folder(folder, "r2"))):
        view = SweepWatch(folder).look()
    states = {run.name: run.state for run in view.runs}
    assert states == {
        "r1": "finished",
        "r2": "training",
        "r3": "waiting",
        "r4": "failed",
        "r5": "killed",
        "r6": "killed",  # its record has the state running, and no process has locked the matrix
        "r7": "finished",
        "r8": "stopped",
    }
    assert view.is_running
    assert view.counts["running"] == 1
    assert (view.runs[0].total_s, view.runs[1].step, view.runs[3].reason) == (60.0, 11, "the loss is nan")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        *((name, content) for name in (SUMMARY_FILE, RUN_FILE) for content in ("", "{", "[]", '{"schema_version": 1}')),
        (SUMMARY_FILE, None),
        (RUN_FILE, None),
    ],
)
def test_a_damaged_run_is_not_counted_as_finished(tmp_path: Path, file: str, content: str | None):
    folder = matrix(tmp_path / "m", cell("r1", "finished"), cell("r2", "finished"), cell("r3"))
    runs = [finish(cell_run_folder(folder, name)) for name in ("r1", "r2")]
    watch = SweepWatch(folder)
    assert watch.look().counts == {"finished": 2, "waiting": 1}
    damaged = runs[0] / file
    damaged.unlink() if content is None else damaged.write_text(content)
    view = SweepWatch(folder).look()
    assert view.counts == {"damaged": 1, "finished": 1, "waiting": 1}
    assert file in str(view.runs[0].reason)
    assert "1 damaged" in shown(Board([folder]).look())
    finish(runs[0]) if file == SUMMARY_FILE else shutil.copy(runs[1] / file, damaged)
    assert watch.look().counts == {"finished": 2, "waiting": 1}


def test_a_finished_run_without_its_folder_is_damaged(tmp_path: Path):
    folder = matrix(tmp_path / "m", cell("r1", "finished"))
    assert SweepWatch(folder).look().counts == {"damaged": 1}


def test_every_state_of_a_cell_can_be_shown():
    assert set(get_args(State)) == _STATES.keys()
    assert set(_STATES.values()) <= _STYLES.keys()


def test_a_cell_without_a_folder_is_starting(tmp_path: Path):
    folder = matrix(tmp_path / "m", cell("r1", "running"))
    with held(folder):
        assert SweepWatch(folder).look().runs[0].state == "starting"
    assert SweepWatch(folder).look().runs[0].state == "killed"


def test_the_remaining_time_comes_from_cells_that_differ_only_in_the_seed(tmp_path: Path):
    def of(name: str, model: str, state: str = "pending", **more) -> CellRecord:
        return cell(name, state, values={"seed": name[-1], "model": model}, **more)

    cells = (
        of("a1", "small", "finished", attempts=took(60)),
        of("a2", "small"),
        of("b1", "large", "finished", attempts=took(600)),
        of("b2", "large"),
        of("c1", "other"),
        of("d1", "small", "failed"),
    )
    names = {cell.values["seed"]: cell.values["seed"] for cell in cells}
    models = {"small": "small", "large": "large", "other": "other"}
    axes = (Axis("run.seed", "seed", names, is_seed=True), Axis("model", "model", models))
    folder = tmp_path / "m"
    folder.mkdir()
    write_sweep(folder, SweepRecord("m", "now", "m.yaml", (), axes, (), cells))
    with held(folder):
        # a2 as a1, b2 as b1, c1 as both in the mean; what failed is not trained again.
        assert SweepWatch(folder).look().left_s == pytest.approx(60 + 600 + 330)
    assert SweepWatch(folder).look().left_s is None


def test_the_remaining_time_is_unknown_before_a_cell_is_finished(tmp_path: Path):
    folder = matrix(tmp_path / "m", cell("r1", "running"), cell("r2"))
    with held(folder):
        assert SweepWatch(folder).look().left_s is None


def test_a_damaged_record_of_a_matrix_is_reported(tmp_path: Path):
    folder = matrix(tmp_path / "m", cell("r1"))
    watch = SweepWatch(folder)
    assert watch.look().problem is None
    (folder / "sweep.json").write_text("{}")
    assert "schema_version" in str(watch.look().problem)


def test_a_matrix_that_could_not_be_read_for_a_moment_is_read_again(tmp_path: Path):
    folder = matrix(tmp_path / "m", cell("r1"))
    watch = SweepWatch(folder)
    folder.rename(tmp_path / "away")
    assert watch.look().problem is not None
    (tmp_path / "away").rename(folder)
    assert [run.name for run in watch.look().runs] == ["r1"]
    folder.rename(tmp_path / "away")
    assert watch.look().problem is not None
    (tmp_path / "away").rename(folder)  # the same file as the last one that was read
    assert (watch.look().problem, len(watch.look().runs)) == (None, 1)


def test_a_matrix_below_a_folder_is_shown_when_something_runs_in_it(tmp_path: Path):
    folder = matrix(tmp_path / "m", cell("r1", "running"), cell("r2"))
    board = Board([tmp_path])
    assert board.look().sweeps == ()
    with held(fresh(cell_run_folder(folder, "r1"))):
        view = board.look()
    assert [cell.name for cell in view.sweeps] == ["m"]
    assert view.runs == ()
    assert [run.state for run in board.look().sweeps[0].runs] == ["killed", "waiting"]


def test_a_list_of_runs_is_awaited_between_them(tmp_path: Path):
    # Runs of `--list` are started by others, one now and one later; nobody holds the folder of the matrix.
    folder = matrix(tmp_path / "m", cell("r1"), cell("r2"), cell("r3"), cell("r4", "skipped"))
    write_sweep(folder, replace(read_sweep(folder), listed=("r1", "r2", "r4")))
    board = Board([folder])
    (view,), is_finished = board.look().sweeps, board.look().is_finished
    assert (view.is_running, view.is_awaited, is_finished) == (False, True, False)
    assert "waiting for listed runs" in shown(board.look())
    finish(cell_run_folder(folder, "r1"))
    assert not board.look().is_finished
    finish(cell_run_folder(folder, "r2"))
    assert board.look().is_finished  # r3 was not listed, and nobody will start it
    assert "matrix not running" in shown(board.look())


def test_an_interrupted_matrix_is_finished(tmp_path: Path):
    assert Board([matrix(tmp_path / "m", cell("r1", "running"), cell("r2"))]).look().is_finished


def shown(view: BoardView) -> str:
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(Screen(view))
    return console.export_text()


def test_json_has_all_fields(tmp_path: Path):
    finish(cell_run_folder(matrix(tmp_path / "m", cell("r1", "finished", attempts=took(5))), "r1"))
    log(training(tmp_path / "r"), event("stop", step=10, signal="SIGINT"))
    content = json.loads(json.dumps(asdict(Board([tmp_path / "m", tmp_path / "r"]).look())))
    assert content["sweeps"][0]["counts"] == {"finished": 1}
    assert content["runs"][0]["state"] == "stopped"


def test_a_thousand_finished_runs_are_counted_without_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number in range(1000):
        finish(tmp_path / f"r{number}")
    monkeypatch.setattr(RunWatch, "look", None)
    assert Board([tmp_path]).look().others == {"finished": 1000}


def test_ended_runs_of_cells_are_not_kept_in_memory(tmp_path: Path):
    folder = matrix(tmp_path / "m", *(cell(f"r{number}", "running") for number in range(3)))
    watch = SweepWatch(folder)
    with held(fresh(cell_run_folder(folder, "r1"))):
        watch.look()
        assert list(watch._running) == ["r1"]
    write_sweep(folder, watch._record.with_cell(replace(watch._record.cells[1], state="finished")))
    watch.look()
    assert watch._running == {}
