"""Models that are stored in 16 bits: the same bits as when they are loaded in float32, in less memory."""

import json
import shutil
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from architectures import CONFIGS
from raised import raises_code
from tiny import VOCABULARY, tiny_config, tiny_model, tiny_tokenizer
from tiny_data import tiny_collator
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForSequenceClassification,
    GemmaConfig,
)
from transformers.models.bert.modeling_bert import BertEmbeddings

from paratune import hub
from paratune.batch.packing import pack
from paratune.config.sections import LoraOptions, ModelOptions, Train
from paratune.config.traits import TRAITS
from paratune.engine.optim import OptimizerFactory
from paratune.models.load import Head, kept_dtype, load_model
from paratune.models.packed import enable_packed_batches
from paratune.models.stored import draw_in_float32, few_blocks, stored_dtype
from paratune.models.task_model import TaskModel, find_blocks, weights_fingerprint
from paratune.precision import POLICIES
from paratune.processes.place import Place
from paratune.strategies import strategy_class
from paratune.strategies.process_group import close_process_group, open_process_group
from paratune.strategies.single import SingleStrategy
from paratune.strategies.whole import training_dtypes

HEAD = Head("AutoModelForSequenceClassification", num_outputs=3)
LORA = LoraOptions(kind="lora", rank=4, alpha=8.0)
CPU = torch.device("cpu")


def stored(folder: Path, dtype: torch.dtype) -> Path:
    torch.manual_seed(3)
    tiny_model(num_labels=5, dropout=0.0).to(dtype).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def load(folder: Path | str, precision: str = "fp32", adapter: LoraOptions | None = None, **options: bool) -> TaskModel:
    model = ModelOptions(name=str(folder), adapter=adapter)
    return load_model(model, "classification", HEAD, tiny_tokenizer(), POLICIES[precision], seed=7, **options)


@pytest.mark.parametrize(
    ("dtype", "expected"), [(torch.float32, None), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16)]
)
def test_the_dtype_is_that_of_all_weights(tmp_path: Path, dtype: torch.dtype, expected: torch.dtype | None):
    assert stored_dtype(str(stored(tmp_path, dtype))) == expected
    assert stored_dtype("some/name-on-the-hub") is None


def test_a_plan_knows_the_dtype_of_a_folder_without_weights(tmp_path: Path):
    tiny_config().save_pretrained(tmp_path)
    named, config = ModelOptions(name=str(tmp_path)), BertConfig(dtype="bfloat16")
    assert kept_dtype(named, config) == torch.bfloat16
    assert [kept_dtype(named, other) for other in (None, tiny_config())] == [None, None]
    assert kept_dtype(ModelOptions(name="some/name-on-the-hub"), config) is None, "it is loaded in float32"
    dora = LoraOptions(kind="lora", dora=True)
    for options in ({"resize_vocabulary": True}, {"adapter": dora}, {"from_scratch": True}):
        assert kept_dtype(named.model_copy(update=options), config) is None
    stored(tmp_path, torch.float32)
    assert kept_dtype(named, config) is None, "the weights decide"


