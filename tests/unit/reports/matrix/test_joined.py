"""Several matrices in one report."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from make_matrix import NPROC, SEED, STRATEGY, Made, make_matrix
from raised import raises_code

from paratune.commands.report import report
from paratune.records.published import ComparedPair, Published, PublishedClaim, PublishedFigure
from paratune.records.sweep import Axis
from paratune.reports.matrix import make_sweep
from paratune.reports.systems.figures import phase_drawings


def _machine(folder: Path, name: str, step_ms: float, **record: Any) -> Path:
    def tell(values: Mapping[str, str]) -> Made:
        size = int(values["nproc"].removeprefix("nproc-"))
        node = {"hostname": name, "cpu_model": f"CPU of {name}", "gpus": []}
        return Made(step_ms=step_ms / size, world_size=size, run={"hardware": [node]})

    return make_matrix(folder / name / "oakridge", (NPROC,), tell, **record)


def test_the_same_matrix_of_two_machines(tmp_path: Path):
    folders = [_machine(tmp_path, "nvlink", 80.0), _machine(tmp_path, "cloud", 160.0)]
    report = make_sweep(folders, tmp_path / "out")
    systems = report.systems
    assert systems is not None
    assert [one.label for one in systems.measured[::3]] == ["nvlink/oakridge, nproc 1", "cloud/oakridge, nproc 1"]
    assert systems.num_machines == 2
    # Each machine has its own baseline, so that nothing is compared across them.
    assert {systems.baseline_of(one).label for one in systems.measured} == {one.label for one in systems.measured[::3]}
    tables = {table.key: table for section in report.sections for table in section.tables}
    scaling = tables["scaling-strong"]
    at = [column.key for column in scaling.columns].index("speed_up")
    assert [(row[0], row[1], row[at]) for row in scaling.rows] == [
        (name, size, f"{int(size)}.00") for name in ("nvlink/oakridge", "cloud/oakridge") for size in ("1", "2", "4")
    ]
    assert len(tables["systems"].columns) == 3
    first, *_ = phase_drawings(systems)
    assert first.key == "phases"
    assert (tmp_path / "out" / "table.csv").read_text().count("oakridge") >= 6


@pytest.mark.parametrize(("other", "known"), [(2.0, 2.0), (8.0, None), (None, None)])
def test_the_price_of_one_machine_is_not_that_of_another(
    tmp_path: Path, other: float | None, known: float | None, caplog: pytest.LogCaptureFixture
):
    folders = [
        _machine(tmp_path, name, 80.0, price_per_device_hour=price) for name, price in (("a", 2.0), ("b", other))
    ]
    assert make_sweep(folders, None).record.price_per_device_hour == known
    assert ("no cost is shown; --price gives one" in caplog.text) == (known is None)
    caplog.clear()
    assert make_sweep(folders, None, 3.0).record.price_per_device_hour == 3.0
    assert not caplog.text


def test_matrices_with_different_axes_have_the_shared_axes(tmp_path: Path):
    offload = Axis("offload", "offload", {"none": "none", "cpu": "cpu"}, keys=("strategy.cpu_offload",))

    def tell(values: Mapping[str, str]) -> Made:
        size = int(values["nproc"].removeprefix("nproc-"))
        return Made(step_ms=80.0 / size, world_size=size, kind=values.get("strategy", "ddp"))

    claim = PublishedClaim(
        "cpu is smaller", "less", "memory", 0.0,
        (ComparedPair({"nproc": "nproc-1", "offload": "cpu"}, {"nproc": "nproc-1", "offload": "none"}),), "S", "",
    )  # fmt: skip
    figure = PublishedFigure({"nproc": "nproc-2", "strategy": "zero3"}, "time", 9.0, "s", "S", "")
    first = make_matrix(tmp_path / "a", (NPROC, STRATEGY), tell, published=Published((figure,)))
    record = {"baseline": {"offload": "cpu"}, "published": Published(claims=(claim,))}
    second = make_matrix(tmp_path / "b", (offload, NPROC, SEED), tell, **record)

    report = make_sweep([first, second], tmp_path / "out")

    labels = [(axis.label, list(axis.values)) for axis in report.record.axes]
    assert labels == [
        ("matrix", ["a", "b"]),
        ("nproc", ["nproc-1", "nproc-2", "nproc-4"]),
        ("seed", ["as given", "seed-1", "seed-2"]),
        ("settings", ["strategy ddp", "strategy zero3", "offload none", "offload cpu"]),
    ]
    systems = report.systems
    assert systems is not None
    assert len(systems.measured) == 6 + 6
    # Each matrix has its own baseline: the first run, or the one that it names.
    bases = {one.values["matrix"]: systems.baseline_of(one).values for one in systems.measured}
    assert bases["a"]["settings"] == "strategy ddp"
    assert bases["b"] == {"matrix": "b", "nproc": "nproc-1", "settings": "offload cpu"}
    tables = {table.key: table for section in report.sections for table in section.tables}
    assert [cell.text for cell in tables["published"].lines[0][:3]] == ["a", "2", "strategy zero3"]
    assert tables["published"].lines[0][6].value is not None
    assert tables["claims"].lines[0][2].runs
    assert {line[0].text for line in tables["configurations"].lines} >= {"b, nproc 1, offload cpu"}


def test_headings_of_all_matrices_are_joined(tmp_path: Path):
    folders = []
    for name, models, headings in (
        ("a", ("bert", "llama"), {"Encoders": ("bert",), "Decoders": ("llama",)}),
        ("b", ("roberta", "bert"), {"Encoders": ("roberta",), "Small": ("bert",)}),
    ):
        axis = Axis("model", "model", {model: model for model in models}, keys=("model.name",))
        record = {"select_per": ("model",), "groups": {"model": headings}}
        folders.append(make_matrix(tmp_path / name, (axis,), lambda _: Made(), **record))

    report = make_sweep(folders, None)

    # bert is under the first heading that names it, in both matrices.
    assert report.record.groups == {"model": {"Encoders": ("bert", "roberta"), "Decoders": ("llama",), "Small": ()}}
    chosen = next(table for section in report.sections for table in section.tables if table.key == "chosen")
    assert chosen.groups == ((0, "Encoders"), (3, "Decoders"))


def test_a_matrix_that_is_given_twice_is_refused(tmp_path: Path):
    one = _machine(tmp_path, "nvlink", 80.0)
    with raises_code("cli.named_twice", "oakridge"):
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
    with raises_code("compare.mixed_matrix"):
        report(one, one / "runs" / "nproc-1")
