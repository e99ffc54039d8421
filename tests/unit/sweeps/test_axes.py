"""Which axes hold seeds, and which cannot stand beside each other."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.sweeps.matrix import read_matrix

_SEED_FILES = {
    "one.yaml": "run: {seed: 1}\n",
    "two.yaml": "run: {seed: 2}\n",
    "fast.yaml": "run: {seed: 2}\ntrain: {eps: 1}\n",
}


def _axes(path: Path, axes: str, base: str = "{}") -> tuple[bool, ...]:
    for name, text in _SEED_FILES.items():
        (path.parent / name).write_text(text)
    path.write_text(f"base: {base}\naxes:\n{axes}")
    return tuple(axis.is_seed for axis in read_matrix(path).axes)


@pytest.mark.parametrize(
    ("axes", "are_seeds"),
    [
        ("  run.seed: [1]\n", (True,)),
        ("  run: [{seed: 1}, {seed: 2}]\n", (True,)),
        ("  s: {a: {run.seed: 1, data.split.seed: 1}, b: {run.seed: 2, data.split.seed: 2}}\n", (True,)),
        ("  s: {a: {run.seed: 1, train.eps: 1}, b: {run.seed: 2, train.eps: 1}}\n", (True,)),
        ("  s: {a: {extends: one.yaml}, b: {extends: two.yaml}}\n", (True,)),
        ("  data.split.fold: [0, 1, 2]\n", (True,)),
        ("  data.split.held_out: [1, 2]\n", (True,)),
        ("  s: {a: {run.seed: 1, data.split.fold: 0}, b: {run.seed: 1, data.split.fold: 1}}\n", (True,)),
        # One value of several settings is no repetition, and seeds that are all the same are none.
        ("  s: {a: {run.seed: 1, train.eps: 1}}\n", (False,)),
        ("  s: {a: {run.seed: 1, train.eps: 1}, b: {run.seed: 1, train.eps: 2}}\n", (False,)),
        # The seeds of the files have no effect below those of the axis.
        ("  s: {a: {extends: one.yaml}, b: {extends: fast.yaml}}\n  run.seed: [3, 4]\n", (False, True)),
    ],
)
def test_an_axis_of_seeds_differs_in_nothing_else(axes: str, are_seeds: tuple[bool, ...], matrix_file: Path):
    assert _axes(matrix_file, axes) == are_seeds


@pytest.mark.parametrize(
    ("axes", "key"),
    [
        ("  s: {a: {run.seed: 1, train.eps: 1}, b: {run.seed: 2, train.eps: 2}}\n", "train.eps"),
        ("  s: {a: {run.seed: 1}, b: {train.eps: 2}}\n", "run.seed"),
        ("  s: {a: {run.seed: 1}, b: {run.seed: 2, nproc: 2}}\n", "nproc"),
        ("  s: {a: {extends: one.yaml}, b: {extends: fast.yaml}}\n", "train.eps"),
    ],
)
def test_seeds_and_something_else_on_one_axis_are_refused(axes: str, key: str, matrix_file: Path):
    with raises_code("config.invalid_value", key, line=3):
        _axes(matrix_file, axes)


def test_folds_and_seeds_on_two_axes_are_refused(matrix_file: Path):
    with raises_code("config.conflict", "run.seed", "data.split.fold"):
        _axes(matrix_file, "  run.seed: [1, 2]\n  data.split.fold: [0, 1]\n")
    with raises_code("config.conflict", "run.seed", "data.split.held_out"):
        _axes(matrix_file, "  run.seed: [1, 2]\n  data.split.held_out: [a, b]\n")


def test_two_axes_of_files_that_vary_the_same(matrix_file: Path):
    axes = "  s: {a: {extends: one.yaml}, b: {extends: two.yaml}}\n"
    with raises_code("config.conflict", line=4):
        _axes(matrix_file, axes + axes.replace("  s:", "  t:"))
    # What two single files say alike, or one of them, varies nothing.
    _axes(matrix_file, axes + "  t: {a: {extends: one.yaml}}\n")


@pytest.mark.parametrize(
    ("axes", "keys"),
    [
        ("  train.learning_rate: [1, 2]\n", ("train.learning_rate",)),
        ("  nproc: [1, 2]\n", ("nproc",)),
        ("  strategy: [ddp, zero3]\n", ("strategy.kind",)),
        ("  strategy: [ddp, {kind: pipeline, stages: 4}]\n", ("strategy.kind", "strategy.stages")),
        # What all values set alike is not what the axis is of.
        ("  s: {a: {train.eps: 1, nproc: 1}, b: {train.eps: 1, nproc: 2}}\n", ("nproc",)),
        ("  s: {a: {extends: one.yaml}, b: {extends: two.yaml}}\n", ("run.seed",)),
        ("  s: {a: {train: {eps: 1, epochs: 2}}}\n", ("train.eps", "train.epochs")),
    ],
)
def test_an_axis_says_what_it_is_of(axes: str, keys: tuple[str, ...], matrix_file: Path):
    _axes(matrix_file, axes)
    assert read_matrix(matrix_file).axes[0].keys == keys
