"""The state of each cell, from its folder and the record."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from raised import check_code, raises_code
from whole_records import WHOLE_RUN

from paratune.commands.sweep import show_plan
from paratune.errors import CheckpointError
from paratune.records.run_folder import LOCK_FILE
from paratune.records.sweep import SWEEP_FILE, cell_run_folder, read_sweep, write_sweep
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import SweepPlan, check_unchanged, plan_of

FIRST = "learning_rate-0.0001_seed-41"


def plan(path: Path, *overrides: str) -> SweepPlan:
    matrix = read_matrix(path)
    return plan_of(matrix, cells_of(matrix, overrides), sys.argv)


def begin(path: Path, name: str, *, finished: bool = False, world_size: int = 1) -> Path:
    """Write what a run of a cell leaves."""
    matrix = read_matrix(path)
    cell = next(cell for cell in cells_of(matrix) if cell.name == name)
    if not (matrix.folder / SWEEP_FILE).exists():
        keep(path)
    folder = cell_run_folder(matrix.folder, name)
    folder.mkdir(parents=True)
    run = {**WHOLE_RUN, "config": cell.loaded.values, "world_size": world_size}
    (folder / "run.json").write_text(json.dumps(run))
    if finished:
        (folder / "summary.json").write_text("{}")
    return folder


def states(found: SweepPlan) -> list[str]:
    return [cell.record.state for cell in found.cells]


def keep(path: Path, **of_the_first: object) -> None:
    """Write the record as a sweep leaves it, with the first cell changed."""
    found = plan(path)
    record = found.record.with_cell(replace(found.cells[0].record, **of_the_first))
    Path("runs/m").mkdir(parents=True, exist_ok=True)
    write_sweep(Path("runs/m"), record)


def test_nothing_done_yet(matrix_file: Path):
    found = plan(matrix_file)
    assert states(found) == ["pending"] * 4
    assert all(cell.runs(retry_failed=False) for cell in found.cells)
    assert not Path("runs").exists()


def test_the_metric_that_chooses_is_shown(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text().replace("axes:", "  evaluate: {best: matthews}\naxes:"))
    cell = plan(matrix_file).record.cells[0]
    assert (cell.metric, cell.metrics) == ("matthews", ("accuracy", "f1_macro", "matthews"))


def test_finished_begun_and_failed(matrix_file: Path):
    keep(matrix_file, state="failed", reason="not finite", exit_code=7)
    begin(matrix_file, "learning_rate-0.0001_seed-42", finished=True)
    begin(matrix_file, "learning_rate-1e-05_seed-41")

    found = plan(matrix_file)

    assert states(found) == ["failed", "finished", "interrupted", "pending"]
    assert [cell.runs(retry_failed=False) for cell in found.cells] == [False, False, True, True]
    assert [cell.runs(retry_failed=True) for cell in found.cells] == [True, False, True, True]
    assert found.cells[0].record.reason == "not finite"


def test_a_record_of_a_sweep_that_was_killed(matrix_file: Path):
    # Its state is running; the folder has the progress of the run.
    keep(matrix_file, state="running")
    assert states(plan(matrix_file))[0] == "pending"
    begin(matrix_file, FIRST)
    assert states(plan(matrix_file))[0] == "interrupted"


def test_a_run_of_a_cluster_that_ended_with_an_error_has_failed(matrix_file: Path):
    folder = begin(matrix_file, FIRST)
    (folder / "events.rank0000.jsonl").write_text(
        '{"event": "step", "step": 1}\n{"event": "failure", "error": "NotFinite", "message": "the loss is nan"}\n'
    )
    found = plan(matrix_file)
    assert (found.cells[0].record.state, found.cells[0].record.reason) == ("failed", "the loss is nan")
    assert [found.cells[0].runs(retry_failed=retry) for retry in (False, True)] == [False, True]
    # Trained again since; or a sweep has recorded how it ended, which knows of signals.
    with (folder / "events.rank0000.jsonl").open("a") as file:
        file.write('{"event": "resume", "step": 1}\n')
    assert states(plan(matrix_file))[0] == "interrupted"


def test_a_failure_of_another_configuration_is_none_of_this_one(matrix_file: Path):
    keep(matrix_file, state="failed", reason="not finite")
    assert states(plan(matrix_file, "train.eps=1e-6"))[0] == "pending"


def test_a_finished_run_whose_folder_is_gone_is_trained_again(matrix_file: Path):
    keep(matrix_file, state="finished")
    assert states(plan(matrix_file))[0] == "pending"


@pytest.mark.parametrize("finished", [True, False])
def test_what_the_matrix_has_changed_is_refused_by_name(finished: bool, matrix_file: Path):
    begin(matrix_file, FIRST, finished=finished)
    begin(matrix_file, "learning_rate-0.0001_seed-42", finished=True, world_size=2)

    found = plan(matrix_file, "train.max_steps=5")

    assert found.cells[0].changed == ("train.max_steps: 3 then, 5 now",)
    with pytest.raises(CheckpointError) as caught:
        check_unchanged(read_matrix(matrix_file), found.cells)
    check_code(caught.value, "sweep.changed", "runs/m")
    assert f"  {FIRST}:\n    train.max_steps: 3 then, 5 now\n" in str(caught.value)
    assert "    nproc: 2 then, 1 now" in str(caught.value)
    assert "--overwrite" in str(caught.value)


def test_what_does_not_change_the_run_may_differ(matrix_file: Path):
    begin(matrix_file, FIRST, finished=True)
    found = plan(matrix_file, "checkpoint.keep=7", "data.cache_dir=x")
    assert found.cells[0].changed == ()
    check_unchanged(read_matrix(matrix_file), found.cells)


def test_runs_that_are_no_longer_in_the_matrix_are_named(matrix_file: Path):
    keep(matrix_file)
    begin(matrix_file, FIRST, finished=True)
    matrix_file.write_text(matrix_file.read_text().replace("[41, 42]", "[42]"))
    found = plan(matrix_file)
    assert found.record.past == (FIRST,)
    assert states(found) == ["pending", "pending"]


@pytest.mark.parametrize(
    ("make", "refused"),
    [
        (lambda folder: folder.write_text(""), ("output.foreign",)),
        (lambda folder: (folder.mkdir(), (folder / "run.json").write_text("{}")), ("output.foreign",)),
        (lambda folder: (folder.mkdir(), (folder / "x").write_text("")), ("output.foreign",)),
        (lambda folder: (folder.mkdir(), (folder / "sweep.json").write_text("{")), ("run.damaged",)),
        (lambda folder: (folder.mkdir(), (folder / "sweep.json").write_text("[]")), ("run.damaged",)),
        (
            lambda folder: (folder.mkdir(), (folder / "sweep.json").write_text('{"schema_version": 9}')),
            ("run.other_version", "schema_version", "9", "1"),
        ),
    ],
)
def test_a_folder_that_is_something_else(make: Callable[[Path], object], refused: tuple[str, ...], matrix_file: Path):
    Path("runs").mkdir()
    make(Path("runs/m"))
    with raises_code(*refused):
        plan(matrix_file)


def test_a_folder_with_nothing_but_a_lock_is_new(matrix_file: Path):
    Path("runs/m").mkdir(parents=True)
    (Path("runs/m") / LOCK_FILE).write_text("")
    assert states(plan(matrix_file)) == ["pending"] * 4


def test_a_damaged_run_is_named(matrix_file: Path):
    folder = begin(matrix_file, FIRST)
    (folder / "run.json").write_text("[]")
    with raises_code("run.damaged", "seed-41"):
        plan(matrix_file)


def test_the_record_is_read_back_as_it_was(matrix_file: Path):
    keep(matrix_file, state="failed", reason="x", attempts=({"began": "a", "ended": "b", "exit_code": 1},))
    before = read_sweep(Path("runs/m"))
    write_sweep(Path("runs/m"), before)
    assert read_sweep(Path("runs/m")) == before
    assert before.cells[0].attempts[0]["exit_code"] == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"pending"', '"odd"'),
        ('"seed-41"', '"seed-9"'),
        (f'"name": "{FIRST}"', '"name": "../x"'),
        ('"full"', '"half"'),
        ('"repeat": 1', '"repeat": "1"'),
        ('"environment": {}', '"environment": 3'),
    ],
)
def test_a_record_with_odd_cells_is_refused(old: str, new: str, matrix_file: Path):
    keep(matrix_file)
    path = Path("runs/m/sweep.json")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with raises_code("run.damaged"):
        read_sweep(path.parent)


def test_a_record_with_a_file_name_of_other_bytes_is_read(matrix_file: Path):
    keep(matrix_file)
    record = read_sweep(Path("runs/m"))
    write_sweep(Path("runs/m"), replace(record, matrix="m\udc80.yaml"))  # as Python decodes the byte 0x80
    assert read_sweep(Path("runs/m")) == replace(record, matrix="m?.yaml")


def test_the_baseline_is_in_the_record(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text() + "baseline: {train.learning_rate: 1e-5}\n")
    matrix = read_matrix(matrix_file)
    assert plan_of(matrix, cells_of(matrix), []).record.baseline == {"learning_rate": "learning_rate-1e-05"}


def test_a_dry_run_says_that_another_process_trains_a_run_as_long_as_it_does(matrix_file: Path, capsys):
    def shown() -> list[str]:
        matrix, found = read_matrix(matrix_file), plan(matrix_file)
        show_plan(matrix, found, {FIRST}, retry_failed=False, as_json=False)
        return capsys.readouterr().out.splitlines()

    folder = begin(matrix_file, FIRST)
    with FileLock(folder / LOCK_FILE):
        assert "1 run (1 running)" in shown()[0]
        assert shown()[-1].split() == [FIRST, "1", "running", "wait"]
        keep(matrix_file)
    assert shown()[-1].split() == [FIRST, "1", "interrupted", "train"]


def test_the_record_keeps_the_file_without_secrets(matrix_file: Path):
    text = f"# API_KEY=abc\n{matrix_file.read_text()}"
    matrix_file.write_text(text)
    matrix = read_matrix(matrix_file)
    record = plan_of(matrix, cells_of(matrix), ["paratune", "sweep", "--token", "abc"]).record
    assert record.matrix_text == text.replace("API_KEY=abc", "API_KEY=***")
    assert record.command == ("paratune", "sweep", "--token", "***")
    assert record.directory == str(Path.cwd())
    assert set(record.code) == {"git_commit", "git_dirty"}


def test_looks_are_kept_by_another_call_and_added_only_for_new_runs(matrix_file: Path):
    keep(matrix_file, state="finished")
    first = read_sweep(Path("runs/m")).with_look("t1")
    assert [(look.time, look.finished) for look in first.looks] == [("t1", (first.cells[0].name,))]
    assert first.with_look("t2") is first
    write_sweep(Path("runs/m"), first)
    again = plan(matrix_file).record
    assert again.looks == first.looks
    second = again.with_cell(replace(again.cells[1], state="finished")).with_look("t3")
    names = [cell.name for cell in second.cells]
    assert [look.finished for look in second.looks] == [(names[0],), (names[1],)]
