"""Runs of a matrix side by side: how many at a time, in which order, and how they end; no run is made."""

import json
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code
from whole_records import WHOLE_SUMMARY

from paratune.api import sweep_slots
from paratune.api.sweep import prepare
from paratune.api.sweep_slots import expected_work, read_parallel, slots_here
from paratune.api.sweep_train import _Trainer
from paratune.console import Bar, Display
from paratune.errors import CheckpointError
from paratune.processes.local import CommandRunner
from paratune.processes.slots import Slots
from paratune.records.neighbours import (
    NEIGHBOURS_FILE,
    NEIGHBOURS_VARIABLE,
    Neighbours,
    log_neighbour,
    neighbours_of,
)
from paratune.records.sweep import cell_run_folder, read_sweep, write_sweep
from paratune.sweeps.cell import Cell
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import plan_of

MATRIX = """\
name: m
base:
  device: cpu
  task: {kind: classification, labels: [a, b]}
  data: {train: data.csv, split: {validation: 0.2}, columns: {text: text, label: label}}
  model: {name: model}
  train: {epochs: 3}
  batch: {global: 4}
axes:
  run.seed: [1, 2, 3, 4]
"""


class Runner(CommandRunner):
    """Ends a run when `ends` allows it; remembers which ran at the same time, with which cores and variables."""

    def __init__(self, ends: threading.Barrier | None = None) -> None:
        super().__init__()
        self.ends, self.lock = ends, threading.Lock()
        self.now: set[str] = set()
        self.together: list[set[str]] = []
        self.order: list[str] = []
        self.cores: dict[str, Any] = {}
        self.environments: dict[str, Mapping[str, str | None]] = {}
        self.error: Exception | None = None

    def run(
        self, words: Sequence[str], log: Path, environment: Mapping[str, str | None], cores: Collection[int] | None
    ) -> int:
        name = Path(words[1]).stem
        with self.lock:
            self.now.add(name)
            self.order.append(name)
            self.together.append(set(self.now))
            self.cores[name], self.environments[name] = cores, environment
        if self.ends is not None:
            self.ends.wait(30)
        if self.error is not None:
            raise self.error
        run = cell_run_folder(Path("runs/m"), name)
        run.mkdir(parents=True, exist_ok=True)
        (run / "run.json").write_text("{}")
        (run / "summary.json").write_text(json.dumps(WHOLE_SUMMARY))
        with self.lock:
            self.now.discard(name)
        return 0


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequence[Cell]:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text,label\nx,a\n")
    Path("m.yaml").write_text(MATRIX)
    plan = plan_of(read_matrix(Path("m.yaml")), cells_of(read_matrix(Path("m.yaml"))), [])
    Path("runs/m").mkdir(parents=True)
    write_sweep(Path("runs/m"), plan.record)
    return plan.cells


def train(cells: Sequence[Cell], runner: Runner, slots: Slots, expected: Mapping[str, float] | None = None):
    display, bar = Display(speaks=False), Bar("runs", 4, None)
    trainer = _Trainer(read_matrix(Path("m.yaml")), runner, display, bar, 4, 0, False, slots, expected or {})
    return trainer.train(read_sweep(Path("runs/m")), cells)


def test_as_many_runs_at_a_time_as_there_are_slots(cells: Sequence[Cell]):
    runner = Runner(threading.Barrier(2))  # a single run would wait for a second one
    record = train(cells, runner, Slots(2, 0, range(4)))
    assert max(map(len, runner.together)) == 2
    assert {cell.state for cell in record.cells} == {"finished"}
    assert read_sweep(Path("runs/m")) == record
    assert sorted(map(tuple, runner.cores.values())) == [(0, 1), (0, 1), (2, 3), (2, 3)]
    log = Path("runs/m", NEIGHBOURS_FILE)
    assert {variables[NEIGHBOURS_VARIABLE] for variables in runner.environments.values()} == {str(log.resolve())}
    assert all(neighbours_of(log, cell.name).names for cell in cells)


