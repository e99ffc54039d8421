"""Killed runs of a matrix: they are tried once more where runs decide which others follow; no run is made."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from whole_records import WHOLE_SUMMARY

from paratune.api.sweep_train import TrainedSweep, _Trainer
from paratune.console import Bar, Display
from paratune.errors import Stopped
from paratune.processes.local import CommandRunner
from paratune.processes.slots import Slots
from paratune.records.sweep import Rounds, cell_run_folder, write_sweep
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import plan_of

MATRIX = """\
name: m
base:
  task: {kind: classification, labels: [a, b]}
  data: {train: data.csv, split: {validation: 0.2}, columns: {text: text, label: label}}
  model: {name: model}
  train: {epochs: 3}
  batch: {global: 4}
axes:
  run.seed: [1, 2]
"""


class FakeRunner(CommandRunner):
    """Ends the attempts of the first run with `codes`, and other runs well."""

    def __init__(self, folder: Path, codes: Sequence[int], signal: str | None = None) -> None:
        super().__init__()
        self.folder, self.codes, self.stops_with = folder, list(codes), signal
        self.started: list[tuple[str, str]] = []
        """Name and last word of each start."""

    def run(self, words: Sequence[str], log: Path, environment: Mapping[str, str | None], cores: object = None) -> int:
        name = Path(words[1]).stem
        self.started.append((name, words[-1]))
        code = self.codes.pop(0) if self.codes and name == self.started[0][0] else 0
        run = cell_run_folder(self.folder, name)
        run.mkdir(parents=True, exist_ok=True)
        (run / "run.json").write_text("{}")
        if code == 0:
            (run / "summary.json").write_text(json.dumps(WHOLE_SUMMARY))
        if code:
            self.signal = self.stops_with
        return code


def trained(
    codes: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    rounds: Rounds | None,
    signal: str | None = None,
):
    """Return which of two runs were started, and the record of the first one."""
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text,label\nx,a\n")
    Path("m.yaml").write_text(MATRIX)
    matrix = read_matrix(Path("m.yaml"))
    plan = plan_of(matrix, cells_of(matrix), ["paratune"])
    matrix.folder.mkdir(parents=True)
    record = replace(plan.record, rounds=rounds)
    write_sweep(matrix.folder, record)
    runner = FakeRunner(matrix.folder, codes, signal)
    steps = plan.in_order()[:2]
    display, bar = Display(speaks=False), Bar("runs", 4, None)
    trainer = _Trainer(matrix, runner, display, bar, 4, 0, False, Slots(1, 0, ()), {})
    record = trainer.train(record, steps)
    cell = next(cell for cell in record.cells if cell.name == steps[0].name)
    numbers = [[cell.name for cell in steps].index(name) for name, _ in runner.started]
    return numbers, [how for _, how in runner.started], cell


@pytest.mark.parametrize("code", [-9, -15, 137, 143, 75, 5, 8, 10])
def test_a_killed_run_is_resumed_once_before_runs_are_added(code, monkeypatch, tmp_path):
    numbers, how, cell = trained([code], monkeypatch, tmp_path, Rounds("speed", 2))
    assert (numbers, set(how), cell.state) == ([0, 1, 0], {"--resume"}, "finished")
    assert [attempt["exit_code"] for attempt in cell.attempts] == [code, 0]


def test_a_run_that_is_killed_again_is_left(monkeypatch, tmp_path):
    numbers, _, cell = trained([-9, -9, 0], monkeypatch, tmp_path, Rounds("speed", 2))
    assert (numbers, cell.state, len(cell.attempts)) == ([0, 1, 0], "interrupted", 2)


@pytest.mark.parametrize("code", [1, 2, 3, 4, 7, 124])
def test_an_error_of_the_run_is_not_repeated(code, monkeypatch, tmp_path):
    numbers, _, cell = trained([code], monkeypatch, tmp_path, Rounds("speed", 2))
    assert (numbers, cell.state) == ([0, 1], "failed")


def test_a_run_is_not_repeated_without_rounds_or_after_a_signal(monkeypatch, tmp_path):
    for number, (rounds, signal) in enumerate([(None, None), (Rounds("speed", 2), "SIGTERM")]):
        folder = tmp_path / str(number)
        folder.mkdir()
        numbers, _, cell = trained([-9], monkeypatch, folder, rounds, signal)
        assert (numbers, cell.state) == ([0] if signal else [0, 1], "interrupted")


def test_exit_codes(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text,label\nx,a\n")
    Path("m.yaml").write_text(MATRIX)
    matrix = read_matrix(Path("m.yaml"))
    record = plan_of(matrix, cells_of(matrix), []).record
    record = record.with_cell(replace(record.cells[0], state="finished"))
    first, second = (cell.name for cell in record.cells)
    assert TrainedSweep(record, {first}, None).check() == 0
    assert TrainedSweep(record, {first}, "SIGTERM").check() == 0
    assert TrainedSweep(record, {first, second}, None).check() == 1
    assert TrainedSweep(record, {first}, None, not_compressed=(first,)).check() == 1
    for names, not_compressed in (({first, second}, ()), ({first}, (first,))):
        with pytest.raises(Stopped):
            TrainedSweep(record, names, "SIGTERM", not_compressed).check()
    with pytest.raises(Stopped):  # probes follow (--timing), which are not made after a signal
        TrainedSweep(record, {first}, "SIGTERM").check(is_last=False)
    assert TrainedSweep(record, {first}, None).check(is_last=False) == 0
    skipped = record.with_cell(replace(record.cells[1], state="skipped"))
    assert TrainedSweep(skipped, {first, second}, None).check() == 0
