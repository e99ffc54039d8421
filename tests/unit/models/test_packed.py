"""Models are tried with packed rows: which take them, and that outputs and gradients are those of padded rows.

Expected values are those of the same model on the padded batch.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from architectures import CONFIGS, HEADS, PADDED, PAIRS, SIZES, model_of, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCABULARY, tiny_model
from tiny_data import tiny_masking
from torch import nn

from paratune.batch import Batch
from paratune.batch.packing import pack, round_up
from paratune.models import packed
from paratune.models.attention import cpu
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import PackedEntry, TaskModel


def loss_and_gradients(model: TaskModel, batch: Batch) -> list[torch.Tensor]:
    model.zero_grad()
    outputs = model(batch)
    count = len(batch.index) if batch.label_places is None else len(batch.label_places)
    loss = model.loss_sum(outputs, batch) / count
    loss.backward()
    row_outputs = [loss.detach()] if model.head_reads == "tokens" else [loss.detach(), outputs.detach()]
    return row_outputs + [item.grad.clone() for item in model.parameters() if item.grad is not None]


def assert_alike(model: TaskModel, batch: Batch, tolerance: float) -> None:
    expected, actual = loss_and_gradients(model, batch), loss_and_gradients(model, pack(batch))
    assert len(actual) == len(expected) > 10
    for first, other in zip(actual, expected, strict=True):
        assert float((first - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max()))


LENGTHS = ([7], [1, 1], [9, 9, 9], [1, 512, 30, 2])


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_packed_and_padded_rows_give_equal_results(name: str, kind: str):
    model = model_of(CONFIGS[name](), kind).eval()
    enable_packed_batches(model)
    assert model.entry is not None
    assert model.why_padded is None
    assert model.head_takes_labelled == (kind == "mlm")
    pad = model.hf.config.pad_token_id
    for lengths in LENGTHS:
        assert_alike(model, rows(lengths, kind, pad=pad), 1e-6)


@given(lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5), kind=st.sampled_from(sorted(HEADS)))
@settings(max_examples=30)
def test_packed_rows_of_any_lengths_in_float64(lengths: list[int], kind: str):
    model = model_of(CONFIGS["bert"](), kind, torch.float64).eval()
    enable_packed_batches(model)
    assert_alike(model, rows(lengths, kind), 1e-13)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    name=st.sampled_from(["bert", "roberta", "modernbert", "modernbert-mean"]),
    kind=st.sampled_from(sorted(HEADS)),
)
@settings(max_examples=30)
def test_rounding_the_number_of_tokens_does_not_change_results(lengths: list[int], name: str, kind: str):
    """Loss, gradients and what an evaluation keeps of the rows, beside those of the batch without filler."""
    model = model_of(CONFIGS[name](), kind, torch.float64).eval()
    enable_packed_batches(model)
    batch = replace(pack(rows(lengths, kind, pad=model.hf.config.pad_token_id)), row_bounds=bounds(lengths))
    rounded = round_up(batch)
    num_rows = len(lengths)
    expected, actual = (_all_of(model, item, num_rows) for item in (batch, rounded))
    assert len(actual) == len(expected) > 10
    for first, other in zip(actual, expected, strict=True):
        assert float((first - other).abs().nan_to_num().max()) <= 1e-9 * max(1.0, float(other.abs().max()))
    assert (rounded.num_samples, rounded.num_tokens) == (batch.num_samples, batch.num_tokens)
    assert rounded.loss_count == batch.loss_count


def bounds(lengths: list[int]) -> torch.Tensor:
    """Each row is all context."""
    return torch.tensor([[0, 0, length] for length in lengths])


def _all_of(model: TaskModel, batch: Batch, num_rows: int) -> list[torch.Tensor]:
    model.zero_grad()
    outputs = model(batch)
    loss = model.loss_sum(outputs, batch)
    loss.backward()
    row_outputs = model.row_outputs(outputs.detach(), batch)[:num_rows].nan_to_num()
    return [loss.detach(), row_outputs, *(item.grad.clone() for item in model.parameters() if item.grad is not None)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", PackedEntry(0, "first", shortens=True)),
        ("roberta", PackedEntry(2, "first", shortens=True)),  # position ids begin behind the padding token's id, 1
        ("modernbert", PackedEntry(0, "first")),
        ("modernbert-mean", PackedEntry(0, "mean")),
    ],
)
def test_the_entry_of_each_architecture(name: str, expected: PackedEntry):
    model = model_of(CONFIGS[name](), "classification")
    enable_packed_batches(model)
    assert model.entry == expected


@pytest.mark.parametrize("name", ["mpnet", "gpt2"])
def test_a_model_with_different_results_stays_padded(name: str):
    sizes = {"vocab_size": len(VOCABULARY), "pad_token_id": 0}
    model = model_of(transformers.AutoConfig.for_model(name, **PADDED[name] | sizes), "classification").eval()
    batch = rows([5, 3], "classification", pad=model.hf.config.pad_token_id)
    before = loss_and_gradients(model, batch)
    enable_packed_batches(model)
    assert model.entry is None
    name = type(model.hf).__name__
    assert model.why_padded in (
        f"{name} has its own attention, which does not support packed rows",
        f"{name} is a decoder, and packed rows are for encoders",
    )
    assert all(map(torch.equal, before, loss_and_gradients(model, batch)))


def test_attention_across_rows_is_detected(monkeypatch: pytest.MonkeyPatch):
    model = model_of(CONFIGS["bert"](), "classification")
    whole = model._packed_inputs

    def as_one_row(batch: Batch) -> dict[str, object]:
        ends = torch.tensor([0, len(batch.input_ids)], dtype=torch.int32)
        return {**whole(batch), "cu_seqlens": ends, "max_seqlen": len(batch.input_ids)}

    monkeypatch.setattr(model, "_packed_inputs", as_one_row)
    enable_packed_batches(model)
    assert model.entry is None


@pytest.mark.parametrize("bias", [0.0, 1e3, 5e4])
def test_a_large_bias_does_not_hide_differences(bias: float):
    """Targets may be prices: the spread of the outputs is then far below their size."""
    config = CONFIGS["roberta"]()
    config.num_labels = 1
    model = TaskModel(HEADS["classification"].from_config(config), "regression")
    with torch.no_grad():
        model.hf.classifier.out_proj.bias.fill_(bias)
    enable_packed_batches(model)
    assert model.entry is None or model.entry.position_offset == 2
    if bias == 0.0:
        assert model.entry is not None


def test_a_model_that_uses_the_share_of_masks_in_a_row_is_detected():
    """ESM's token dropout scales embeddings by it; packed, the share would be that of all rows together."""
    sizes = {**SIZES, "pad_token_id": 1, "mask_token_id": 2}
    for token_dropout in (False, True):
        config = transformers.EsmConfig(**sizes, token_dropout=token_dropout)
        model = model_of(config, "mlm")
        enable_packed_batches(model)
        assert (model.entry is None) == token_dropout


