"""Very long texts are cut before they are tokenized, and keep the tokens of the whole text."""

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tiny import tiny_tokenizer
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from paratune.data import encode, tokenizers
from paratune.data.columns import Samples
from paratune.data.encode import Texts, TokenizeOptions
from paratune.data.tokenizers import cut_long_texts, tokenizes_words

RNG = random.Random(5)
PIECES = [
    *("the", "film", "good", "Évora", "não", "e\u0301tude", "ﬁne", "ΣΟΦΟΣ", "x" * 40, "don't", "well-known", "3.14"),
    *(
        "日本語の文",
        "😀",
        "👩\u200d👩",
        "a_b",
        "##ing",
        "[MASK]",
        "</s>",
        "▁x",
        "\u00a0",
        "\u3000",
        "Ġ",
        "ا ل",
        "``",
        "''",
    ),
    *(",", ".", "!?", "(", ")", "--", "\n", "\n\n", "\t", "  ", "   ", "\r\n", "I", "a", "1234567", "naïve", "\u0000x"),
]


def random_text(num_pieces: int) -> str:
    return "".join(piece + RNG.choice([" ", " ", " ", ""]) for piece in RNG.choices(PIECES, k=num_pieces))


SAMPLE = [random_text(60) for _ in range(60)]


def trained(model: Any, trainer: Any, pre_tokenizer: Any, normalizer: Any = None) -> PreTrainedTokenizerFast:
    inner = Tokenizer(model)
    inner.pre_tokenizer, inner.normalizer = pre_tokenizer, normalizer
    inner.train_from_iterator(SAMPLE, trainer)
    ids = inner.token_to_id("<s>"), inner.token_to_id("</s>")
    inner.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", ids[0]), ("</s>", ids[1])]
    )
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", bos_token="<s>", eos_token="</s>", pad_token="<pad>",
        mask_token="[MASK]", cls_token="<s>", sep_token="</s>",
    )  # fmt: skip


SPECIAL = ["<unk>", "<s>", "</s>", "<pad>", "[MASK]"]
HOW: dict[str, Any] = {"vocab_size": 400, "special_tokens": SPECIAL, "show_progress": False}
SQUASH = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " "), normalizers.Strip()])


def make(kind: str) -> PreTrainedTokenizerFast:
    bytes_of = {**HOW, "initial_alphabet": pre_tokenizers.ByteLevel.alphabet()}
    if kind == "WordPiece":
        return tiny_tokenizer()
    if kind == "byte-level BPE":
        return trained(models.BPE(), trainers.BpeTrainer(**bytes_of), pre_tokenizers.ByteLevel(add_prefix_space=False))
    if kind == "byte-level BPE, prefix space":
        return trained(models.BPE(), trainers.BpeTrainer(**bytes_of), pre_tokenizers.ByteLevel(add_prefix_space=True))
    if kind == "words, then bytes":
        parts = [
            pre_tokenizers.Whitespace(),
            pre_tokenizers.ByteLevel(add_prefix_space=True),
            pre_tokenizers.Punctuation(),
        ]
        return trained(models.BPE(), trainers.BpeTrainer(**bytes_of), pre_tokenizers.Sequence(parts))
    if kind == "BPE":
        return trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(**HOW), pre_tokenizers.Whitespace())
    unigram = trainers.UnigramTrainer(**HOW, unk_token="<unk>")
    if kind == "Unigram":
        return trained(models.Unigram(), unigram, pre_tokenizers.Metaspace(), SQUASH)
    spaces = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    return trained(models.Unigram(), unigram, pre_tokenizers.Sequence(spaces), SQUASH)


KINDS = (
    *("WordPiece", "byte-level BPE", "byte-level BPE, prefix space", "words, then bytes", "BPE", "Unigram"),
    "Unigram of words",
)


