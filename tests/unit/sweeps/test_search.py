"""The key `search` of a matrix: sampled trials, and refused values."""

from pathlib import Path

import pytest

from paratune.errors import ConfigError
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import Matrix, read_matrix
from paratune.sweeps.search import Search, sampled

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("text,label\nx,a\n")
    return tmp_path


def matrix_of(folder: Path, search: str) -> Matrix:
    (folder / "m.yaml").write_text(BASE + search)
    return read_matrix(folder / "m.yaml")


def test_trials_are_values_of_an_axis_and_more_trials_keep_the_earlier_ones(folder: Path):
    six = matrix_of(folder, RANDOM)
    nine = matrix_of(folder, RANDOM.replace("trials: 6", "trials: 9"))
    other = matrix_of(folder, RANDOM.replace("trials: 6", "trials: 6, seed: 1"))

    assert list(six.record.search.trials) == [f"t{number:03d}" for number in range(1, 7)]
    assert dict(list(nine.record.search.trials.items())[:6]) == six.record.search.trials != other.record.search.trials
    cells = cells_of(six)
    assert len(cells) == 12
    for cell in cells:
        settings = six.record.search.trials[cell.values["trial"]]
        assert cell.config is not None
        assert cell.config.train.learning_rate == settings["train.learning_rate"]
        assert cell.config.batch.global_ == settings["batch.global"]
        assert 1e-5 <= cell.config.train.learning_rate <= 1e-3
    (axis,) = (axis for axis in six.axes if axis.key == "trial")
    assert set(axis.keys) == {"train.learning_rate", "batch.global"}


def test_a_logarithmic_range_is_sampled_evenly_in_the_logarithm():
    search = Search(trials=400, space={"a": {"min": 1e-6, "max": 1e-2, "scale": "log"}})
    rates = [settings["a"] for settings in sampled(search).values()]
    # Half of the draws are below the geometric mean, 1e-4: 200 of 400, with a standard deviation of 10.
    assert 160 < sum(rate < 1e-4 for rate in rates) < 240
    whole = sampled(Search(trials=5, space={"a": {"min": 1, "max": 5}}))
    assert sorted(settings["a"] for settings in whole.values()) == [1, 2, 3, 4, 5]


def test_trials_are_selected_among_whatever_they_set(folder: Path):
    space = "space: {model.dropout: {min: 0.0, max: 0.3}}"
    assert matrix_of(folder, f"search: {{trials: 3, {space}}}\n").record.select_per == ()


def test_a_search_needs_a_validation_set(folder: Path):
    (folder / "m.yaml").write_text((BASE + RANDOM).replace(", split: {validation: 0.2}", ""))
    cells = cells_of(read_matrix(folder / "m.yaml"))
    assert {problem.code for cell in cells for problem in cell.problems} == {"data.validation_missing"}


@pytest.mark.parametrize(
    ("search", "code", "key"),
    [
        ("search: 3\n", "config.invalid_value", "search"),
        ("search: {trials: 3}\n", "config.required", "search.space"),
        (f"search: {{trials: 1, {SPACE}}}\n", "config.invalid_value", "search.trials"),
        (f"search: {{method: grid, trials: 3, {SPACE}}}\n", "config.invalid_value", "search.method"),
        (f"search: {{trials: 3, at_once: 2, {SPACE}}}\n", "config.no_effect", "search.at_once"),
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
        (f"{RANDOM.replace('run.seed: [1, 2]', 'trial: [1, 2]')}", "config.conflict", "axes.trial"),
    ],
)
def test_what_is_wrong_is_named(folder: Path, search: str, code: str, key: str):
    with pytest.raises(ConfigError) as caught:
        matrix_of(folder, search)
    assert [(fault.code, fault.facts["keys"]) for fault in caught.value.faults] == [(code, (key,))]
