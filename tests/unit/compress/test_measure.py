"""The record of a form: scores beside written-out arithmetic, and a report of forms; no process is started."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from explained import save_tiny
from finished_run import write_finished_run
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from paratune import report
from paratune.compress.measure import MeasureSettings, measure
from paratune.compress.quantize import evenly, num_weight_bytes
from paratune.records import write_json
from paratune.records.finished import read_record
from paratune.records.predictions import write_table
from paratune.records.run_folder import COMPRESSED_FOLDER, is_measured
from paratune.reports.figures.canvas import Drawing
from paratune.reports.run import run_document

TEXTS = ["good film", "bad", "the story was really good", "never again " * 20]
LABELS = [0, 2, 0, 1]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "run"
    write_finished_run(folder)
    for file in (folder / "model").iterdir():
        file.unlink()
    save_tiny(folder / "model", "classification")
    record = json.loads((folder / "run.json").read_text())
    record |= {"run_id": "run", "task": {"kind": "classification", "metrics": ["accuracy"]}}
    record["config"]["evaluate"] = {"slices": ["label"]}
    write_json(folder / "run.json", record)
    summary = json.loads((folder / "summary.json").read_text())
    write_json(folder / "summary.json", summary | {"schema_version": 1})
    write_table(tmp_path / "rows.parquet", pa.table({"text": TEXTS, "label": LABELS}))
    return folder


def measured(run: Path, form: str) -> Path:
    settings = MeasureSettings(form, {"model.safetensors": "a"}, "test", 4, 3, 2, torch.get_num_threads())
    (run / COMPRESSED_FOLDER / form).mkdir(parents=True)
    if form != "fp32":
        save_tiny(run / COMPRESSED_FOLDER / form / "model", "classification", seed=1)
    measure(run, settings, run.parent / "rows.parquet")
    assert is_measured(run / COMPRESSED_FOLDER / form, {"rows": 4, "batch_size": 2})
    return run / COMPRESSED_FOLDER / form


def test_the_record_of_a_form(run: Path):
    folder = measured(run, "fp32")
    found = read_record(folder, "fp32")
    model = AutoModelForSequenceClassification.from_pretrained(run / "model").eval()
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    tokens = tokenizer(TEXTS, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**tokens).logits
    right = logits.argmax(dim=1).numpy() == np.asarray(LABELS)
    assert found.score("test", "accuracy") == right.mean()
    assert found.summary.inference.weights_bytes == num_weight_bytes(model)
    assert [part["num_rows"] for part in found.summary.slices["test"]["label"]] == [2, 1, 1]
    p50, p95 = found.summary.inference.latency_p50_ms, found.summary.inference.latency_p95_ms
    assert p50 is not None
    assert p95 is not None
    assert 0 < p50 <= p95
    assert found.summary.throughput.samples_per_s
    assert found.summary.baseline.predicts is None  # the constant answer of the run is that of its 10 rows


def test_reports_compare_forms_as_runs(run: Path):
    comparison = report(measured(run, "fp32"), measured(run, "bf16"))
    drawn = {drawing.key for drawing in run_document(comparison).parts if isinstance(drawing, Drawing)}
    assert not drawn & {"over_steps", "phases"}  # forms have no steps
    found = comparison.as_dict()
    first, second = found["runs"]
    assert (first["run"], second["run"]) == ("fp32-run", "bf16-run")
    assert found["same_experiment"]["differ"] == {}
    assert first["values"]["latency_p50_ms"] > 0
    assert second["values"]["weights_bytes"] > 0
    assert found["config_differences"]["form"] == {"fp32-run": "fp32", "bf16-run": "bf16"}
    assert not any("warm-up" in note for note in found["notes"])


def test_a_form_and_its_training_are_not_the_same_experiment(run: Path):
    found = report(run, measured(run, "fp32")).as_dict()
    assert found["same_experiment"]["verdict"] == "different"


def test_evenly_spaced_rows():
    assert evenly(10, 4) == [0, 3, 6, 9]
    assert evenly(3, 10) == [0, 1, 2]


@pytest.mark.parametrize("damage", ["[1]", '{"measured": [1]}', "{}"])
def test_a_form_with_a_damaged_record_is_not_measured(run: Path, damage: str):
    assert not is_measured(run, {"rows": 4})  # the run itself: finished, and no form
    (run / "run.json").write_text(damage)
    assert not is_measured(run, {"rows": 4})
