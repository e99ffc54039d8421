"""Models are tried with packed rows: which take them, and that outputs and gradients are those of padded rows.

Expected values are those of the same model on the padded batch.
"""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from architectures import CONFIGS, HEADS, PAIRS, SIZES, model_of, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import VOCABULARY, tiny_model
from tiny_data import tiny_masking
from torch import nn

from paratune.batch import Batch
from paratune.batch.packing import pack, round_up
from paratune.models import packed
from paratune.models.attention import cpu
from paratune.models.packed import find_entry
from paratune.models.task_model import PackedEntry, TaskModel

OTHERS: dict[str, Callable[[], transformers.PretrainedConfig]] = {
    "mpnet": lambda: transformers.MPNetConfig(**SIZES),
    "convbert": lambda: transformers.ConvBertConfig(**SIZES),
    "megatron-bert": lambda: transformers.MegatronBertConfig(**SIZES),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=len(VOCABULARY), n_embd=32, n_layer=2, n_head=2, n_positions=600, pad_token_id=0
    ),
}


def loss_and_gradients(model: TaskModel, batch: Batch) -> list[torch.Tensor]:
    model.zero_grad()
    outputs = model(batch)
    count = len(batch.index) if batch.label_places is None else len(batch.label_places)
    loss = model.loss_sum(outputs, batch) / count
    loss.backward()
    kept = [loss.detach()] if model.head_reads == "tokens" else [loss.detach(), outputs.detach()]
    return kept + [each.grad.clone() for each in model.parameters() if each.grad is not None]


def assert_alike(model: TaskModel, batch: Batch, tolerance: float) -> None:
    expected, found = loss_and_gradients(model, batch), loss_and_gradients(model, pack(batch))
    assert len(found) == len(expected) > 10
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().max()) <= tolerance * max(1.0, float(other.abs().max()))


LENGTHS = ([7], [1, 1], [9, 9, 9], [1, 512, 30, 2])


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_packed_rows_give_what_padded_ones_give(name: str, kind: str):
    model = model_of(CONFIGS[name](), kind).eval()
    find_entry(model)
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
    find_entry(model)
    assert_alike(model, rows(lengths, kind), 1e-13)


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    name=st.sampled_from(["bert", "roberta", "modernbert", "modernbert-mean"]),
    kind=st.sampled_from(sorted(HEADS)),
)
@settings(max_examples=30)
def test_a_rounded_number_of_tokens_changes_nothing(lengths: list[int], name: str, kind: str):
    """Loss, gradients and what an evaluation keeps of the rows, beside those of the batch without filler."""
    model = model_of(CONFIGS[name](), kind, torch.float64).eval()
    find_entry(model)
    batch = replace(pack(rows(lengths, kind, pad=model.hf.config.pad_token_id)), row_bounds=bounds(lengths))
    rounded = round_up(batch)
    num_rows = len(lengths)
    expected, found = (_all_of(model, each, num_rows) for each in (batch, rounded))
    assert len(found) == len(expected) > 10
    for one, other in zip(found, expected, strict=True):
        assert float((one - other).abs().nan_to_num().max()) <= 1e-9 * max(1.0, float(other.abs().max()))
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
    kept = model.row_outputs(outputs.detach(), batch)[:num_rows].nan_to_num()
    return [loss.detach(), kept, *(each.grad.clone() for each in model.parameters() if each.grad is not None)]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert", PackedEntry(0, "first", shortens=True)),
        ("roberta", PackedEntry(2, "first", shortens=True)),  # position ids begin behind the padding token's id, 1
        ("modernbert", PackedEntry(0, "first")),
        ("modernbert-mean", PackedEntry(0, "mean")),
    ],
)
def test_how_rows_enter_and_what_the_head_reads(name: str, expected: PackedEntry):
    model = model_of(CONFIGS[name](), "classification")
    find_entry(model)
    assert model.entry == expected


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_that_gives_something_else_stays_padded(name: str):
    model = model_of(OTHERS[name](), "classification").eval()
    batch = rows([5, 3], "classification", pad=model.hf.config.pad_token_id)
    before = loss_and_gradients(model, batch)
    find_entry(model)
    assert model.entry is None
    name = type(model.hf).__name__
    assert model.why_padded in (
        f"{name} has its own attention, which does not support packed rows",
        f"{name} is a decoder, and packed rows are for encoders",
    )
    assert all(map(torch.equal, before, loss_and_gradients(model, batch)))


def test_attention_that_looks_across_rows_is_found_out(monkeypatch: pytest.MonkeyPatch):
    model = model_of(CONFIGS["bert"](), "classification")
    whole = model._packed_inputs

    def as_one_row(batch: Batch) -> dict[str, object]:
        ends = torch.tensor([0, len(batch.input_ids)], dtype=torch.int32)
        return {**whole(batch), "cu_seqlens": ends, "max_seqlen": len(batch.input_ids)}

    monkeypatch.setattr(model, "_packed_inputs", as_one_row)
    find_entry(model)
    assert model.entry is None


