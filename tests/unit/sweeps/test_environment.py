"""Environment variables of a matrix: below `env`, as axes, and among the settings of a name."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.errors import ConfigError
from paratune.sweeps.axes import for_a_run
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix


def _with(path: Path, axes: str, top: str = "") -> None:
    path.write_text(path.read_text().replace("  run.seed: [41, 42]\n", axes) + top)


def test_an_axis_lies_above_what_all_runs_are_given(matrix_file: Path):
    named = "{a: {env: {A: 0.5, B: x y}}, b: {env: {B: null}, train.eps: 1}}"
    axes = f"  env.NCCL_NSOCKS_PERTHREAD: [1, 2, null]\n  x: {named}\n"
    _with(matrix_file, axes, 'env: {NCCL_NSOCKS_PERTHREAD: 8, A: "1"}\n')

    matrix = read_matrix(matrix_file)
    cells = {cell.name: cell.record.environment for cell in cells_of(matrix)}

    assert len(cells) == 12
    first = "learning_rate-0.0001_NCCL_NSOCKS_PERTHREAD"
    assert cells[f"{first}-1_a"] == {"NCCL_NSOCKS_PERTHREAD": "1", "A": "0.5", "B": "x y"}
    assert cells[f"{first}-2_b"] == {"NCCL_NSOCKS_PERTHREAD": "2", "A": "1", "B": None}
    assert cells[f"{first}-unset_b"] == {"NCCL_NSOCKS_PERTHREAD": None, "A": "1", "B": None}
    axis = matrix.axes[1]
    assert (axis.label, axis.keys) == ("NCCL_NSOCKS_PERTHREAD", ("env.NCCL_NSOCKS_PERTHREAD",))
    assert list(axis.values.values()) == ["1", "2", "unset"]
    assert matrix.axes[2].keys == ("env.A", "env.B", "train.eps")


def test_a_variable_makes_another_run(matrix_file: Path):
    before = {cell.described().fingerprint for cell in cells_of(read_matrix(matrix_file))}
    matrix_file.write_text(matrix_file.read_text() + "env: {A: 1}\n")
    assert not before & {cell.described().fingerprint for cell in cells_of(read_matrix(matrix_file))}


def test_a_run_is_told_what_to_record():
    assert for_a_run({}) == {}
    assert for_a_run({"B": "1", "A": None}) == {"A": None, "B": "1", "PARATUNE_RECORD_ENVIRONMENT": "-A,B"}


@pytest.mark.parametrize(
    ("axes", "top", "expected"),
    [
        ("", "env: 3\n", r"line 11: env is 3 \(a whole number\); allowed: a mapping of variables"),
        ("", "env: {RANK: 1}\n", "line 11: env.RANK: RANK is set by paratune and torchrun"),
        ("", "env: {A: true}\n", "line 11: env.A is true .* put it in quotes"),
        ("", "env: {A: [1]}\n", "line 11: env.A is .* allowed: text, a number, or null"),
        ("", 'env: {A: "x\\ny"}\n', "line 11: env.A has a line break or a control character"),
        ("", 'env: {"A B": 1}\n', 'line 11: env.A B: "A B" is not the name of a variable'),
        ("  env.MASTER_PORT: [1]\n", "", "line 10: axes.env.MASTER_PORT.*: MASTER_PORT is set by paratune"),
        ("  env: [{A: 1}]\n", "", "line 10: axes.env: an axis is of one variable"),
        ("  env.A: [1, 1]\n", "", "axes.env.A has 1 twice"),
        ("  env.A: [1]\n  x: {a: {env: {A: 2}}}\n", "", "line 11: axes.x sets env.A, which axes.env.A sets too"),
        ("  x: {a: {run.seed: 1, env: {A: 1}}, b: {run.seed: 2, env: {A: 2}}}\n", "", "they differ in env.A too"),
    ],
)
def test_problems_are_reported_with_their_lines(axes: str, top: str, expected: str, matrix_file: Path):
    _with(matrix_file, axes or "  run.seed: [41]\n", top)
    with pytest.raises(ConfigError, match=expected):
        read_matrix(matrix_file)


def test_a_variable_that_changes_nothing_of_two_names_is_refused(matrix_file: Path):
    _with(matrix_file, '  x: {a: {env: {A: "1"}}, b: {env: {A: 1}}}\n')
    with raises_code("sweep.invalid", name="learning_rate-0.0001_a", keys="nothing"):
        cells_of(read_matrix(matrix_file))
