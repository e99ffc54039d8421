"""Tokenizers of several kinds, trained on a few lines: `from tokenizer_kinds import spaced_tokenizer`."""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers
from tokenizers import Tokenizer, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

TEXTS = ["Anna wrote: I saw a dog in Lisbon. A ação é já feita, don't 日本 👩‍💻!"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def spaced_tokenizer(*texts: str, trim_offsets: bool = True, max_length: int = 64) -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer that adds a space to each word, as some Dutch RoBERTa models have it.

    With `trim_offsets` its offsets leave out the first letter of each word but the first.
    """
    parts = [pre.Whitespace(), pre.ByteLevel(add_prefix_space=True), pre.Punctuation()]
    return _tokenizer(_bytes(pre.Sequence(parts), texts or TEXTS), trim_offsets, max_length)


def roberta_tokenizer(*, add_prefix_space: bool, trim_offsets: bool) -> PreTrainedTokenizerFast:
    """Return a tokenizer as RoBERTa has it."""
    return _tokenizer(_bytes(pre.ByteLevel(add_prefix_space=add_prefix_space), TEXTS), trim_offsets, 64)


def wordpiece_tokenizer(normalizer: normalizers.Normalizer) -> PreTrainedTokenizerFast:
    """Return a WordPiece tokenizer that splits at white space and punctuation."""
    inner = Tokenizer(models.WordPiece(unk_token="<unk>"))
    inner.normalizer, inner.pre_tokenizer = normalizer, pre.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=SPECIAL, show_progress=False)
    inner.train_from_iterator(TEXTS * 3, trainer)
    return _wrapped(inner, 64)


def unigram_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer as XLM-R has it, with NFKC."""
    inner = Tokenizer(models.Unigram())
    inner.normalizer, inner.pre_tokenizer = normalizers.NFKC(), pre.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=SPECIAL, unk_token="<unk>", show_progress=False)
    inner.train_from_iterator(TEXTS * 3, trainer)
    return _wrapped(inner, 64)


KINDS: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
    "spaced": spaced_tokenizer,
    "spaced, untrimmed": lambda: spaced_tokenizer(trim_offsets=False),
    "roberta": lambda: roberta_tokenizer(add_prefix_space=False, trim_offsets=True),
    "roberta, prefix": lambda: roberta_tokenizer(add_prefix_space=True, trim_offsets=True),
    "roberta, untrimmed": lambda: roberta_tokenizer(add_prefix_space=True, trim_offsets=False),
    "bert, cased": lambda: wordpiece_tokenizer(normalizers.BertNormalizer(lowercase=False)),
    "bert, uncased": lambda: wordpiece_tokenizer(normalizers.BertNormalizer(lowercase=True)),
    "nfd": lambda: wordpiece_tokenizer(
        normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    ),
    "unigram": unigram_tokenizer,
}


def _bytes(
    pre_tokenizer: pre.PreTokenizer, texts: tuple[str, ...] | list[str], special: list[str] = SPECIAL
) -> Tokenizer:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizer
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator([*texts] * 3, trainer)
    return inner


def _tokenizer(inner: Tokenizer, trim_offsets: bool, max_length: int) -> PreTrainedTokenizerFast:
    inner.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=trim_offsets)
    return _wrapped(inner, max_length)


def _wrapped(inner: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        model_max_length=max_length,
        bos_token="<s>",
        cls_token="<s>",
        pad_token="<pad>",
        eos_token="</s>",
        sep_token="</s>",
        unk_token="<unk>",
        mask_token="<mask>",
    )


SHARED_CLASS: dict[str, tuple[str, dict[str, str], str]] = {
    "modernbert": (
        "BPE",
        {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"},
        "[CLS] $A [SEP]",
    ),
    "eurobert": (
        "BPE",
        {"pad": "<|pad|>", "bos": "<|bos|>", "eos": "<|eos|>", "mask": "<|mask|>"},
        "<|bos|> $A <|eos|>",
    ),
    "llama": ("BPE", {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}, "<s> $A"),
    "bloom": ("BPE", {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>"}, "$A"),
    "xlm-roberta-xl": ("Unigram", {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>"}, "<s> $A </s>"),
    "umt5": ("Unigram", {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"}, "$A </s>"),
}
"""Kind, special tokens and template of model types without a tokenizer class of their own."""


def own_tokenizer(model_type: str, texts: list[str], folder: Path) -> Any:
    """Return a tokenizer of the class and the kind that transformers has for a model type, trained on texts.

    Files that its class needs are written into `folder`.
    """
    if model_type in SHARED_CLASS:
        kind, roles, template = SHARED_CLASS[model_type]
        inner = _trained(kind, roles, texts)
        special = [(token, inner.token_to_id(token)) for token in dict.fromkeys(roles.values())]
        inner.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)
        tokens = {f"{role}_token": token for role, token in roles.items()}
        return PreTrainedTokenizerFast(tokenizer_object=inner, **tokens, model_max_length=64)
    own = getattr(transformers, TOKENIZER_MAPPING_NAMES[model_type])
    defaults = {name: entry.default for name, entry in inspect.signature(own.__init__).parameters.items()}
    roles = {role: defaults.get(f"{role}_token") for role in ("pad", "unk", "cls", "sep", "mask", "bos", "eos")}
    roles = {role: str(token) for role, token in roles.items() if token is not None}
    if model_type in ("esm", "roc_bert"):  # slow tokenizers: a list of words, and for RoCBert of shapes and sounds
        listed = list(dict.fromkeys([*roles.values(), *"ACDEFGHIKLMNPQRSTVWXY"]))
        (folder / "vocab.txt").write_text("\n".join(listed))
        (folder / "codes.json").write_text(json.dumps({word: number for number, word in enumerate(listed)}))
        files = [folder / "vocab.txt", *([folder / "codes.json"] * 2 if model_type == "roc_bert" else [])]
        return own(*map(str, files), model_max_length=64)
    kind = getattr(own.model, "__name__", "Unigram")
    model = json.loads(_trained(kind, roles, texts).to_str())["model"]
    vocab = [(piece, score) for piece, score in model["vocab"]] if kind == "Unigram" else model["vocab"]
    merges = {"merges": [tuple(pair) for pair in model["merges"]]} if kind == "BPE" else {}
    return own(vocab=vocab, **merges, model_max_length=64)


def _trained(kind: str, roles: dict[str, str], texts: list[str]) -> Tokenizer:
    special = list(dict.fromkeys(roles.values()))
    if kind == "WordPiece":
        inner = Tokenizer(models.WordPiece(unk_token=roles["unk"]))
        inner.normalizer, inner.pre_tokenizer = normalizers.BertNormalizer(), pre.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    elif kind == "Unigram":
        inner = Tokenizer(models.Unigram())
        inner.pre_tokenizer = pre.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=90, special_tokens=special, unk_token=roles["unk"], show_progress=False
        )
    else:
        return _bytes(pre.ByteLevel(add_prefix_space=False), texts, special)
    inner.train_from_iterator(texts * 3, trainer)
    return inner
