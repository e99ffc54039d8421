"""Teachers that are runs of the same matrix: their names, their order, and refused values."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paratune.sweeps.cell import Cell, waits_for
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import all_probes, read_matrix
from paratune.sweeps.plan import plan_of

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
    assert found["small_seed-42"].record.teachers == ("large_seed-42",)
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
    assert [problem.code for problem in problems] == ["sweep.teacher"]


def test_a_teacher_without_a_folder_is_found_before_the_first_run(matrix_file: Path, tmp_path: Path):
    problems = cells(matrix_file, "runs/none")["small_seed-41"].problems
    assert [(problem.code, problem.keys) for problem in problems] == [("distil.no_teacher", ("distil.teacher",))]
    for name in (str(tmp_path), "runs/m/runs/large_seed-41"):  # of the matrix: it is trained first
        assert cells(matrix_file, name)["small_seed-41"].problems == ()


def test_a_probe_has_no_teacher(matrix_file: Path):
    cells(matrix_file, "{size: large}")
    found = {cell.name: cell for cell in cells_of(all_probes(read_matrix(matrix_file)))}
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
        (folder / "run.json").write_text(
            json.dumps({"schema_version": 1, "config": values, "world_size": 1, "sessions": []})
        )
        (folder / "summary.json").write_text("{}")
    (Path("runs/m") / "sweep.json").write_text("")
    (Path("runs/m") / "sweep.json").unlink()
    import paratune.sweeps.plan as plan_module

    cells_now = {cell.name: cell for cell in plan_module._with_changed_teachers(
        [plan_module._planned(read_matrix(matrix_file), cell, None) for cell in found.values()]
    )}  # fmt: skip
    assert [bool(cells_now[name].changed) for name in ("large_seed-41", "small_seed-41")] == [True, True]
    assert not cells_now["small_seed-42"].changed
