"""Decoders with a classification head read the last token of a row, with any padding."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from architectures import DECODERS
from raised import raises_code
from tiny import END, tiny_decoder_tokenizer, tiny_model, tiny_tokenizer
from transformers import AutoConfig, AutoModelForSequenceClassification, XLNetConfig

from paratune.config.sections import ModelOptions
from paratune.config.task_sections import ClassificationTask, RegressionTask
from paratune.data.columns import Samples
from paratune.data.encode import TokenizeOptions
from paratune.data.loader import Collator
from paratune.data.tokenizers import pair_separator
from paratune.data.tokens import tokenize
from paratune.models.config import max_positions
from paratune.models.task_model import TaskModel, find_blocks, freeze_encoder, set_output_bias
from paratune.models.tokenizer import load_tokenizer
from paratune.precision import POLICIES
from paratune.tasks import make_recipe

SIZES = {"vocab_size": 257, "num_labels": 3, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": None}
TEXTS = ["good", f"a {END} in the middle of a text", "the film was very, very long", "bad film"]
CLASSES = ClassificationTask(kind="classification", labels=["bad", "fine", "good"])
every_decoder = pytest.mark.parametrize("kind", DECODERS)


def save(kind: str, folder: Path, **changes: Any) -> str:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**SIZES, **DECODERS[kind], **changes})
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tiny_decoder_tokenizer(folder)
    return str(folder)


def load(name: str, tokenizer: Any) -> TaskModel:
    model = make_recipe(CLASSES).load_model(ModelOptions(name=name), tokenizer, POLICIES["fp64"], seed=0)
    return model.eval()


def collator(tokenizer: Any, folder: Path, texts: list[str]) -> Collator:
    samples = Samples(texts, None, np.zeros(len(texts), dtype=np.int64), None, np.arange(len(texts)), None, {})
    store = tokenize(samples, TokenizeOptions(tokenizer, 64, cache_dir=folder))
    return Collator(store, samples.labels, tokenizer.pad_token_id)


def rows(*numbers: int) -> np.ndarray[Any, Any]:
    return np.asarray(numbers, dtype=np.int64)


@every_decoder
@pytest.mark.parametrize("side", ["left", "right"])
def test_logits_of_a_row_do_not_depend_on_longer_rows(kind, side, tmp_path):
    name = save(kind, tmp_path / "model")
    saved = tiny_decoder_tokenizer()
    saved.padding_side = side
    saved.save_pretrained(name)
    tokenizer = load_tokenizer(ModelOptions(name=name))
    assert tokenizer.pad_token == END
    model, batches = load(name, tokenizer), collator(tokenizer, tmp_path, TEXTS)
    assert model.hf.config.pad_token_id == tokenizer.pad_token_id == 0
    together = model(batches(rows(0, 1, 2, 3), 4.0))
    for number in range(4):
        alone = model(batches(rows(number), 1.0))
        torch.testing.assert_close(together[number], alone[0], rtol=1e-9, atol=1e-9)
        padded = model(batches(rows(number), 1.0, num_rows=3, length=60))
        torch.testing.assert_close(padded[0], alone[0], rtol=1e-9, atol=1e-9)


@every_decoder
def test_the_head_reads_the_last_token(kind, tmp_path):
    name = save(kind, tmp_path / "model")
    tokenizer = load_tokenizer(ModelOptions(name=name))
    model = load(name, tokenizer)
    hidden: list[torch.Tensor] = []
    model.hf.score.register_forward_hook(lambda _module, _args, logits: hidden.append(logits))
    batch = collator(tokenizer, tmp_path, TEXTS)(rows(0, 1, 2, 3), 4.0)
    pooled = model(batch)
    assert batch.attention_mask is not None
    last = batch.attention_mask.sum(dim=1) - 1
    torch.testing.assert_close(pooled, hidden[0][torch.arange(4), last])


@every_decoder
def test_blocks_head_and_limit_are_found(kind, tmp_path):
    name = save(kind, tmp_path / "model")
    tokenizer = load_tokenizer(ModelOptions(name=name))
    model = load(name, tokenizer)
    assert len(find_blocks(model)) == 3
    freeze_encoder(model)
    assert [key for key, weight in model.named_parameters() if weight.requires_grad] == ["hf.score.weight"]
    assert max_positions(model.hf.config, tokenizer) == 64


@every_decoder
def test_a_head_without_a_bias_cannot_start_at_a_mean(kind, tmp_path):
    name = save(kind, tmp_path / "model", num_labels=1)
    recipe = make_recipe(RegressionTask(kind="regression"))
    model = recipe.load_model(
        ModelOptions(name=name), load_tokenizer(ModelOptions(name=name)), POLICIES["fp32"], seed=0
    )
    with raises_code("config.no_effect", key="task.start_at_mean"):
        set_output_bias(model, 2.0)


def test_texts_of_a_pair_are_separated_by_a_line_break_where_the_tokenizer_puts_nothing(tmp_path):
    tokenizer = tiny_decoder_tokenizer(tmp_path)
    tokenizer = load_tokenizer(ModelOptions(name=str(tmp_path)))
    assert pair_separator(tokenizer) == "\n"
    assert pair_separator(tiny_tokenizer()) == ""  # [CLS] a [SEP] b [SEP]
    table = [("ab", "c"), ("a", "bc")]
    texts, pairs = [first for first, _ in table], [second for _, second in table]
    samples = Samples(texts, pairs, None, None, np.arange(2), None, {})
    store = tokenize(samples, TokenizeOptions(tokenizer, 64, cache_dir=tmp_path))
    actual = [tokenizer.decode(store.tokens[begin:end].tolist()) for begin, end in pairwise(store.offsets)]
    assert actual == ["ab\nc", "a\nbc"]


@pytest.mark.parametrize(("side", "remaining"), [(None, "abcd"), ("right", "abcd"), ("left", "efgh")])
def test_texts_are_truncated_on_the_configured_side(side, remaining, tmp_path):
    tiny_decoder_tokenizer(tmp_path)
    tokenizer = load_tokenizer(ModelOptions(name=str(tmp_path)), side)
    samples = Samples(["abcdefgh"], None, None, None, np.arange(1), None, {})
    store = tokenize(samples, TokenizeOptions(tokenizer, 4, cache_dir=tmp_path))
    assert tokenizer.decode(store.tokens.tolist()) == remaining


def test_a_model_that_reads_the_last_position_is_an_error(tmp_path):
    tiny_model(tmp_path)
    XLNetConfig(vocab_size=200, d_model=16, n_layer=2, n_head=2, d_inner=32).save_pretrained(tmp_path)
    with raises_code("model.unsupported", "xlnet"):
        load(str(tmp_path), tiny_tokenizer())
