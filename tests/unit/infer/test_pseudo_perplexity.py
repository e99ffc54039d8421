import math
from pathlib import Path

import pytest
import torch
from raised import raises_code
from tiny import tiny_masked_lm, tiny_model
from transformers import AutoModelForMaskedLM, AutoTokenizer

from paratune.infer import pseudo_perplexity
from paratune.infer.pseudo_perplexity import pseudo_perplexities
from paratune.infer.trained import NamedColumns, load_trained

SENTENCES = ["the story was very good", "one", "a bad story and a good story and one two"]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    tiny_masked_lm(tmp_path / "model")
    return str(tmp_path / "model")


def one_by_one(folder: str, sentence: str) -> float:
    """By transformers alone, a token at a time."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
    logs = []
    for place in range(1, ids.shape[1] - 1):  # without [CLS] and [SEP]
        masked = ids.clone()
        masked[0, place] = tokenizer.mask_token_id
        with torch.inference_mode():
            logits = model(input_ids=masked, attention_mask=torch.ones_like(masked)).logits
        logs.append(float(logits[0, place].log_softmax(-1)[ids[0, place]]))
    return math.exp(-sum(logs) / len(logs))


@pytest.mark.parametrize("at_once", [1, 16, 4096])
def test_perplexities_equal_those_of_transformers_token_by_token(
    folder: str, at_once: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pseudo_perplexity, "TOKENS_AT_ONCE", at_once)
    perplexities = pseudo_perplexities(load_trained(folder, NamedColumns(text="text"), "cpu"), SENTENCES)
    assert perplexities == pytest.approx([one_by_one(folder, sentence) for sentence in SENTENCES], rel=1e-4)


def test_a_uniform_model_has_the_perplexity_of_its_vocabulary_size(folder: str):
    trained = load_trained(folder, NamedColumns(text="text"), "cpu")
    with torch.no_grad():
        trained.model.hf.get_output_embeddings().weight.zero_()
        trained.model.hf.get_output_embeddings().bias.zero_()
    assert pseudo_perplexities(trained, SENTENCES[:1]) == pytest.approx([trained.model.hf.config.vocab_size])


def test_empty_and_too_long_sentences_have_no_perplexity(folder: str):
    trained = load_trained(folder, NamedColumns(text="text"), "cpu")
    perplexities = pseudo_perplexities(trained, ["", "good " * 100, "good"])
    assert perplexities[:2] == [None, None]
    assert perplexities[2] is not None


def test_another_kind_of_model_is_refused(tmp_path: Path):
    tiny_model(tmp_path / "model")
    with raises_code("task.unsupported", kind="classification"):
        pseudo_perplexities(load_trained(str(tmp_path / "model"), NamedColumns(text="text"), "cpu"), ["a"])
