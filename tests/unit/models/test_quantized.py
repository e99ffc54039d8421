"""Frozen layers in few bits: values of the QLoRA paper, bits of bitsandbytes' own layer, memory, and saved models."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import CONFIGS
from raised import raises_code
from tiny import tiny_config, tiny_masked_lm, tiny_model, tiny_tokenizer
from tiny_data import tiny_collator
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig, BertForSequenceClassification

from paratune import checkpoint
from paratune.batch.packing import pack
from paratune.config.sections import BaseKind, LoraOptions, ModelOptions, Train
from paratune.config.traits import TRAITS
from paratune.engine.optim import OptimizerFactory
from paratune.models.adapters import add_adapter
from paratune.models.blocks import checkpoint_blocks
from paratune.models.flops import copy_on_meta_device, count_work
from paratune.models.linear import OneDnnLinear, use_onednn
from paratune.models.load import QUANTIZED_BASE, Head, load_model
from paratune.models.packed import enable_packed_batches
from paratune.models.quantized import QuantizedLinear, dequantize, plain_weights, quantize, quantize_base, round_base
from paratune.models.save import save_model
from paratune.models.stored import few_blocks
from paratune.models.task_model import TaskModel, count_parameters, find_blocks, weights_fingerprint
from paratune.planning.trace import Trace
from paratune.precision import POLICIES
from paratune.strategies.single import SingleStrategy
from paratune.strategies.whole import training_dtypes

bitsandbytes = pytest.importorskip("bitsandbytes")
pytest.importorskip("peft")

NF4 = [
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
]
"""Dettmers et al., QLoRA, NeurIPS 2023 (arXiv 2305.14314), appendix E."""
KINDS: list[BaseKind] = ["nf4", "int8"]
LORA = LoraOptions(kind="lora", rank=4, alpha=8.0)
HEAD = Head("AutoModelForSequenceClassification", num_outputs=3)
both = pytest.mark.parametrize("kind", KINDS)


def expected_values(weight: torch.Tensor, kind: BaseKind) -> torch.Tensor:
    """Return the rounded values of a weight, written out in float64."""
    if kind == "int8":  # the largest number of a row is 127 steps
        step = weight.double().abs().amax(1, keepdim=True) / 127
        return (weight.double() / step).round() * step
    blocks = [block / block.abs().max() for block in weight.double().flatten().split(64)]
    table = torch.tensor(NF4, dtype=torch.float64)
    nearest = [table[(block[:, None] - table).abs().argmin(1)] for block in blocks]
    sizes = [block.abs().max() for block in weight.double().flatten().split(64)]
    return torch.cat([near * size for near, size in zip(nearest, sizes, strict=True)]).view_as(weight)


@both
@pytest.mark.parametrize("shape", [(8, 64), (70, 96), (3, 10), (1, 2)])
def test_values_are_those_of_the_paper_in_any_shape(kind: BaseKind, shape: tuple[int, int]):
    torch.manual_seed(0)
    weight = torch.randn(shape)
    values = dequantize(*quantize(weight, kind), kind, torch.float64)
    assert values.dtype == torch.float64
    torch.testing.assert_close(values, expected_values(weight, kind), rtol=1e-6, atol=1e-7)


@both
def test_a_weight_that_is_quantized_in_parts_has_the_values_of_a_whole_one(
    kind: BaseKind, monkeypatch: pytest.MonkeyPatch
):
    torch.manual_seed(0)
    weight = torch.randn(200, 48).bfloat16()
    whole = quantize(weight, kind)
    monkeypatch.setattr("paratune.models.quantized._PART", 100)
    assert all(torch.equal(part, one) for part, one in zip(quantize(weight, kind), whole, strict=True))


@both
def test_a_row_of_zeros_stays_zero(kind: BaseKind):
    weight = torch.zeros(4, 64)
    weight[1, 3] = 2.0
    assert torch.equal(dequantize(*quantize(weight, kind), kind, torch.float32), weight)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_layer_computes_as_that_of_bitsandbytes(kind: BaseKind, dtype: torch.dtype):
    torch.manual_seed(0)  # rows of whole blocks: those of bitsandbytes 0.50 are wrong in others with AVX-512
    plain = nn.Linear(128, 70)
    plain.weight.data = plain.weight.data.half().float()  # bitsandbytes rounds to float16 before int8
    theirs: Any
    if kind == "nf4":
        theirs = bitsandbytes.nn.Linear4bit(128, 70, compress_statistics=False, quant_type="nf4")
    else:
        theirs = bitsandbytes.nn.Linear8bitLt(128, 70, has_fp16_weights=False)
    theirs.load_state_dict(plain.state_dict())
    layers, found = (QuantizedLinear(plain, kind), theirs.to("cpu")), []
    given = torch.randn(5, 7, 128).to(dtype)
    for layer in layers:
        x = given.clone().requires_grad_()
        out = layer(x)
        out.backward(torch.ones_like(out))
        found.append((out.detach(), x.grad))
    assert found[0][0].dtype == dtype
    # float16 rounds the largest numbers of rows, too.
    rtol, atol = (0, 0) if kind == "nf4" else (2e-3, 1e-3 if dtype == torch.float32 else 2e-2)
    for ours, other in zip(*found, strict=True):
        torch.testing.assert_close(ours, other, rtol=rtol, atol=atol)


@both
def test_the_gradients_are_those_of_a_layer_with_the_rounded_weight(kind: BaseKind):
    torch.manual_seed(0)
    plain = nn.Linear(16, 6).double()
    layer = QuantizedLinear(plain, kind)
    rounded = nn.Linear(16, 6).double()
    rounded.load_state_dict({"weight": dequantize(layer.weight, layer.scales, kind, torch.float64), "bias": plain.bias})
    given, found = torch.randn(3, 16, dtype=torch.float64), []
    for one in (layer, rounded):
        one.bias.grad, x = None, given.clone().requires_grad_()
        one(x).square().sum().backward()
        found.append((x.grad, one.bias.grad))
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


@both
def test_autocast_decides_the_dtype(kind: BaseKind, monkeypatch: pytest.MonkeyPatch):
    asked: list[torch.dtype] = []

    def noted(codes: torch.Tensor, scales: torch.Tensor, kind: BaseKind, dtype: torch.dtype) -> torch.Tensor:
        asked.append(dtype)
        return dequantize(codes, scales, kind, dtype)

    monkeypatch.setattr("paratune.models.quantized.dequantize", noted)
    layer, x = QuantizedLinear(nn.Linear(8, 4), kind), torch.randn(2, 8, requires_grad=True)
    assert layer(x).dtype == torch.float32
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("cpu", dtype):
            out = layer(x)
        assert out.dtype == dtype
        out.sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == torch.float32
        assert asked[-2:] == [dtype, dtype], "forward and backward"
    layer.double().bfloat16()  # codes and scales are bytes
    assert layer(x.bfloat16()).dtype == torch.bfloat16
    assert torch.equal(layer.scales, QuantizedLinear(nn.Linear(8, 4), kind).scales) is False
    assert {layer.weight.dtype, layer.scales.dtype} <= {torch.uint8, torch.int8}


def quantized(hf: Any, kind: BaseKind) -> Any:
    add_adapter(hf, LORA, seed=1)
    quantize_base(hf, kind)
    return hf


@both
def test_frozen_linear_layers_of_the_blocks_are_quantized_and_nothing_else(kind: BaseKind):
    hf = BertForSequenceClassification(tiny_config(num_layers=2))
    num_parameters, _ = count_parameters(hf)
    layers = {name for name, module in hf.named_modules() if isinstance(module, nn.Linear) and ".layer." in name}
    adapted = {name for name in layers if name.endswith(("query", "value"))}
    quantized(hf, kind)
    found = {name.removesuffix(".base_layer") for name, module in hf.named_modules() if type(module) is QuantizedLinear}
    assert found == layers
    assert len(layers) == 2 * 6
    assert {type(hf.get_submodule(f"{name}.lora_A.default")) for name in adapted} == {nn.Linear}
    assert type(hf.classifier) is type(hf.bert.pooler.dense) is nn.Linear
    assert count_parameters(hf)[0] - num_parameters == 4 * 2 * 4 * tiny_config().hidden_size, "the adapter"


def test_layers_that_train_or_are_read_by_other_code_stay():
    hf = BertForSequenceClassification(tiny_config(num_layers=2))
    with raises_code("config.no_effect", key="model.quantize_base"):
        quantize_base(hf, "nf4")
    for name, parameter in hf.named_parameters():
        parameter.requires_grad_(".layer.1." in name)
    hf._keep_in_fp32_modules = ["output"]  # as wo of T5, whose code casts to the dtype of its weight
    hf.bert.encoder.layer[0].intermediate.dense = nn.Linear(15, 64).requires_grad_(False)  # two codes are a byte
    use_onednn(hf)
    quantize_base(hf, "nf4")
    found = {name for name, module in hf.named_modules() if type(module) is QuantizedLinear}
    assert found == {f"bert.encoder.layer.0.attention.self.{name}" for name in ("query", "key", "value")}
    assert use_onednn(hf) == 0
    assert type(hf.bert.encoder.layer[1].output.dense) in (nn.Linear, OneDnnLinear)


@both
@pytest.mark.parametrize("name", CONFIGS)
def test_every_architecture_trains_with_packed_rows_as_with_padded_ones(kind: BaseKind, name: str):
    torch.manual_seed(0)
    config = CONFIGS[name]()
    config.num_labels = 3
    hf = AutoModelForSequenceClassification.from_config(config)
    add_adapter(hf, LORA)
    model = TaskModel(hf, "classification")
    enable_packed_batches(model, trial=few_blocks(hf, torch.float32))
    assert model.entry is not None, model.why_padded
    plain = hf.state_dict()
    quantize_base(hf, kind)
    rounded = [key for key, value in plain_weights(hf, hf.state_dict()).items() if not torch.equal(value, plain[key])]
    assert len(rounded) >= len(find_blocks(hf))
    model.eval()
    batch, found = tiny_collator(5, num_classes=3)(np.arange(5), 5), []
    for given in (batch, pack(batch)):
        model.zero_grad()
        loss = model.loss_sum(model(given), given)
        loss.backward()
        found.append([loss.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    for ours, expected in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-3, atol=1e-5)


@both
def test_activation_checkpointing_changes_no_bit(kind: BaseKind):
    found = []
    for every in (None, 1):
        torch.manual_seed(0)
        model = TaskModel(quantized(tiny_model(num_labels=3, dropout=0.0, num_layers=2), kind), "classification")
        if every:
            checkpoint_blocks(find_blocks(model), every)
        batch = tiny_collator(5, num_classes=3)(np.arange(5), 5)
        model.train().loss_sum(model(batch), batch).backward()
        found.append([p.grad for p in model.parameters() if p.requires_grad])
    assert all(torch.equal(ours, expected) for ours, expected in zip(*found, strict=True))
    assert any(float(gradient.abs().max()) > 0 for gradient in found[0])


@both
def test_work_is_counted_as_of_a_model_that_is_not_quantized(kind: BaseKind):
    found = []
    for is_quantized in (False, True):
        hf = tiny_model(num_labels=3, num_layers=2)
        add_adapter(hf, LORA)
        if is_quantized:
            quantize_base(hf, kind)
        found.append(count_work(copy_on_meta_device(TaskModel(hf, "classification"))))
    assert found[0] == found[1]
    assert found[0].per_token > 0


def stored(folder: Path, dtype: torch.dtype, config: BertConfig | None = None) -> Path:
    torch.manual_seed(3)
    hf = tiny_model(num_labels=5, dropout=0.0) if config is None else BertForSequenceClassification(config)
    for layer in find_blocks(hf):
        for weight in layer.parameters():
            weight.data *= 3  # rounding changes outputs more
    hf.to(dtype).save_pretrained(folder)
    tiny_tokenizer(folder)
    return folder


def load(folder: Path, adapter: LoraOptions | None = LORA, **options: bool) -> TaskModel:
    model = ModelOptions(name=str(folder), adapter=adapter)
    return load_model(model, "classification", HEAD, tiny_tokenizer(), POLICIES["fp32"], seed=7, **options)


@both
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_start_needs_the_quantized_model_and_a_block(tmp_path: Path, kind: BaseKind, dtype: torch.dtype):
    sizes = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 6}
    stored(tmp_path, dtype, BertConfig(vocab_size=200, max_position_embeddings=64, **sizes))
    model = load(tmp_path, keeps_stored=True)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "model.safetensors" in line]
    spans = [tuple(int(end, 16) for end in line[0].split("-")) for line in maps]
    for block in find_blocks(model.hf):
        places = [weight.data_ptr() for name, weight in block.named_parameters() if ".lora_" not in name]
        assert all(any(begin <= place < end for begin, end in spans) for place in places), "weights are in the file"
    trace = Trace(1)
    with trace, trace.recording():  # counts the weight that is read, too, until it is replaced
        quantize_base(model.hf, kind)
    layers = [module for module in model.modules() if type(module) is QuantizedLinear]
    num_weights = sum(layer.in_features * layer.out_features for layer in layers)
    held = sum(layer.weight.nbytes + layer.scales.nbytes for layer in layers)
    bits, block = 8 * held / num_weights, 4 * num_weights // 6
    rows = 4 * 512 + 512 + 2048  # of the layers of a block
    assert bits == {"nf4": 4 + 32 / 64, "int8": 8 + 32 * rows / (num_weights // 6)}[kind]
    assert held < trace.peak_bytes < held + 2 * block < 4 * num_weights


@both
def test_both_dtypes_of_a_file_have_the_same_codes(tmp_path: Path, kind: BaseKind):
    kept, plain = load(stored(tmp_path, torch.bfloat16), keeps_stored=True), load(tmp_path)
    before = weights_fingerprint(plain)
    assert weights_fingerprint(kept) == before
    for model in (kept, plain):
        quantize_base(model.hf, kind)
    assert weights_fingerprint(kept) == weights_fingerprint(plain) != before
    dtypes = training_dtypes(kept, POLICIES["bf16"], TRAITS["single"])
    assert [dtype for tensor, dtype in dtypes if tensor.dtype in (torch.uint8, torch.int8)] == [
        tensor.dtype for tensor in kept.parameters() if tensor.dtype in (torch.uint8, torch.int8)
    ]


def trained(folder: Path, kind: BaseKind) -> tuple[TaskModel, torch.Tensor]:
    """Return a model with a quantized base whose adapter is not zero, and its outputs."""
    model = load(folder)
    quantize_base(model.hf, kind)
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model, outputs(model)


def outputs(model: TaskModel) -> torch.Tensor:
    model.eval()
    with torch.no_grad():
        return model(tiny_collator(6, num_classes=3)(np.arange(6), 6))


@both
@pytest.mark.parametrize("form", ["merged", "adapter"])
def test_a_saved_model_gives_the_outputs_of_the_trained_one(tmp_path: Path, kind: BaseKind, form: str):
    base = stored(tmp_path / "base", torch.float32)
    model, expected = trained(base, kind)
    tensors = dict(model.state_dict())
    folder, named = tmp_path / form, str(base) if form == "adapter" else None
    task = {"base_model": named, QUANTIZED_BASE: kind} if named else {}
    save_model(folder, model, tiny_tokenizer(), tensors, task, adapter_base_model=named)
    again = load(folder, adapter=None)
    assert not [module for module in again.modules() if type(module) is QuantizedLinear]
    difference = float((outputs(again) - expected).abs().max())
    assert difference < 1e-5
    assert {parameter.dtype for parameter in again.parameters()} == {torch.float32}
    if form == "adapter":  # with the base as it is stored, outputs differ
        save_model(folder, model, tiny_tokenizer(), tensors, {"base_model": named}, adapter_base_model=named)
        assert float((outputs(load(folder, adapter=None)) - expected).abs().max()) > 10 * difference
        task[QUANTIZED_BASE] = "fp3"
        save_model(folder, model, tiny_tokenizer(), tensors, task, adapter_base_model=named)
        with raises_code("model.adapter", folder=folder):
            load(folder, adapter=None)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # read by PEFT
@both
def test_peft_loads_the_adapter_on_a_base_with_the_rounded_weights(tmp_path: Path, kind: BaseKind):
    from peft import PeftModel

    base = stored(tmp_path / "base", torch.float32)
    model, expected = trained(base, kind)
    save_model(tmp_path / "a", model, tiny_tokenizer(), dict(model.state_dict()), {}, adapter_base_model=str(base))
    plain = BertForSequenceClassification.from_pretrained(base, num_labels=3, ignore_mismatched_sizes=True)
    round_base(plain, kind)
    loaded = PeftModel.from_pretrained(plain, str(tmp_path / "a"))
    batch = tiny_collator(6, num_classes=3)(np.arange(6), 6)
    with torch.no_grad():
        found = loaded.eval()(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask, token_type_ids=batch.token_type_ids
        ).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_frozen_encoder_is_saved_plain(tmp_path: Path):
    model = TaskModel(tiny_masked_lm(), "mlm")
    for parameter in model.hf.bert.parameters():
        parameter.requires_grad_(False)
    names = set(model.hf.state_dict())
    quantize_base(model.hf, "nf4")
    save_model(tmp_path / "m", model, tiny_tokenizer(), dict(model.state_dict()), {})
    assert set(type(model.hf).from_pretrained(tmp_path / "m").state_dict()) == names


def test_without_bitsandbytes_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with raises_code("dependency.missing", module="bitsandbytes", extra="gpu"):
        quantize_base(tiny_model(), "nf4")


@both
def test_a_resumed_training_has_the_bits_of_one_that_was_not_stopped(tmp_path: Path, kind: BaseKind):
    found: list[dict[str, torch.Tensor]] = []
    for begin, end in ((0, 4), (0, 2), (2, 4)):
        torch.manual_seed(begin)  # the resumed model has another base, until the checkpoint is loaded
        model = TaskModel(quantized(tiny_model(num_labels=3, dropout=0.0, num_layers=2), kind), "classification")
        strategy = SingleStrategy(device=torch.device("cpu"), precision=POLICIES["fp32"], rank=0, world_size=1)
        factory = OptimizerFactory(Train(learning_rate=0.01), 4)
        strategy.prepare(model, find_blocks(model), factory)
        if begin:
            reader = checkpoint.CheckpointReader(tmp_path / "c")
            strategy.state().load(reader.read, reader.keys())
        for step in range(begin, end):
            batch = tiny_collator(16, num_classes=3)(np.arange(4 * step, 4 * step + 4), 4)
            strategy.forward_backward([batch], lambda phase: nullcontext())
            factory.set_learning_rate(step)
            strategy.optimizer_step(1.0)
        if end == 2:
            checkpoint.save(tmp_path / "c", strategy.state().tensors(), {}, step=2, is_writer=True)
        found.append({key: value.clone() for key, value in strategy.state().tensors() if value is not None})
    whole, half, resumed = found
    assert whole.keys() == resumed.keys()
    assert [key for key, value in whole.items() if not torch.equal(value, resumed[key])] == []
    assert any(not torch.equal(value, half[key]) for key, value in whole.items())