def test_the_error_of_a_model_is_the_reason_for_padding(monkeypatch: pytest.MonkeyPatch):
    model = model_of(CONFIGS["bert"](), "classification")

    def refuse(**_: object) -> None:
        raise ValueError("Each example must contain at least one <eos> token")

    monkeypatch.setattr(model.hf, "forward", refuse)
    enable_packed_batches(model)
    assert model.entry is None
    assert model.why_padded.endswith("packed and padded rows (Each example must contain at least one <eos> token)")


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_out_of_memory_is_raised(monkeypatch: pytest.MonkeyPatch, error: type[Exception]):
    model = model_of(CONFIGS["bert"](), "classification")

    def full(**_: object) -> None:
        raise error("full")

    monkeypatch.setattr(model.hf, "forward", full)
    with pytest.raises(error):
        enable_packed_batches(model)


def test_a_kernel_that_fails_keeps_a_model_padded(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def fails(device: torch.device, dtype: torch.dtype, **more: object) -> str:
        asked.append((device.type, dtype, more["num_heads"], more["head_width"], set(more["windows"])))
        return "the kernel is off"

    monkeypatch.setattr(packed, "why_not", fails)
    for name in ("bert", "modernbert"):
        model = model_of(CONFIGS[name](), "classification")
        enable_packed_batches(model, dtype=torch.bfloat16)
        assert (model.entry, model.why_padded) == (None, "the kernel is off")
    # ModernBERT: a window of 6 tokens, 3 to each side and the token itself, in every other layer.
    assert asked == [("cpu", torch.bfloat16, 2, 16, {None}), ("cpu", torch.bfloat16, 2, 16, {None, 4})]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "kind"), [("bert", "classification"), ("eurobert", "mlm"), ("modernbert", "qa")])
