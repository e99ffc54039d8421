"""Several matrices in one report."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_matrix import NPROC, STRATEGY, Made, make_matrix
from make_study import column, tables_of
from raised import raises_code

from paratune.commands.report import report
from paratune.records.sweep import Axis, Published, PublishedFigure
from paratune.reports.matrix import make_sweep
from paratune.reports.statements import matrix_statements
from paratune.reports.systems.figures import phase_drawing


def _machine(folder: Path, name: str, step_ms: float, **record: Any) -> Path:
    def tell(values: Mapping[str, str]) -> Made:
        size = int(values["nproc"].removeprefix("nproc-"))
        node = {"hostname": name, "cpu_model": f"CPU of {name}", "gpus": []}
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