def test_in_turn_there_is_no_share_and_no_log(cells: Sequence[Cell]):
    runner = Runner()
    train(cells, runner, Slots(1, 0, ()))
    assert max(map(len, runner.together)) == 1
    assert (set(runner.cores.values()), *runner.environments.values()) == ({None}, {}, {}, {}, {})
    assert not Path("runs/m", NEIGHBOURS_FILE).exists()


def test_a_run_that_is_resumed_in_turn_had_neighbours(cells: Sequence[Cell]):
    log, alone = Path("runs/m", NEIGHBOURS_FILE), cells[0].name
    for event, run in (("start", ""), ("begin", cells[1].name), ("begin", alone)):
        log_neighbour(log, event, run)
    runner = Runner()
    train(
        [replace(cells[0], is_begun=True), replace(cells[1], is_begun=True, changed=("seed",))], runner, Slots(1, 0, ())
    )
    assert runner.environments[alone] == {NEIGHBOURS_VARIABLE: str(log.resolve())}
    assert neighbours_of(log, alone) == Neighbours((cells[1].name,), is_constant=False)
    assert neighbours_of(log, cells[1].name) == Neighbours((), is_constant=True), "it was deleted, and trained anew"


def test_the_longest_run_begins_first(cells: Sequence[Cell]):
    runner = Runner()
    expected = {cell.name: seconds for cell, seconds in zip(cells, (2.0, 5.0, 0.0, 3.0), strict=True)}
    # The third process waits for two sets of cores, so that the order is seen.
    train(cells, runner, Slots(2, 0, range(2)), expected)
    assert set(runner.order[:2]) == {cells[1].name, cells[3].name}


def test_no_run_begins_after_a_signal(cells: Sequence[Cell]):
    runner = Runner(threading.Barrier(2, action=lambda: setattr(runner, "signal", "SIGTERM")))
    record = train(cells, runner, Slots(2, 0, range(2)))
    assert sorted(cell.state for cell in record.cells) == ["finished", "finished", "pending", "pending"]


def test_an_error_ends_the_other_runs(cells: Sequence[Cell], monkeypatch: pytest.MonkeyPatch):
    runner = Runner(threading.Barrier(2))
    runner.error = CheckpointError("the disk is full", code="output.not_writable")
    ended: list[bool] = []
    monkeypatch.setattr(runner, "end", lambda: ended.append(True))
    with raises_code("output.not_writable"):
        train(cells, runner, Slots(2, 0, range(2)))
    assert (ended, len(runner.order)) == ([True], 2)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "all", "", "100000"])
def test_what_parallel_does_not_take(text: str):
    with raises_code("cli.invalid_value", "--parallel"):
        read_parallel(text)


def test_what_parallel_takes():
    assert [read_parallel(text) for text in ("auto", "1", "8")] == ["auto", 1, 8]


def test_slots_of_this_machine(cells: Sequence[Cell], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sweep_slots.os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4, 5, 6, 7})
    monkeypatch.setattr(sweep_slots, "usable_cores", lambda: 6.5)
    share = slots_here(cells, 3).take(1, on_gpus=False)
    assert share is not None
    assert share.cores == [0, 1]
    assert slots_here(cells, 1).take(1, on_gpus=False).cores is None


