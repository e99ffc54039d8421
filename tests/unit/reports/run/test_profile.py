"""What a report shows of the steps under the profiler."""

import json
from pathlib import Path
from typing import Any

from make_run import make_run
from page_text import page_text

from paratune import reports
from paratune.reports.run import run_document

OPERATORS = [
    {"name": "aten::addmm", "calls": 240, "self_host_ms": 50.0, "host_ms": 60.0, "self_device_ms": 200.0},
    {"name": "<b>&\x1b[31m", "calls": 5, "self_host_ms": 1.0, "host_ms": 400.0, "self_device_ms": 0.0},
]
KERNELS = [{"name": "sgemm<" + "int, " * 40, "calls": 240, "device_ms": 200.0}]
PROFILE: dict[str, Any] = {
    "num_steps": 10,
    "wall_ms_per_step": 80.0,
    "host_ms_per_step": 70.0,
    "device_ms_per_step": 20.0,
    "idle_share": 0.75,
    "num_kernels_per_step": 24.0,
    "operators": OPERATORS,
    "kernels": KERNELS,
    "trace": "profile.rank0000.json.gz",
    "reason": None,
}
ON_CPU = PROFILE | {
    "device_ms_per_step": None,
    "idle_share": None,
    "num_kernels_per_step": None,
    "kernels": [],
    "operators": [each | {"self_device_ms": None} for each in OPERATORS],
}


def _tables(made):
    return {table.key: table for table in run_document(made).tables}


def test_operators_are_in_every_format(tmp_path: Path):
    run = make_run(tmp_path / "a", summary_changes={"profile": PROFILE})
    made = reports.make([run], tmp_path / "out")
    # 240 calls and 50, 60 and 200 ms in ten steps.
    page = (tmp_path / "out" / "index.html").read_text()
    assert "aten::addmm 24.000 5.000 6.000 20.000" in page_text(page)
    assert 'id="profile"' in page
    assert "&lt;b&gt;&amp;" in page
    assert "<b>&" not in page
    tables = _tables(made)
    assert [cell.value for cell in tables["operators"].lines[0][1:]] == [24.0, 5.0, 6.0, 20.0]


def test_a_cpu_has_no_columns_of_a_device(tmp_path: Path):
    runs = [make_run(tmp_path / name, summary_changes={"profile": ON_CPU}) for name in ("a", "b")]
    made = reports.make(runs, tmp_path / "out")
    tables = _tables(made)
    assert [key for key in tables if key.startswith("operators")] == ["operators-1", "operators-2"]
    assert len(tables["operators-1"].columns) == 4
    assert "device" not in tables["operators-1"].notes[0]


def test_a_run_without_a_profile_has_no_such_tables(tmp_path: Path):
    old = make_run(tmp_path / "old")
    none = make_run(
        tmp_path / "none", summary_changes={"profile": {"operators": [], "kernels": [], "reason": "not asked for"}}
    )
    made = reports.make([old, none], tmp_path / "out")
    assert not [key for key in _tables(made) if key.startswith("operators")]
    assert json.loads((tmp_path / "out" / "report.json").read_text())["runs"]
