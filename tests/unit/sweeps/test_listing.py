"""A matrix as a list of commands that can be started by themselves."""

import json
import shlex
from dataclasses import replace
from pathlib import Path

from whole_records import WHOLE_RUN, WHOLE_SUMMARY

from paratune.config.load import load_config
from paratune.records.sweep import read_sweep
from paratune.reports.matrix import read_joined
from paratune.sweeps.cells import cells_of
from paratune.sweeps.matrix import read_matrix
from paratune.sweeps.run import listed, plan_of, write_listed

FIRST = "learning_rate-0.0001_seed-41"


def _listed(path: Path) -> list[dict]:
    matrix = read_matrix(path)
    plan = plan_of(matrix, cells_of(matrix), ["paratune"])
    matrix.folder.mkdir(parents=True, exist_ok=True)
    write_listed(matrix.folder, plan.record, plan.in_order())
    return [listed(matrix.folder, cell) for cell in plan.in_order()]


def test_each_run_by_itself(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text() + "env: {NCCL_DEBUG: WARN, GLOO_SOCKET_IFNAME: null}\n")
    runs = _listed(matrix_file)
    assert len(runs) == 4
    first = next(run for run in runs if run["name"] == FIRST)
    assert first["name"] == FIRST
    assert first["environment"] == {
        "NCCL_DEBUG": "WARN",
        "GLOO_SOCKET_IFNAME": None,
        "PARATUNE_RECORD_ENVIRONMENT": "-GLOO_SOCKET_IFNAME,NCCL_DEBUG",
    }
    assert first["command"] == ["paratune", "train", f"runs/m/configs/{FIRST}.yaml", "--nproc", "1", "--resume"]
    assert first["line"] == (
        "env -u GLOO_SOCKET_IFNAME NCCL_DEBUG=WARN PARATUNE_RECORD_ENVIRONMENT=-GLOO_SOCKET_IFNAME,NCCL_DEBUG "
        f"paratune train runs/m/configs/{FIRST}.yaml --nproc 1 --resume"
    )
    assert load_config(Path(first["config"])).config.run.name == FIRST
    assert [cell.state for cell in read_sweep(Path("runs/m")).cells] == ["pending"] * 4


def test_what_was_listed_is_known_until_a_sweep_takes_over(matrix_file: Path):
    matrix = read_matrix(matrix_file)
    cells = cells_of(matrix)
    matrix.folder.mkdir(parents=True)
    first, *others = plan_of(matrix, cells, ["paratune"]).cells
    write_listed(matrix.folder, plan_of(matrix, cells, ["paratune"]).record, [first])
    assert read_sweep(matrix.folder).listed == (first.name,)
    write_listed(matrix.folder, plan_of(matrix, cells, ["paratune"]).record, others)
    assert set(read_sweep(matrix.folder).listed) == {cell.name for cell in cells}


def test_odd_values_are_quoted(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text() + 'env: {A: "a b; rm -rf *"}\n')
    first, *_ = cells_of(read_matrix(matrix_file))
    run = listed(Path("my runs/$(x)"), first)
    settings = {"A=a b; rm -rf *", "PARATUNE_RECORD_ENVIRONMENT=A"}
    assert (words := shlex.split(run["line"]))[0] == "env"
    assert {*words[1:3]} == settings
    assert words[3:6] == ["paratune", "train", f"my runs/$(x)/configs/{first.name}.yaml"]
    assert listed(Path("m"), replace(first, record=replace(first.record, environment={})))["line"].startswith(
        "paratune"
    )


def _finish(path: Path, name: str, environment: dict, **changes: object) -> None:
    """Write what a cluster leaves of a run."""
    loaded = next(cell.loaded for cell in cells_of(read_matrix(path)) if cell.name == name)
    folder = Path("runs/m/runs") / name
    folder.mkdir(parents=True, exist_ok=True)
    run = {
        **WHOLE_RUN,
        "config": loaded.values,
        "environment": environment,
        **changes,
    }
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "summary.json").write_text(json.dumps({**WHOLE_SUMMARY, "scores": {"validation": {"accuracy": 0.5}}}))


def test_what_others_have_trained_is_found(matrix_file: Path):
    matrix_file.write_text(matrix_file.read_text() + "env: {A: 1, OMP_NUM_THREADS: null}\n")
    _listed(matrix_file)
    given = {"A": "1", "OMP_NUM_THREADS": "2", "NCCL_DEBUG": "WARN"}  # the launcher's default, and what it inherited
    second, third, fourth = (f"learning_rate-{end}" for end in ("0.0001_seed-42", "1e-05_seed-41", "1e-05_seed-42"))
    _finish(matrix_file, FIRST, given, environment_unset=["OMP_NUM_THREADS"])
    _finish(matrix_file, second, given)  # it was not unset here
    _finish(matrix_file, third, given, environment_unset=["OMP_NUM_THREADS"], world_size=2)
    _finish(matrix_file, fourth, {**given, "A": "2"}, environment_unset=["OMP_NUM_THREADS"])

    report = read_joined([Path("runs/m")])
    plan = plan_of(read_matrix(matrix_file), cells_of(read_matrix(matrix_file)), [])

    assert [cell_run.cell.state for cell_run in report.cell_runs] == ["finished", "pending", "pending", "pending"]
    assert report.cell_runs[0].score("validation", "accuracy") == 0.5
    assert [cell.record.state for cell in plan.cells] == ["finished", "pending", "pending", "pending"]
    assert [cell.changed for cell in plan.cells] == [
        (),
        ("env.OMP_NUM_THREADS: 2 then, unset now",),
        ("nproc: 2 then, 1 now",),
        ("env.A: 2 then, 1 now",),
    ]
