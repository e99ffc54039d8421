"""Valid matrix files, and the problems of invalid ones."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.config.options import section_options
from paratune.errors import ConfigError
from paratune.sweeps.axes import short, show, slug
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import MatrixOptions, read_matrix
from paratune.sweeps.run import plan_of


def test_axes_of_lists_and_of_names(matrix_file: Path):
    matrix_file.write_text(
        matrix_file.read_text()
        + "  size:\n    small: {train.max_steps: 2, nproc: 1}\n    large: {train: {max_steps: 4}, nproc: 2}\n"
    )

    matrix = read_matrix(matrix_file)

    assert (matrix.name, matrix.folder) == ("m", Path("runs/m"))
    rate, _, size = matrix.axes
    assert (rate.key, rate.label) == ("train.learning_rate", "learning_rate")
    assert dict(rate.values) == {"learning_rate-0.0001": "0.0001", "learning_rate-1e-05": "1e-05"}
    assert [axis.is_seed for axis in matrix.axes] == [False, True, False]
    assert [value.own.values for value in size.read] == [{"train": {"max_steps": 2}}, {"train": {"max_steps": 4}}]
    assert [value.beside for value in size.read] == [{"nproc": 1}, {"nproc": 2}]
    assert matrix.record.select_per == ()  # nothing here changes task, data or model


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
    assert task.read[0].below.values == {"data": {"train": "other.csv"}}
    assert task.read[0].own.places["task.kind"].origin == "matrix.yaml:4"
    assert (matrix.record.select_per, task.is_column) == (("task",), True)


@pytest.mark.parametrize(
    ("text", "code", "key", "line"),
    [
        ("[]\n", "config.syntax", "", 1),
        ("", "config.syntax", "", 1),
        ("bse: {}\naxes: {run.seed: [1]}\n", "config.unknown_key", "bse", 1),
        ("train: {}\nbase: {}\naxes: {run.seed: [1]}\n", "config.unknown_key", "train", 1),
        ("axes: {run.seed: [1]}\n", "config.required", "base", 1),
        ("base: {}\n", "config.required", "axes", 1),
        ("base: {}\naxes: {}\n", "config.invalid_value", "axes", 2),
        ("base: {}\naxes: {run.seed: []}\n", "config.invalid_value", "axes.run.seed", 2),
        ("base: {}\naxes: {run.seed: 3}\n", "config.invalid_value", "axes.run.seed", 2),
        ("base: {}\naxes: {run.seed: [1, 1]}\n", "config.invalid_value", "axes.run.seed", 2),
        ("base: {}\naxes: {model.name: [a/b, a-b]}\n", "config.invalid_value", "axes.model.name", 2),
        ("base: {}\naxes: {run.name: [a]}\n", "config.invalid_value", "axes.run.name", 2),
        ("base: {}\naxes: {x: {a: {run.folder: q}}}\n", "config.invalid_value", "axes.x", 2),
        ("base: {}\naxes: {x: {a/b: {run.seed: 1}}}\n", "config.invalid_value", "axes.x.a/b", 2),
        ("base: {}\naxes: {x: {a: 3}}\n", "config.invalid_value", "axes.x.a", 2),
        ("base: {}\naxes: {x: {a: {run.seed: 1}}, run.seed: [3]}\n", "config.conflict", "axes.run.seed", 2),
        ("base: {}\naxes: {nproc: [0]}\n", "config.invalid_value", "axes.nproc[0]", 2),
        ("base: {}\naxes: {nproc: [1, 2], x: {a: {nproc: 3}}}\n", "config.conflict", "axes.x", 2),
        ("base: {}\naxes: {x: {a: {train.epochs: 1, train: {epochs: 2}}}}\n", "config.duplicate_key", None, 2),
        ("base: {}\naxes: {run.seed: [1]}\nnproc: many\n", "config.invalid_value", "nproc", 3),
        ("base: {}\naxes: {run.seed: [1]}\nname: a/b\n", "config.invalid_value", "name", 3),
        ("base: {}\naxes: {run.seed: [1]}\nfolder: 3\n", "config.invalid_value", "folder", 3),
        (
            "base: {}\naxes: {run.seed: [1]}\nprice_per_device_hour: .nan\n",
            "config.invalid_value",
            "price_per_device_hour",
            3,
        ),
        ("base: {}\naxes: {run.seed: [1]}\nexclude: {seed: 1}\n", "config.invalid_value", "exclude", 3),
        ("base: {}\naxes: {run.seed: [1]}\nbaseline: ddp\n", "config.invalid_value", "baseline", 3),
        ("base: {}\naxes: {run.seed: [1]}\nbaseline: {seed: 1}\n", "config.invalid_value", "baseline.seed", 3),
        ("base: {}\naxes: {nproc: [1, 2]}\nbaseline: {nproc: [1, 2]}\n", "config.invalid_value", "baseline.nproc", 3),
        ("base: {}\naxes: {nproc: [1, 2]}\nbaseline: {nproc: 4}\n", "config.invalid_value", "baseline.nproc", 3),
        ("base: {}\naxes: {run.seed: [1]}\nexclude: [3]\n", "config.invalid_value", "exclude", 3),
        ("base: {}\naxes: {run.seed: [1]}\nexclude: [{}]\n", "config.invalid_value", "exclude[0]", 3),
        ("base: {}\naxes: {run.seed: [1]}\nexclude: [{sed: 1}]\n", "config.unknown_key", "exclude[0].sed", 3),
        ("base: {}\naxes: {run.seed: [1]}\nexclude: [{seed: 2}]\n", "config.invalid_value", "exclude[0].seed", 3),
        ("base: {}\naxes: {run.seed: [1]}\nselect_per: [seed]\n", "config.invalid_value", "select_per", 3),
        ("base: {}\naxes: {run.seed: [1]}\nselect_per: [x]\n", "config.unknown_key", "select_per", 3),
        ("base: {}\naxes: {run.seed: [1]}\nselect_per: x\n", "config.invalid_value", "select_per", 3),
        ("base: {}\naxes: {nproc: [1]}\ngroups: x\n", "config.invalid_value", "groups", 3),
        ("base: {}\naxes: {nproc: [1]}\ngroups: {nproc: [1]}\n", "config.invalid_value", "groups", 3),
        ("base: {}\naxes: {nproc: [1]}\ngroups: {nproc: {A: 2}}\n", "config.invalid_value", "groups.nproc", 3),
        ("base: {}\naxes: {nproc: [1]}\ngroups: {npro: {A: 1}}\n", "config.unknown_key", "groups.npro", 3),
        ("base: {}\naxes: {nproc: [1]}\ngroups: {nproc: {A: 1, B: 1}}\n", "config.invalid_value", "groups.nproc", 3),
        ("base: none.yaml\naxes: {run.seed: [1]}\n", "config.extends", None, 1),
        ("base: {extends: none.yaml}\naxes: {run.seed: [1]}\n", "config.extends", None, 1),
        ("base: [3]\naxes: {run.seed: [1]}\n", "config.invalid_value", "base", 1),
        ("base: {a: [\n", "config.syntax", None, 1),
        (
            f"base: {{}}\naxes: {{run.seed: [1]}}\nprice_per_device_hour: 1{400 * '0'}\n",
            "config.invalid_value",
            "price_per_device_hour",
            3,
        ),
    ],
)
def test_problems_are_reported_with_their_lines(text: str, code: str, key: str | None, line: int, matrix_file: Path):
    matrix_file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_matrix(matrix_file)
    (fault,) = caught.value.faults
    assert (fault.code, fault.facts["keys"], fault.facts["line"]) == (code, () if key is None else (key,), line)


def test_all_problems_are_said_at_once(matrix_file: Path):
    matrix_file.write_text("bse: {}\naxes: {run.seed: [1, 1]}\nname: a/b\n")
    with raises_code("config.unknown_key", "3 problems", "base"):
        read_matrix(matrix_file)


def test_what_is_wrong_is_said_once(matrix_file: Path):
    matrix_file.write_text("base: {}\nprobe: {steps: 0}\naxes: {nproc: [0, 1]}\n")
    with raises_code("config.invalid_value", "2 problems"):
        read_matrix(matrix_file)


def test_notes_are_the_text_of_a_file_beside_the_matrix(matrix_file: Path, tmp_path: Path):
    (tmp_path / "notes.md").write_text("# Why\nIt is *fast*; API_KEY=abc\n")
    matrix_file.write_text(matrix_file.read_text() + "notes: notes.md\n")
    record = plan_of(read_matrix(matrix_file), cells_of(read_matrix(matrix_file)), []).record
    assert record.notes == "# Why\nIt is *fast*; API_KEY=***\n"


@pytest.mark.parametrize(
    ("notes", "code"),
    [
        ("none.md", "config.file_unreadable"),
        ("../outside.md", "config.invalid_value"),
        ("3", "config.invalid_value"),
        ("bytes.md", "config.file_unreadable"),
    ],
)
def test_notes_that_cannot_be_used(notes: str, code: str, matrix_file: Path, tmp_path: Path):
    (tmp_path.parent / "outside.md").write_text("private")
    (tmp_path / "bytes.md").write_bytes(b"\xff\xfe\xff")
    matrix_file.write_text(matrix_file.read_text() + f"notes: {notes}\n")
    with raises_code(code, line=11) as raised:
        read_matrix(matrix_file)
    assert "private" not in str(raised.value)


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


def test_names_of_values(matrix_file: Path):
    axis = '  model.name: [linear, -1, {kind: pipeline, stages: 2}, "§"]\n  nproc: [2]\n  env.A: [null, 1]\n'
    matrix_file.write_text(matrix_file.read_text() + axis)
    model, nproc, variable = read_matrix(matrix_file).axes[2:]
    assert [*model.values] == ["linear", "model--1", "pipeline-stages-2", "model"]
    assert [*nproc.values] == ["nproc-2"]
    assert dict(variable.values) == {"A-unset": "unset", "A-1": "1"}


def test_a_data_file_is_not_a_matrix(tmp_path: Path):
    (tmp_path / "reviews.csv").write_text("review,label\ngood,1\n")
    with raises_code("config.other_file", path=tmp_path / "reviews.csv", kind="data"):
        read_matrix(tmp_path / "reviews.csv")


def test_the_guide_explains_every_key():
    guide = (Path(__file__).parents[3] / "docs" / "howto" / "sweep.md").read_text(encoding="utf-8")
    table = "\n".join(line.partition(" | ")[0] for line in guide.splitlines() if line.startswith("| `"))
    assert [key for key in section_options(MatrixOptions) if f"`{key}`" not in table] == []
