"""The section `compress` of a matrix file."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from raised import raises_code

from paratune.records.run_folder import form_folder
from paratune.records.sweep import CellRecord
from paratune.sweeps import matrix as matrix_module
from paratune.sweeps.matrix import Compress, is_compressed, read_matrix, require_packages


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


def test_a_run_is_done_with_all_forms_and_the_same_settings(tmp_path: Path):
    wanted = Compress(forms=["int8"], batch_size=8)
    settings = {"rows": 1000, "timed_rows": 200, "batch_size": 8, "split": "test", "num_threads": 4}
    for form in ("fp32", "int8"):
        assert not wanted.is_done(tmp_path)
        folder = form_folder(tmp_path, form)
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"measured": settings}))
        assert not wanted.is_done(tmp_path)  # without summary.json
        (folder / "summary.json").write_text("{}")
    assert wanted.is_done(tmp_path)
    assert not Compress(forms=["int8"], batch_size=8, rows=10).is_done(tmp_path)
    assert not Compress(forms=["bf16", "int8"], batch_size=8).is_done(tmp_path)


def test_runs_without_a_model_that_answers_are_left_out(tmp_path: Path):
    def cell(**changes: Any) -> CellRecord:
        values = {"name": "a", "values": {}, "num_processes": 1, "task": "classification", "metric": "accuracy"}
        return CellRecord(**(values | {"metrics": (), "fingerprint": "", "state": "finished"} | changes))

    assert not is_compressed(tmp_path, cell())  # a baseline without an encoder
    (tmp_path / "model").mkdir()
    assert is_compressed(tmp_path, cell())
    changes: list[dict[str, Any]] = [{"task": "mlm"}, {"state": "failed"}, {"repeat": 2}, {"kind": "probe"}]
    assert not any(is_compressed(tmp_path, cell(**change)) for change in changes)


def test_missing_packages_are_an_error_before_the_runs(monkeypatch: pytest.MonkeyPatch):
    asked: list[tuple[str, str]] = []
    monkeypatch.setattr(matrix_module, "require_installed", lambda name, extra: asked.append((name, extra)))

    def require(compress: Compress | None) -> None:
        require_packages(SimpleNamespace(options=SimpleNamespace(search=None, compress=compress)))  # type: ignore

    require(Compress(forms=["bf16"]))
    require(None)
    assert asked == []
    require(Compress(forms=["bf16", "int8"]))
    assert asked == [("onnx", "serve"), ("onnxruntime", "serve")]