def test_the_model_is_tested_in_the_precision_of_the_run(monkeypatch: pytest.MonkeyPatch, name: str, kind: str, dtype):
    tried = []
    real = packed._outputs_and_gradients

    def watched(model: TaskModel, batch: Batch) -> list[torch.Tensor]:
        tried.append((batch.is_packed, torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")))
        return real(model, batch)

    monkeypatch.setattr(packed, "_outputs_and_gradients", watched)
    model = model_of(CONFIGS[name](), kind)
    own = [parameter.data_ptr() for parameter in model.parameters()]
    enable_packed_batches(model, dtype=dtype)
    assert model.entry is not None
    assert tried[-2:] == [(False, dtype), (True, dtype)]
    assert [parameter.data_ptr() for parameter in model.parameters()] == own


@pytest.mark.parametrize("factor", [1.2, float("nan")])
def test_attention_that_is_wrong_only_in_the_precision_of_the_run_is_detected(
    monkeypatch: pytest.MonkeyPatch, factor: float
):
    right = cpu.attend

    def attend(query: torch.Tensor, *given: object, **more: object) -> torch.Tensor:
        out = right(query, *given, **more)
        return out * factor if query.dtype == torch.bfloat16 else out

    monkeypatch.setattr(cpu, "attend", attend)
    model = model_of(CONFIGS["bert"](), "classification")
    enable_packed_batches(model, dtype=torch.bfloat16)
    assert model.entry is None
    assert "packed rows on cpu in torch.bfloat16 differ by" in (model.why_padded or "")


def test_attention_that_raises_only_in_the_precision_of_the_run_is_detected(monkeypatch: pytest.MonkeyPatch):
    right = cpu.attend

    def attend(query: torch.Tensor, *given: object, **more: object) -> torch.Tensor:
        if query.dtype == torch.bfloat16:
            raise RuntimeError("no kernel")
        return right(query, *given, **more)

    monkeypatch.setattr(cpu, "attend", attend)
    model = model_of(CONFIGS["bert"](), "classification")
    enable_packed_batches(model, dtype=torch.bfloat16)
    assert (model.entry, model.why_padded) == (
        None,
        "packed rows failed on cpu in torch.bfloat16: RuntimeError: no kernel",
    )


def test_a_last_layer_that_is_wrong_on_the_device_is_not_shortened(monkeypatch: pytest.MonkeyPatch):
    def fails(model: TaskModel, *_: object) -> str | None:
        return "it is off" if model.entry.shortens else None

    monkeypatch.setattr(packed, "_precision_problem", fails)
    model = model_of(CONFIGS["bert"](), "classification")
    enable_packed_batches(model, dtype=torch.bfloat16)
    assert (model.entry, model.why_padded) == (PackedEntry(0, "first", shortens=False), None)


def test_a_model_that_does_not_fit_the_device_has_no_verdict(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(packed, "changed", full)
    model = model_of(CONFIGS["bert"](), "classification")
    enable_packed_batches(model, dtype=torch.bfloat16)
    assert model.entry is not None


def test_without_packing_only_the_head_is_tested():
    for kind in HEADS:
        model = model_of(CONFIGS["bert"](), kind)
        enable_packed_batches(model, packs=False)
        assert (model.entry, model.head_takes_labelled) == (None, kind == "mlm")


def test_the_test_does_not_change_the_model():
    model = model_of(CONFIGS["bert"](), "classification").train()
    model.hf.bert.encoder.layer[1].eval()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    enable_packed_batches(model)
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    assert not model.hf.bert.encoder.layer[1].training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_without_a_vocabulary_is_not_tested():
    model = TaskModel(tiny_model(), "classification")
    model.hf.config = SimpleNamespace()
    enable_packed_batches(model)
    named = "the configuration of BertForSequenceClassification has no vocab_size"
    assert model.why_padded == f"{named}, which the test of packed rows needs"


def test_padded_and_packed_batches_may_alternate():
    model = model_of(CONFIGS["bert"](), "classification").eval()
    batch = rows([5, 3], "classification")
    expected = model(batch)
    enable_packed_batches(model)
    packed_logits = model(pack(batch))
    torch.testing.assert_close(packed_logits, expected, rtol=0, atol=1e-6)
    assert torch.equal(model(batch), expected)


def test_the_head_of_a_masked_lm_receives_only_labelled_tokens():
    model = model_of(CONFIGS["bert"](), "mlm").eval()
    batch = tiny_masking(6)(np.arange(6), 1.0, epoch=0)
    seen: list[tuple[int, ...]] = []
    model.hf.get_output_embeddings().register_forward_hook(lambda _m, given, _o: seen.append(tuple(given[0].shape)))
    expected = model(batch)
    enable_packed_batches(model)
    seen.clear()
    actual = [model(batch), model(pack(batch))]
    assert seen == [(1, len(batch.label_places), 32)] * 2
    for logits in actual:
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)


def test_only_dropout_masks_differ_in_training(monkeypatch: pytest.MonkeyPatch):
    """With masks that are fixed for each token, training mode gives the same, packed and padded."""
    config = CONFIGS["bert"]()
    config.attention_probs_dropout_prob = 0.0
    model = model_of(config, "classification", torch.float64).train()
    enable_packed_batches(model)
    model.entry = PackedEntry(0, "first")  # the last layer whole: masks are those of tokens
    batch = rows([6, 2, 9], "classification")
    of_slots = (torch.arange(32 * batch.input_ids.numel()).view(-1, 32) * 7919 % 10 > 0) / 0.9
    slots = None

    def fixed(value: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        if value.ndim < 3 or value.shape[1] == 1:  # of the head
            return value
        masks = of_slots if slots is None else of_slots[slots]
        return value * masks.view_as(value)

    monkeypatch.setattr(nn.functional, "dropout", fixed)
    expected = loss_and_gradients(model, batch)
    small = pack(batch)
    slots = small.slots
    actual = loss_and_gradients(model, small)
    for first, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(first, other, rtol=0, atol=1e-12)


def test_the_tolerance_is_tighter_in_float64(monkeypatch: pytest.MonkeyPatch):
    model = model_of(CONFIGS["bert"](), "classification", torch.float64)
    whole = model._packed_inputs
    weight = model.hf.bert.embeddings.position_embeddings.weight

    def nudged(batch: Batch) -> dict[str, object]:
        with torch.no_grad():
            weight.mul_(1 + 1e-6)
        return whole(batch)

    monkeypatch.setattr(model, "_packed_inputs", nudged)
    enable_packed_batches(model)
    assert model.entry is None
    assert packed._TOLERANCE[torch.float64] < 1e-6 < packed._OTHER_TOLERANCE


@pytest.mark.parametrize("kinds", [["c2p"], ["p2c"], ["p2c", "c2p"]])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("buckets", [-1, 4, 256])
def test_disentangled_attention_of_packed_rows(kinds: list[str], shared: bool, buckets: int):
    """Beside transformers' own, in float64: kinds of scores, shared projections, and distances beyond the buckets."""
    config = CONFIGS["deberta-v3"]()
    config.pos_att_type, config.share_att_key, config.position_buckets = kinds, shared, buckets
    config.norm_rel_ebd = "layer_norm" if shared else "none"
    model = model_of(config, "classification", torch.float64).eval()
    enable_packed_batches(model)
    assert model.entry is not None
    assert_alike(model, rows([1, 40, 7, 2], "classification"), 1e-12)


def test_disentangled_attention_stays_bucketed_where_it_is_slow_or_unsupported():
    model = model_of(CONFIGS["deberta-v3"](), "classification")
    enable_packed_batches(model, device=torch.device("cuda"))
    name = type(model.hf).__name__
    assert model.entry is None
    assert model.why_padded == f"{name} has its own attention, which supports packed rows on the CPU only"
    config = CONFIGS["deberta-v3"]()
    config.conv_kernel_size = 3  # as xlarge and xxlarge of version 2 have it: it looks across rows
    model = model_of(config, "classification")
    enable_packed_batches(model)
    assert model.entry is None
    assert model.why_padded == f"{name} gives different results for packed and padded rows"
