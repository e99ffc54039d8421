"""Probes: what a run of a few steps is trained with, and in which folder."""

from pathlib import Path

import pytest
from raised import check_code, raises_code

from paratune.config.load import load_config, show_text
from paratune.errors import ConfigError
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import plan_of

FULL = """
task: {kind: classification, labels: [a, b]}
data: {train: data.csv, validation: v.csv, test: t.csv, predict: {x: p.csv}, max_rows: {validation: 5, train: 9},
       columns: {text: text, label: label}}
model: {name: model}
train: {epochs: 3, warmup_steps: 500, learning_rate: 3e-5}
batch: {global: 4}
evaluate: {every: steps, steps: 10, best: accuracy, patience: 2, min_delta: 0.1}
checkpoint: {every: steps, steps: 10}
"""


def _cells(path: Path, more: str, base: str = "{extends: full.yaml}", axes: str = "{run.seed: [41]}") -> tuple:
    for name in ("v.csv", "t.csv", "p.csv"):
        Path(name).write_text("text,label\nx,a\n")
    Path("full.yaml").write_text(FULL)
    path.write_text(f"name: m\nbase: {base}\naxes: {axes}\n{more}")
    return cells_of(read_matrix(path))


def test_a_probe_takes_its_steps_and_nothing_else(matrix_file: Path, tmp_path: Path):
    (cell,) = _cells(matrix_file, "probe: {steps: 12, warmup_steps: 3}\n")
    config = cell.config
    assert (cell.record.kind, config.measure.probe, config.measure.warmup_steps) == ("probe", True, 3)
    assert (config.train.epochs, config.train.max_steps, config.train.warmup_steps) == (None, 12, 12)
    assert config.train.learning_rate == 3e-5
    assert (config.evaluate.every, config.evaluate.steps, config.evaluate.best, config.evaluate.patience) == (
        *("never", None, None, None),
    )
    assert (config.checkpoint.every, config.checkpoint.steps) == ("never", None)
    assert (config.data.validation, config.data.test, config.data.predict) == (None, None, {})
    assert (config.data.max_rows.validation, config.data.max_rows.train) == (None, 9)
    # Its file is read back as the same, and says what the probe has changed.
    (tmp_path / "cell.yaml").write_text(show_text(cell.loaded))
    assert load_config(tmp_path / "cell.yaml").config == config
    assert cell.loaded.origin["train.max_steps"] == "probe"
    assert cell.loaded.origin["train.learning_rate"] == "full.yaml:6"


def test_a_probe_does_not_count_the_steps_of_a_checkpoint_of_the_trainer(matrix_file: Path):
    cells = _cells(matrix_file, "probe: {}\n", axes="{train.continue_trainer: [true]}")
    assert [cell.config.train.continue_trainer for cell in cells] == [False]


def test_rows_that_are_cut_from_the_training_set_stay_cut(matrix_file: Path):
    base = "{extends: full.yaml, data: {validation: null, split: {validation: 0.5}}}"
    (cell,) = _cells(matrix_file, "probe: {}\n", base)
    assert (cell.config.data.split.validation, cell.config.data.max_rows.validation) == (0.5, 5)
    assert (cell.config.train.max_steps, cell.config.measure.warmup_steps) == (20, 5)


def test_an_option_of_a_set_that_a_probe_leaves_out_keeps_the_set(matrix_file: Path):
    base = "{extends: full.yaml, data: {validation: hub:some/set, hub_revision: abc}}"
    (cell,) = _cells(matrix_file, "probe: {}\n", base)
    assert (cell.config.data.validation, cell.config.evaluate.every) == ("hub:some/set", "never")


def test_the_same_matrix_as_probes_in_a_folder_of_its_own(matrix_file: Path):
    full = _cells(matrix_file, "", axes="{train.eps: [1.0, 2.0]}")
    matrix = read_matrix(matrix_file, as_probes=True)
    cells = cells_of(matrix)
    assert (matrix.name, matrix.folder) == ("m.probe", Path("runs/m.probe"))
    assert [cell.record.kind for cell in cells] == ["probe"] * 2
    assert [cell.config.train.max_steps for cell in cells] == [20, 20]
    assert {cell.config.run.folder for cell in cells} == {"runs/m.probe/runs"}
    assert [cell.name for cell in cells] == [cell.name for cell in full]
    assert not {cell.described().fingerprint for cell in cells} & {cell.described().fingerprint for cell in full}
    assert plan_of(matrix, cells, []).record.cells[0].kind == "probe"


def test_runs_that_differ_behind_the_first_steps_are_probed_once(matrix_file: Path):
    _cells(matrix_file, "", axes="{train.epochs: [1, 2], train.eps: [1.0, 2.0]}")
    cells = cells_of(read_matrix(matrix_file, as_probes=True))
    assert [cell.impossible for cell in cells] == [
        *(None, None),
        "as a probe it is the same as epochs-1_eps-1.0",
        "as a probe it is the same as epochs-1_eps-2.0",
    ]


def test_a_matrix_of_probes_is_one_already(matrix_file: Path):
    _cells(matrix_file, "probe: {}\n")
    assert read_matrix(matrix_file, as_probes=True) == read_matrix(matrix_file)


def test_probes_need_no_validation_set_to_be_compared(matrix_file: Path):
    base = "{extends: full.yaml, data: {validation: null, max_rows: {validation: null}}, evaluate: {every: epoch, steps: null, best: null, patience: null, min_delta: 0.0}}"  # noqa: E501
    axes = "{train.eps: [1.0, 2.0], run.seed: [1, 2]}"
    assert any(cell.problems for cell in _cells(matrix_file, "", base, axes))
    assert not any(cell.problems for cell in _cells(matrix_file, "probe: {}\n", base, axes))


@pytest.mark.parametrize(
    ("text", "code", "key"),
    [
        ("probe: 20", "config.invalid_value", "probe"),
        ("probe: {step: 3}", "config.unknown_key", "probe.step"),
        ("probe: {steps: 0}", "config.invalid_value", "probe.steps"),
        ("probe: {warmup_steps: -1}", "config.invalid_value", "probe.warmup_steps"),
        ("probe: {steps: 5}", "config.invalid_value", "probe"),
    ],
)
def test_odd_probes(text: str, code: str, key: str, matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text() + text + "\n")
    with raises_code(code, key, keys=(key,), line=11):
        read_matrix(matrix_file)


def test_a_probe_says_what_it_has_no_use_for(tmp_path: Path):
    (tmp_path / "c.yaml").write_text(FULL.replace("patience: 2, min_delta: 0.1", "patience: 2"))
    with pytest.raises(ConfigError) as caught:
        load_config(tmp_path / "c.yaml", ["measure.probe=true"])
    for key in ("evaluate.best: accuracy", "evaluate.patience: 2", "evaluate.steps: 10", "checkpoint.steps: 10"):
        check_code(caught.value, "config.no_effect", key, "measure.probe: true")
