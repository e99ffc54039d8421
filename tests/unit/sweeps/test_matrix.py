"""Valid matrix files, and the problems of invalid ones."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.errors import ConfigError
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.values import short, show, slug, value_name


def test_axes_of_lists_and_of_names(matrix_file: Path):
    matrix_file.write_text(
        matrix_file.read_text()
        + "  size:\n    small: {train.max_steps: 2, nproc: 1}\n    large: {train: {max_steps: 4}, nproc: 2}\n"
    )

    matrix = read_matrix(matrix_file)

    assert (matrix.name, matrix.folder) == ("m", Path("runs/m"))
    rate, _, size = matrix.axes
    assert (rate.axis.key, rate.axis.label) == ("train.learning_rate", "learning_rate")
    assert dict(rate.axis.values) == {"learning_rate-0.0001": "0.0001", "learning_rate-1e-05": "1e-05"}
    assert [axis.axis.is_seed for axis in matrix.axes] == [False, True, False]
    assert [value.own.values for value in size.values] == [{"train": {"max_steps": 2}}, {"train": {"max_steps": 4}}]
    assert [value.num_processes for value in size.values] == [1, 2]
    assert matrix.select_per == ()  # nothing here changes task, data or model


def test_files_lie_below_what_the_matrix_says(matrix_file: Path, tmp_path: Path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "base.yaml").write_text("train: {epochs: 3}\n")
    (tmp_path / "other.yaml").write_text("data: {train: other.csv}\n")
    matrix_file.write_text(
        "base: sub/base.yaml\naxes:\n  task:\n    one: {extends: other.yaml, task.kind: regression}\n"
    )

    matrix = read_matrix(matrix_file)

    assert matrix.below.values == {"train": {"epochs": 3}}
    (task,) = matrix.axes
    assert task.values[0].below.values == {"data": {"train": "other.csv"}}
    assert task.values[0].own.places["task.kind"].origin == "matrix.yaml:4"
    assert (matrix.select_per, task.axis.is_column) == (("task",), True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[]\n", "line 1: a matrix is a mapping .* found"),
        ("", "it is empty"),
        ("bse: {}\naxes: {run.seed: [1]}\n", "line 1: bse is not a key of a matrix; did you mean base?"),
        (
            "train: {}\nbase: {}\naxes: {run.seed: [1]}\n",
            "train is not a key of a matrix; options of all runs",
        ),
        ("axes: {run.seed: [1]}\n", "base is required"),
        ("base: {}\n", "axes is required"),
        ("base: {}\naxes: {}\n", "a mapping of one axis or more"),
        ("base: {}\naxes: {run.seed: []}\n", "axes.run.seed is .* a list of values of the option run.seed"),
        ("base: {}\naxes: {run.seed: 3}\n", "axes.run.seed is 3"),
        ("base: {}\naxes: {run.seed: [1, 1]}\n", "has 1 twice"),
        ("base: {}\naxes: {model.name: [a/b, a-b]}\n", "two values that make one name"),
        ("base: {}\naxes: {run.name: [a]}\n", "the matrix gives each run its folder and name"),
        ("base: {}\naxes: {x: {a: {run.folder: q}}}\n", "the matrix gives each run its folder and name"),
        ("base: {}\naxes: {x: {a/b: {run.seed: 1}}}\n", "'a/b' becomes part of the names of runs"),
        ("base: {}\naxes: {x: {a: 3}}\n", "axes.x.a is 3 .* a mapping, such as"),
        (
            "base: {}\naxes: {x: {a: {run.seed: 1}}, run.seed: [3]}\n",
            "axes.run.seed sets run.seed, which axes.x sets",
        ),
        ("base: {}\naxes: {nproc: [0]}\n", r"axes.nproc\[0\] is 0 .* at least 1"),
        ("base: {}\naxes: {nproc: [1, 2], x: {a: {nproc: 3}}}\n", "axes.x sets nproc, which axes.nproc sets too"),
        ("base: {}\naxes: {x: {a: {train.epochs: 1, train: {epochs: 2}}}}\n", "train.epochs is also given on line 2"),
        ("base: {}\naxes: {run.seed: [1]}\nnproc: many\n", "nproc is .*many.* at least 1"),
        ("base: {}\naxes: {run.seed: [1]}\nname: a/b\n", "name is .*a/b"),
        ("base: {}\naxes: {run.seed: [1]}\nfolder: 3\n", "folder is 3"),
        (f"base: {{}}\naxes: {{run.seed: [1]}}\ntimeout_s: 1{400 * '0'}\n", "timeout_s is 10"),
        ("base: {}\naxes: {run.seed: [1]}\ntimeout_s: .nan\n", "timeout_s is .nan"),
        ("base: {}\naxes: {run.seed: [1]}\nexclude: {seed: 1}\n", "exclude is .* a list of mappings"),
        ("base: {}\naxes: {run.seed: [1]}\nbaseline: ddp\n", "baseline is .* a mapping of axes to values"),
        ("base: {}\naxes: {run.seed: [1]}\nbaseline: {seed: 1}\n", "baseline: seed has seeds"),
        ("base: {}\naxes: {nproc: [1, 2]}\nbaseline: {nproc: [1, 2]}\n", "baseline: nproc has 2 values"),
        ("base: {}\naxes: {nproc: [1, 2]}\nbaseline: {nproc: 4}\n", "4 is not on the axis nproc; it has: 1, 2"),
        ("base: {}\naxes: {run.seed: [1]}\nexclude: [3]\n", r"exclude\[0\] is 3"),
        ("base: {}\naxes: {run.seed: [1]}\nexclude: [{sed: 1}]\n", "sed is not an axis; did you mean seed?"),
        ("base: {}\naxes: {run.seed: [1]}\nexclude: [{seed: 2}]\n", "2 is not on the axis seed; it has: 1"),
        ("base: {}\naxes: {run.seed: [1]}\nselect_per: [seed]\n", "select_per: seed has seeds"),
        ("base: {}\naxes: {run.seed: [1]}\nselect_per: [x]\n", "select_per: x is not an axis; there are: seed"),
        ("base: {}\naxes: {run.seed: [1]}\nselect_per: x\n", "select_per is .* a list of axes"),
        ("base: {}\naxes: {nproc: [1]}\ngroups: x\n", "groups is .* a mapping of axes to headings"),
        ("base: {}\naxes: {nproc: [1]}\ngroups: {nproc: [1]}\n", "groups.nproc is .* a mapping of headings to values"),
        ("base: {}\naxes: {nproc: [1]}\ngroups: {nproc: {A: 2}}\n", "2 is not on the axis nproc; it has: 1"),
        ("base: {}\naxes: {nproc: [1]}\ngroups: {npro: {A: 1}}\n", "npro is not an axis"),
        ("base: {}\naxes: {nproc: [1]}\ngroups: {nproc: {A: 1, B: 1}}\n", "groups.nproc lists nproc-1 twice"),
        ("base: none.yaml\naxes: {run.seed: [1]}\n", "line 1: base: .*none.yaml does not exist"),
        ("base: {extends: none.yaml}\naxes: {run.seed: [1]}\n", "line 1: extends: .*none.yaml does not exist"),
        ("base: [3]\naxes: {run.seed: [1]}\n", "line 1: base: allowed: a file name"),
        ("base: {a: [\n", "not valid YAML"),
    ],
)
def test_problems_are_reported_with_their_lines(text: str, expected: str, matrix_file: Path):
    matrix_file.write_text(text)
    with pytest.raises(ConfigError, match=expected):
        read_matrix(matrix_file)


def test_all_problems_are_said_at_once(matrix_file: Path):
    matrix_file.write_text("bse: {}\naxes: {run.seed: [1, 1]}\nname: a/b\n")
    with raises_code("config.required", "4 problems", "base"):  # these three, and base is missing
        read_matrix(matrix_file)


def test_what_is_wrong_is_said_once(matrix_file: Path):
    matrix_file.write_text("base: {}\nprobe: {steps: 0}\naxes: {nproc: [0, 1]}\n")
    with raises_code("config.invalid_value", "2 problems"):
        read_matrix(matrix_file)


def test_names():
    assert [short(key) for key in ("train.learning_rate", "model.name", "strategy.kind", "task")] == [
        "learning_rate",
        "model",
        "strategy",
        "task",
    ]
    assert [show(value) for value in (1e-5, 0.1, 3, True, None, "x y", [0.9, 0.98])] == [
        *("1e-05", "0.1", "3", "true", "null", "x y", "[0.9, 0.98]"),
    ]
    assert slug("/data/models/bert base") == "data-models-bert-base"
    assert value_name("linear", "schedule") == "linear"
    assert value_name(-1, "x") == "x--1"
    assert value_name({"kind": "pipeline", "stages": 2}, "strategy") == "pipeline-stages-2"
    assert value_name("§", "strategy") == "strategy"


def test_a_data_file_is_not_a_matrix(tmp_path: Path):
    (tmp_path / "reviews.csv").write_text("review,label\ngood,1\n")
    with raises_code("config.other_file", path=tmp_path / "reviews.csv", kind="data"):
        read_matrix(tmp_path / "reviews.csv")
