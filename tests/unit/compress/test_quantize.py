"""Compares smaller models with the outputs of PyTorch, and loads their folders with other libraries."""

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pyarrow as pa
import pytest
import torch
from explained import save_tiny
from raised import raises_code
from tiny import tiny_config, tiny_tokenizer
from transformers import (
    AutoModelForSequenceClassification,
    BertForTokenClassification,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from paratune.compress import quantize
from paratune.compress.quantize import ModelOutputs, QuantizeJob, compare, quantize_model, require_quantizable
from paratune.data.load import Split
from paratune.infer.trained import NamedColumns, TrainedModel, load_trained
from paratune.models.onnx_model import OnnxModel
from paratune.records.own import TASK_FILE

WORDS = ["good", "bad", "film", "the story was fine", "never again, it is bad", "one two three", "is it good", "poor"]
TEXTS = [f"{first} and {second}" for first in WORDS for second in WORDS[:4]]


@pytest.fixture(autouse=True)
def _cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PARATUNE_CACHE", str(tmp_path / "cache"))


def save_other(folder: Path, name: str) -> None:
    """Save an untrained model of an architecture; its tokenizer has no token types."""
    sizes: dict[str, Any] = {"vocab_size": 200, "num_labels": 3}
    width = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    torch.manual_seed(0)
    model: Any
    if name == "roberta":
        model = RobertaForSequenceClassification(
            RobertaConfig(**sizes, **width, max_position_embeddings=70, pad_token_id=0)
        )
    else:
        shape = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, "max_position_embeddings": 64}
        model = DistilBertForSequenceClassification(DistilBertConfig(**sizes, **shape))
    tokenizer = tiny_tokenizer()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend_tokenizer,
        **{f"{token}_token": f"[{token.upper()}]" for token in ("pad", "unk", "cls", "sep", "mask")},
        model_input_names=["input_ids", "attention_mask"],
    )
    tokenizer.save_pretrained(folder)
    save_scaled(folder, model, {"kind": "classification", "labels": ["low", "middle", "high"]})


def save_scaled(folder: Path, model: Any, task: dict[str, Any], text: str = "text") -> None:
    """Save a model with larger weights, so that its outputs differ between texts."""
    for weight in model.parameters():
        weight.data.mul_(4.0)
    model.save_pretrained(folder)
    columns = {"text": text, "label": "label"}
    (folder / TASK_FILE).write_text(json.dumps({"task": task, "columns": columns, "max_length": 48}))


def save_tagger(folder: Path) -> None:
    tiny_tokenizer(folder)
    torch.manual_seed(0)
    labels = ["O", "B-A", "I-A"]
    model = BertForTokenClassification(tiny_config(3))
    model.config.id2label = dict(enumerate(labels))
    save_scaled(folder, model, {"kind": "token_classification", "labels": labels, "scheme": "iob2"}, "tokens")


def load(folder: Path) -> TrainedModel:
    return load_trained(str(folder), NamedColumns(), "cpu")


def rows_of(trained: TrainedModel) -> Split:
    tables: dict[str, dict[str, Any]] = {
        "qa": {"question": ["is it good"] * len(TEXTS), "context": TEXTS},
        "token_classification": {"tokens": [text.split() for text in TEXTS]},
    }
    columns = tables.get(trained.task.kind, {"text": TEXTS, "pair": TEXTS[::-1]})
    return trained.read("x.csv", pa.table(columns), require_labels=False)


SLOW = [
    pytest.param(case, marks=pytest.mark.slow)
    for case in ("classification", "multi_label", "ordinal", "regression", "tags", "roberta", "distilbert")
]
CASES = ["pairs", "qa", *SLOW]


def save_case(folder: Path, case: str) -> TrainedModel:
    if case == "tags":
        save_tagger(folder)
    elif case in ("roberta", "distilbert"):
        save_other(folder, case)
    else:
        save_tiny(folder, "classification" if case == "pairs" else case, is_pair=case == "pairs")
    return load(folder)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_onnx_file_has_the_outputs_of_pytorch(tmp_path: Path, case: str):
    trained = save_case(tmp_path / "model", case)
    record = quantize_model(QuantizeJob(trained, "model", "onnx", rows_of(trained), batch_size=5), tmp_path / "out")
    check = record["check"]
    assert check["max_abs"] <= 1e-5 * max(1.0, check["largest_output"])
    assert check["largest_output"] > 0.05
    assert check["agreement"] == (None if case == "regression" else 1.0)
    # Loaded again, from the folder alone, without packed rows: the scores and predictions of other commands use it.
    again = load(tmp_path / "out")
    assert isinstance(again.model.hf, OnnxModel)
    split = rows_of(again)
    first = trained.apply(rows_of(trained), 8, lambda done, total: None).outputs
    second = again.apply(split, 3, lambda done, total: None).outputs
    np.testing.assert_allclose(first, second, atol=1e-4, rtol=1e-5)


