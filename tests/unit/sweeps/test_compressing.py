"""The section `compress` of a matrix file."""

import json
from pathlib import Path
from typing import Any

import pytest
from raised import raises_code

from paratune.api.sweep import prepare
from paratune.records.run_folder import COMPRESSED_FOLDER
from paratune.records.sweep import CellRecord
from paratune.sweeps.matrix import Compress, read_matrix


def with_section(path: Path, section: str) -> Path:
    path.write_text(f"{path.read_text()}compress: {section}\n")
    return path


def test_the_command_has_the_options(matrix_file: Path):
    matrix = read_matrix(with_section(matrix_file, "{forms: [int8], rows: 50, batch_size: 4, split: validation}"))
    assert " ".join(matrix.options.compress.words(Path("runs/a"))) == (
        "compress runs/a --to int8 --rows 50 --timed-rows 200 --batch-size 4 --split validation"
    )


def test_all_problems_are_reported_at_once(matrix_file: Path):
    with raises_code("config.invalid_value", "int9", "train") as raised:
        read_matrix(with_section(matrix_file, "{forms: [int9], rows: 1, split: train, sizes: [1], batch_size: 0}"))
    assert sorted({*raised.value.codes}) == ["config.invalid_value", "config.unknown_key"]
    assert len(raised.value.faults) == 5


def cell(**changes: Any) -> CellRecord:
    values = {"name": "a", "values": {}, "num_processes": 1, "task": "classification", "metric": "accuracy"}
    return CellRecord(**(values | {"metrics": (), "fingerprint": "", "state": "finished"} | changes))


def test_a_run_is_done_with_all_forms_and_the_same_settings(tmp_path: Path):
    (tmp_path / "model").mkdir()
    wanted = Compress(forms=["int8"], batch_size=8)
    settings = {"rows": 1000, "timed_rows": 200, "batch_size": 8, "split": "test", "num_threads": 4}
    for form in ("fp32", "int8"):
        assert wanted.is_due(tmp_path, cell())
        folder = tmp_path / COMPRESSED_FOLDER / form
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"measured": settings}))
        assert wanted.is_due(tmp_path, cell())  # without summary.json
        (folder / "summary.json").write_text("{}")
    assert not wanted.is_due(tmp_path, cell())
    assert Compress(forms=["int8"], batch_size=8, rows=10).is_due(tmp_path, cell())
    assert Compress(forms=["bf16", "int8"], batch_size=8).is_due(tmp_path, cell())


def test_runs_without_a_model_that_answers_are_left_out(tmp_path: Path):
    wanted = Compress()
    assert not wanted.is_due(tmp_path, cell())  # a baseline without an encoder
    (tmp_path / "model").mkdir()
    assert wanted.is_due(tmp_path, cell())
    changes: list[dict[str, Any]] = [{"task": "mlm"}, {"state": "failed"}, {"repeat": 2}, {"kind": "probe"}]
    assert not any(wanted.is_due(tmp_path, cell(**change)) for change in changes)


@pytest.mark.parametrize(
    ("section", "needed"),
    [
        ("null", []),
        ("{forms: [bf16]}", []),
        ("{forms: [bf16, int8]}", [("onnx", "serve"), ("onnxruntime", "serve")]),
    ],
)
def test_missing_packages_are_an_error_before_the_runs(
    section: str, needed: list[tuple[str, str]], matrix_file: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr("paratune.api.sweep.require_installed", lambda name, extra: asked.append((name, extra)))
    prepare(with_section(matrix_file, section), (), "show")
    assert asked == needed
