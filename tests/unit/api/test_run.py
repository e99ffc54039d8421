"""Models and tokenizers that a run hands out are those of transformers, for any use."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from architectures import CONFIGS, HEADS, model_of
from tiny import tiny_tokenizer

import paratune
from paratune.config.sections import LoraOptions, ModelOptions
from paratune.models import linear
from paratune.models.load import Head, load_model
from paratune.models.save import save_model
from paratune.precision import POLICIES
from paratune.records import RUN_FILE
from paratune.records.own import TASK_FILE

TASKS: dict[str, dict[str, Any]] = {
    "classification": {"kind": "classification", "labels": {"0": "no", "1": "yes"}},
    "mlm": {"kind": "mlm"},
    "qa": {"kind": "qa", "stride": 4, "unanswerable": False},
}
COLUMNS = {"qa": {"text": "question", "text_pair": "context", "label": "answers"}, "mlm": {"text": "text"}}
MODELS = [
    *(("bert", kind) for kind in TASKS),
    *((name, "classification") for name in ("deberta-v3", "modernbert", "roberta", "distilbert", "electra")),
    ("deberta-v3", "mlm"),
    ("modernbert", "qa"),
]
TEXTS = ["the film is good", "it was really awful, and the story never"]


def save_run(folder: Path, name: str, kind: str) -> paratune.Run:
    """Save an untrained model as that of a run with packed batches."""
    config = CONFIGS[name]()
    config.pad_token_id = 0  # a run saves that of its tokenizer
    model_of(config, kind).hf.save_pretrained(folder / "model")
    tiny_tokenizer(folder / "model")
    return as_run(folder, kind)


def as_run(folder: Path, kind: str, **more: str) -> paratune.Run:
    columns = COLUMNS.get(kind, {"text": "text", "label": "label"})
    record = {"task": TASKS[kind], "columns": columns, "layout": "packed", "max_length": 32, **more}
    (folder / "model" / TASK_FILE).write_text(json.dumps(record))
    (folder / RUN_FILE).write_text("{}")
    return paratune.Run(folder)


def modules_of(model: torch.nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return the class, the own attributes and the hooks of each module by name."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks")
    return {
        name: (type(module), set(vars(module)), module.training, *(len(getattr(module, hook)) for hook in hooks))
        for name, module in model.named_modules()
    }


def inputs_of(run: paratune.Run, kind: str) -> Any:
    texts = TEXTS if kind != "qa" else [["is it", "fine"], TEXTS]
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.folder / "model")
    inputs = tokenizer(*(texts if kind == "qa" else [texts]), padding=True, return_tensors="pt")
    inputs.pop("token_type_ids", None)
    return inputs


@pytest.fixture(autouse=True)
def _on_an_amd_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where linear layers are replaced in a model that is applied."""
    monkeypatch.setattr(linear, "is_onednn_faster", lambda: True)


@pytest.mark.parametrize(("name", "kind"), MODELS)
def test_a_model_is_that_of_transformers(tmp_path: Path, name: str, kind: str):
    run = save_run(tmp_path / "run", name, kind)
    model = run.load_model("cpu")
    expected = HEADS[kind].from_pretrained(tmp_path / "run" / "model")
    assert modules_of(model) == modules_of(expected)
    assert model.config._attn_implementation == expected.config._attn_implementation
    assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in expected.parameters()]

    inputs = inputs_of(run, kind)
    outputs = model(**inputs)[0]
    assert torch.equal(outputs, expected(**inputs)[0])
    with torch.inference_mode():
        assert torch.equal(model(**inputs)[0], outputs)
    assert torch.equal(copy.deepcopy(model)(**inputs)[0], outputs)
    model.train()(**inputs)[0].square().sum().backward()
    expected.eval()(**inputs)[0].square().sum().backward()
    given = [name for name, p in expected.named_parameters() if p.grad is not None]
    assert given == [name for name, p in model.named_parameters() if p.grad is not None]
    assert model.eval().to(torch.float64)(**inputs)[0].dtype == torch.float64
    model.to(torch.float32).save_pretrained(tmp_path / "again")
    before, after = ((tmp_path / folder / "model.safetensors").read_bytes() for folder in ("run/model", "again"))
    assert before == after


@pytest.mark.parametrize("name", ["bert", "deberta-v3", "modernbert"])
def test_its_outputs_are_those_of_predict(tmp_path: Path, name: str):
    run = save_run(tmp_path / "run", name, "classification")
    predicted = paratune.predict(run, TEXTS, device="cpu")
    with torch.no_grad():
        shares = run.load_model("cpu")(**inputs_of(run, "classification")).logits.softmax(-1)
    for number, column in enumerate(("score_no", "score_yes")):
        assert predicted[column].to_pylist() == pytest.approx(shares[:, number].tolist(), abs=1e-6)


def test_a_model_with_an_adapter_is_plain_and_not_frozen(tmp_path: Path):
    pytest.importorskip("peft")
    base = tmp_path / "base"
    model_of(CONFIGS["bert"](), "classification").hf.save_pretrained(base)
    tokenizer = tiny_tokenizer(base)
    options = ModelOptions(name=str(base), adapter=LoraOptions(kind="lora", rank=2, alpha=4.0))
    head = Head("AutoModelForSequenceClassification", num_outputs=2)
    trained = load_model(options, "classification", head, tokenizer, POLICIES["fp32"], seed=1)
    weights = {name: p.detach().clone() for name, p in trained.named_parameters()}
    folder = tmp_path / "run"
    save_model(folder / "model", trained, tokenizer, weights, {"base_model": str(base)}, adapter_base_model=str(base))
    model = as_run(folder, "classification", base_model=str(base)).load_model("cpu")
    expected = HEADS["classification"].from_pretrained(base)
    assert modules_of(model) == modules_of(expected)
    assert all(p.requires_grad for p in model.parameters())
    model.save_pretrained(tmp_path / "again")
    assert (tmp_path / "again" / "model.safetensors").is_file()