@pytest.mark.parametrize("bias", [0.0, 1e3, 5e4])
def test_a_large_bias_hides_nothing(bias: float):
    """Targets may be prices: the spread of the outputs is then far below their size."""
    config = CONFIGS["roberta"]()
    config.num_labels = 1
    model = TaskModel(HEADS["classification"].from_config(config), "regression")
    with torch.no_grad():
        model.hf.classifier.out_proj.bias.fill_(bias)
    find_entry(model)
    assert model.entry is None or model.entry.position_offset == 2
    if bias == 0.0:
        assert model.entry is not None


def test_a_model_that_looks_at_the_share_of_masks_in_a_row_is_found_out():
    """ESM's token dropout scales embeddings by it; packed, the share would be that of all rows together."""
    sizes = {**SIZES, "pad_token_id": 1, "mask_token_id": 2}
    for token_dropout in (False, True):
        config = transformers.EsmConfig(**sizes, token_dropout=token_dropout)
        model = model_of(config, "mlm")
        find_entry(model)
        assert (model.entry is None) == token_dropout


def test_what_a_model_raises_for_these_rows_is_why_it_stays_padded(monkeypatch: pytest.MonkeyPatch):
    model = model_of(CONFIGS["bert"](), "classification")

    def refuse(**_: object) -> None:
        raise ValueError("Each example must contain at least one <eos> token")

    monkeypatch.setattr(model.hf, "forward", refuse)
    find_entry(model)
    assert model.entry is None
    assert model.why_padded.endswith("as for padded ones (Each example must contain at least one <eos> token)")


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_full_memory_is_no_property_of_a_model(monkeypatch: pytest.MonkeyPatch, error: type[Exception]):
    model = model_of(CONFIGS["bert"](), "classification")

    def full(**_: object) -> None:
        raise error("full")

    monkeypatch.setattr(model.hf, "forward", full)
    with pytest.raises(error):
        find_entry(model)


def test_a_kernel_that_fails_keeps_a_model_padded(monkeypatch: pytest.MonkeyPatch):
    asked = []

    def fails(device: torch.device, dtype: torch.dtype, **more: object) -> str:
        asked.append((device.type, dtype, more["num_heads"], more["head_width"], set(more["windows"])))
        return "the kernel is off"

    monkeypatch.setattr(packed, "why_not", fails)
    for name in ("bert", "modernbert"):
        model = model_of(CONFIGS[name](), "classification")
        find_entry(model, dtype=torch.bfloat16)
        assert (model.entry, model.why_padded) == (None, "the kernel is off")
    # ModernBERT: a window of 6 tokens, 3 to each side and the token itself, in every other layer.
    assert asked == [("cpu", torch.bfloat16, 2, 16, {None}), ("cpu", torch.bfloat16, 2, 16, {None, 4})]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("name", "kind"), [("bert", "classification"), ("eurobert", "mlm"), ("modernbert", "qa")])
