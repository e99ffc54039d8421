"""The key `search` of a matrix: sampled trials, rounds that follow from scores, and refused values."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from raised import raises_code

from paratune.api.sweep_rounds import check_search, num_runs_of_search, suggested_runs, train_rounds
from paratune.errors import ConfigError
from paratune.records.sweep import State, SweepRecord, cell_run_folder, write_sweep
from paratune.sweeps.cell import Cell
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import Matrix, read_matrix
from paratune.sweeps.plan import plan_of
from paratune.sweeps.search import Search, next_trials, sampled, validation_score

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
RANDOM = f"search: {{trials: 6, {SPACE}}}\naxes: {{run.seed: [1, 2]}}\n"
BAYESIAN = f"search: {{method: bayesian, trials: 8, {SPACE}}}\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text,label\nx,a\n")
    return tmp_path


def matrix_of(folder: Path, search: str) -> Matrix:
    (folder / "m.yaml").write_text(BASE + search)
    return read_matrix(folder / "m.yaml")


class ScoringTrainer:
    """Finishes runs; the accuracy is highest at a learning rate of 1e-4, and a little higher with seed 2."""

    def __init__(
        self, matrix: Matrix, stops_after: int | None = None, fails: str = "", state: State = "failed"
    ) -> None:
        self.matrix, self.stops_after, self.fails, self.state = matrix, stops_after, fails, state
        self.trained: list[str] = []

    @property
    def is_stopped(self) -> bool:
        return self.stops_after is not None and len(self.trained) >= self.stops_after

    def train(self, record: SweepRecord, steps: list[Cell]) -> SweepRecord:
        for cell in steps:
            if self.is_stopped:
                break
            assert cell.config is not None
            self.trained.append(cell.name)
            rate = cell.config.train.learning_rate
            score = 1 - abs(math.log10(rate) + 4) / 4 + 0.001 * cell.config.run.seed
            run = cell_run_folder(self.matrix.folder, cell.name)
            run.mkdir(parents=True)
            (run / "summary.json").write_text(
                json.dumps({"schema_version": 1, "scores": {"validation": {"accuracy": score}}})
            )
            state: State = self.state if self.fails and self.fails in cell.name else "finished"
            record = record.with_cell(replace(cell.record, state=state))
            write_sweep(self.matrix.folder, record)
        return record


def search_in(
    folder: Path, text: str, kind: type[ScoringTrainer] = ScoringTrainer, **options
) -> tuple[SweepRecord, ScoringTrainer]:
    matrix = matrix_of(folder, text)
    plan = plan_of(matrix, cells_of(matrix), [])
    trainer = kind(matrix, **options)
    matrix.folder.mkdir(parents=True, exist_ok=True)
    todo = [cell for cell in plan.in_order() if cell.runs(retry_failed=False)]
    return train_rounds(plan.record, todo, trainer, suggested_runs(matrix, (), here=True)), trainer


def test_trials_are_values_of_an_axis_and_more_trials_keep_the_earlier_ones(folder: Path):
    six = matrix_of(folder, RANDOM)
    nine = matrix_of(folder, RANDOM.replace("trials: 6", "trials: 9"))
    other = matrix_of(folder, RANDOM.replace("trials: 6", "trials: 6, seed: 1"))

    assert list(six.trials) == [f"t{number:03d}" for number in range(1, 7)]
    assert dict(list(nine.trials.items())[:6]) == six.trials != other.trials
    cells = cells_of(six)
    assert len(cells) == 12
    for cell in cells:
        settings = six.trials[cell.values["trial"]]
        assert cell.config is not None
        assert cell.config.train.learning_rate == settings["train.learning_rate"]
        assert cell.config.batch.global_ == settings["batch.global"]
        assert 1e-5 <= cell.config.train.learning_rate <= 1e-3
    (axis,) = (axis for axis in six.axes if axis.key == "trial")
    assert set(axis.keys) == {"train.learning_rate", "batch.global"}


def test_a_logarithmic_range_is_sampled_evenly_in_the_logarithm():
    search = Search(trials=400, space={"a": {"min": 1e-6, "max": 1e-2, "scale": "log"}})
    rates = [settings["a"] for settings in sampled(search, 400)]
    # Half of the draws are below the geometric mean, 1e-4: 200 of 400, with a standard deviation of 10.
    assert 160 < sum(rate < 1e-4 for rate in rates) < 240
    whole = sampled(Search(trials=5, space={"a": {"min": 1, "max": 5}}), 5)
    assert sorted(settings["a"] for settings in whole) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("content", "code"),
    [
        ("[]", "run.damaged"),
        ("{}", "run.other_version"),
        ('{"schema_version": 1, "scores": 3}', "run.damaged"),
        ('{"schema_version": 1, "scores": {"validation": [1]}}', "run.damaged"),
    ],
)
def test_a_damaged_record_of_a_trial_is_named(folder: Path, content: str, code: str):
    record, _ = search_in(folder, RANDOM)
    cell = next(cell for cell in record.cells if cell.state == "finished")
    assert validation_score(folder / "runs" / "m", cell) is not None
    (cell_run_folder(folder / "runs" / "m", cell.name) / "summary.json").write_text(content)
    with raises_code(code, "summary.json"):
        validation_score(folder / "runs" / "m", cell)


def test_a_run_that_another_process_trains_ends_the_round(folder: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level("INFO")
    _, trainer = search_in(folder, BAYESIAN, fails="t001", state="interrupted")
    assert len(trainer.trained) == 4  # the random ones
    assert "t001" in caplog.messages[-1]


def test_trials_are_selected_among_whatever_they_set(folder: Path):
    space = "space: {model.dropout: {min: 0.0, max: 0.3}}"
    assert matrix_of(folder, f"search: {{trials: 3, {space}}}\n").select_per == ()


def test_a_search_needs_a_validation_set(folder: Path):
    (folder / "m.yaml").write_text((BASE + RANDOM).replace(", split: {validation: 0.2}", ""))
    cells = cells_of(read_matrix(folder / "m.yaml"))
    assert {problem.code for cell in cells for problem in cell.problems} == {"data.validation_missing"}


def test_suggestions_follow_from_seed_and_scores_and_are_recorded(folder: Path):
    pytest.importorskip("optuna")
    record, trainer = search_in(folder, BAYESIAN)
    assert record.search is not None
    trials = record.search.trials
    assert (list(trials), len(trainer.trained)) == ([f"t{number:03d}" for number in range(1, 9)], 8)
    assert all(1e-5 <= settings["train.learning_rate"] <= 1e-3 for settings in trials.values())
    assert len({json.dumps(settings) for settings in trials.values()}) == 8
    assert read_matrix(folder / "m.yaml").trials == trials  # a later call has them all

    (folder / "m.yaml").write_text(BASE.replace("name: m", "name: again") + BAYESIAN)
    matrix = read_matrix(folder / "m.yaml")
    assert list(matrix.trials.values()) == list(trials.values())[:4]  # the random ones
    plan = plan_of(matrix, cells_of(matrix), [])
    scores = dict.fromkeys(matrix.trials, 0.5)
    once, twice = (next_trials(matrix.search, plan.record, scores) for _ in range(2))
    assert once == twice
    assert len(once) == 5
    changed = next_trials(matrix.search.model_copy(update={"at_once": 2}), plan.record, scores)
    assert len(changed) == 6


def test_a_changed_space_does_not_use_recorded_suggestions(folder: Path):
    pytest.importorskip("optuna")
    search_in(folder, BAYESIAN)
    assert len(matrix_of(folder, BAYESIAN.replace("max: 1e-3", "max: 1e-2")).trials) == 4


def test_a_search_continues_after_suggestions_that_cannot_run(folder: Path):
    pytest.importorskip("optuna")
    space = "space: {train.learning_rate: {min: 1e-5, max: 1e-3, scale: log}, nproc: [1, 2, 3]}"
    text = f"search: {{method: bayesian, trials: 8, {space}}}\n"
    record, trainer = search_in(folder, text)
    states = {cell.values["trial"]: cell.state for cell in record.cells}
    assert list(states) == [f"t{number:03d}" for number in range(1, 9)]
    assert set(list(states.values())[4:-1]) == {"finished", "skipped"}
    assert len(trainer.trained) == list(states.values()).count("finished")
    assert num_runs_of_search(trainer.matrix, record) == len(trainer.trained)


def test_a_search_does_not_continue_with_files_that_were_edited_since(folder: Path):
    pytest.importorskip("optuna")

    class EditingTrainer(ScoringTrainer):
        def train(self, record: SweepRecord, steps: list[Cell]) -> SweepRecord:
            record = super().train(record, steps)
            for cell in steps:
                assert cell.loaded is not None
                run = {"schema_version": 1, "config": cell.loaded.values, "world_size": 1, "sessions": []}
                (cell_run_folder(self.matrix.folder, cell.name) / "run.json").write_text(json.dumps(run))
            (folder / "m.yaml").write_text((BASE + BAYESIAN).replace("epochs: 3", "epochs: 4"))
            return record

    with raises_code("sweep.changed"):
        search_in(folder, BAYESIAN, kind=EditingTrainer)


def test_more_trials_of_a_bayesian_search_keep_the_earlier_ones(folder: Path):
    pytest.importorskip("optuna")
    record, _ = search_in(folder, BAYESIAN)
    assert record.search is not None
    more = BAYESIAN.replace("trials: 8", "trials: 20")
    trials = matrix_of(folder, more).trials
    assert dict(list(trials.items())[:8]) == record.search.trials
    assert list(trials) == [f"t{number:03d}" for number in range(1, 11)]
    assert len({json.dumps(settings) for settings in trials.values()}) == 10


@pytest.mark.parametrize(
    ("search", "code", "key"),
    [
        ("search: 3\n", "config.invalid_value", "search"),
        ("search: {trials: 3}\n", "config.required", "search.space"),
        (f"search: {{trials: 1, {SPACE}}}\n", "config.invalid_value", "search.trials"),
        (f"search: {{method: grid, trials: 3, {SPACE}}}\n", "config.invalid_value", "search.method"),
        (f"search: {{trials: 3, at_once: 2, {SPACE}}}\n", "config.no_effect", "search.at_once"),
        (f"search: {{method: halving, trials: 3, {SPACE}}}\n", "config.invalid_value", "search.method"),
        (f"search: {{trails: 3, trials: 3, {SPACE}}}\n", "config.unknown_key", "search.trails"),
        ("search: {trials: 3, space: {batch.global: [4, 8]}}\n", "config.invalid_value", "search.trials"),
        # Three significant digits: 0.1, 0.101, ..., 0.11 are 11 values.
        (
            "search: {trials: 12, space: {model.dropout: {min: 0.1, max: 0.11}}}\n",
            "config.invalid_value",
            "search.trials",
        ),
        ("search: {trials: 2, space: {run.seed: [1, 2, 3]}}\n", "config.invalid_value", "search.space.run.seed"),
        (f"search: {{trials: 3, {SPACE}}}\naxes: [1, 2]\n", "config.invalid_value", "axes"),
        (
            "search: {trials: 3, space: {train.learning_rate: {min: 1e-3, max: 1e-5}}}\n",
            "config.invalid_value",
            "search.space.train.learning_rate",
        ),
        (
            "search: {trials: 3, space: {train.learning_rate: {min: 0.0, max: 1e-5, scale: log}}}\n",
            "config.invalid_value",
            "search.space.train.learning_rate",
        ),
        (f"{BAYESIAN}axes: {{nproc: [1, 2]}}\n", "config.conflict", "axes.nproc"),
        (f"{RANDOM.replace('run.seed: [1, 2]', 'trial: [1, 2]')}", "config.conflict", "axes.trial"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, search: str, code: str, key: str):
    with pytest.raises(ConfigError) as caught:
        matrix_of(folder, search)
    assert [(fault.code, fault.facts["keys"]) for fault in caught.value.faults] == [(code, (key,))]


def test_options_that_contradict_a_search_by_scores(folder: Path):
    matrix = matrix_of(folder, BAYESIAN)
    with raises_code("cli.conflict", options=("--only", "search.method")):
        check_search(matrix, only=["trial=t001"], until=None)
    with raises_code("cli.conflict", options=("--until", "search.method")):
        check_search(matrix, only=(), until="decided")
    check_search(matrix_of(folder, RANDOM), only=["trial=t001"], until="decided")
