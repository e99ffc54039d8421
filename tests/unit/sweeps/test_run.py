"""Running cells: what is started, how its end is told, and what the record says; no run is made."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock
from raised import raises_code
from whole_records import WHOLE_RUN

from paratune.config.load import load_config
from paratune.records.run_folder import LOCK_FILE
from paratune.records.sweep import CellRecord, cell_run_folder, read_sweep, write_sweep
from paratune.sweeps import run
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import SharedRecord, locked, plan_of, run_cell

FOLDER = Path("runs/m")
Trainer = Callable[[Sequence[str], Path, Mapping[str, str | None]], int]


def ends(code: int, text: str = "", *, finished: bool = False) -> Trainer:
    """Return what stands in for `paratune train`: it writes its run, says something, and ends."""

    def start(words: Sequence[str], log: Path, environment: Mapping[str, str | None]) -> int:
        start.words, start.environment = list(words), dict(environment)
        with log.open("a") as file:
            file.write(text)
        folder = cell_run_folder(FOLDER, Path(words[1]).stem)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text("{}")
        if finished:
            (folder / "summary.json").write_text("{}")
        return code

    return start


def run_first(path: Path, start: Trainer, *, stopped: bool = False) -> CellRecord:
    matrix = read_matrix(path)
    plan = plan_of(matrix, cells_of(matrix), ["paratune"])
    FOLDER.mkdir(parents=True, exist_ok=True)
    cell = run_cell(SharedRecord(FOLDER, plan.record), plan.cells[0], start, stopped=lambda: stopped)
    assert read_sweep(FOLDER).cells[0].state == cell.state
    return cell


@pytest.mark.parametrize(
    ("start", "state", "reason"),
    [
        (ends(0, finished=True), "finished", None),
        (ends(0), "failed", "exit code 0, but its record is not finished"),
        (ends(7, "step 1\nerror: the loss is nan\ntry less\n"), "failed", "the loss is nan\ntry less"),
        (ends(1), "failed", "exit code 1, no output"),
        (ends(75, "stopped by SIGTERM at step 3\n"), "interrupted", "stopped by SIGTERM at step 3"),
        (ends(-9), "interrupted", "killed by signal 9"),
        (ends(130, "interrupted\n"), "interrupted", "interrupted"),
        (ends(137), "interrupted", "killed by signal 9"),
        (ends(143), "interrupted", "killed by signal 15"),
        (ends(139, "Segmentation fault\n"), "interrupted", "Segmentation fault"),
        (ends(5, "rank 1 of 2 was killed by SIGKILL\n"), "failed", "rank 1 of 2 was killed by SIGKILL"),
    ],
)
def test_how_a_run_ended(start: Trainer, state: str, reason: str | None, matrix_file: Path):
    cell = run_first(matrix_file, start)
    assert (cell.state, cell.reason) == (state, reason)
    assert [attempt["exit_code"] for attempt in cell.attempts] == [cell.exit_code]


def test_what_is_started(matrix_file: Path):
    start = ends(0, finished=True)
    name = run_first(matrix_file, start).name

    config = FOLDER / "configs" / f"{name}.yaml"
    assert start.words == ["train", str(config), "--nproc", "1", "--resume"]
    loaded = load_config(config)
    assert (loaded.config.run.name, loaded.config.run.seed, loaded.config.train.learning_rate) == (name, 41, 1e-4)


def test_a_changed_run_is_overwritten(matrix_file: Path):
    run_first(matrix_file, ends(0, finished=True))
    path = cell_run_folder(FOLDER, "learning_rate-0.0001_seed-41") / "run.json"
    path.write_text(json.dumps(WHOLE_RUN))
    start = ends(0, finished=True)
    run_first(matrix_file, start)
    assert start.words[-1] == "--overwrite"


def test_an_error_while_a_signal_ends_it_is_no_failure(matrix_file: Path):
    assert run_first(matrix_file, ends(5, "error: lost a rank\n"), stopped=True).state == "interrupted"


def test_only_what_it_said_this_time_is_its_reason(matrix_file: Path):
    run_first(matrix_file, ends(1, "error: first\n"))
    (cell_run_folder(FOLDER, "learning_rate-0.0001_seed-41") / "run.json").unlink()
    cell = run_first(matrix_file, ends(1, "second\n"))
    assert cell.reason == "second"
    assert len(cell.attempts) == 2


def test_a_run_that_another_process_still_trains(matrix_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run, "WAIT_S", 0.1)
    matrix = read_matrix(matrix_file)
    plan = plan_of(matrix, cells_of(matrix), [])
    folder = cell_run_folder(FOLDER, "learning_rate-0.0001_seed-41")
    folder.mkdir(parents=True)
    with FileLock(folder / LOCK_FILE):
        sweep = SharedRecord(FOLDER, plan.record)
        first = run_cell(sweep, plan.cells[0], ends(0, finished=True), stopped=lambda: False)
        # Also one that had failed before it was gone on with by hand.
        (folder / "run.json").write_text(json.dumps({**WHOLE_RUN, "config": plan.cells[0].loaded.values}))
        sweep.put(replace(first, state="failed", reason="the loss is nan"))
        again = plan_of(matrix, cells_of(matrix), []).cells[0]
    assert (first.state, first.reason) == ("interrupted", "still trained by another process")
    assert first.attempts[0]["exit_code"] is None
    assert (again.record.state, again.record.reason) == (first.state, first.reason)
    assert again.runs(retry_failed=False)


def test_the_folder_is_held(matrix_file: Path):
    with locked(FOLDER), raises_code("run.in_use"), locked(FOLDER):
        pass
    with locked(FOLDER):
        pass


def test_a_run_gets_its_variables(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text() + "env: {A: 1, B: null}\n")
    start = ends(0, finished=True)
    cell = run_first(matrix_file, start)
    assert start.environment == {"A": "1", "B": None, "PARATUNE_RECORD_ENVIRONMENT": "A,-B"}
    assert cell.environment == {"A": "1", "B": None}


def test_what_cannot_run_is_skipped_and_no_failure(matrix_file: Path):
    axes = "  run.seed: [41, 42]\n  batch.global: [4, 5]\nnproc: 2\n"
    text = matrix_file.read_text().replace("  run.seed: [41, 42]\n", axes)
    matrix_file.write_text(text.replace("  batch: {global: 4}\n", "  strategy: ddp\n"))
    matrix = read_matrix(matrix_file)
    plan = plan_of(matrix, cells_of(matrix), [])
    states = [(cell.record.state, cell.runs(retry_failed=True)) for cell in plan.cells]
    assert states == [("pending", True), ("skipped", False)] * 4
    assert "batch.global is 5, which 2 ranks cannot share evenly" in (plan.record.cells[1].reason or "")


def test_what_another_machine_has_trained_is_finished_though_this_one_cannot(
    matrix_file: Path, monkeypatch: pytest.MonkeyPatch
):
    matrix = read_matrix(matrix_file)
    cells = [replace(cell, impossible="no GPU here") for cell in cells_of(matrix)]
    folder = cell_run_folder(FOLDER, cells[0].name)
    FOLDER.mkdir(parents=True)
    write_sweep(FOLDER, plan_of(matrix, cells, []).record)
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({**WHOLE_RUN, "config": cells[0].loaded.values}))
    (folder / "summary.json").write_text("{}")
    states = [cell.record.state for cell in plan_of(matrix, cells, []).cells]
    assert states == ["finished", "skipped", "skipped", "skipped"]
