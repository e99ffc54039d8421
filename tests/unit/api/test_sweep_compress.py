"""Smaller forms of the runs of a matrix, and students whose teachers are not finished; no process is started."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paratune.api.sweep_train import _Trainer
from paratune.console import Display
from paratune.processes.slots import Slots
from paratune.records.sweep import cell_run_folder, read_sweep, write_sweep
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import Matrix, read_matrix
from paratune.sweeps.run import SweepPlan, plan_of

MATRIX = """\
name: m
base:
  task: {kind: classification, labels: [a, b]}
  data: {train: data.csv, columns: {text: text, label: label}}
  model: {name: model}
  train: {max_steps: 3}
  batch: {global: 4}
axes:
  size:
    small: {model.keep_layers: [0], distil.teacher: {size: large}}
    large: {model.keep_layers: null}
select_per: [size]
env: {OMP_NUM_THREADS: 1}
compress: {forms: [bf16]}
"""


class Children:
    """Records commands, and ends with the exit code that a function returns."""

    def __init__(self, code: Callable[[Sequence[str]], int] = lambda words: 0, signal: str | None = None) -> None:
        self.code, self.signal = code, signal
        self.started: list[Sequence[str]] = []
        self.environments: list[Mapping[str, str | None]] = []

    def run(self, words: Sequence[str], log: Path, environment: Mapping[str, str | None], cores: object) -> int:
        self.started.append(words)
        self.environments.append(environment)
        return self.code(words)


def trainer_of(matrix: Matrix, children: Any) -> _Trainer:
    bar: Any = SimpleNamespace(update=lambda *args: None)
    return _Trainer(matrix, children, Display(speaks=False), bar, 2, 0, False, Slots(1, 0, ()), {})


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Matrix, SweepPlan]:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text,label\nx,a\n")
    Path("m.yaml").write_text(MATRIX)
    matrix = read_matrix(Path("m.yaml"))
    return matrix, plan_of(matrix, cells_of(matrix), [])


def finish(matrix: Matrix, plan: SweepPlan) -> SweepPlan:
    for name in ("small", "large"):
        (cell_run_folder(matrix.folder, name) / "model").mkdir(parents=True)
    cells = tuple(replace(cell, state="finished") for cell in plan.record.cells)
    return replace(plan, record=replace(plan.record, cells=cells))


def test_every_finished_run_is_made_smaller_and_failures_are_returned(planned: tuple[Matrix, SweepPlan]):
    matrix, plan = planned
    names = {"small", "large"}
    assert trainer_of(matrix, children := Children()).compress(plan.record, names) == ()
    assert children.started == []  # no run is finished
    record = finish(matrix, plan).record
    children = Children(lambda words: 5 if words[1].endswith("small") else 0)
    assert trainer_of(matrix, children).compress(record, names) == ("small",)
    assert [words[:4] for words in children.started] == [
        ["compress", f"runs/m/runs/{name}", "--to", "bf16"] for name in ("small", "large")
    ]
    assert children.environments == [{"OMP_NUM_THREADS": "1"}] * 2
    assert trainer_of(matrix, Children(signal="SIGTERM")).compress(record, names) == ("small", "large")
    without = replace(matrix, options=matrix.options.model_copy(update={"compress": None}))
    assert trainer_of(without, Children()).compress(record, names) == ()


def test_a_student_is_not_started_before_its_teacher_is_finished(planned: tuple[Matrix, SweepPlan]):
    matrix, plan = planned
    matrix.folder.mkdir(parents=True)
    write_sweep(matrix.folder, plan.record)
    children = SimpleNamespace(signal=None, run=lambda *args, **options: pytest.fail("started"))
    student = next(cell for cell in plan.cells if cell.name == "small")
    (cell,) = (
        cell for cell in trainer_of(matrix, children).train(plan.record, [student]).cells if cell.name == "small"
    )
    assert cell.state == "pending"
    assert "large" in cell.reason


def test_the_record_keeps_needed_runs_and_forms(planned: tuple[Matrix, SweepPlan], tmp_path: Path):
    _, plan = planned
    write_sweep(tmp_path, plan.record)
    record = read_sweep(tmp_path)
    assert record.compress == ("bf16",)
    assert {cell.name: cell.needs for cell in record.cells} == {"small": ("large",), "large": ()}
