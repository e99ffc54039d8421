"""LoRA by PEFT: the same losses as PEFT's own loop, packed as padded, saved merged and as an adapter."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from raised import raises_code
from tiny import tiny_config, tiny_masked_lm, tiny_model, tiny_tokenizer
from tiny_data import tiny_collator
from transformers import BertForSequenceClassification

from paratune.config.sections import LoraOptions, ModelOptions, Train
from paratune.data.loader import PackedCollator
from paratune.engine.optim import OptimizerFactory
from paratune.models.adapters import add_adapter, is_adapter_weight
from paratune.models.load import Head, load_model
from paratune.models.packed import enable_packed_batches
from paratune.models.save import save_model
from paratune.models.task_model import TaskModel, find_blocks
from paratune.precision import POLICIES

peft = pytest.importorskip("peft")
HEAD = Head("AutoModelForSequenceClassification", num_outputs=3)
WITH_PEFT_MODEL = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
"""PEFT's own model reads an attribute that transformers has renamed."""
LORA = LoraOptions(kind="lora", rank=4, alpha=8.0)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """Return the folder of a tiny model whose head is for another number of classes."""
    torch.manual_seed(3)
    folder = tmp_path / "base"
    tiny_model(num_labels=5, dropout=0.0).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def load(folder: Path, adapter: LoraOptions | None = None, **options: bool) -> TaskModel:
    model = ModelOptions(name=str(folder), adapter=adapter)
    return load_model(model, "classification", HEAD, tiny_tokenizer(), POLICIES["fp64"], seed=7, **options)


def train(model: TaskModel, num_steps: int = 3) -> list[float]:
    """Take steps on the same batches with AdamW at a constant rate; return the losses."""
    train = Train(learning_rate=0.01, schedule="constant", weight_decay=0.1)
    factory = OptimizerFactory(train, num_steps)
    optimizer = factory([(name, p) for name, p in model.named_parameters()])
    collator, losses = tiny_collator(12, num_classes=3), []
    model.train()
    for step in range(num_steps):
        batch = collator(np.arange(4 * step, 4 * step + 4), 4)
        loss = model.loss_sum(model(batch), batch) / 4
        loss.backward()
        factory.set_learning_rate(step)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    return losses


def outputs(model: TaskModel) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(tiny_collator(6, num_classes=3)(np.arange(6), 6))


def tensors(model: TaskModel) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def save(folder: Path, model: TaskModel, base: Path | None) -> None:
    task = {} if base is None else {"base_model": str(base)}
    base_model = None if base is None else str(base)
    save_model(folder, model, tiny_tokenizer(), tensors(model), task, adapter_base_model=base_model)