@pytest.fixture
def snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of some/model, in bf16, in the cache of the hub, which cannot be reached."""
    # The layout of huggingface_hub: refs/main names the commit, snapshots/COMMIT has its files.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub, "unreachable_reason", lambda: "this test has no network")
    cached = tmp_path / "models--some--model"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("a" * 40)
    return stored(cached / "snapshots" / ("a" * 40), torch.bfloat16)


def test_a_rank_that_downloads_a_model_has_the_dtypes_of_one_that_finds_it(
    snapshot: Path, monkeypatch: pytest.MonkeyPatch
):
    there, elsewhere = snapshot / "model.safetensors", snapshot.parent / "model.safetensors"
    there.rename(elsewhere)
    load_file = AutoModelForSequenceClassification.from_pretrained

    def download(*given: Any, **options: Any) -> Any:
        if elsewhere.exists():
            elsewhere.rename(there)
        return load_file(*given, **options)

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", download)
    assert kept_dtype(ModelOptions(name="some/model")) is None
    first, later = (load("some/model", keeps_stored=True) for _ in range(2))
    assert [weight.dtype for weight in first.parameters()] == [weight.dtype for weight in later.parameters()]
    assert torch.bfloat16 in {weight.dtype for weight in first.parameters()}
    assert weights_fingerprint(first) == weights_fingerprint(later)


def test_a_model_in_the_cache_of_the_hub_is_loaded_as_a_folder(snapshot: Path):
    named = ModelOptions(name="some/model")
    assert kept_dtype(named) == torch.bfloat16
    assert kept_dtype(named.model_copy(update={"revision": "another"})) is None
    assert kept_dtype(ModelOptions(name="some/other")) is None
    plain, kept = load("some/model"), load("some/model", keeps_stored=True)
    assert {weight.dtype for block in find_blocks(kept) for weight in block.parameters()} == {torch.bfloat16}
    assert weights_fingerprint(plain) == weights_fingerprint(kept)
    # A model in parts, of which one is not there yet: its dtype is unknown.
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (snapshot / "model.safetensors").rename(snapshot / "model-1.safetensors")
    (snapshot / "model.safetensors.index.json").write_text(json.dumps(index))
    assert kept_dtype(named) is None
    shutil.copy(snapshot / "model-1.safetensors", snapshot / "model-2.safetensors")
    assert kept_dtype(named) == torch.bfloat16


def test_weights_of_two_dtypes_are_loaded_in_float32(tmp_path: Path):
    model = tiny_model().to(torch.bfloat16)
    model.bert.embeddings.float()
    model.save_pretrained(tmp_path)
    assert stored_dtype(str(tmp_path)) is None


@pytest.mark.parametrize("content", [b"version https://git-lfs.github.com/spec/v1", b"", b"\x02\0\0\0\0\0\0\0{"])
def test_a_file_that_is_no_safetensors_is_an_error(tmp_path: Path, content: bytes):
    (stored(tmp_path, torch.bfloat16) / "model.safetensors").write_bytes(content)
    with raises_code("model.cannot_load", source=str(tmp_path)):
        load(tmp_path, keeps_stored=True)


def test_a_model_that_computes_numbers_in_its_dtype_is_loaded_in_float32(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make = BertEmbeddings.__init__

    def make_with_slopes(self: BertEmbeddings, config: BertConfig) -> None:
        make(self, config)
        self.register_buffer("slopes", torch.full((2,), 0.1), persistent=False)

    stored(tmp_path, torch.bfloat16)
    monkeypatch.setattr(BertEmbeddings, "__init__", make_with_slopes)
    plain, kept = load(tmp_path), load(tmp_path, keeps_stored=True)
    assert {tensor.dtype for tensor in kept.parameters()} == {torch.float32}
    assert kept.hf.bert.embeddings.slopes.dtype == torch.float32
    assert weights_fingerprint(plain) == weights_fingerprint(kept)


def test_numbers_that_a_model_computes_in_its_dtype_are_computed_again_in_float32(tmp_path: Path):
    # Gemma multiplies embeddings by the root of its width, here of 40: in bf16 it is 6.3125.
    sizes = {"hidden_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = GemmaConfig(**sizes, head_dim=16, intermediate_size=64, vocab_size=len(VOCABULARY), pad_token_id=0)
    AutoModel.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    tiny_tokenizer(tmp_path)
    plain, kept = load(tmp_path), load(tmp_path, keeps_stored=True)
    assert {weight.dtype for block in find_blocks(kept) for weight in block.parameters()} == {torch.bfloat16}
    scales = [model.hf.get_buffer("model.embed_tokens.embed_scale") for model in (plain, kept)]
    assert scales[1].dtype == torch.float32
    assert float(scales[1]) == float(scales[0]) == pytest.approx(40**0.5, rel=1e-7)
    assert weights_fingerprint(plain) == weights_fingerprint(kept)


def test_a_buffer_that_the_file_lacks_is_not_drawn():
    model = BertForSequenceClassification(tiny_config()).bfloat16()
    before = weights_fingerprint(model)
    draw_in_float32(model, ["bert.embeddings.position_ids"], seed=1)
    assert weights_fingerprint(model) == before


@pytest.mark.parametrize("name", CONFIGS)
def test_new_weights_have_the_bits_of_a_model_that_is_loaded_in_float32(tmp_path: Path, name: str):
    config = CONFIGS[name]()
    torch.manual_seed(2)
    AutoModel.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    tiny_tokenizer(tmp_path)
    plain, kept = load(tmp_path), load(tmp_path, keeps_stored=True)
    expected, weights = dict(plain.named_parameters()), dict(kept.named_parameters())
    assert len(kept.new_weights) >= 1
    assert {weight.dtype for key, weight in weights.items() if key[3:] in kept.new_weights} == {torch.float32}
    assert {weight.dtype for key, weight in weights.items() if key[3:] not in kept.new_weights} == {torch.bfloat16}
    assert expected.keys() == weights.keys()
    assert [key for key in weights if not torch.equal(weights[key].float(), expected[key])] == []
    assert weights_fingerprint(plain) == weights_fingerprint(kept)


def test_an_adapter_has_the_bits_of_one_in_a_model_that_is_loaded_in_float32(tmp_path: Path):
    pytest.importorskip("peft")
    plain = load(stored(tmp_path, torch.bfloat16), adapter=LORA)
    kept = load(tmp_path, adapter=LORA, keeps_stored=True)
    weights = dict(kept.named_parameters())
    assert [key for key, weight in plain.named_parameters() if not torch.equal(weights[key].float(), weight)] == []
    assert {key for key, weight in weights.items() if weight.dtype == torch.float32} == {
        key for key, weight in plain.named_parameters() if weight.requires_grad
    }


def losses(model: TaskModel, *, holds: bool) -> list[float]:
    strategy = SingleStrategy(device=CPU, precision=POLICIES["bf16"], rank=0, world_size=1)
    strategy.traits = replace(TRAITS["single"], holds_16_bits=holds)
    return losses_with(strategy, model)


def losses_with(strategy: Any, model: TaskModel) -> list[float]:
    factory = OptimizerFactory(Train(learning_rate=0.01, schedule="constant"), 3)
    strategy.prepare(model, find_blocks(model), factory)
    collator, found = tiny_collator(12, num_classes=3), []
    for step in range(3):
        batch = collator(np.arange(4 * step, 4 * step + 4), 4)
        found.append(float(strategy.forward_backward([batch], lambda phase: nullcontext())))
        factory.set_learning_rate(step)
        strategy.optimizer_step(1.0)
    return found


@pytest.mark.parametrize("adapter", [LORA, None], ids=["lora", "frozen encoder"])
def test_frozen_layers_in_16_bits_change_no_bit(tmp_path: Path, adapter: LoraOptions | None):
    if adapter is not None:
        pytest.importorskip("peft")
    found = []
    for holds in (True, False):
        model = load(stored(tmp_path, torch.bfloat16), "bf16", adapter, keeps_stored=True)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(parameter.requires_grad and (adapter is not None or ".bert." not in name))
        found.append(losses(model, holds=holds))
        layer = model.hf.bert.encoder.layer[0].attention.output
        assert (layer.dense.weight.dtype, layer.LayerNorm.weight.dtype) == (
            torch.bfloat16 if holds else torch.float32,
            torch.float32,
        )
    assert found[0] == found[1]
    assert found[0][2] != found[0][0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_a_base_that_is_not_saved_is_held_in_the_dtype_of_autocast(tmp_path: Path, dtype: torch.dtype):
    pytest.importorskip("peft")
    adapter = LORA.model_copy(update={"save": "adapter"})
    assert ModelOptions(name="m", adapter=adapter).may_round_base
    found = []
    for rounds in (True, False):
        model = load(stored(tmp_path, dtype), "bf16", adapter, keeps_stored=True)
        precision = replace(POLICIES["bf16"], rounds_base=rounds)
        found.append(losses_with(SingleStrategy(device=CPU, precision=precision, rank=0, world_size=1), model))
        layer = model.hf.bert.encoder.layer[0].attention.output
        assert layer.dense.weight.dtype == (torch.bfloat16 if rounds else torch.float32)
        assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
    assert found[0] == found[1]
    assert found[0][2] != found[0][0]


def test_a_base_that_is_saved_or_computed_with_is_not_rounded():
    adapter = LORA.model_copy(update={"save": "adapter"})
    named = ModelOptions(name="m", adapter=adapter)
    others = ({"adapter": LORA}, {"adapter": None}, {"trust_remote_code": True})
    assert [named.model_copy(update=other).may_round_base for other in others] == [False] * 3
    assert not named.model_copy(update={"adapter": adapter.model_copy(update={"dora": True})}).may_round_base


def test_only_frozen_weights_of_linear_layers_stay_in_16_bits():
    model = torch.nn.ModuleDict(
        {"words": torch.nn.Embedding(4, 8), "out": torch.nn.Linear(8, 4), "norm": torch.nn.LayerNorm(8)}
    )
    model["other"] = torch.nn.Linear(8, 4)
    model["out"].weight = model["words"].weight  # a tied weight is also read without autocast
    model.bfloat16().requires_grad_(False)
    model["other"].bias.requires_grad_(True)
    names = {id(tensor): name for name, tensor in model.named_parameters()}

    def held(policy: str, kind: str) -> set[str]:
        dtypes = training_dtypes(model, POLICIES[policy], TRAITS[kind])
        return {names[id(tensor)] for tensor, dtype in dtypes if dtype == torch.bfloat16}

    assert held("bf16", "ddp") == {"out.bias", "other.weight"}
    assert held("bf16", "deepspeed") == held("fp32", "ddp") == held("fp16", "ddp") == set()


def test_a_test_of_kernels_has_the_first_blocks_and_the_last_one():
    model = BertForSequenceClassification(tiny_config(num_layers=7)).bfloat16()
    blocks, before = find_blocks(model), weights_fingerprint(model)
    with few_blocks(model, torch.float32):
        assert find_blocks(model) == [*blocks[:3], blocks[6]]
        assert model(torch.tensor([[1, 2]])).logits.dtype == torch.float32
    assert find_blocks(model) == blocks
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    assert weights_fingerprint(model) == before


def test_all_blocks_read_packed_rows_after_a_test_of_a_few(tmp_path: Path):
    config = CONFIGS["deberta-v2"]()
    config.num_hidden_layers = 6
    AutoModel.from_config(config).to(torch.bfloat16).save_pretrained(tmp_path)
    model = load(tmp_path, keeps_stored=True)
    enable_packed_batches(model, trial=few_blocks(model.hf, torch.float32))
    assert model.entry is not None
    model.float().eval()
    padded = tiny_collator(5, num_classes=3)(np.arange(5), 5)
    with torch.no_grad():
        torch.testing.assert_close(model(pack(padded)), model(padded), rtol=1e-4, atol=1e-5)


KINDS: dict[str, dict[str, int]] = {
    "single": {},
    "ddp": {},
    "zero1": {},
    "zero2": {},
    "zero3": {},
    "deepspeed": {"stage": 3},
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_trains_a_stored_model_as_one_that_is_loaded_in_float32(tmp_path: Path, kind: str):
    if kind == "deepspeed":
        pytest.importorskip("deepspeed")
    stored(tmp_path, torch.bfloat16)
    found = []
    open_process_group(Place(0, 0, 1), CPU)
    try:
        for keeps in (True, False):
            strategy = strategy_class(kind)(device=CPU, precision=POLICIES["fp32"], rank=0, world_size=1, **KINDS[kind])
            found.append(losses_with(strategy, load(tmp_path, keeps_stored=keeps)))
            strategy.close()
    finally:
        close_process_group()
    assert found[0] == found[1]
    assert len(set(found[0])) == 3