def test_int8_file_is_smaller_and_loads_in_onnxruntime(tmp_path: Path):
    trained = save_case(tmp_path / "model", "classification")
    rows = rows_of(trained)
    record = quantize_model(QuantizeJob(trained, "model", "int8", rows), tmp_path / "out")
    weights = {entry.name: entry for entry in onnx.load(tmp_path / "out" / "model.onnx").graph.initializer}
    integers = [
        entry for entry in weights.values() if entry.data_type == onnx.TensorProto.INT8 and len(entry.dims) == 2
    ]
    # 2 layers with 6 linear layers each; the pooler and the classifier are Gemm or MatMul; and embeddings.
    assert len(integers) >= 12
    assert all(np.abs(onnx.numpy_helper.to_array(entry)).max() <= 64 for entry in integers)  # 7 bits
    check = record["check"]
    assert 0 < check["max_abs"] < 0.25 * check["largest_output"]
    assert check["agreement"] >= 0.9
    session = onnxruntime.InferenceSession(tmp_path / "out" / "model.onnx", providers=["CPUExecutionProvider"])
    inputs = trained.tokenizer(TEXTS[:2], padding=True, return_tensors="np")
    (logits,) = session.run(None, {entry.name: inputs[entry.name] for entry in session.get_inputs()})
    assert logits.shape == (2, 3)
    saved = json.loads((tmp_path / "out" / "quantized.json").read_text())
    assert saved == record


def test_bf16_folder_loads_in_transformers(tmp_path: Path):
    trained = save_case(tmp_path / "model", "classification")
    before = {name: value.clone() for name, value in trained.model.hf.state_dict().items()}
    record = quantize_model(QuantizeJob(trained, "model", "bf16", rows_of(trained)), tmp_path / "out")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    assert model.dtype == torch.bfloat16
    assert model.config.id2label == {0: "low", 1: "middle", 2: "high"}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name].to(torch.bfloat16) if before[name].is_floating_point() else before[name])
    # 2 bytes instead of 4 for each weight, and a header with the names.
    assert record["size"]["share"] == pytest.approx(0.5, abs=0.1)
    assert 0 < record["check"]["max_abs"] < 0.05 * record["check"]["largest_output"]
    load(tmp_path / "out")  # the hashes of its files are right


def test_difference_of_outputs_and_decisions():
    original = ModelOutputs((np.asarray([[1.0, -2.0]]), np.asarray([[0.5, 0.0]])), ("a", "b"))
    smaller = ModelOutputs((np.asarray([[1.5, -2.0]]), np.asarray([[0.5, 0.25]])), ("a", "a"))
    found = compare(original, smaller, 2)
    assert (found.max_abs, found.mean_abs, found.largest_output, found.agreement) == (0.5, 0.1875, 2.0, 0.5)


def test_export_that_differs_is_refused_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained = save_case(tmp_path / "model", "classification")
    forward = quantize._Exported.forward

    def wrong(self: Any, *inputs: Any) -> Any:
        return tuple(output * 1.01 for output in forward(self, *inputs))

    monkeypatch.setattr(quantize._Exported, "forward", wrong)
    with raises_code("quantize.export", architecture="BertForSequenceClassification"):
        quantize_model(QuantizeJob(trained, "model", "int8", rows_of(trained)), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if path.name not in ("model", "cache")] == []


def test_failed_export_names_the_architecture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained = save_case(tmp_path / "model", "classification")
    monkeypatch.setattr(torch.onnx, "export", lambda *_, **__: 1 / 0)
    with raises_code("quantize.export", architecture="BertForSequenceClassification"):
        quantize_model(QuantizeJob(trained, "model", "onnx", rows_of(trained)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_outputs_that_are_not_numbers_are_refused(tmp_path: Path):
    trained = save_case(tmp_path / "model", "classification")
    trained.model.hf.classifier.bias.data[1] = torch.inf
    with raises_code("quantize.export", form="bf16"):
        quantize_model(QuantizeJob(trained, "model", "bf16", rows_of(trained)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_onnx_file_cannot_be_quantized_again_explained_or_moved_to_a_gpu(tmp_path: Path):
    from paratune.explain.explain import require_explainable

    trained = save_case(tmp_path / "model", "classification")
    quantize_model(QuantizeJob(trained, "model", "onnx", rows_of(trained)), tmp_path / "out")
    again = load(tmp_path / "out")
    with raises_code("model.is_onnx"):
        require_quantizable(again, "out", "int8")
    with raises_code("model.is_onnx"):
        require_explainable(again, "out")
    with raises_code("device.conflict", option="--device"):
        load_trained(str(tmp_path / "out"), NamedColumns(), "cuda")
    (tmp_path / "out" / "model.onnx").write_bytes(b"damaged")
    with raises_code("model.changed"):
        load(tmp_path / "out")


def test_a_full_disk_during_the_export_is_not_a_problem_of_the_architecture(tmp_path: Path, monkeypatch: Any):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.onnx, "export", fail)
    trained = save_case(tmp_path / "model", "classification")
    with raises_code("output.not_writable", folder=tmp_path / "out"):
        quantize_model(QuantizeJob(trained, "model", "onnx", rows_of(trained)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
