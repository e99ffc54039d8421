"""The cells of a matrix: combinations, names, their settings, and their problems."""

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from raised import raises_code
from whole_records import WHOLE_RUN

from paratune.records.sweep import write_sweep
from paratune.sweeps.cell import Cell, invalid, none_possible, select, waits_for
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import plan_of


def _cells(path: Path, *overrides: str) -> tuple[Cell, ...]:
    return cells_of(read_matrix(path), overrides)


def _add(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def test_every_combination_in_order(matrix_file: Path):
    cells = _cells(matrix_file)

    assert [cell.name for cell in cells] == [
        "learning_rate-0.0001_seed-41",
        "learning_rate-0.0001_seed-42",
        "learning_rate-1e-05_seed-41",
        "learning_rate-1e-05_seed-42",
    ]
    last = cells[-1].config
    assert (last.train.learning_rate, last.run.seed) == (1e-5, 42)
    assert (last.run.folder, last.run.name) == ("runs/m/runs", "learning_rate-1e-05_seed-42")
    assert cells[0].loaded.origin["train.learning_rate"] == "matrix.yaml:9"


@pytest.mark.parametrize(
    ("nproc", "here", "expected"),
    [(4, True, "nodes: 2 needs several machines"), (4, False, None), (3, False, "cannot be divided equally among")],
)
def test_nodes_are_for_a_cluster_and_divide_the_processes(
    matrix_file: Path, nproc: int, here: bool, expected: str | None
):
    _add(matrix_file, f"  nodes: [2]\nnproc: {nproc}\n")
    text = (
        matrix_file.read_text()
        .replace("global: 4", "global: 12")
        .replace("model: {name", "strategy: ddp\n  model: {name")
    )
    matrix_file.write_text(text)
    cell = cells_of(read_matrix(matrix_file), here=here)[0]
    assert (cell.name, cell.record.num_nodes) == ("learning_rate-0.0001_seed-41_nodes-2", 2)
    assert (expected in cell.impossible) if expected else (cell.impossible is None)


def test_nodes_make_another_run(matrix_file: Path):
    _add(matrix_file, "nodes: 1\n")
    one = _cells(matrix_file)[0].described().fingerprint
    matrix_file.write_text(matrix_file.read_text().replace("nodes: 1", "nodes: 2"))
    assert _cells(matrix_file)[0].described().fingerprint != one


def test_exclusions_and_overrides(matrix_file: Path):
    _add(matrix_file, "exclude:\n  - {learning_rate: 1e-5, run.seed: [41]}\n")
    cells = _cells(matrix_file, "train.max_steps=7")
    assert [cell.name for cell in cells if "1e-05" in cell.name] == ["learning_rate-1e-05_seed-42"]
    assert {cell.config.train.max_steps for cell in cells} == {7}


@pytest.mark.parametrize(
    ("more", "overrides", "refused"),
    [
        ("exclude: [{seed: 41}, {seed: 41, learning_rate: 1e-4}]\n", (), None),
        ("exclude: [{seed: [41, 42]}]\n", (), ("sweep.invalid", "4")),
        ("baseline: {learning_rate: 1e-4}\nexclude: [{learning_rate: 1e-4}]\n", (), ("sweep.invalid", "baseline")),
        ("exclude: [{seed: [41], learning_rate: []}]\n", (), ("config.invalid_value", "exclude[0]")),
        ("", ("run.seed=3",), ("sweep.invalid", "--set run.seed", "axis run.seed")),
        ("", ("run={seed: 3}",), ("sweep.invalid", "--set run", "axis run.seed")),
        ("", ("run.name=x",), ("sweep.invalid", "--set run.name")),
        (
            "  batch.micro_batch_size: [" + ", ".join(map(str, range(1, 2600))) + "]\n",
            (),
            ("sweep.invalid", "10,396", "10,000"),
        ),
    ],
)
def test_what_makes_no_matrix(
    more: str, overrides: tuple[str, ...], refused: tuple[str, ...] | None, matrix_file: Path
):
    _add(matrix_file, more)
    if refused is None:
        assert len(_cells(matrix_file, *overrides)) == 2
        return
    with raises_code(*refused):
        _cells(matrix_file, *overrides)


def test_a_task_that_one_cell_names_stays_with_it(matrix_file: Path):
    # What the name of a task stands for is filled in; cells share the rest of their values.
    text = matrix_file.read_text().replace("  task: {kind: classification, labels: [a, b]}\n", "")
    text = text.replace(", columns: {text: text, label: label}", "").replace(
        "  run.seed: [41, 42]", "  task: [mrpc, rte, cola]"
    )
    matrix_file.write_text(text)

    cells = _cells(matrix_file)

    assert [cell.problems for cell in cells] == [()] * 6
    assert cells[0].config.task.labels != cells[1].config.task.labels
    assert [cell.config.data.columns.text for cell in cells[:3]] == ["sentence1", "sentence1", "sentence"]
    assert [cell.described().metrics for cell in cells[:3]] == [("accuracy", "f1"), ("accuracy",), ("matthews",)]
    assert read_matrix(matrix_file).record.select_per == ("task",)


def test_problems_are_said_once_with_their_cells(matrix_file: Path):
    text = matrix_file.read_text().replace("1e-5", "-1").replace("data.csv", "dota.csv")
    matrix_file.write_text(text)
    matrix = read_matrix(matrix_file)

    error = str(invalid(matrix, cells_of(matrix)))

    assert "train.learning_rate is -1" in error
    assert "(in learning_rate--1_seed-41, learning_rate--1_seed-42)" in error
    # The file is looked for where nothing else is wrong.
    assert "line 4: data.train: dota.csv does not exist" in error
    assert "2 of 4 runs" not in error
    assert "4 of 4 runs cannot be trained" in error


def test_a_section_run_that_is_none_is_said(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text().replace("  run.seed: [41, 42]", "  run: [3]"))
    with raises_code("sweep.invalid", "3"):
        raise invalid(read_matrix(matrix_file), _cells(matrix_file))


def test_a_number_of_processes_that_cannot_be(matrix_file: Path):
    _add(matrix_file, "nproc: 3\n")
    matrix = read_matrix(matrix_file)
    error = str(none_possible(matrix, cells_of(matrix)))
    assert "strategy.kind: single runs in 1 process, and the run has 3" in error
    assert "(in all 4 runs)" in error


@pytest.mark.parametrize(
    ("old", "new", "refused"),
    [
        ("split: {validation: 0.2}, ", "", ("data.validation_missing", "data.validation")),
        (
            "  run.seed: [41, 42]",
            "  evaluate.best: [f1, accuracy]",
            ("sweep.invalid", "evaluate.best", "(accuracy, f1)", "select_per"),
        ),
        ("  run.seed: [41, 42]", "  data.split.seed: [1, 2]\nselect_per: []", ("sweep.invalid", "select_per")),
        (
            "  run.seed: [41, 42]",
            "  data.max_rows.validation: [10, 20]\nselect_per: []",
            ("sweep.invalid", "select_per"),
        ),
        ("  run.seed: [41, 42]", "  data.missing: [refuse, drop]\nselect_per: []", ("sweep.invalid", "select_per")),
        (
            "  run.seed: [41, 42]",
            "  task.labels: [[a, b], [a, b, c]]\nselect_per: []",
            ("sweep.invalid", "select_per"),
        ),
        (
            "  run.seed: [41, 42]",
            "  kind:\n    a: {evaluate.best: f1}\n    b: {task: regression}\nselect_per: []",
            ("sweep.invalid", "classification, regression", "select_per"),
        ),
    ],
)
def test_what_cannot_be_chosen_among(old: str, new: str, refused: tuple[str, ...], matrix_file: Path):
    text = matrix_file.read_text()
    assert old in text
    matrix_file.write_text(text.replace(old, new))
    matrix = read_matrix(matrix_file)
    with raises_code(*refused):
        raise invalid(matrix, cells_of(matrix))


@pytest.mark.parametrize(
    "axis",
    [
        # These settings change neither the validation rows nor their labels.
        "data.max_length: [16, 32]",
        "data.max_rows.train: [10, 20]",
        "x: {a: {task: {kind: regression, start_at_mean: true}}, b: {task: {kind: regression, start_at_mean: false}}}",
    ],
)
def test_what_can_be_chosen_among(axis: str, matrix_file: Path):
    text = matrix_file.read_text().replace("  run.seed: [41, 42]", f"  {axis}\nselect_per: []")
    if "regression" in axis:
        text = text.replace("  task: {kind: classification, labels: [a, b]}\n", "")
    matrix_file.write_text(text)
    assert invalid(read_matrix(matrix_file), _cells(matrix_file)) is None


def test_files_are_looked_for_as_they_are_read(matrix_file: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HOME", str(Path("home").absolute()))
    Path("home").mkdir()
    for name in ("home/data.csv", "home/a#b.csv"):
        Path(name).write_text("text,label\nx,a\n")
    Path("home/set#1").mkdir()
    for file, is_there in (
        ("~/data.csv", True),
        ("~/a#b.csv", True),
        ("'~/set#1#train'", True),  # a split of the folder set#1
        ("~/other.csv", False),
        ("~nobody-of-this-name/data.csv", False),
    ):
        matrix_file.write_text(re.sub(r"train: \S+csv|train: '.*'", f"train: {file}", matrix_file.read_text()))
        assert (invalid(read_matrix(matrix_file), _cells(matrix_file)) is None) is is_there, file


def test_seeds_alone_need_no_validation_set(matrix_file: Path):
    text = matrix_file.read_text().replace("split: {validation: 0.2}, ", "").replace("[1e-4, 1e-5]", "[1e-4]")
    matrix_file.write_text(text)
    assert invalid(read_matrix(matrix_file), _cells(matrix_file)) is None


def test_long_names_are_cut_and_stay_apart(matrix_file: Path):
    long = "x" * 150
    _add(matrix_file, f"  model.name: [{long}a, {long}b]\n")
    names = [cell.name for cell in _cells(matrix_file)]
    assert len(set(names)) == 8
    assert max(map(len, names)) == 120


def test_names_that_would_be_the_same(matrix_file: Path):
    _add(matrix_file, "  x: {a_b: {train.eps: 1e-6}, a: {train.eps: 1e-7}}\n")
    _add(matrix_file, "  y: {c: {train.weight_decay: 0.1}, b_c: {train.weight_decay: 0.2}}\n")
    with raises_code("sweep.invalid", "learning_rate", "0001_seed", "41_a_b_c"):
        _cells(matrix_file)


def test_only(matrix_file: Path):
    matrix = read_matrix(matrix_file)
    cells = cells_of(matrix)

    def names(*words: str) -> list[str]:
        return [cell.name for cell in select(matrix, cells, words)]

    assert names("seed=41", "train.learning_rate=1e-4") == ["learning_rate-0.0001_seed-41"]
    assert names("seed=41,42") == [cell.name for cell in cells]
    assert names("*_seed-42") == ["learning_rate-0.0001_seed-42", "learning_rate-1e-05_seed-42"]
    for word, values in (
        ("sed=41", ("sed", "mean seed")),
        ("seed=43", ("43", "seed", "41, 42")),
        ("nothing*", ("4 runs",)),
    ):
        with raises_code("run.not_found", *values):
            names(word)


def test_a_fingerprint_is_that_of_what_is_trained_and_measured(matrix_file: Path):
    before = {cell.name: cell.described().fingerprint for cell in _cells(matrix_file)}
    assert len(set(before.values())) == 4
    assert {cell.name: cell.described().fingerprint for cell in _cells(matrix_file, "checkpoint.keep=5")} == before
    for free in ("data.figures.min_texts=5", "measure.log_every=1", "evaluate.batch_size=8"):
        assert {cell.name: cell.described().fingerprint for cell in _cells(matrix_file, free)} == before, free
    for other in ("train.max_steps=4", "measure.noise_scale_every=7", "measure.warmup_steps=1", "measure.probe=true"):
        assert not set(before.values()) & {cell.described().fingerprint for cell in _cells(matrix_file, other)}, other


def test_seeds_of_files_are_repetitions(matrix_file: Path):
    for seed in (1, 2):
        Path(f"s{seed}.yaml").write_text(f"run: {{seed: {seed}}}\n")
    text = matrix_file.read_text().replace(
        "  run.seed: [41, 42]", "  s: {a: {extends: s1.yaml}, b: {extends: s2.yaml}}"
    )
    matrix_file.write_text(text)

    assert [axis.is_seed for axis in read_matrix(matrix_file).axes] == [False, True]
    assert [cell.config.run.seed for cell in _cells(matrix_file)] == [1, 2, 1, 2]
    with raises_code("sweep.invalid", "--set"):
        _cells(matrix_file, "run.seed=3")


@pytest.mark.parametrize("above", ["base", "axis"])
def test_runs_of_two_names_that_train_the_same_are_refused(above: str, matrix_file: Path):
    for steps in (2, 4):
        Path(f"{steps}.yaml").write_text(f"train: {{max_steps: {steps}}}\n")
    _add(matrix_file, "  length: {short: {extends: 2.yaml}, long: {extends: 4.yaml}}\n")
    if above == "axis":  # the base of the fixture has train.max_steps
        matrix_file.write_text(matrix_file.read_text().replace("  train: {max_steps: 3}\n", ""))
        assert {cell.config.train.max_steps for cell in _cells(matrix_file)} == {2, 4}
        _add(matrix_file, "  train.max_steps: [5]\n")
    with raises_code("sweep.invalid", "seed-41_short", "seed-41_long", "max_steps"):
        _cells(matrix_file)


def test_what_trains_the_same_otherwise_is_another_run(matrix_file: Path):
    _add(matrix_file, "  evaluate.batch_size: [8, 16]\n")  # to compare their speed
    assert len(_cells(matrix_file)) == 8


AXES = """\
axes:
  size:
    small: {model.keep_layers: [0], distil.teacher: TEACHER}
    large: {model.keep_layers: null}
  run.seed: [41, 42]
select_per: [size]
"""


def cells(path: Path, teacher: str, more: str = "") -> dict[str, Cell]:
    path.write_text(path.read_text().partition("axes:")[0] + AXES.replace("TEACHER", teacher) + more)
    return {cell.name: cell for cell in cells_of(read_matrix(path))}


def test_the_teacher_has_the_seed_of_its_student_and_runs_first(matrix_file: Path):
    found = cells(matrix_file, "{size: large}")
    assert found["small_seed-42"].record.needs == ("large_seed-42",)
    assert found["small_seed-42"].config.distil.teacher == "runs/m/runs/large_seed-42"
    matrix = read_matrix(matrix_file)
    plan = plan_of(matrix, tuple(found.values()), sys.argv)
    order = plan.record.order
    assert all(order.index(f"large_seed-{seed}") < order.index(f"small_seed-{seed}") for seed in (41, 42))
    student = next(cell for cell in plan.record.cells if cell.name == "small_seed-41")
    assert "large_seed-41" in waits_for(plan.record, student)
    teacher = next(cell for cell in plan.record.cells if cell.name == "large_seed-41")
    finished = plan.record.with_cell(replace(teacher, state="finished"))
    assert waits_for(finished, student) is None


def test_several_seeds_are_an_ensemble(matrix_file: Path):
    found = cells(matrix_file, "{size: large, seed: [41, 42]}")
    assert found["small_seed-41"].config.distil.teacher == [f"runs/m/runs/large_seed-{seed}" for seed in (41, 42)]


@pytest.mark.parametrize(
    ("teacher", "more"),
    [
        ("{sice: large}", ""),
        ("{size: huge}", ""),
        ("{size: small}", ""),
        ("{}", ""),
        ("{size: large}", "exclude: [{size: large, seed: 41}]\n"),
    ],
)
def test_wrong_teachers_are_problems_of_the_student(matrix_file: Path, teacher: str, more: str):
    problems = cells(matrix_file, teacher, more)["small_seed-41"].problems
    assert [problem.code for problem in problems] == ["sweep.invalid"]


def test_a_teacher_without_a_folder_is_found_before_the_first_run(matrix_file: Path, tmp_path: Path):
    problems = cells(matrix_file, "runs/none")["small_seed-41"].problems
    assert [(problem.code, problem.keys) for problem in problems] == [("distil.teacher", ("distil.teacher",))]
    for name in (str(tmp_path), "runs/m/runs/large_seed-41"):  # of the matrix: it is trained first
        assert cells(matrix_file, name)["small_seed-41"].problems == ()


def test_a_probe_has_no_teacher(matrix_file: Path):
    cells(matrix_file, "{size: large}")
    found = {cell.name: cell for cell in cells_of(read_matrix(matrix_file, as_probes=True))}
    assert found["small_seed-41"].impossible is not None
    assert found["large_seed-41"].impossible is None


def test_a_student_of_a_changed_teacher_has_changed(matrix_file: Path):
    found = cells(matrix_file, "{size: large}")
    for name in ("large_seed-41", "small_seed-41"):
        folder = Path("runs/m/runs") / name
        folder.mkdir(parents=True)
        values = json.loads(json.dumps(found[name].loaded.values))
        if name == "large_seed-41":
            values["train"]["max_steps"] = 99
        (folder / "run.json").write_text(json.dumps({**WHOLE_RUN, "config": values}))
        (folder / "summary.json").write_text("{}")
    (Path("runs/m") / "sweep.json").write_text("")
    (Path("runs/m") / "sweep.json").unlink()
    import paratune.sweeps.run as plan_module

    cells_now = {cell.name: cell for cell in plan_module._with_changed_needs(
        Path("runs/m"), [plan_module._planned(read_matrix(matrix_file), cell, None) for cell in found.values()]
    )}  # fmt: skip
    assert [bool(cells_now[name].changed) for name in ("large_seed-41", "small_seed-41")] == [True, True]
    assert not cells_now["small_seed-42"].changed


FIRST = """\
axes:
  first:
    none: {model.name: a/model}
    one: {model.name: SOURCE}
  rate:
    low: {train.learning_rate: 1e-5}
    high: {train.learning_rate: 1e-4}
  run.seed: [41, 42]
select_per: [first]
"""


def second_trainings(path: Path, source: str, more: str = "") -> dict[str, Cell]:
    path.write_text(path.read_text().partition("axes:")[0] + FIRST.replace("SOURCE", source) + more)
    return {cell.name: cell for cell in cells_of(read_matrix(path))}


def test_a_second_training_begins_with_the_model_of_a_run_of_its_seed(matrix_file: Path):
    found = second_trainings(matrix_file, "{first: none, rate: low}")
    # Each first training is made once: both rates begin with it.
    assert [cell.record.needs for cell in found.values()] == [()] * 4 + [
        ("none_low_seed-41",),
        ("none_low_seed-42",),
    ] * 2
    assert found["one_high_seed-42"].config.model.name == "runs/m/runs/none_low_seed-42"
    order = plan_of(read_matrix(matrix_file), tuple(found.values()), sys.argv).record.order
    assert order.index("none_low_seed-42") < min(order.index(f"one_{rate}_seed-42") for rate in ("low", "high"))


def test_repeats_begin_with_the_first_repeat(matrix_file: Path):
    found = second_trainings(matrix_file, "{first: none, rate: low}", "repeats: 2\n")
    assert found["one_low_seed-41_r2"].record.needs == ("none_low_seed-41",)
    assert found["one_low_seed-41_r2"].config.model.name == "runs/m/runs/none_low_seed-41"


@pytest.mark.parametrize(
    ("source", "more"),
    [
        ("{first: two}", ""),
        ("{}", ""),
        ("{first: one}", ""),
        ("{first: none, rate: [low, high]}", ""),
        ("{first: none}", "exclude: [{first: none, seed: 41}]\n"),
    ],
)
def test_wrong_first_trainings_are_problems_of_the_second_one(matrix_file: Path, source: str, more: str):
    problems = second_trainings(matrix_file, source, more)["one_low_seed-41"].problems
    assert [(problem.code, problem.keys) for problem in problems] == [("sweep.invalid", ("model.name",))]


def test_a_first_training_that_was_made_again_is_a_change_of_the_second_one(matrix_file: Path):
    found = second_trainings(matrix_file, "{first: none, rate: low}")
    matrix = read_matrix(matrix_file)

    def states(created_of_first: str) -> list[tuple[str, bool]]:
        for name, created in (("none_low_seed-41", created_of_first), ("one_low_seed-41", "2026-11-30T10:00:00+00:00")):
            folder = Path("runs/m/runs") / name
            folder.mkdir(parents=True, exist_ok=True)
            run = {**WHOLE_RUN, "config": found[name].loaded.values, "created": created}
            (folder / "run.json").write_text(json.dumps(run))
            (folder / "summary.json").write_text("{}")
        described = tuple(cell.described() for cell in found.values())
        write_sweep(Path("runs/m"), replace(matrix.record, created="2026-11-30", cells=described))
        plan = plan_of(matrix, tuple(found.values()), sys.argv)
        return [(cell.record.state, bool(cell.changed)) for cell in plan.cells if cell.is_begun]

    assert states("2026-11-30T09:59:59+00:00") == [("finished", False), ("finished", False)]
    assert states("2026-11-30T10:00:01+00:00") == [("finished", False), ("pending", True)]


def test_new_weights_in_place_of_the_model_of_a_run_are_a_problem(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text().replace("{name: model}", "{name: model, from_scratch: true}"))
    found = second_trainings(matrix_file, "{first: none}")
    assert found["none_low_seed-41"].problems == ()
    assert [problem.keys for problem in found["one_low_seed-41"].problems] == [("model.name",)]


def test_the_command_line_does_not_undo_an_axis_by_the_other_form_of_its_setting(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text().replace("  run.seed: [41, 42]", "  train.epochs: [1, 2]"))
    with raises_code("sweep.invalid", "--set train.max_steps", "axis train.epochs"):
        _cells(matrix_file, "train.max_steps=7")
