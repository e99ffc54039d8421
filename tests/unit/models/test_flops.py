"""Operations of models, compared with the formulas of their papers."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    ElectraConfig,
    GPT2Config,
    LongformerConfig,
    ModernBertConfig,
    RobertaConfig,
)

from paratune.models.blocks import checkpoint_blocks
from paratune.models.flops import ModelWork, copy_on_meta_device, count_work, num_pairs
from paratune.models.packed import enable_packed_batches
from paratune.models.task_model import TaskModel, find_blocks, freeze_encoder

L, D, F, H, V, C = 3, 32, 64, 2, 100, 3
SIZE: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": D,
    "num_hidden_layers": L,
    "num_attention_heads": H,
    "intermediate_size": F,
    "max_position_embeddings": 64,
    "num_labels": C,
    "pad_token_id": 0,
}
LAYER = 4 * D * D + 2 * D * F
"""Weights of a layer's products: queries, keys, values, output; feed-forward in and out (BERT, section 3)."""


def make(kind: Any, config: Any, task: str) -> TaskModel:
    torch.manual_seed(0)
    return TaskModel(kind.from_config(config), task)


def counted(model: TaskModel) -> ModelWork:
    return count_work(copy_on_meta_device(model))


def test_a_classifier_needs_6_operations_per_weight_and_token_and_12_per_pair():
    work = counted(make(AutoModelForSequenceClassification, BertConfig(**SIZE), "classification"))
    # PaLM, appendix B: 6 N + 12 L H Q T a token, H Q = D. The pooler and the classifier read one token of each sample.
    assert work == ModelWork(6 * (D * D + D * C), 6 * L * LAYER, {None: 12 * L * D}, 0)
    lengths = np.array([5, 64])
    by_hand = 2 * 6 * (D * D + D * C) + 69 * 6 * L * LAYER + (5**2 + 64**2) * 12 * L * D
    assert work.flops(lengths) == by_hand


def test_the_count_equals_that_of_a_real_batch():
    from torch.utils.flop_counter import FlopCounterMode

    model = make(AutoModelForSequenceClassification, RobertaConfig(**SIZE), "classification")
    model.hf.set_attn_implementation("eager")
    ids = torch.randint(1, V, (4, 20))
    with FlopCounterMode(display=False) as counter:
        model.hf(input_ids=ids, attention_mask=torch.ones_like(ids)).logits.sum().backward()
    assert counted(model).flops(np.full(4, 20)) == counter.get_total_flops()


def test_a_masked_lm_counts_its_head_for_hidden_tokens():
    model = make(AutoModelForMaskedLM, BertConfig(**SIZE), "mlm")
    enable_packed_batches(model)
    work = counted(model)
    assert work == ModelWork(0, 6 * L * LAYER, {None: 12 * L * D}, 6 * (D * D + D * V))
    assert work.flops(np.array([10]), 2.0) - work.flops(np.array([10])) == 2 * 6 * (D * D + D * V)


def test_question_answering_reads_every_token():
    work = counted(make(AutoModelForQuestionAnswering, BertConfig(**{**SIZE, "num_labels": 2}), "qa"))
    assert work == ModelWork(0, 6 * (L * LAYER + 2 * D), {None: 12 * L * D}, 0)


def test_a_frozen_encoder_needs_only_its_forward_pass():
    model = make(AutoModelForSequenceClassification, BertConfig(**SIZE), "classification")
    freeze_encoder(model)
    work = counted(model)
    # Of the classifier: forward, and the gradient of its weight; nothing needs that of its input.
    assert work == ModelWork(2 * D * D + 4 * D * C, 2 * L * LAYER, {None: 4 * L * D}, 0)


def test_activations_computed_twice_count_once():
    model = make(AutoModelForSequenceClassification, BertConfig(**SIZE), "classification")
    plain = counted(model)
    checkpoint_blocks(find_blocks(model), 1)
    model.train()
    assert counted(model) == plain
    assert model.training


