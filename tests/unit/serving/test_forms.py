"""Rows of several requests in one batch, on a GPU that is not there; a folder of `paratune quantize` as the model."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from explained import save_tiny
from fake_cuda import moved, on_fake_cuda
from starlette.testclient import TestClient

from paratune.compress.quantize import QuantizeJob, quantize_model
from paratune.data.loader import PackedCollator
from paratune.infer.trained import NamedColumns, load_trained
from paratune.models.attention import cuda
from paratune.serving.access import ServingLimits
from paratune.serving.app import Service, make_app
from paratune.serving.predictor import Predictor, as_split

TEXTS = ["the film was good", "bad", "a story that was really good " * 4]


def test_a_batch_of_several_requests_is_computed_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(cuda, "choose_kernel", lambda dtype, *_: "flash")
    trained = load_trained(str(save_tiny(tmp_path, "classification").folder), NamedColumns(), "cpu")
    predictor = Predictor(trained)
    first, second = predictor.tokenize([{"text": text} for text in TEXTS[:2]]), predictor.tokenize([{"text": TEXTS[2]}])
    rows = [second[0], first[1], first[0]]
    split = as_split(rows)
    assert split.samples.texts == [TEXTS[2], TEXTS[1], TEXTS[0]]
    batch = PackedCollator(trained.recipe.collator(split, trained.tokenizer))(np.arange(3), 3.0)
    assert batch.input_ids.numel() == sum(row.num_tokens for row in rows)
    with on_fake_cuda(torch.bfloat16):
        on_gpu: Any = moved(batch)
        outputs = moved(trained.model)(on_gpu)
    assert (outputs.device.type, outputs.shape) == ("cuda", (3, 3))


def test_an_onnx_folder_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    pytest.importorskip("onnxruntime")
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))
    trained = load_trained(str(save_tiny(tmp_path / "model", "classification").folder), NamedColumns(), "cpu")
    split = trained.read("x.csv", pa.table({"text": TEXTS}), require_labels=False)
    quantize_model(QuantizeJob(trained, "model", "onnx", split), tmp_path / "out")
    service = Service(load_trained(str(tmp_path / "out"), NamedColumns(), "cpu"), ServingLimits())
    with TestClient(make_app(service), base_url="http://127.0.0.1") as http:
        found = http.post("/predict", json={"rows": [{"text": text} for text in TEXTS]}).json()["predictions"]
    expected = Predictor(trained).predict(Predictor(trained).tokenize([{"text": text} for text in TEXTS]))
    for answer, row in zip(found, expected, strict=True):
        assert answer == {name: pytest.approx(value, abs=1e-5) for name, value in row.columns.items()}
