"""A Bayesian search: trials that follow from scores, and what it is not combined with; no run is made."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from raised import raises_code
from whole_records import WHOLE_RUN, WHOLE_SUMMARY

from paratune.api import sweep
from paratune.api.sweep import prepare, steps_to_list, train_matrix
from paratune.api.sweep_train import TrainedSweep
from paratune.records.sweep import State, SweepRecord, cell_run_folder, write_sweep
from paratune.sweeps.cell import Cell
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.search import validation_score

BASE = """\
name: m
base:
  task: {kind: classification, labels: [a, b]}
  data: {train: data.csv, split: {validation: 0.2}, columns: {text: text, label: label}}
  model: {name: model}
  train: {epochs: 3}
  batch: {global: 4}
"""
SPACE = "space: {train.learning_rate: {min: 1e-5, max: 1e-3, scale: log}, batch.global: [4, 8]}"
SEARCH = f"search: {{method: bayesian, trials: 8, {SPACE}}}\n"


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    pytest.importorskip("optuna")
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text,label\nx,a\n")
    Path("m.yaml").write_text(BASE + SEARCH)
    return Path("m.yaml")


def finish(folder: Path, cell: Cell) -> None:
    """Write the records of a run; the accuracy is highest at a learning rate of 1e-4."""
    assert cell.loaded is not None
    score = 1 - abs(math.log10(cell.config.train.learning_rate) + 4) / 4 + 0.001 * cell.config.run.seed
    run = cell_run_folder(folder, cell.name)
    run.mkdir(parents=True)
    record = {**WHOLE_RUN, "config": cell.loaded.values}
    (run / "run.json").write_text(json.dumps(record))
    (run / "summary.json").write_text(json.dumps({**WHOLE_SUMMARY, "scores": {"validation": {"accuracy": score}}}))


class Training:
    """Takes the place of `train_steps`."""

    def __init__(self) -> None:
        self.trained: list[list[str]] = []
        """Names of the runs of each call."""
        self.signal: str | None = None
        self.states: dict[str, State] = {}
        """States of runs that do not finish."""
        self.after: Callable[[], object] = lambda: None

    def __call__(self, matrix, plan, names, *, retry_failed: bool, run_code: bool, parallel: object) -> TrainedSweep:
        record, selected = plan.record, [cell for cell in plan.in_order() if cell.name in names]
        todo = [cell for cell in selected if cell.runs(retry_failed=retry_failed)]
        self.trained.append([cell.name for cell in todo])
        for cell in todo:
            state: State = self.states.get(cell.name, "finished")
            if state == "finished":
                finish(matrix.folder, cell)
            record = record.with_cell(replace(cell.record, state=state))
        write_sweep(matrix.folder, record)
        self.after()
        return TrainedSweep(record, names, self.signal)


@pytest.fixture
def training(monkeypatch: pytest.MonkeyPatch) -> Training:
    made = Training()
    monkeypatch.setattr(sweep, "train_steps", made)
    return made


def search_with(file: Path) -> SweepRecord:
    return train_matrix(prepare(file, (), "train"), run_code=False).record


def trials_of(record: SweepRecord) -> dict:
    assert record.search is not None
    return dict(record.search.trials)


def test_trials_follow_from_seed_and_scores_and_are_recorded(file: Path, training: Training):
    record = search_with(file)
    trials = trials_of(record)
    assert [len(names) for names in training.trained] == [4, 1, 1, 1, 1]  # the random ones, and those suggested
    assert list(trials) == [f"t{number:03d}" for number in range(1, 9)]
    assert all(1e-5 <= settings["train.learning_rate"] <= 1e-3 for settings in trials.values())
    assert len({json.dumps(settings) for settings in trials.values()}) == 8
    assert read_matrix(file).record.search.trials == trials
    assert (record.search.num_trials, record.search.method, record.search.seed) == (8, "bayesian", 0)

    file.write_text((BASE + SEARCH).replace("name: m\n", "name: again\n"))
    assert trials_of(search_with(file)) == trials
    file.write_text((BASE + SEARCH).replace("name: m\n", "name: other\n").replace("8, space", "8, at_once: 3, space"))
    search_with(file)
    assert [len(names) for names in training.trained[-3:]] == [4, 3, 1]


def test_more_trials_keep_the_earlier_ones_and_another_space_does_not(file: Path, training: Training):
    trials = trials_of(search_with(file))
    file.write_text((BASE + SEARCH).replace("trials: 8", "trials: 20"))
    more = read_matrix(file).record.search.trials
    assert dict(list(more.items())[:8]) == trials
    assert len(more) == 10
    assert len({json.dumps(settings) for settings in more.values()}) == 10
    file.write_text((BASE + SEARCH).replace("max: 1e-3", "max: 1e-2"))
    assert len(read_matrix(file).record.search.trials) == 4


def test_a_search_continues_after_a_failed_run_and_trials_that_cannot_run(file: Path, training: Training):
    space = "space: {train.learning_rate: {min: 1e-5, max: 1e-3, scale: log}, nproc: [1, 2, 3]}"
    file.write_text(f"{BASE}search: {{method: bayesian, trials: 8, {space}}}\n")
    possible = [cell.name for cell in prepare(file, (), "train").plan.cells if cell.record.state != "skipped"]
    training.states = {possible[0]: "failed"}
    states = {cell.values["trial"]: cell.state for cell in search_with(file).cells}
    assert list(states) == [f"t{number:03d}" for number in range(1, 9)]
    assert {*states.values()} == {"finished", "failed", "skipped"}


def test_a_search_stops_at_a_signal_and_at_a_run_without_an_end(file: Path, training: Training):
    training.signal = "SIGTERM"
    assert len(search_with(file).cells) == 4
    training.signal = None
    training.states = {"t005": "interrupted"}
    assert len(search_with(file).cells) == 5
    training.states = {}
    assert len(search_with(file).cells) == 8


def test_a_search_does_not_continue_with_files_that_were_edited_since(file: Path, training: Training):
    training.after = lambda: file.write_text((BASE + SEARCH).replace("epochs: 3", "epochs: 4"))
    with raises_code("sweep.changed"):
        search_with(file)


def test_other_programs_get_one_round_after_the_other(file: Path):
    rounds = []
    for _ in range(6):
        prepared = prepare(file, (), "list")
        rounds.append(steps_to_list(prepared))
        assert [cell.name for cell in steps_to_list(prepare(file, (), "list"))] == [cell.name for cell in rounds[-1]]
        for cell in rounds[-1]:
            finish(prepared.matrix.folder, cell)
    assert [len(cells) for cells in rounds] == [4, 1, 1, 1, 1, 0]


@pytest.mark.parametrize(
    ("more", "options", "refused"),
    [
        ("axes: {nproc: [1, 2]}\n", {}, ("axes.nproc",)),
        ("axes: {run.seed: [1, 2]}\nprobe: {}\n", {"until": "speed"}, ("--until", "probe")),
        ("", {"only": ["trial=t001"], "probe": True}, ("--only", "probe")),
    ],
)
def test_what_contradicts_a_bayesian_search_is_refused(file: Path, more: str, options: dict, refused: tuple[str, ...]):
    file.write_text(BASE + SEARCH + more)
    with raises_code("cli.conflict", options=(*refused, "search.method")):
        prepare(file, (), "train", **options)
    file.write_text((BASE + SEARCH + "axes: {nproc: [1, 2]}\n").replace("bayesian", "random"))
    prepare(file, (), "train", only=["trial=t001"])


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("[]", "run.damaged"),
        ("{}", "run.other_version"),
        ('{"schema_version": 1, "scores": {"validation": [1]}}', "run.damaged"),
    ],
)
def test_a_damaged_record_of_a_run_is_named(file: Path, training: Training, content: str, code: str):
    cell = search_with(file).cells[0]
    assert validation_score(Path("runs/m"), cell) is not None
    (cell_run_folder(Path("runs/m"), cell.name) / "summary.json").write_text(content)
    with raises_code(code, "summary.json"):
        validation_score(Path("runs/m"), cell)
