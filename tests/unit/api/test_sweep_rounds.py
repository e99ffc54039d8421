"""`paratune sweep --until`: the added runs, the end of the rounds, and the record; no run is made."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from make_matrix import Made, make_matrix
from raised import raises_code

from paratune.api.sweep_train import judged_and_undecided, next_round, read_rounds, train_rounds
from paratune.records.sweep import Axis, CellRecord, Rounds, SweepRecord, read_sweep
from paratune.reports.matrix import matrix_document, read_joined
from paratune.sweeps.cell import Cell
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import plan_of

SEED = Axis("run.seed", "seed", {f"seed-{n}": str(n) for n in range(1, 9)}, is_seed=True, keys=("run.seed",))
STRATEGY = Axis("strategy", "strategy", {name: name for name in ("ddp", "zero1", "zero3")}, keys=("strategy.kind",))
AXES = (STRATEGY, SEED)
ATTEMPT = {"began": "2026-11-21T10:00:00+00:00", "ended": "2026-11-21T10:01:00+00:00", "exit_code": 0}


class FakeTrainer:
    """Makes the records of runs: zero3 takes twice as long as ddp, zero1 as long to a noise of 2%."""

    def __init__(self, folder: Path, stops_after: int | None = None) -> None:
        self.folder = folder
        self.trained: list[str] = []
        self.stops_after = stops_after
        self.rng = np.random.default_rng(1)

    @property
    def is_stopped(self) -> bool:
        return self.stops_after is not None and len(self.trained) >= self.stops_after

    def train(self, record: SweepRecord, steps: list[Cell]) -> SweepRecord:
        for cell in steps:
            if self.is_stopped:
                break
            self.trained.append(cell.record.name)
            record = record.with_cell(replace(cell.record, state="finished", attempts=(ATTEMPT,)))
        write(self.folder, record)
        return record


def write(folder: Path, record: SweepRecord) -> None:
    """Write the matrix as it is, with the records of its finished runs."""

    def measure(values):
        seed, strategy = int(values["seed"].rpartition("-")[2]), list(STRATEGY.values).index(values["strategy"])
        noise = np.exp(np.random.default_rng([seed, strategy]).normal(0, 0.02))
        step_ms = {"ddp": 80.0, "zero1": 80.0, "zero3": 160.0}[values["strategy"]] * noise
        return Made(kind=values["strategy"], step_ms=step_ms)

    shutil.rmtree(folder / "runs", ignore_errors=True)
    states = {cell.name: (cell.state, cell.reason) for cell in record.cells if cell.state != "finished"}
    cells = {cell.name: cell for cell in record.cells}
    make_matrix(
        folder,
        record.axes,
        measure,
        states=states,
        changes=lambda cell: cells[cell.name],
        looks=record.looks,
        rounds=record.rounds,
    )


def start(folder: Path, rounds: Rounds | None) -> tuple[SweepRecord, list[Cell]]:
    """Write a matrix of which no run was made; return its record and all runs, seed by seed."""
    names = [f"{strategy}_{seed}" for seed in SEED.values for strategy in STRATEGY.values]
    states = dict.fromkeys(names, ("pending", None))
    make_matrix(folder, AXES, lambda values: Made(), states=states, rounds=rounds)
    record = read_sweep(folder)
    cells = {cell.name: cell for cell in record.cells}
    return record, [Cell(cells[name]) for name in names]


def train(folder: Path, record: SweepRecord, todo: list[Cell], trainer: FakeTrainer) -> SweepRecord:
    return train_rounds(folder, record, todo, trainer)


def seeds(trained: list[str], strategy: str) -> int:
    return sum(name.startswith(f"{strategy}_") for name in trained)


def test_only_the_undecided_configuration_and_its_baseline_get_more_seeds(tmp_path: Path):
    record, todo = start(tmp_path, Rounds("speed", 8))
    trainer = FakeTrainer(tmp_path)
    record = train(tmp_path, record, todo, trainer)
    assert trainer.trained[:9] == [cell.record.name for cell in todo[:9]]
    assert seeds(trainer.trained, "zero3") == 3  # twice as slow: decided at the first look
    assert seeds(trainer.trained, "zero1") == seeds(trainer.trained, "ddp") > 3
    assert read_sweep(tmp_path) == record
    assert [cell.is_needed for cell in record.cells].count(False) == 24 - len(trainer.trained)
    # One look for each round: 9 runs, then those of two configurations.
    assert [len(look.finished) for look in record.looks] == [9, *[2] * (seeds(trainer.trained, "ddp") - 3)]
    assert {look.num_planned for look in record.looks} == {8}


def test_rounds_end_when_all_is_decided_and_a_larger_matrix_continues(tmp_path: Path):
    record, todo = start(tmp_path, Rounds("speed", 8))
    todo = [cell for cell in todo if not cell.record.name.startswith("zero1")]
    record = replace(record, cells=tuple(cell for cell in record.cells if not cell.name.startswith("zero1")))
    record = replace(record, axes=(replace(STRATEGY, values={"ddp": "ddp", "zero3": "zero3"}), SEED))
    trainer = FakeTrainer(tmp_path)
    record = train(tmp_path, record, todo, trainer)
    assert (len(trainer.trained), record.rounds.ended) == (6, "decided")
    assert judged_and_undecided(tmp_path, record) == ({("ddp",), ("zero3",)}, set())


def test_configurations_whose_runs_fail_have_no_verdict(tmp_path: Path):
    class FailingTrainer(FakeTrainer):
        def train(self, record, steps):
            for cell in steps:
                self.trained.append(cell.record.name)
                is_failing = not cell.record.name.startswith("ddp")
                record = record.with_cell(replace(cell.record, state="failed" if is_failing else "finished"))
            write(self.folder, record)
            return record

    record, todo = start(tmp_path, Rounds("speed", 8))
    trainer = FailingTrainer(tmp_path)
    record = train(tmp_path, record, todo, trainer)
    assert (len(trainer.trained), record.rounds.ended) == (9, "no_verdict")
    assert {cell.state for cell in record.cells} == {"finished", "failed", "pending"}


def test_a_stopped_round_is_continued(tmp_path: Path):
    record, todo = start(tmp_path, Rounds("speed", 8))
    first = FakeTrainer(tmp_path, stops_after=4)
    record = train(tmp_path, record, todo, first)
    assert (len(first.trained), record.rounds.ended) == (4, None)
    second = FakeTrainer(tmp_path)
    train(tmp_path, record, [cell for cell in todo if cell.name not in first.trained], second)
    whole_folder = tmp_path / "whole"
    whole_record, whole_todo = start(whole_folder, Rounds("speed", 8))
    whole = FakeTrainer(whole_folder)
    train(whole_folder, whole_record, whole_todo, whole)
    assert first.trained + second.trained == whole.trained


def test_runs_that_were_not_needed_are_no_missing_runs(tmp_path: Path):
    record, todo = start(tmp_path, Rounds("speed", 8))
    train(tmp_path, record, todo, FakeTrainer(tmp_path))
    report = read_joined([tmp_path])
    assert "cannot run here" not in matrix_document(report).lead[0]
    (group,) = report.groups
    assert [candidate.num_left_out for candidate in group.candidates] == [0]
    assert group.chosen is not None


def test_a_round_is_a_block_of_those_that_are_needed(tmp_path: Path):
    record, todo = start(tmp_path, Rounds("speed", 8))
    assert next_round(record, todo, set()) == todo[:9]
    later = next_round(record, todo[9:], {("zero1",), ("ddp",)})
    assert [cell.record.name for cell in later] == ["ddp_seed-4", "zero1_seed-4"]
    assert next_round(record, todo[9:], set()) == []
    needed, needs = todo[-1], replace(later[0], record=replace(later[0].record, needs=(todo[-1].name,)))
    left = [needs if cell is later[0] else cell for cell in todo[9:]]
    assert {cell.name for cell in next_round(record, left, {("zero1",), ("ddp",)})} == {
        "ddp_seed-4", "zero1_seed-4", needed.name
    }  # fmt: skip


MATRIX = """\
name: m
base:
  task: {kind: classification, labels: [a, b]}
  data: {train: data.csv, split: {validation: 0.2}, columns: {text: text, label: label}}
  model: {name: model}
  train: {max_steps: 3}
  batch: {global: 4}
axes:
  train.learning_rate: [1e-4, 1e-5]
  run.seed: [1, 2, 3, 4, 5]
"""


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text,label\nx,a\n")
    Path("m.yaml").write_text(MATRIX)
    matrix = read_matrix(Path("m.yaml"))
    return matrix, plan_of(matrix, cells_of(matrix), ["paratune"]).record.cells


def test_quality_of_probes_and_few_seeds_have_no_rounds(cells):
    matrix, records = cells
    probes: list[CellRecord] = [replace(cell, kind="probe") for cell in records]
    with raises_code("cli.no_effect", "quality"):
        read_rounds(matrix, probes, "quality")
    with raises_code("cli.no_effect", "3"):
        read_rounds(matrix, [cell for cell in records if cell.values["seed"][-1] in "123"], "decided")


def test_until_is_one_of_three_words(cells):
    assert read_rounds(*cells, "decided") == Rounds("decided", 5)
    with raises_code("cli.invalid_value", "never"):
        read_rounds(*cells, "never")


def test_without_until_there_are_no_rounds(cells):
    assert read_rounds(*cells, None) is None