def test_the_precision_of_the_run_is_tried_in_the_model(monkeypatch: pytest.MonkeyPatch, name: str, kind: str, dtype):
    tried = []
    real = packed._outputs_and_gradients

    def watched(model: TaskModel, batch: Batch) -> list[torch.Tensor]:
        tried.append((batch.is_packed, torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")))
        return real(model, batch)

    monkeypatch.setattr(packed, "_outputs_and_gradients", watched)
    model = model_of(CONFIGS[name](), kind)
    own = [parameter.data_ptr() for parameter in model.parameters()]
    find_entry(model, dtype=dtype)
    assert model.entry is not None
    assert tried[-2:] == [(False, dtype), (True, dtype)]
    assert [parameter.data_ptr() for parameter in model.parameters()] == own


@pytest.mark.parametrize("factor", [1.2, float("nan")])
def test_attention_that_is_off_in_the_precision_of_the_run_alone_is_found_out(
    monkeypatch: pytest.MonkeyPatch, factor: float
):
    right = cpu.attend

    def attend(query: torch.Tensor, *given: object, **more: object) -> torch.Tensor:
        out = right(query, *given, **more)
        return out * factor if query.dtype == torch.bfloat16 else out

    monkeypatch.setattr(cpu, "attend", attend)
    model = model_of(CONFIGS["bert"](), "classification")
    find_entry(model, dtype=torch.bfloat16)
    assert model.entry is None
    assert "packed rows on cpu in torch.bfloat16 are off by" in (model.why_padded or "")


def test_attention_that_raises_in_the_precision_of_the_run_alone_is_found_out(monkeypatch: pytest.MonkeyPatch):
    right = cpu.attend

    def attend(query: torch.Tensor, *given: object, **more: object) -> torch.Tensor:
        if query.dtype == torch.bfloat16:
            raise RuntimeError("no kernel")
        return right(query, *given, **more)

    monkeypatch.setattr(cpu, "attend", attend)
    model = model_of(CONFIGS["bert"](), "classification")
    find_entry(model, dtype=torch.bfloat16)
    assert (model.entry, model.why_padded) == (
        None,
        "packed rows failed on cpu in torch.bfloat16: RuntimeError: no kernel",
    )


def test_a_last_layer_that_may_not_be_shortened_on_the_device_stays_whole(monkeypatch: pytest.MonkeyPatch):
    def fails(model: TaskModel, *_: object) -> str | None:
        return "it is off" if model.entry.shortens else None

    monkeypatch.setattr(packed, "_precision_fails", fails)
    model = model_of(CONFIGS["bert"](), "classification")
    find_entry(model, dtype=torch.bfloat16)
    assert (model.entry, model.why_padded) == (PackedEntry(0, "first", shortens=False), None)


def test_a_device_too_small_for_the_whole_model_is_not_judged(monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(packed, "_moved", full)
    model = model_of(CONFIGS["bert"](), "classification")
    find_entry(model, dtype=torch.bfloat16)
    assert model.entry is not None


def test_where_packing_is_not_wanted_the_head_alone_is_tried():
    for kind in HEADS:
        model = model_of(CONFIGS["bert"](), kind)
        find_entry(model, packs=False)
        assert (model.entry, model.head_takes_labelled) == (None, kind == "mlm")


def test_trying_leaves_no_trace():
    model = model_of(CONFIGS["bert"](), "classification").train()
    model.hf.bert.encoder.layer[1].eval()
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    find_entry(model)
    assert torch.equal(torch.rand(1), expected)
    assert model.training
    assert not model.hf.bert.encoder.layer[1].training
    assert all(parameter.grad is None for parameter in model.parameters())


def test_a_model_without_a_vocabulary_is_not_tried():
    model = TaskModel(tiny_model(), "classification")
    model.hf.config = SimpleNamespace()
    find_entry(model)
    named = "the configuration of BertForSequenceClassification names no vocab_size"
    assert model.why_padded == f"{named} to try packed rows with"


def test_padded_and_packed_batches_may_take_turns():
    model = model_of(CONFIGS["bert"](), "classification").eval()
    batch = rows([5, 3], "classification")
    expected = model(batch)
    find_entry(model)
    packed_logits = model(pack(batch))
    torch.testing.assert_close(packed_logits, expected, rtol=0, atol=1e-6)
    assert torch.equal(model(batch), expected)


def test_the_head_of_a_masked_lm_is_given_labelled_tokens_alone():
    model = model_of(CONFIGS["bert"](), "mlm").eval()
    batch = tiny_masking(6)(np.arange(6), 1.0, epoch=0)
    seen: list[tuple[int, ...]] = []
    model.hf.get_output_embeddings().register_forward_hook(lambda _m, given, _o: seen.append(tuple(given[0].shape)))
    expected = model(batch)
    find_entry(model)
    seen.clear()
    found = [model(batch), model(pack(batch))]
    assert seen == [(1, len(batch.label_places), 32)] * 2
    for logits in found:
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)


def test_dropout_masks_of_tokens_are_all_that_differs_in_training(monkeypatch: pytest.MonkeyPatch):
    """With masks that are fixed for each token, training mode gives the same, packed and padded."""
    config = CONFIGS["bert"]()
    config.attention_probs_dropout_prob = 0.0
    model = model_of(config, "classification", torch.float64).train()
    find_entry(model)
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
    found = loss_and_gradients(model, small)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


def test_the_tolerance_is_tighter_in_float64(monkeypatch: pytest.MonkeyPatch):
    model = model_of(CONFIGS["bert"](), "classification", torch.float64)
    whole = model._packed_inputs
    weight = model.hf.bert.embeddings.position_embeddings.weight

    def nudged(batch: Batch) -> dict[str, object]:
        with torch.no_grad():
            weight.mul_(1 + 1e-6)
        return whole(batch)

    monkeypatch.setattr(model, "_packed_inputs", nudged)
    find_entry(model)
    assert model.entry is None
    assert packed._TOLERANCE[torch.float64] < 1e-6 < packed._ELSE


@pytest.mark.parametrize("kinds", [["c2p"], ["p2c"], ["p2c", "c2p"]])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("buckets", [-1, 4, 256])
def test_disentangled_attention_of_packed_rows(kinds: list[str], shared: bool, buckets: int):
    """Beside transformers' own, in float64: kinds of scores, shared projections, and distances beyond the buckets."""
    config = CONFIGS["deberta-v3"]()
    config.pos_att_type, config.share_att_key, config.position_buckets = kinds, shared, buckets
    config.norm_rel_ebd = "layer_norm" if shared else "none"
    model = model_of(config, "classification", torch.float64).eval()
    find_entry(model)
    assert model.entry is not None
    assert_alike(model, rows([1, 40, 7, 2], "classification"), 1e-12)


def test_disentangled_attention_stays_bucketed_where_it_would_be_slow_or_wrong():
    model = model_of(CONFIGS["deberta-v3"](), "classification")
    find_entry(model, device=torch.device("cuda"))
    name = type(model.hf).__name__
    assert model.entry is None
    assert model.why_padded == f"{name} has its own attention, which supports packed rows on the CPU only"
    config = CONFIGS["deberta-v3"]()
    config.conv_kernel_size = 3  # as xlarge and xxlarge of version 2 have it: it looks across rows
    model = model_of(config, "classification")
    find_entry(model)
    assert model.entry is None
    assert model.why_padded == f"{name} does not give the same for packed rows as for padded ones"
