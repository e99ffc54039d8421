import hashlib
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from raised import raises_code
from tiny import tiny_model, tiny_tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from paratune.config.sections import ModelOptions
from paratune.models.load import Head, load_model
from paratune.models.save import save_model
from paratune.models.task_model import TaskModel
from paratune.precision import POLICIES
from paratune.records import read_json
from paratune.records.own import TASK_FILE

NAMES = ["<b>bad</b>", "good"]


@pytest.fixture
def model(tmp_path: Path) -> TaskModel:
    tiny_model(tmp_path / "start")
    start = ModelOptions(name=str(tmp_path / "start"))
    head = Head("AutoModelForSequenceClassification", 2, tuple(NAMES), "single_label_classification")
    return load_model(start, "classification", head, tiny_tokenizer(), POLICIES["fp32"], 0).eval()


def weights(model: TaskModel, shift: float = 0.0) -> dict[str, torch.Tensor]:
    return {name: value.detach() + shift for name, value in model.named_parameters()}


def test_transformers_loads_what_was_saved_with_the_same_logits_and_labels(tmp_path: Path, model: TaskModel):
    folder = tmp_path / "model"
    save_model(folder, model, tiny_tokenizer(), weights(model), {"schema_version": 1})
    again = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(["a very good film", "not good"], padding=True, return_tensors="pt")
    with torch.no_grad():
        assert torch.equal(again(**inputs).logits, model.hf(**inputs).logits)
    assert again.config.id2label == dict(enumerate(NAMES))
    results = pipeline("text-classification", model=str(folder), device="cpu")(["good film"], top_k=None)
    assert {entry["label"] for entry in results[0]} == set(NAMES)


def test_the_given_tensors_are_saved_not_those_of_the_model(tmp_path: Path, model: TaskModel):
    received = weights(model, shift=1.0)
    save_model(tmp_path / "model", model, tiny_tokenizer(), received, {})
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    for name, value in again.named_parameters():
        assert torch.equal(value, received[f"hf.{name}"]), name


def test_only_safetensors_contain_weights(tmp_path: Path, model: TaskModel):
    save_model(tmp_path / "model", model, tiny_tokenizer(), weights(model), {"task": {"kind": "classification"}})
    names = {path.name for path in (tmp_path / "model").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", TASK_FILE} <= names
    assert {Path(name).suffix for name in names} <= {".json", ".safetensors", ".txt", ".jinja"}
    record = read_json(tmp_path / "model" / TASK_FILE)
    assert record["task"] == {"kind": "classification"}
    assert record["files"].keys() == names - {TASK_FILE}
    weights_file = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert record["files"]["model.safetensors"] == {
        "num_bytes": len(weights_file),
        "sha256": hashlib.sha256(weights_file).hexdigest(),
    }


def test_an_existing_folder_is_replaced(tmp_path: Path, model: TaskModel):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "old").write_text("")
    save_model(tmp_path / "model", model, tiny_tokenizer(), weights(model), {})
    assert not (tmp_path / "model" / "old").exists()


def test_a_full_disk_leaves_no_incomplete_folder(tmp_path: Path, model: TaskModel, monkeypatch: pytest.MonkeyPatch):
    class Full:
        init_kwargs: ClassVar[dict[str, str]] = {}
        truncation_side = "right"
        padding_side = "right"

        def save_pretrained(self, folder: Path) -> None:
            raise OSError(28, "No space left on device")

    with raises_code("output.not_writable"):
        save_model(tmp_path / "model", model, Full(), weights(model), {})
    assert [path.name for path in tmp_path.iterdir()] == ["start"]
