"""`paratune quantize`: refused options, the output, and the default files."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from explained import save_tiny
from raised import check_logged, raises_code

from paratune.commands import compress as command
from paratune.compress import quantize as work
from paratune.compress.quantize import OutputDifference


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(command, "set_up_process", lambda: None)
    monkeypatch.setattr(logging.getLogger("paratune"), "handlers", [])  # warnings of earlier tests are in the JSON
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def model(tmp_path: Path) -> str:
    save_tiny(tmp_path / "run" / "model", "classification")
    (tmp_path / "rows.csv").write_text("text\n" + "a good film\nbad\nnot the story\n" * 4)
    return str(tmp_path / "run" / "model")


def test_record_is_printed_and_few_same_decisions_are_a_warning(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setattr(work, "compare", lambda *_: OutputDifference(12, 0.25, 0.125, 2.0, 0.75))
    out = tmp_path / "out"
    options: dict[str, Any] = {"to": "bf16", "out": out, "data": str(tmp_path / "rows.csv"), "rows": 12}
    command.quantize(model, **options, json=True)
    printed = json.loads(capsys.readouterr().out)
    assert printed == {"output": str(out), **json.loads((out / "quantized.json").read_text())}
    assert printed["check"]["agreement"] == 0.75
    check_logged(caplog, "quantize.decisions", "75.0%")
    with raises_code("output.exists", out):
        command.quantize(model, **options)


def test_rows_are_those_of_the_run(model: str, tmp_path: Path):
    data = {"train": "train.csv", "validation": None}
    run = tmp_path / "run" / "run.json"
    run.write_text(json.dumps({"config": {"data": data}}))
    trained = type("Trained", (), {"run": tmp_path / "run"})()
    assert command._file_of_run(trained, model) == "train.csv"
    run.write_text(json.dumps({"config": {"data": data | {"validation": ["a.csv", "b.csv"]}}}))
    assert command._file_of_run(trained, model) == "a.csv"


def test_impossible_options_are_refused(model: str, tmp_path: Path):
    rows, out = str(tmp_path / "rows.csv"), tmp_path / "out"
    with raises_code("cli.invalid_value"):
        command.quantize(model, to="bf16", out=out, data=rows, rows=0)
    with raises_code("cli.required", option="--data"):
        command.quantize(model, to="bf16", out=out)
    assert not out.exists()