def test_deberta_has_attention_to_positions():
    positions = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "position_buckets": 8}
    config = DebertaV2Config(**SIZE, **positions, max_relative_positions=64, share_att_key=True)
    work = counted(make(AutoModelForSequenceClassification, config, "classification"))
    # Content to place and place to content, each against 2 x 8 places: 2 D 16 operations a token, forward. The places
    # are projected once a batch: that is left out. He et al., DeBERTa, ICLR 2021, section 3.1.
    assert work.per_token == 6 * L * LAYER + 3 * L * 2 * (2 * D * 16)
    assert work.per_pair == {None: 12 * L * D}


def test_windows_count_the_pairs_within_them():
    config = ModernBertConfig(**SIZE, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3, local_attention=8)
    model = make(AutoModelForSequenceClassification, config, "classification")
    windows = [
        layer.sliding_window
        for layer in model.hf.modules()
        if hasattr(layer, "is_causal") and layer.sliding_window is not None
    ]
    work = counted(model)
    assert len(windows) == 2  # of three layers the first looks everywhere (Warner et al. 2024: every third)
    assert work.per_pair == {None: 12 * D, windows[0]: 2 * 12 * D}


@pytest.mark.parametrize(("length", "window"), [(1, 3), (2, 3), (3, 3), (10, 3), (10, 1), (10, 100), (7, None)])
def test_pairs_are_counted_as_one_by_one(length, window):
    near = [(i, j) for i in range(length) for j in range(length) if window is None or abs(i - j) < window]
    assert num_pairs(np.array([length]), window) == len(near)


def test_the_model_itself_does_not_change():
    model = make(AutoModelForSequenceClassification, BertConfig(**SIZE), "classification").train()
    before = {name: weight.clone() for name, weight in model.named_parameters()}
    state = torch.random.get_rng_state()
    counted(model)
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, weight in model.named_parameters():
        assert torch.equal(weight, before[name])
        assert weight.grad is None


def test_operations_that_do_not_grow_with_length_raise():
    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Linear(D, C)

        def forward(self, input_ids: Any, **more: Any) -> Any:
            from types import SimpleNamespace

            hidden = torch.zeros(len(input_ids), D, device=input_ids.device)
            return SimpleNamespace(logits=self.weight(hidden))

    with pytest.raises(ValueError, match="length"):
        counted(TaskModel(Constant(), "classification"))


def test_a_decoder_counts_all_pairs():
    config = GPT2Config(vocab_size=V, n_embd=D, n_layer=L, n_head=H, n_inner=F, n_positions=64, num_labels=C,
                        pad_token_id=0)  # fmt: skip
    work = counted(make(AutoModelForSequenceClassification, config, "classification"))
    # Its classifier without a bias reads all tokens, and one of each sample is taken.
    assert work.per_token == 6 * (L * LAYER + D * C)
    assert work.per_pair == {None: 12 * L * D}


def test_electra_widens_its_embeddings():
    config = ElectraConfig(**SIZE, embedding_size=16)
    work = counted(make(AutoModelForSequenceClassification, config, "classification"))
    assert work.per_token == 6 * (L * LAYER + 16 * D)


def test_attention_with_other_growth_raises():
    config = LongformerConfig(**{**SIZE, "max_position_embeddings": 600}, attention_window=8)
    with pytest.raises((ValueError, RuntimeError)):
        counted(make(AutoModelForSequenceClassification, config, "classification"))


def test_other_vocabulary_sizes_have_other_primes():
    # The multilingual vocabularies have prime factors of their own: 119547 = 3^2 x 37 x 359.
    config = BertConfig(**{**SIZE, "vocab_size": 11 * 13 * 17 * 37, "hidden_size": 2 * 19, "num_hidden_layers": 1})
    work = counted(make(AutoModelForSequenceClassification, config, "classification"))
    assert work.per_token == 6 * (4 * 38 * 38 + 2 * 38 * F)
