"""`paratune compress`: refused options, and the results that a repeated command keeps."""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from finished_run import write_finished_run
from raised import raises_code
from whole_records import WHOLE_SUMMARY

from paratune.commands import compress as command
from paratune.records import write_json
from paratune.records.run_folder import COMPRESSED_FOLDER, locked_folder


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "set_up_process", lambda: None)
    folder = tmp_path / "run"
    write_finished_run(folder)
    rows = tmp_path / "rows.csv"
    rows.write_text("te_xt,label\n" + "a,b\n" * 10)
    record = json.loads((folder / "run.json").read_text())
    record["config"]["data"] |= {"train": str(rows), "test": str(rows)}
    record["config"]["evaluate"] = {"slices": []}
    write_json(folder / "run.json", record)
    return folder


@pytest.mark.slow
def test_finished_forms_are_kept(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    (run / "model" / "model.safetensors").write_bytes(b"weights")
    made, measured = [], []

    def make(model: str, form: str, out: Path) -> None:
        made.append(form)
        out.mkdir()
        sha256 = hashlib.sha256((run / "model" / "model.safetensors").read_bytes()).hexdigest()
        write_json(out / "quantized.json", {"source": {"weights_sha256": {"model.safetensors": sha256}}})

    def start(words: Sequence[str], **_: Any) -> Any:
        settings = json.loads(words[-2])
        measured.append(settings["form"])
        folder = Path(words[-3]) / COMPRESSED_FOLDER / settings["form"]
        record = json.loads((run / "run.json").read_text())
        record["config"]["form"] = settings["form"]
        write_json(folder / "run.json", record | {"run_id": settings["form"], "measured": settings})
        inference = {"latency_p50_ms": 2.5, "latency_p95_ms": 3.0, "weights_bytes": 4_000_000, "cpu_share": 1.0}
        rates = {"throughput": {"samples_per_s": 30.0}}  # without num_steps_measured, which a form does not have
        write_json(folder / "summary.json", {**WHOLE_SUMMARY, "inference": inference, **rates})
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(command, "make_form", make)
    monkeypatch.setattr(command.subprocess, "run", start)
    command.compress(run, to=["bf16,int8"], json=True)
    assert [found["run"] for found in json.loads(capsys.readouterr().out)["runs"]] == ["fp32", "bf16", "int8"]
    assert (made, measured) == (["bf16", "int8"], ["fp32", "bf16", "int8"])
    command.compress(run, to=["bf16", "int8"])
    printed = capsys.readouterr().out
    assert "3.81" in printed  # MiB, as a report of runs
    assert "30.0" in printed
    assert (len(made), len(measured)) == (2, 3)
    command.compress(run.parent / "." / run.name / ".." / run.name, to=["bf16"])  # another name
    assert (len(made), len(measured)) == (2, 3)
    (run / COMPRESSED_FOLDER / "bf16" / "left.parquet").write_text("of the first measurement")
    command.compress(run, to=["bf16"], timed_rows=5)  # other settings: only measured again
    assert (made[2:], measured[3:]) == ([], ["fp32", "bf16"])
    assert {path.name for path in (run / COMPRESSED_FOLDER / "bf16").iterdir()} == {"model", "run.json", "summary.json"}
    (run / "model" / "model.safetensors").write_bytes(b"other weights")
    command.compress(run, to=["bf16"], timed_rows=5)
    assert (made[2:], measured[5:]) == (["bf16"], ["fp32", "bf16"])
    (run / COMPRESSED_FOLDER / "bf16" / "model" / "quantized.json").unlink()
    command.compress(run, to=["bf16"], timed_rows=6)
    assert (made[3:], measured[7:]) == (["bf16"], ["fp32", "bf16"])


def test_wrong_input_is_refused(run: Path, tmp_path: Path):
    with raises_code("cli.invalid_value", "int9"):
        command.compress(run, to=["int9"])
    with raises_code("run.no_predictions", "validation", split="validation"):
        command.compress(run, split="validation")
    with raises_code("cli.invalid_value"):
        command.compress(run, batch_size=0)
    with raises_code("run.not_found"):
        command.compress(tmp_path)
    (run / "summary.json").unlink()
    with raises_code("run.not_finished"):
        command.compress(run)


def test_two_commands_cannot_measure_one_run_at_once(run: Path):
    folder = run / "compressed"
    with locked_folder(folder, "paratune compress", "wait"), raises_code("run.in_use", folder=folder):
        command.compress(run)


def test_a_failed_measurement_is_an_error_with_its_last_line(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(command, "PROGRAM", ("sh", "-c", "echo out of memory >&2; exit 7"))
    with raises_code("compress.not_measured", "out of memory", form="fp32", exit_code=7):
        command.compress(run)
