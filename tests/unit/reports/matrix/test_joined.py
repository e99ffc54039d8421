"""Several matrices in one report."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_matrix import NPROC, STRATEGY, Made, make_matrix
from make_run import edit_json
from make_study import column, tables_of
from raised import raises_code

from paratune.commands.report import report
from paratune.records.sweep import Axis, Published, PublishedFigure
from paratune.reports.matrix import make_sweep, matrix_csv, read_joined
from paratune.reports.statements import matrix_statements, trust_statements
from paratune.reports.systems.figures import phase_drawing
from paratune.reports.systems.tables import machine_tables


def _machine(folder: Path, name: str, step_ms: float, cpu: str = "", **record: Any) -> Path:
    def tell(values: Mapping[str, str]) -> Made:
        size = int(values["nproc"].removeprefix("nproc-"))
        node = {"hostname": name, "cpu_model": cpu or f"CPU of {name}", "gpus": []}
        return Made(step_ms=step_ms / size, world_size=size, run={"hardware": [node]})

    return make_matrix(folder / name / "oakridge", (NPROC,), tell, **record)


def test_the_same_matrix_of_two_machines(tmp_path: Path):
    folders = [_machine(tmp_path, "nvlink", 80.0), _machine(tmp_path, "cloud", 160.0)]
    report = make_sweep(folders, tmp_path / "out")
    systems = report
    assert systems is not None
    assert [one.label for one in systems.measured[::3]] == ["nvlink/oakridge, nproc 1", "cloud/oakridge, nproc 1"]
    assert len(systems.machines) == 2
    # Each machine has its own baseline, so that nothing is compared across them.
    assert {systems.baseline_of(one).label for one in systems.measured} == {one.label for one in systems.measured[::3]}
    tables = {table.key: table for section in report.sections for table in section.tables}
    scaling = tables["scaling-strong"]
    at = [column.key for column in scaling.columns].index("speed_up")
    assert [(row[0], row[1], row[at]) for row in scaling.rows] == [
        (name, size, f"{int(size)}.00") for name in ("nvlink/oakridge", "cloud/oakridge") for size in ("1", "2", "4")
    ]
    assert tables["systems"].header == ("", "nvlink/oakridge", "cloud/oakridge")
    first = phase_drawing(systems)
    assert first.key == "phases"
    assert (tmp_path / "out" / "table.csv").read_text().count("oakridge") >= 6


@pytest.mark.parametrize(
    ("given", "prices"),
    [((2.0, 2.0), (2.0, 2.0)), ((2.0, 8.0), (2.0, 8.0)), ((2.0, None), (2.0, None)), (None, (3.0, 3.0))],
)
def test_each_machine_has_the_cost_of_its_own_price(
    tmp_path: Path, given: tuple[float | None, float | None] | None, prices: tuple[float | None, float | None]
):
    folders = [
        _machine(tmp_path, name, 80.0, price_per_device_hour=price)
        for name, price in zip(("a", "b"), given or (2.0, 8.0), strict=True)
    ]
    report = make_sweep(folders, None, 3.0 if given is None else None)
    table = tables_of(report)["resources"]
    # 225 steps of 80 ms and 5.2 s beside them, on one device; as long on each of two and four.
    hours = [(225 * 0.08 / size + 5.2) * size / 3600 for size in (1, 2, 4)]
    expected = [None if price is None else hour * price for price in prices for hour in hours]
    assert [cell.value for cell in column(table, "cost")] == pytest.approx(expected)
    (cost,) = (statement.text for statement in matrix_statements(report) if statement.label == "Cost")
    known = [money for money in expected if money is not None]
    assert (f" {sum(known):.2f} at " in cost) == (len(known) == len(expected))


def test_systems_have_the_names_of_their_matrices(tmp_path: Path):
    # Equal hardware, other names: 4 x V100 and Cloud stay apart.
    folders = [
        _machine(tmp_path, "a", 80.0, "CPU", system="4 x V100", price_per_device_hour=2.0),
        _machine(tmp_path, "b", 160.0, "CPU", system="Cloud"),
        _machine(tmp_path, "c", 160.0, "CPU"),
    ]
    report = make_sweep(folders, None)
    names = ["4 x V100", "Cloud", "c/oakridge"]
    assert [one.label for one in report.measured] == [f"{name}, nproc {size}" for name in names for size in (1, 2, 4)]
    tables = tables_of(report)
    assert [cell.text for cell in column(tables["scaling-strong"], "of")] == [name for name in names for _ in range(3)]
    assert column(tables["chosen"], "system")[0].text == names[0]
    assert tables["systems"].header == ("", *names)
    facts = {line[0].text: [cell.text for cell in line[1:]] for line in tables["systems"].lines}
    assert facts["Price of a device-hour"] == ["2", "n/a", "n/a"]
    # 225 steps of 80 ms, and 5.2 s beside them; as long on each of two and four.
    total = sum(225 * 0.08 + 5.2 * size for size in (1, 2, 4)) * 2 / 3600
    assert facts["Cost of the runs"] == [f"{total:.3f}", "n/a", "n/a"]
    assert matrix_csv(report).count("4 x V100") == 3
    assert "Names of systems" not in {statement.label for statement in trust_statements(report)}


@pytest.mark.parametrize(("cpu", "is_told"), [("CPU 1", False), ("CPU 2", True)])
def test_one_name_for_different_hardware_is_told(tmp_path: Path, cpu: str, is_told: bool):
    folders = [_machine(tmp_path, name, 80.0, own, system="Cloud") for name, own in (("a", "CPU 1"), ("b", cpu))]
    report = read_joined(folders)
    assert [one.label for one in report.measured[::3]] == ["Cloud (a/oakridge), nproc 1", "Cloud (b/oakridge), nproc 1"]
    assert len(report.machines) == 1 + is_told
    labels = {statement.label: statement.is_good for statement in trust_statements(report)}
    assert labels.get("Names of systems") == (False if is_told else None)


def test_hardware_that_is_not_recorded_is_not_different(tmp_path: Path):
    folders = [_machine(tmp_path, name, 80.0, system="Cloud") for name in ("a", "b")]
    for run in (folders[1] / "runs").iterdir():
        edit_json(run / "run.json", hardware=[])
    labels = {statement.label for statement in trust_statements(read_joined(folders))}
    assert "Names of systems" not in labels


def test_a_system_of_one_matrix_has_its_name(tmp_path: Path):
    folder = _machine(tmp_path, "a", 80.0, system="Cloud")
    assert next(machine_tables(read_joined([folder]))).header == ("", "Cloud")
    edit_json(folder / "runs" / "nproc-2" / "run.json", hardware=[{"cpu_model": "CPU 2", "gpus": []}])
    report = read_joined([folder])
    assert next(machine_tables(report)).header == ("", "Cloud: CPU of a", "Cloud: CPU 2")
    assert "Names of systems" in {statement.label for statement in trust_statements(report)}


def test_published_figures_are_in_the_report_of_each_matrix(tmp_path: Path):
    published = Published("S", (PublishedFigure({"nproc": "nproc-2"}, "time", 9.0, "s", ""),))
    folders = [_machine(tmp_path, name, 80.0, published=published) for name in ("a", "b")]
    assert "published" not in tables_of(make_sweep(folders, None))
    assert "published" in tables_of(make_sweep(folders[:1], None))


def test_a_matrix_that_is_given_twice_is_refused(tmp_path: Path):
    one = _machine(tmp_path, "nvlink", 80.0)
    with raises_code("cli.conflict", "oakridge"):
        make_sweep([one, one], None)


def test_matrices_that_compare_with_something_else_are_refused(tmp_path: Path):
    folders = [
        _machine(tmp_path, name, 80.0, baseline={"nproc": size}) for name, size in (("a", "nproc-1"), ("b", "nproc-2"))
    ]
    with raises_code("report.matrices_differ", "oakridge", "nproc: nproc-2", "nproc: nproc-1", key="baseline"):
        make_sweep(folders, None)
    folders = [_machine(tmp_path, name, 80.0, select_per=per) for name, per in (("c", ()), ("d", ("nproc",)))]
    with raises_code("report.matrices_differ", key="select_per"):
        make_sweep(folders, None)
    other = make_matrix(tmp_path / "e", (NPROC, STRATEGY), lambda _: Made())
    with raises_code("report.matrices_differ", "nproc, strategy", key="axes"):
        make_sweep([folders[0], other], None)


def test_a_value_that_is_another_in_each_matrix_is_refused(tmp_path: Path):
    folders = []
    for name, rate in (("a", "1e-5"), ("b", "2e-5")):
        axis = Axis("rate", "rate", {"low": rate, "high": "1e-3"}, keys=("train.learning_rate",))
        folders.append(make_matrix(tmp_path / name, (axis,), lambda _: Made()))
    with raises_code("report.matrices_differ", "low", "2", "5", "1"):
        make_sweep(folders, None)


def test_a_joined_axis_has_the_keys_of_all_matrices(tmp_path: Path):
    folders = []
    for name, keys in (("a", ("strategy.kind",)), ("b", ("strategy.kind", "train.learning_rate"))):
        folders.append(make_matrix(tmp_path / name, (replace(STRATEGY, keys=keys),), lambda _: Made()))
    assert make_sweep(folders, None).record.axes[1].keys == ("strategy.kind", "train.learning_rate")


def test_a_matrix_beside_a_run_is_refused(tmp_path: Path):
    one = _machine(tmp_path, "nvlink", 80.0)
    with raises_code("cli.conflict"):
        report(one, one / "runs" / "nproc-1")
