"""The model around a Hugging Face model; blocks, counts and fingerprints of several tiny architectures."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from raised import raises_code
from tiny import VOCABULARY, tiny_model, tiny_tokenizer
from tiny_data import tiny_collator
from torch import nn
from transformers import (
    AlbertConfig,
    AutoModelForSequenceClassification,
    BertConfig,
    DebertaV2Config,
    DistilBertConfig,
    GPT2Config,
    ModernBertConfig,
    RobertaConfig,
)

from paratune.models.task_model import (
    TaskModel,
    count_parameters,
    find_blocks,
    freeze_encoder,
    row_means,
    set_output_bias,
    weights_fingerprint,
)
from paratune.models.tokenizer import takes_token_types

SIZE = {"vocab_size": len(VOCABULARY), "num_labels": 3, "pad_token_id": 0}
BERT_SIZE = {
    **SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 40,
}
ARCHITECTURES: dict[str, tuple[Any, str, int]] = {
    "bert": (lambda: BertConfig(**BERT_SIZE), "BertLayer", 3),
    "roberta": (lambda: RobertaConfig(**BERT_SIZE), "RobertaLayer", 3),
    "distilbert": (
        lambda: DistilBertConfig(**SIZE, dim=16, n_layers=3, n_heads=2, hidden_dim=32, max_position_embeddings=40),
        "TransformerBlock",
        3,
    ),
    # All its layers are one, used several times.
    "albert": (lambda: AlbertConfig(**BERT_SIZE, embedding_size=8), "AlbertLayerGroup", 1),
    "deberta-v2": (lambda: DebertaV2Config(**BERT_SIZE, relative_attention=True), "DebertaV2Layer", 3),
    "modernbert": (
        lambda: ModernBertConfig(**BERT_SIZE, bos_token_id=2, eos_token_id=3, cls_token_id=2, sep_token_id=3),
        "ModernBertEncoderLayer",
        3,
    ),
    "gpt2": (lambda: GPT2Config(**SIZE, n_embd=16, n_layer=3, n_head=2, n_positions=40), "GPT2Block", 3),
}


def make(name: str) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return AutoModelForSequenceClassification.from_config(ARCHITECTURES[name][0]()).eval()


every_architecture = pytest.mark.parametrize("name", ARCHITECTURES)


@every_architecture
def test_blocks_are_the_repeated_layers(name: str):
    _, kind, number = ARCHITECTURES[name]
    blocks = find_blocks(TaskModel(make(name), "classification"))
    assert [type(block).__name__ for block in blocks] == [kind] * number


@every_architecture
def test_outputs_do_not_depend_on_padding_or_other_rows(name: str):
    model = TaskModel(make(name).double(), "classification")
    collator = tiny_collator(6, num_classes=3)
    with torch.no_grad():
        together = model(collator(np.arange(6), 6))
        alone = torch.cat([model(collator(np.asarray([row]), 1)) for row in range(6)])
    assert together.shape == (6, 3)
    torch.testing.assert_close(together, alone, rtol=1e-9, atol=1e-9)


@every_architecture
def test_freezing_trains_only_the_head(name: str):
    model = TaskModel(make(name), "classification")
    freeze_encoder(model)
    trained = [key for key, value in model.named_parameters() if value.requires_grad]
    assert trained
    assert all(not key.startswith(f"hf.{model.hf.base_model_prefix}.") for key in trained)
    total, num_trained = count_parameters(model)
    assert 0 < num_trained < total / 2


def test_a_model_without_layers_has_no_blocks():
    assert find_blocks(nn.Linear(2, 2)) == []
    mixed = nn.Module()
    mixed.parts = nn.ModuleList([nn.Linear(2, 2), nn.LayerNorm(2)])
    assert find_blocks(mixed) == []


@pytest.mark.parametrize(("num_classes", "kind"), [(3, "classification"), (0, "regression")])
def test_the_loss_is_the_sum_of_that_of_transformers(num_classes: int, kind: str):
    hf = tiny_model(num_labels=max(1, num_classes)).eval()
    hf.config.problem_type = "regression" if kind == "regression" else "single_label_classification"
    model = TaskModel(hf, kind)
    batch = tiny_collator(5, num_classes=num_classes)(np.arange(5), 5)
    outputs = model(batch)
    theirs = hf(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels)
    torch.testing.assert_close(model.loss_sum(outputs, batch) / 5, theirs.loss)


def test_rows_of_weight_zero_are_ignored_and_half_precision_is_summed_in_float32():
    model = TaskModel(nn.Identity(), "classification")
    batch = tiny_collator(4, num_classes=3)(np.arange(4), 4)
    outputs = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    batch.row_weight[2:] = 0.0
    loss = model.loss_sum(outputs, batch)
    expected = nn.functional.cross_entropy(outputs[:2].float(), batch.labels[:2], reduction="sum")
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, expected)


def test_token_types_are_passed_where_the_tokenizer_has_them():
    model = TaskModel(tiny_model().eval(), "classification")
    batch = tiny_collator(4)(np.arange(4), 4)
    second = replace(batch, token_type_ids=torch.ones_like(batch.input_ids))
    assert not torch.equal(model(batch), model(second))
    assert takes_token_types(tiny_tokenizer())
    tokenizer = tiny_tokenizer()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    assert not takes_token_types(tokenizer)


def test_tied_parameters_count_once():
    model = nn.Module()
    model.a, model.b = nn.Linear(3, 3), nn.Linear(3, 3, bias=False)
    model.b.weight = model.a.weight
    model.a.bias.requires_grad_(False)
    assert count_parameters(model) == (12, 9)


def test_a_fingerprint_changes_with_a_value_or_a_name():
    first = weights_fingerprint(tiny_model(seed=0))
    assert first == weights_fingerprint(tiny_model(seed=0))
    changed = tiny_model(seed=0)
    with torch.no_grad():
        changed.classifier.bias[1] += 1e-7
    others = [changed, tiny_model(seed=1), TaskModel(tiny_model(seed=0), "regression")]
    assert len({first, *(weights_fingerprint(model) for model in others)}) == 4


def test_a_fingerprint_is_the_same_in_every_precision():
    # What the policy does to the weights after they are loaded; every float32 is a float64.
    assert weights_fingerprint(tiny_model(seed=0).double()) == weights_fingerprint(tiny_model(seed=0))


@pytest.mark.parametrize("config", [BertConfig, RobertaConfig, DistilBertConfig])
def test_the_output_bias_of_a_regression_can_be_set(config: Any):
    size = {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32} if config is DistilBertConfig else BERT_SIZE
    hf = AutoModelForSequenceClassification.from_config(config(**{**SIZE, **size, "num_labels": 1}))
    model = TaskModel(hf, "regression", tuple(name for name, _ in hf.named_parameters())).eval()
    for name, parameter in hf.named_parameters():
        if "classifier" in name and name.endswith("weight"):
            nn.init.zeros_(parameter)
    set_output_bias(model, 6.5)
    # With a last layer of zeros the bias is all there is.
    assert model(tiny_collator(3, num_classes=0)(np.arange(3), 3.0)).flatten().tolist() == pytest.approx([6.5] * 3)


def test_the_bias_of_a_trained_head_is_not_set():
    hf = AutoModelForSequenceClassification.from_config(BertConfig(**{**SIZE, **BERT_SIZE, "num_labels": 1}))
    nn.init.constant_(hf.classifier.bias, 7.25)
    for new in ((), ("bert.pooler.dense.bias",)):
        with raises_code("config.no_effect", "classifier.bias", key="task.start_at_mean"):
            set_output_bias(TaskModel(hf, "regression", new), 1.0)
    assert hf.classifier.bias.item() == 7.25


def test_a_head_without_bias_is_an_error():
    hf = AutoModelForSequenceClassification.from_config(
        GPT2Config(vocab_size=30, n_embd=16, n_layer=1, n_head=2, num_labels=1, pad_token_id=0)
    )
    with raises_code("config.no_effect", "start_at_mean", "GPT2ForSequence"):
        set_output_bias(TaskModel(hf, "regression"), 1.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_means_of_packed_and_padded_rows_are_equal(dtype: torch.dtype):
    tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 2**-8}[dtype]
    lengths = [5, 1, 300, 8]
    ends = torch.tensor([0, 5, 6, 306, 314], dtype=torch.int32)
    # All positive: a sum of 300 in bfloat16 itself would not grow before its end.
    hidden_TD = torch.rand(314, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    found_TD, expected_TD = (hidden_TD.clone().requires_grad_() for _ in range(2))
    padded_BSD = nn.utils.rnn.pad_sequence(expected_TD.split(lengths), batch_first=True)
    expected = padded_BSD.sum(dim=1) / torch.tensor(lengths, dtype=dtype).unsqueeze(1)
    actual = row_means(found_TD, ends)
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    for item in (actual, expected):
        (item * torch.arange(12, dtype=dtype).view(4, 3)).sum().backward()
    torch.testing.assert_close(found_TD.grad, expected_TD.grad, rtol=tolerance, atol=tolerance)
