"""Rows of utilisation, power, energy, work and cost, with arithmetic written out."""

from pathlib import Path
from typing import Any

import pytest
from make_run import make_run
from raised import raises_code

from paratune.commands.report import report
from paratune.reports.rows.build import build_rows
from paratune.reports.run.make import make
from paratune.reports.run.model import build_report
from paratune.reports.runs.read import read_runs

UTILISATION = {
    "kind": "nvml",
    "interval_s": 1.0,
    "num_samples": 40,
    "mean": 0.815,
    "p10": 0.5,
    "p90": 0.97,
    "machine_mean": None,
    "devices": [
        {"rank": 0, "name": "NVIDIA L4", "mean": 0.8, "memory_bytes": 1, "power_w": {"mean": 60.0, "max": 70.0}},
        {"rank": 1, "name": "NVIDIA L4", "mean": 0.83, "memory_bytes": 1, "power_w": {"mean": 50.0, "max": 71.0}},
    ],
    "energy_j": 36_500.0,
    "energy_source": "nvml counter",
    "reason": None,
}
FLOPS = {
    "model_flops_per_token": 5e8,
    "model_flops_per_s": 2.5e13,
    "peak_flops_per_s": 2.42e14,
    "peak_source": "NVIDIA L4 datasheet, 2023",
    "mfu": 0.1033,
    "reason": None,
}


def gpu_run(folder: Path, *, utilisation: Any = None, flops: Any = None, **options: Any) -> Path:
    changes = {"utilisation": {**UTILISATION, **(utilisation or {})}, "flops": {**FLOPS, **(flops or {})}}
    return make_run(folder, run_changes={"device": "cuda"}, summary_changes=changes, **options)


def rows_of(*folders: Path, price: float | None = None) -> Any:
    return {row.key: row for row in build_rows(read_runs(folders).runs, price=price)}


def texts(row: Any) -> list[str]:
    return [cell.text for cell in row.cells]


def test_a_row_is_shown_if_one_run_has_a_value(tmp_path):
    rows = rows_of(gpu_run(tmp_path / "a", kind="ddp", world_size=2), make_run(tmp_path / "old"))
    assert texts(rows["utilisation"]) == ["81.5%", "n/a"]
    assert "kernel" in rows["utilisation"].footnote
    assert texts(rows["power_w"]) == ["55.0", "n/a"]
    assert (rows["energy_j"].label, texts(rows["energy_j"])) == ("Energy of all steps (kJ)", ["36.5", "n/a"])
    assert rows["model_flops_per_s"].label == "Work of real tokens (TFLOP/s)"
    assert texts(rows["model_flops_per_s"]) == ["25.0", "n/a"]
    assert texts(rows["mfu"]) == ["10.3%", "n/a"]
    assert (rows["energy_source"].shown, rows["energy_source"].cells[0].value) == (False, "nvml counter")


def test_power_of_some_devices_is_not_that_of_all(tmp_path):
    devices = [UTILISATION["devices"][0], {**UTILISATION["devices"][1], "power_w": None}]
    assert texts(rows_of(gpu_run(tmp_path / "a", utilisation={"devices": devices}))["power_w"]) == ["n/a"]


def test_a_run_costs_its_device_hours(tmp_path):
    # make_run: 225 steps of 80 ms and 5.2 s; two ranks at 2.5 an hour.
    rows = rows_of(make_run(tmp_path / "a", kind="ddp", world_size=2), price=2.5)
    hours = 2 * (225 * 0.08 + 5.2) / 3600
    assert rows["device_hours"].cells[0].value == pytest.approx(hours)
    assert rows["cost"].cells[0].value == pytest.approx(2.5 * hours)
    assert texts(rows["cost"]) == ["0.0322"]
    assert rows["device_hours"].shown


def test_without_a_price_there_is_no_cost_and_hours_are_those_of_gpus(tmp_path):
    rows = rows_of(make_run(tmp_path / "a"))
    assert "cost" not in rows
    assert not rows["device_hours"].shown
    assert rows_of(gpu_run(tmp_path / "b"))["device_hours"].shown


def test_a_run_whose_number_of_devices_changed_has_no_device_hours(tmp_path):
    session = {"step": 0, "world_size": 1}
    changes = {"sessions": [session, {"step": 100, "world_size": 2}]}
    rows = rows_of(make_run(tmp_path / "a", run_changes=changes), price=1.0)
    assert (texts(rows["device_hours"]), texts(rows["cost"])) == (["n/a"], ["n/a"])


def test_unknown_figures_of_gpus_have_a_reason(tmp_path):
    missing = {"mean": None, "energy_j": None, "reason": "pynvml is not installed"}
    run = gpu_run(tmp_path / "a", utilisation=missing, flops={"mfu": None, "reason": "the peak of X is not listed"})
    notes = " ".join(build_report(read_runs([run])).notes)
    assert "n/a: pynvml is not installed." in notes
    assert "MFU is n/a: the peak of X is not listed." in notes


def test_unknown_figures_of_cpus_have_no_remark(tmp_path):
    utilisation = {**UTILISATION, "kind": "cpu", "energy_j": None, "reason": "energy: not told"}
    flops = {**FLOPS, "mfu": None, "reason": "the peak of EPYC is not listed"}
    changes = {"utilisation": utilisation, "flops": flops}
    run = make_run(tmp_path / "a", run_changes={"device": "cpu"}, summary_changes=changes)
    assert "n/a" not in " ".join(build_report(read_runs([run])).notes)


def test_the_cost_is_in_the_files(tmp_path):
    report = make([gpu_run(tmp_path / "a")], tmp_path / "out", price=3.0)
    assert report.files
    assert "Cost at 3 a device-hour" in (tmp_path / "out" / "index.html").read_text()


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_is_a_number_from_zero_on(tmp_path, price):
    with raises_code("cli.out_of_range", "--price"):
        report(make_run(tmp_path / "a"), price=price)
