"""Measurements of a form: scores and rates beside written-out arithmetic; no process is started."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from explained import save_tiny
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from paratune.compress.check import num_weight_bytes
from paratune.compress.measure import MeasureSettings, evenly, measure
from paratune.records.compressed import read_measured
from paratune.records.predictions import write_table

TEXTS = ["good film", "bad", "the story was really good", "never again " * 20]
LABELS = [0, 2, 0, 1]


def test_measurements_of_a_tiny_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    saved = save_tiny(tmp_path / "model", "classification")
    write_table(tmp_path / "rows.parquet", pa.table({"text": TEXTS, "label": LABELS}))
    settings = MeasureSettings(
        "fp32", str(saved.folder), {}, str(tmp_path / "rows.parquet"), "rows", "test", ("label",), (1, 2), 4, 3,
        torch.get_num_threads(), str(tmp_path / "out"),
    )  # fmt: skip
    measure(settings)
    record = read_measured(tmp_path / "out")
    model = AutoModelForSequenceClassification.from_pretrained(saved.folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(saved.folder)
    tokens = tokenizer(TEXTS, padding=True, truncation=True, max_length=64, return_tensors="pt")
    with torch.inference_mode():
        logits = model(**tokens).logits
    right = logits.argmax(dim=1).numpy() == np.asarray(LABELS)
    assert record["scores"]["accuracy"] == right.mean()
    assert record["weights_bytes"] == num_weight_bytes(model)
    assert [part["num_rows"] for part in record["slices"]["label"]] == [2, 1, 1]
    assert {*record["texts_per_s"]} == {"1", "2"}
    assert 0 < record["p50_ms"] <= record["p95_ms"]


def test_evenly_spaced_rows():
    assert evenly(10, 4) == [0, 3, 6, 9]
    assert evenly(3, 10) == [0, 1, 2]