def encoded(monkeypatch: Any, limit: int, options: TokenizeOptions, texts: list[str], pairs: list[str] | None) -> Any:
    for name in ("LONG_TEXT", "PAIRED_TEXT"):
        monkeypatch.setattr(tokenizers, name, limit)
        monkeypatch.setattr(encode, "PAIRED_TEXT", limit)
    samples = Samples(texts, pairs, None, None, np.arange(len(texts)), None, {})
    (rows,) = encode.layout_of(None).encode(Texts(samples, options, None, "a.csv"), iter([slice(0, len(texts))]))
    return rows.ids, rows.type_ids, rows.full_lengths


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_kept_tokens_are_those_of_the_whole_text(monkeypatch, kind, side):
    tokenizer = make(kind)
    tokenizer.truncation_side = side
    assert tokenizes_words(tokenizer)
    texts = [random_text(RNG.randint(200, 300)) for _ in range(3)]
    singles = [random_text(900) for _ in range(3)]
    others = [random_text(RNG.choice([1, 5, 30, 100])) for _ in texts]
    num_cut = 0
    for max_length in (20, 41):
        options = TokenizeOptions(tokenizer, max_length, need_token_type_ids=True)
        for truncation, first, second in (
            ("longest_first", singles, None),
            ("head_tail", singles, None),
            ("longest_first", texts, others),
            ("longest_first", others, texts),
            ("only_first", texts, ["the film"] * 3),
            ("only_second", ["the film"] * 3, texts),
            ("longest_first", texts, texts[::-1]),
        ):
            case = replace(options, truncation=truncation)
            whole = encoded(monkeypatch, 10**9, case, first, second)
            short = encoded(monkeypatch, 900, case, first, second)
            assert short[:2] == whole[:2], (max_length, truncation)
            num_cut += sum(length < full for length, full in zip(short[2], whole[2], strict=True))
            assert all(
                (length > max_length) == (full > max_length) for length, full in zip(short[2], whole[2], strict=True)
            )
    assert num_cut > 10


@pytest.mark.parametrize(
    ("pre_tokenizer", "normalizer"),
    [
        (None, None),
        (None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),  # LLaMA 2
        (pre_tokenizers.Metaspace(split=False), None),
        (pre_tokenizers.ByteLevel(use_regex=False), None),
        (pre_tokenizers.Punctuation(), None),
        (pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(".+"), "isolated"), pre_tokenizers.Whitespace()]), None),
        (pre_tokenizers.Whitespace(), normalizers.Replace(Regex("film.*"), "x")),
    ],
)
def test_tokenizers_that_may_join_words_get_the_whole_text(monkeypatch, pre_tokenizer, normalizer):
    tokenizer = trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(**HOW), pre_tokenizer, normalizer)
    monkeypatch.setattr(tokenizers, "LONG_TEXT", 1000)
    text = random_text(800)
    assert not tokenizes_words(tokenizer)
    assert cut_long_texts([text], None, tokenizer, 8) == ([text], None)


def test_texts_without_spaces_are_whole(monkeypatch):
    monkeypatch.setattr(tokenizers, "LONG_TEXT", 1000)
    solid, long = "film" * 1000, "good film " * 1000
    assert cut_long_texts([solid], None, tiny_tokenizer(), 8) == ([solid], None)
    (short,), pair = cut_long_texts([long], ["film"], tiny_tokenizer(), 8)
    assert pair == ["film"]
    assert len(short) < 1200  # 8 characters for each of 8 + 64 tokens, and twice this where it is too short


def test_the_longer_text_of_a_pair_remains_the_longer_one(monkeypatch):
    monkeypatch.setattr(tokenizers, "LONG_TEXT", 1000)
    tokenizer = tiny_tokenizer()
    texts = ["good film " * 1000, "good film " * 1001]
    for first, second in (texts, texts[::-1], texts[:1] * 2):
        whole = [len(tokenizer(text)["input_ids"]) for text in (first, second)]
        (one,), other = cut_long_texts([first], [second], tokenizer, 8)
        short = [len(tokenizer(text)["input_ids"]) for text in (one, other[0])]
        assert (short[0] > short[1]) == (whole[0] > whole[1])
        assert max(short) < 500


def test_a_text_of_10_mb_is_not_tokenized_in_full(monkeypatch):
    tokenizer = tiny_tokenizer()
    seen = []
    call = type(tokenizer).__call__

    def counting(self, text, *args, **kwargs):
        seen.append(sum(map(len, text)) if isinstance(text, list) else len(text))
        return call(self, text, *args, **kwargs)

    monkeypatch.setattr(type(tokenizer), "__call__", counting)
    options = TokenizeOptions(tokenizer, 32)
    ids, _, lengths = encoded(monkeypatch, tokenizers.LONG_TEXT, options, ["good film " * 1_000_000], None)
    assert len(ids[0]) == 32
    assert lengths[0] > 32
    assert sum(seen) < 10_000
