"""Stages run one after the other in one process, against the model that was not cut: outputs and gradients."""

import copy
from typing import Any

import pytest
import torch
from raised import raises_code
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification

from paratune.batch import Batch
from paratune.models.task_model import TaskModel, find_blocks
from paratune.stages.balance import spans_of_sizes
from paratune.stages.cut import BlockSpan, CutModel, probe_batch

SIZES = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
RELATIVE = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "norm_rel_ebd": "layer_norm"}
ARCHITECTURES: dict[str, dict[str, Any]] = {
    "bert": {},
    "roberta": {},
    "electra": {"embedding_size": 8},
    "distilbert": {"dim": 16, "n_layers": 4, "n_heads": 2, "hidden_dim": 32},
    "deberta-v2": {**RELATIVE, "position_buckets": 8, "share_att_key": True},
    "modernbert": {"global_attn_every_n_layers": 2, "local_attention": 8},
    "mpnet": {},
    "gpt2": {"n_embd": 16, "n_layer": 4, "n_head": 2, "n_positions": 64},
    "gpt_neo": {"num_layers": 4, "num_heads": 2, "attention_types": [[["global", "local"], 2]], "window_size": 8},
    "llama": {"num_key_value_heads": 1},
    "bloom": {"n_layer": 4, "n_head": 2},
}
SPANS = spans_of_sizes([1, 2, 1])


def make(kind: str, auto: Any = AutoModelForSequenceClassification, **more: Any) -> Any:
    special = {"bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
    config = AutoConfig.for_model(kind, **{**SIZES, **special, **ARCHITECTURES.get(kind, {}), **more})
    torch.manual_seed(0)
    return auto.from_config(config).double().eval()


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_stages_have_the_outputs_and_gradients_of_the_whole_model(kind: str):
    model = TaskModel(make(kind, num_labels=3), "classification")
    uncut, batch = copy.deepcopy(model), probe_batch()
    whole = uncut(batch)
    expected = gradients(uncut, whole.square().sum())

    cut = CutModel(model, find_blocks(model))
    used, needed = cut.find_weights(SPANS)
    assert used == needed
    hidden: Tensor | None = None
    for span in SPANS:
        hidden = cut.run(span, batch, hidden)
    assert hidden is not None
    torch.testing.assert_close(hidden, whole, rtol=1e-12, atol=1e-12)
    stage_gradients = gradients(model, hidden.square().sum())
    assert stage_gradients.keys() == expected.keys() == set().union(*used)
    for name, gradient in expected.items():
        torch.testing.assert_close(stage_gradients[name], gradient, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_stage_runs_with_only_its_weights(kind: str):
    model = TaskModel(make(kind, num_labels=3), "classification")
    batch = probe_batch()
    with torch.no_grad():
        whole = model(batch)
    cut = CutModel(model, find_blocks(model))
    _, needed = cut.find_weights(SPANS)
    weights = {name: parameter.data for name, parameter in model.named_parameters()}
    hidden: Tensor | None = None
    for span, names in zip(SPANS, needed, strict=True):
        for name, parameter in model.named_parameters():
            parameter.data = weights[name] if name in names else weights[name].new_empty(0)
        with torch.no_grad():
            hidden = cut.run(span, batch, hidden)
    torch.testing.assert_close(hidden, whole, rtol=1e-12, atol=1e-12)
    # Embeddings are on the first stage only, the head on the last only.
    assert not any("word_embeddings" in name or "wte" in name for name in needed[1] | needed[2])
    assert not any(name.startswith(("hf.classifier", "hf.score")) for name in needed[0] | needed[1])


def test_shared_weights_are_needed_by_all_stages_that_use_them():
    model = TaskModel(make("deberta-v2", num_labels=3), "classification")
    used, _ = CutModel(model, find_blocks(model)).find_weights(SPANS)
    assert all("hf.deberta.encoder.rel_embeddings.weight" in names for names in used)


class MaskedModel(nn.Module):
    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.hf = hf

    def forward(self, batch: Batch) -> Tensor:
        return self.hf(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits


def test_tied_embeddings_are_needed_by_the_first_and_the_last_stage():
    model = MaskedModel(make("bert", AutoModelForMaskedLM, tie_word_embeddings=True))
    used, needed = CutModel(model, find_blocks(model)).find_weights(SPANS)
    tied = "hf.bert.embeddings.word_embeddings.weight"
    assert [tied in names for names in used] == [True, False, True]
    # Of the embeddings the last stage has nothing else.
    assert not any("position_embeddings" in name for name in needed[2])


def test_a_frozen_model_stays_frozen_and_in_its_mode():
    model = TaskModel(make("bert", num_labels=3), "classification")
    model.train()
    model.hf.bert.embeddings.requires_grad_(False)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    CutModel(model, find_blocks(model)).find_weights(SPANS)
    assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} == frozen
    assert all(module.training for module in model.modules())


def test_the_whole_model_still_runs_after_a_cut():
    model = TaskModel(make("roberta", num_labels=3), "classification")
    whole = model(probe_batch())
    cut = CutModel(model, find_blocks(model))
    cut.find_weights(SPANS)
    assert torch.equal(model(probe_batch()), whole)
    assert cut.num_blocks == 4


def test_costs_are_numbers_of_operations():
    # A BERT layer of width D: 4 D^2 weights of attention and 2 x 2 D^2 of the feed-forward, 2 operations a weight and
    # token. B = 2, S = 32, D = 16.
    model = TaskModel(make("bert", num_labels=3), "classification")
    costs = CutModel(model, find_blocks(model)).costs()
    layer = 2 * 2 * 32 * 8 * 16**2
    # The pooler and the head see one token of each row.
    assert costs == [layer, layer, layer, layer + 2 * 2 * (16 * 16 + 16 * 3)]


def test_a_model_that_passes_more_than_hidden_states_is_refused():
    # The convolution of DeBERTa-v2 takes the embeddings and what the first layer gives.
    model = TaskModel(make("deberta-v2", num_labels=3, conv_kernel_size=3, conv_act="gelu"), "classification")
    cut = CutModel(model, find_blocks(model))
    with raises_code("strategy.cannot_cut", "0", "1", "3", "strategy.balance"):
        cut.find_weights([BlockSpan(0, 1), BlockSpan(1, 4)])
    assert cut.possible_cuts() == {2, 3}
    cut.find_weights([BlockSpan(0, 2), BlockSpan(2, 3), BlockSpan(3, 4)])
