"""Tokenizers of several kinds, trained on a few lines: `from tokenizer_kinds import spaced_tokenizer`."""

from collections.abc import Callable

from tokenizers import Tokenizer, models, normalizers, processors, trainers
from tokenizers import pre_tokenizers as pre
from transformers import PreTrainedTokenizerFast

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


def _bytes(pre_tokenizer: pre.PreTokenizer, texts: tuple[str, ...] | list[str]) -> Tokenizer:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizer
    alphabet = pre.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet, show_progress=False
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
