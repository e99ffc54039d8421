"""A tiny tokenizer and a tiny BERT for all tests: `from tiny import tiny_model`."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification, PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = [
    *(
        "good",
        "bad",
        "fine",
        "poor",
        "great",
        "awful",
        "nice",
        "ugly",
        "film",
        "book",
        "food",
        "place",
        "phone",
        "story",
    ),
    *("the", "is", "was", "very", "not", "really", "and", "but", "it", "this", "that", "again", "never", "always"),
    *("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
]
LETTERS = [*"abcdefghijklmnopqrstuvwxyz0123456789.,!?'-"]
VOCABULARY = [*SPECIAL, *LETTERS, *("##" + letter for letter in LETTERS), *WORDS]
"""Words, and all letters as first and following pieces, so that plain text has no unknown token."""


def tiny_tokenizer(folder: Path | None = None, *, max_length: int = 64) -> PreTrainedTokenizerFast:
    """Return an uncased WordPiece tokenizer with BERT's special tokens and token types; saved in `folder` if given.

    Its ids are the positions in `VOCABULARY`; a word of `WORDS` is one token, other words are spelled by letters.
    """
    ids = {token: number for number, token in enumerate(VOCABULARY)}
    inner = Tokenizer(models.WordPiece(vocab=ids, unk_token="[UNK]", max_input_chars_per_word=100))
    inner.normalizer = normalizers.BertNormalizer(lowercase=True)
    inner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=max_length,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    if folder is not None:
        tokenizer.save_pretrained(folder)
    return tokenizer


def tiny_config(num_labels: int = 2, *, max_length: int = 64, dropout: float = 0.1, num_layers: int = 2) -> BertConfig:
    """Return the configuration of `tiny_model`: layers of width 32 with two heads."""
    return BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        num_hidden_layers=num_layers,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=max_length,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        num_labels=num_labels,
        pad_token_id=0,
    )


def tiny_model(
    folder: Path | None = None,
    num_labels: int = 2,
    *,
    max_length: int = 64,
    dropout: float = 0.1,
    seed: int = 0,
    num_layers: int = 2,
) -> BertForSequenceClassification:
    """Return a small BERT with a classification head, with weights that depend only on the seed.

    With `folder`, the model and `tiny_tokenizer` are saved there as a Hugging Face folder.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForSequenceClassification(
            tiny_config(num_labels, max_length=max_length, dropout=dropout, num_layers=num_layers)
        )
    if folder is not None:
        model.save_pretrained(folder)
        tiny_tokenizer(folder, max_length=max_length)
    return model


def tiny_masked_lm(
    folder: Path | None = None, *, tied: bool = True, dropout: float = 0.0, seed: int = 0, num_layers: int = 2
) -> BertForMaskedLM:
    """Return a small BERT with a masked LM head on its embeddings, with weights that depend only on the seed.

    With `tied` false the head has a copy of the embeddings, as if the tie were lost. With `folder`, the model and
    `tiny_tokenizer` are saved there.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = BertForMaskedLM(tiny_config(dropout=dropout, num_layers=num_layers))
    embeddings = model.bert.embeddings.word_embeddings.weight
    assert model.cls.predictions.decoder.weight is embeddings
    if not tied:
        model.cls.predictions.decoder.weight = nn.Parameter(embeddings.detach().clone())
    if folder is not None:
        model.save_pretrained(folder)
        tiny_tokenizer(folder)
    return model


END = "<|endoftext|>"


def tiny_decoder_tokenizer(folder: Path | None = None, *, max_length: int = 64) -> PreTrainedTokenizerFast:
    """Return a tokenizer like GPT-2's: bytes, no special tokens around or between texts, no padding token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {END: 0} | {letter: number for number, letter in enumerate(letters, start=1)}
    inner = Tokenizer(models.BPE(vocab=ids, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=max_length,
        eos_token=END,
        model_input_names=["input_ids", "attention_mask"],
    )
    if folder is not None:
        tokenizer.save_pretrained(folder)
    return tokenizer
