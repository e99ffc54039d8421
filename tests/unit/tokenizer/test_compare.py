"""Figures of tokenizers on texts that can be counted by eye."""

from pathlib import Path

import pytest
from raised import raises_code

from paratune.tokenizer.compare import TokenizerFigures, compare, load_vocabulary


@pytest.fixture
def tokenizer(tmp_path: Path):
    entries = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "um", "jog", "##o", "golo", ","]
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(entries), encoding="utf-8")
    return load_vocabulary(path)


def test_figures_of_a_text(tokenizer):
    result = compare([("mine", tokenizer)], ["um jogo, um golo é"])[0]
    # um | jog ##o | , | um | golo | [UNK]: 7 tokens, 6 of them on the 5 words, one word cut, one unknown.
    assert (result.num_words, result.num_word_tokens, result.num_tokens, result.num_unknown) == (5, 6, 7, 1)
    assert result.fertility == pytest.approx(6 / 5)
    assert result.continued_share == pytest.approx(1 / 5)
    assert result.unknown_share == pytest.approx(1 / 7)
    assert result.num_unknown_words == 1
    # 14 characters that are no white space, "é" is lost; 18 characters, one of two bytes.
    assert result.coverage == pytest.approx(13 / 14)
    assert result.bytes_per_token == pytest.approx(19 / 7)


def test_tokens_that_share_a_character_are_counted_each(tokenizer):
    # Byte-level tokenizers cut "ç" into two tokens with the same place.
    figures = TokenizerFigures("bytes", 256)
    figures.add("aç b", [(0, 1), (1, 2), (1, 2), (2, 4)], [False] * 4)
    assert (figures.num_words, figures.num_word_tokens, figures.num_cut_words) == (2, 4, 1)


def test_texts_without_words_have_no_fertility(tokenizer):
    result = compare([("mine", tokenizer)], [", ,"])[0]
    assert result.fertility is None
    assert result.coverage == 1


def test_many_texts_add_up(tokenizer):
    first = compare([("mine", tokenizer)], ["um jogo"])[0].as_dict()
    many = compare([("mine", tokenizer)], ["um jogo"] * 600)[0].as_dict()
    assert many["num_tokens"] == 600 * first["num_tokens"]
    assert many["fertility"] == first["fertility"]


def test_a_vocabulary_without_upper_case_reads_lower_case(tmp_path: Path, tokenizer):
    assert tokenizer.tokenize("GOLO") == ["golo"]
    cased = tmp_path / "cased.txt"
    cased.write_text("[UNK]\n[CLS]\n[SEP]\n[PAD]\n[MASK]\nGolo\ngolo", encoding="utf-8")
    assert load_vocabulary(cased).tokenize("Golo GOLO") == ["Golo", "[UNK]"]


def test_an_invalid_vocabulary_is_refused(tmp_path: Path):
    (tmp_path / "a.txt").write_text("uma frase\noutra")
    with raises_code("tokenizer.vocabulary_unreadable", "UNK"):
        load_vocabulary(tmp_path / "a.txt")
    with raises_code("tokenizer.vocabulary_unreadable"):
        load_vocabulary(tmp_path / "b.txt")
