"""`paratune compress`: refused options, and the results that a repeated command keeps."""

import json
from pathlib import Path
from typing import Any

import pytest
from finished_run import write_finished_run
from raised import raises_code

from paratune.commands import compress as command
from paratune.commands import quantize
from paratune.errors import EXIT_OK
from paratune.records import write_json
from paratune.records.compressed import form_folder, locked_forms

MEASURED: dict[str, Any] = {
    "schema_version": 1,
    "split": "test",
    "source": "test",
    "num_rows": 10,
    "weights_bytes": 4_000_000,
    "loaded_bytes": 1,
    "peak_bytes": 1,
    "p50_ms": 2.0,
    "p95_ms": 3.0,
    "cpu_share": 1.0,
    "texts_per_s": {"1": 500.0, "8": 900.0},
    "scores": {"accuracy": 0.8},
    "intervals": {},
    "slices": {},
    "machine": {},
}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(command, "set_up_logging", lambda **_: None)
    folder = tmp_path / "run"
    write_finished_run(folder)
    rows = tmp_path / "rows.csv"
    rows.write_text("te_xt,label\n" + "a,b\n" * 10)
    record = json.loads((folder / "run.json").read_text())
    record["config"]["data"] |= {"train": str(rows), "test": str(rows)}
    record["config"]["evaluate"] = {"slices": []}
    write_json(folder / "run.json", record)
    return folder


def test_finished_forms_and_measurements_are_kept(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (run / "model" / "model.safetensors").write_bytes(b"weights")
    made, measured = [], []

    def make(model: str, form: str, out: Path) -> None:
        made.append(form)
        out.mkdir(parents=True)
        write_json(out / "quantized.json", {"source": {"weights_sha256": command.weights_of(run / "model")}})

    def measure(settings: Any, path: Path, *, run_code: bool) -> None:
        measured.append(settings.form)
        Path(settings.out).mkdir(parents=True, exist_ok=True)
        write_json(Path(settings.out) / "measured.json", {**MEASURED, "settings": settings.compared})

    monkeypatch.setattr(quantize, "make_form", make)
    monkeypatch.setattr(command, "_measure", measure)
    assert command.compress(run, to=["bf16,int8"], json=True) == EXIT_OK
    assert list(json.loads(capsys.readouterr().out)["forms"]) == ["fp32", "bf16", "int8"]
    assert (made, measured) == (["bf16", "int8"], ["fp32", "bf16", "int8"])
    assert command.compress(run, to=["bf16", "int8"]) == EXIT_OK
    assert (len(made), len(measured)) == (2, 3)
    assert command.compress(run.parent / "." / run.name / ".." / run.name, to=["bf16"]) == EXIT_OK  # another name
    assert (len(made), len(measured)) == (2, 3)
    assert command.compress(run, to=["bf16"], timed_rows=5) == EXIT_OK  # other settings: measured again
    assert (len(made), measured[3:]) == (2, ["fp32", "bf16"])
    (run / "model" / "model.safetensors").write_bytes(b"other weights")
    assert command.compress(run, to=["bf16"], timed_rows=5) == EXIT_OK
    assert (made[2:], measured[5:]) == (["bf16"], ["fp32"])
    assert form_folder(run, "bf16").is_dir()


def test_wrong_input_is_refused(run: Path, tmp_path: Path):
    with raises_code("cli.invalid_value", "int9"):
        command.compress(run, to=["int9"])
    with raises_code("cli.invalid_value", "train"):
        command.compress(run, split="train")
    with raises_code("run.no_predictions", "validation", split="validation"):
        command.compress(run, split="validation")
    with raises_code("cli.out_of_range"):
        command.compress(run, batch_size=[0])
    with raises_code("run.not_a_run"):
        command.compress(tmp_path)
    (run / "summary.json").unlink()
    with raises_code("run.not_finished"):
        command.compress(run)


def test_two_commands_cannot_measure_one_run_at_once(run: Path):
    with locked_forms(run), raises_code("run.in_use", folder=run / "compressed"):
        command.compress(run)


def test_the_table_fits_into_80_columns(capsys: pytest.CaptureFixture[str]):
    record = MEASURED | {"p50_ms": 1234.5, "texts_per_s": {"1": 1400.0, "32": 12345.0}, "scores": {"a" * 8: 1, "f1": 1}}
    command.show({"int8-static": record})
    _, line, _ = capsys.readouterr().out.splitlines()
    values = "3.81 MiB 1,234 3 1,400 12,345 (32) 1 B 1.0000 1.0000"
    assert line.split() == ["int8-static", *values.split()]
    assert len(line) <= 80


def test_a_failed_measurement_is_an_error_with_its_last_line(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(command, "PROGRAM", ("sh", "-c", "echo out of memory >&2; exit 7"))
    from paratune.compress.measure import MeasureSettings

    settings = MeasureSettings("int8", "m", {}, "r", "s", "test", (), (1,), 1, 1, 1, "o")
    with raises_code("compress.not_measured", "out of memory", form="int8", exit_code=7):
        command._measure(settings, tmp_path / "settings.json", run_code=False)
