"""Records of measured forms that are damaged."""

import json
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code

from paratune.records.compressed import measured_folder, measured_forms, read_measured

RECORD: dict[str, Any] = {
    "schema_version": 1,
    "split": "test",
    "settings": {},
    **dict.fromkeys(("weights_bytes", "loaded_bytes", "peak_bytes", "p50_ms", "p95_ms", "cpu_share"), 1),
    "texts_per_s": {"1": 2.0},
    **{key: {} for key in ("scores", "intervals", "slices", "machine")},
}


def test_forms_are_in_order_and_only_measured_ones(tmp_path: Path):
    for form in ("int8", "fp32", "onnx"):
        measured_folder(tmp_path, form).mkdir(parents=True)
        if form != "onnx":
            (measured_folder(tmp_path, form) / "measured.json").write_text(json.dumps(RECORD))
    assert [form for form, _ in measured_forms(tmp_path)] == ["fp32", "int8"]
    assert read_measured(measured_folder(tmp_path, "int8")) == RECORD


@pytest.mark.parametrize(
    "changes",
    [
        {"texts_per_s": {"1": 0.0}},
        {"cpu_share": "1"},
        {"p50_ms": None},
        {"texts_per_s": {}},
        {"texts_per_s": {"one": 2.0}},
        {"scores": []},
    ],
)
def test_damaged_records_are_refused(tmp_path: Path, changes: dict[str, Any]):
    (tmp_path / "measured.json").write_text(json.dumps(RECORD | changes))
    with raises_code("run.damaged"):
        read_measured(tmp_path)


def test_another_format_is_refused(tmp_path: Path):
    (tmp_path / "measured.json").write_text(json.dumps(RECORD | {"schema_version": 9}))
    with raises_code("run.other_version", "9"):
        read_measured(tmp_path)