@WITH_PEFT_MODEL
def test_losses_are_those_of_a_loop_with_peft(base: Path):
    ours = load(base, LORA)
    assert {name for name, p in ours.hf.named_parameters() if p.requires_grad and not is_adapter_weight(name)} == {
        "classifier.weight",
        "classifier.bias",
    }
    hf = BertForSequenceClassification.from_pretrained(
        base, num_labels=3, ignore_mismatched_sizes=True, dtype=torch.float64
    )
    config = peft.LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8.0)
    theirs = peft.get_peft_model(hf, config, autocast_adapter_dtype=False)
    initial = {name: p.detach() for name, p in ours.hf.named_parameters()}
    with torch.no_grad():  # the same new head and the same first matrices
        for name, parameter in theirs.named_parameters():
            own = name.removeprefix("base_model.model.").replace("modules_to_save.default.", "")
            parameter.copy_(initial[own.replace("original_module.", "")])
    optimizer = torch.optim.AdamW(
        [
            {"params": [p for p in theirs.parameters() if p.requires_grad and p.ndim > 1], "weight_decay": 0.1},
            {"params": [p for p in theirs.parameters() if p.requires_grad and p.ndim == 1], "weight_decay": 0.0},
        ],
        lr=0.01,
    )
    collator, expected = tiny_collator(12, num_classes=3), []
    for step in range(3):
        batch = collator(np.arange(4 * step, 4 * step + 4), 4)
        logits = theirs(batch.input_ids, batch.attention_mask, batch.token_type_ids).logits
        loss = torch.nn.functional.cross_entropy(logits, batch.labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        expected.append(float(loss.detach()))
    losses = train(ours)
    assert losses == pytest.approx(expected, rel=1e-9)
    assert losses[0] != losses[1]


@WITH_PEFT_MODEL
@pytest.mark.parametrize(
    "options",
    [
        {"target_modules": "all-linear"},
        *(pytest.param(options, marks=pytest.mark.slow) for options in ({}, {"rslora": True}, {"dora": True})),
    ],
    ids=str,
)
def test_merged_and_adapter_folders_predict_as_the_trained_model(base: Path, tmp_path: Path, options):
    model = load(base, LORA.model_copy(update=options))
    train(model)
    expected = outputs(model)
    save(tmp_path / "merged", model, None)
    save(tmp_path / "adapter", model, base)
    for folder in ("merged", "adapter"):
        loaded = load(tmp_path / folder, head_must_exist=True)
        assert not any(is_adapter_weight(name) for name, _ in loaded.named_parameters())
        # Saved in float32 at least: the folder of the base has its dtype.
        torch.testing.assert_close(outputs(loaded), expected, rtol=1e-5, atol=1e-6)
    plain = BertForSequenceClassification.from_pretrained(tmp_path / "merged")
    assert plain.config.num_labels == 3
    hf = BertForSequenceClassification.from_pretrained(base, num_labels=3, ignore_mismatched_sizes=True)
    theirs = peft.PeftModel.from_pretrained(hf, tmp_path / "adapter").double().eval()
    batch = tiny_collator(6, num_classes=3)(np.arange(6), 6)
    with torch.no_grad():
        logits = theirs(batch.input_ids, batch.attention_mask, batch.token_type_ids).logits
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    assert not (tmp_path / "adapter" / "model.safetensors").exists()


def test_packed_rows_give_the_same(base: Path):
    padded, packed = load(base, LORA), load(base, LORA)
    enable_packed_batches(packed)
    assert packed.entry is not None
    collator = PackedCollator(tiny_collator(6, num_classes=3))
    train(padded)
    packed.load_state_dict(padded.state_dict())
    with torch.no_grad():
        packed.eval()
        found = packed(collator(np.arange(6), 6))
    torch.testing.assert_close(found, outputs(padded), rtol=1e-9, atol=1e-9)


def test_new_weights_of_the_encoder_are_trained_and_saved(tmp_path: Path):
    torch.manual_seed(1)
    folder = tmp_path / "masked"
    tiny_masked_lm(num_layers=2).save_pretrained(folder)
    tiny_tokenizer(folder)
    model = load(folder, LORA)
    trained = {name for name, p in model.hf.named_parameters() if p.requires_grad}
    assert {"bert.pooler.dense.weight", "bert.pooler.dense.bias", "classifier.weight"} <= trained
    train(model)
    save(tmp_path / "adapter", model, folder)
    loaded = load(tmp_path / "adapter", head_must_exist=True)
    torch.testing.assert_close(outputs(loaded), outputs(model), rtol=1e-5, atol=1e-6)


def test_all_linear_layers_of_the_blocks_have_an_adapter():
    hf = BertForSequenceClassification(tiny_config())
    add_adapter(hf, LORA.model_copy(update={"target_modules": "all-linear"}))
    with_adapter = {name.partition(".lora_A")[0] for name, _ in hf.named_parameters() if ".lora_A" in name}
    assert len(with_adapter) == 6 * len(find_blocks(hf))  # query, key, value, output, and two of the feed-forward part
    assert not any("pooler" in name or "classifier" in name for name in with_adapter)


def test_an_unknown_layer_is_refused():
    hf = BertForSequenceClassification(tiny_config())
    with raises_code("model.adapter", "q_proj", "query", "all-linear", key="model.adapter.target_modules"):
        add_adapter(hf, LORA.model_copy(update={"target_modules": ["q_proj"]}))


def test_an_adapter_for_another_model_is_refused(base: Path, tmp_path: Path):
    model = load(base, LORA)
    save(tmp_path / "adapter", model, base)
    wider = tmp_path / "wider"
    BertForSequenceClassification(tiny_config(num_labels=3, num_layers=1)).save_pretrained(wider)
    tiny_tokenizer(wider)
    record = tmp_path / "adapter" / "paratune.json"
    record.write_text(json.dumps({"base_model": str(wider)}))
    with raises_code("model.adapter", str(tmp_path / "adapter")):
        load(tmp_path / "adapter")


@pytest.mark.parametrize(
    "change",
    [
        {"peft_type": "NO_SUCH"}, {"peft_type": "PROMPT_TUNING"}, {"peft_type": "XLORA"}, {"peft_type": ["LORA"]},
        {"r": "x"}, {"target_modules": 5}, {"target_modules": "(a+)+$"}, {"rank_pattern": 3},
    ],
    ids=str,
)  # fmt: skip
def test_settings_of_a_stranger_end_with_a_code(base: Path, tmp_path: Path, change: dict[str, object]):
    folder = changed_adapter(base, tmp_path, change)
    with raises_code("model.adapter", folder=folder):
        load(folder, head_must_exist=True)


@pytest.mark.parametrize("name", ["megatron.core", "stranger"])
def test_no_module_that_an_adapter_names_is_imported(base: Path, tmp_path: Path, monkeypatch, name: str):
    """PEFT imports `megatron_core`, and older versions any module."""
    for module in ("megatron", "stranger"):
        (tmp_path / f"{module}.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = changed_adapter(base, tmp_path, {"megatron_config": {"a": 1}, "megatron_core": name})
    with raises_code("model.adapter", folder=folder):
        load(folder, head_must_exist=True)
    assert not (tmp_path / "ran").exists()


def changed_adapter(base: Path, tmp_path: Path, change: dict[str, object]) -> Path:
    folder = tmp_path / "adapter"
    save(folder, load(base, LORA), base)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    (folder / "paratune.json").unlink(missing_ok=True)
    return folder