def test_slots_of_a_machine_without_affinity(cells: Sequence[Cell], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delattr(sweep_slots.os, "sched_getaffinity")  # macOS
    monkeypatch.setattr(sweep_slots.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(sweep_slots, "usable_cores", lambda: 8.0)
    slots = slots_here(cells, "auto")
    share = slots.take(1, on_gpus=False)
    assert share is not None
    assert (slots.num_slots, share.environment) == (2, {"OMP_NUM_THREADS": "4"})


def test_probes_have_no_parallel(cells: Sequence[Cell]):
    Path("m.yaml").write_text(MATRIX + "parallel: 2\nprobe: {steps: 20}\n")
    with raises_code("config.no_effect", "parallel"):
        read_matrix(Path("m.yaml"))


def test_gpus_that_are_not_known_are_not_none(cells: Sequence[Cell], monkeypatch: pytest.MonkeyPatch):
    Path("m.yaml").write_text(MATRIX.replace("  device: cpu\n", ""))
    monkeypatch.setattr(sweep_slots, "gpus_here", lambda: None)
    with raises_code("cli.conflict", "--parallel"):
        slots_here(cells_of(read_matrix(Path("m.yaml"))), 2)
    assert slots_here(cells, 2).num_slots == 2  # on CPUs they do not matter


def test_runs_that_name_their_gpus_are_refused(cells: Sequence[Cell]):
    Path("m.yaml").write_text(MATRIX + "env: {CUDA_VISIBLE_DEVICES: 0}\n")
    with raises_code("cli.conflict", "--parallel"):
        slots_here(cells_of(read_matrix(Path("m.yaml"))), 2)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"use": "list", "parallel": "2"}, "cli.conflict"),
        ({"use": "show", "timing": True}, "cli.conflict"),
        ({"use": "train", "parallel": "2", "probe": True}, "cli.conflict"),
        ({"use": "train", "timing": True, "probe": True}, "cli.no_effect"),
        # Speed has no verdict then, so that all were decided after the first round.
        ({"use": "train", "parallel": "2", "until": "speed"}, "cli.conflict"),
        ({"use": "train", "parallel": "2", "until": "decided"}, "cli.conflict"),
    ],
)
def test_options_that_exclude_each_other(options: dict[str, Any], code: str, cells: Sequence[Cell]):
    use = options.pop("use")
    with raises_code(code):
        prepare(Path("m.yaml"), (), use, **options)


def test_the_matrix_says_how_many_and_the_option_replaces_it(cells: Sequence[Cell]):
    Path("m.yaml").write_text(MATRIX + "parallel: auto\n")
    assert prepare(Path("m.yaml"), (), "train").parallel == "auto"
    assert prepare(Path("m.yaml"), (), "train", parallel="2").parallel == 2
    timed = prepare(Path("m.yaml"), (), "train", timing=True)
    assert (timed.timing.parallel, timed.timing.matrix.name) == (1, "m.probe")
    # Probes of a matrix with `parallel` are made in turn all the same.
    assert prepare(Path("m.yaml"), (), "train", probe=True).parallel == 1


def test_expected_times(cells: Sequence[Cell], monkeypatch: pytest.MonkeyPatch):
    Path("m.yaml").write_text(
        MATRIX.replace("  run.seed: [1, 2, 3, 4]", "  batch.global: [2, 4, 8]\n  run.seed: [1, 2]")
    )
    matrix = read_matrix(Path("m.yaml"))
    first, *rest = plan_of(matrix, cells_of(matrix), []).cells
    # In operations, because the speed of this machine is unknown: 3, 2 and 1 for batches of 2, 4 and 8.
    monkeypatch.setattr(sweep_slots, "_planned_work", lambda cell: {2: 3.0, 4: 2.0, 8: 1.0}[cell.config.batch.global_])
    assert list(expected_work(rest, [first, *rest]).values()) == [3.0, 2.0, 2.0, 1.0, 1.0]
    attempt = {"began": "2026-01-01T00:00:00+00:00", "ended": "2026-01-01T00:01:00+00:00", "exit_code": 0}
    done = replace(first, record=replace(first.record, state="finished", attempts=(attempt,)))
    # 60 s for 3 operations: 20 s for each.
    assert list(expected_work(rest, [done, *rest]).values()) == [60.0, 40.0, 40.0, 20.0, 20.0]
    # The clock has whole seconds.
    short = {**attempt, "ended": attempt["began"]}
    all_done = [
        replace(cell, record=replace(cell.record, state="finished", attempts=(short,))) for cell in (first, *rest)
    ]
    assert set(expected_work(rest, all_done).values()) == {0.0}
    assert expected_work([rest[0]], [done, *rest]) == {}  # one kind of run has no order
