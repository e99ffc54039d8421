"""Smaller forms of the runs of a matrix; measurements are written here."""

from pathlib import Path
from typing import Any

import pytest
from make_matrix import SEED, Made, make_matrix
from make_study import column, study_tables, texts

from paratune.records import write_json
from paratune.records.compressed import measured_folder
from paratune.records.sweep import Axis, cell_run_folder

SIZE = Axis("size", "size", {"large": "large", "small": "small"}, keys=("model.keep_layers",))


def measured(p50_ms: float, accuracy: float, **changes: Any) -> dict[str, Any]:
    return {
        "schema_version": 1, "split": "test", "num_rows": 400, "num_timed": 10, "settings": {},
        "weights_bytes": 8 * 2**20, "loaded_bytes": 2**20, "peak_bytes": 2**21, "p50_ms": p50_ms, "p95_ms": 2 * p50_ms,
        "cpu_share": 1.0, "texts_per_s": {"1": 100.0, "8": 300.0, "32": 200.0},
        "machine": {"cpu": "C", "num_threads": 1}, "scores": {"accuracy": accuracy}, "intervals": {}, "slices": {},
        **changes,
    }  # fmt: skip


@pytest.fixture
def matrix(tmp_path: Path) -> Path:
    return make_matrix(tmp_path / "m", (SIZE, SEED), lambda values: Made(), compress=("int8",))


def write_form(matrix: Path, cell: str, form: str, record: dict[str, Any]) -> Path:
    folder = measured_folder(cell_run_folder(matrix, cell), form)
    folder.mkdir(parents=True)
    write_json(folder / "measured.json", record)
    return folder / "measured.json"


def test_each_form_has_its_size_speed_and_score(matrix: Path):
    for seed in (1, 2):
        write_form(matrix, f"large_seed-{seed}", "fp32", measured(19.0 + seed, 0.9))
        write_form(matrix, f"large_seed-{seed}", "int8", measured(8.0, 0.85))
    table = study_tables(matrix)["forms"]
    assert list(zip(texts(table, "configuration"), texts(table, "form"), strict=True)) == [
        ("large", "fp32"), ("large", "int8")
    ]  # fmt: skip
    latency = column(table, "p50_ms")
    # 20 and 21 ms: the deviation is 1 / sqrt(2).
    assert (latency[0].value, latency[0].deviation, latency[1].value) == (20.5, pytest.approx(0.5**0.5), 8.0)
    assert latency[0].runs == ("large_seed-1", "large_seed-2")
    keys = ("weights_mib", "p95_ms", "texts_per_s", "best_texts_per_s", "peak_mib", "test_accuracy")
    assert [column(table, key)[1].value for key in keys] == [8.0, 16.0, 100.0, 300.0, 2.0, 0.85]


def test_damaged_measurements_and_a_busy_machine_are_notes(matrix: Path):
    write_form(matrix, "large_seed-1", "fp32", measured(20.0, 0.9, cpu_share=0.5))
    path = write_form(matrix, "large_seed-1", "int8", measured(8.0, 0.9) | {"p50_ms": None})
    table = study_tables(matrix)["forms"]
    assert texts(table, "form") == ["fp32"]
    assert any(str(path) in note for note in table.notes)
    assert len(table.notes) == 3


def test_a_matrix_without_forms_has_no_table(matrix: Path):
    assert "forms" not in study_tables(matrix)
