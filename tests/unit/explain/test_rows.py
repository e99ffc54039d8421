"""Tokens and words of rows."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from explained import TEXT, save_tiny
from raised import raises_code
from tiny import tiny_decoder_tokenizer, tiny_model
from tokenizer_kinds import KINDS

from paratune.explain.explain import require_explainable
from paratune.explain.rows import _words_of_tokens, read_rows


def test_each_token_belongs_to_the_word_with_its_characters(tmp_path: Path):
    trained, split = save_tiny(tmp_path, "regression").read("Good stuff, it wasn't bad")
    (row,) = read_rows(trained, split)
    assert [row.word_text(word) for word in range(len(row.words))] == ["Good", "stuff", ",", "it", "wasn't", "bad"]
    # [CLS] good s ##t ##u ##f ##f , it was ##? ... : letters are pieces of unknown words.
    tokens = trained.tokenizer.convert_ids_to_tokens(row.ids.tolist())
    by_word = [[] for _ in row.words]
    for token, word in zip(tokens, row.token_words.tolist(), strict=True):
        if word >= 0:
            by_word[word].append(token.removeprefix("##"))
    assert ["".join(pieces) for pieces in by_word] == ["good", "stuff", ",", "it", "wasn't", "bad"]
    assert (row.token_words[[0, -1]] == -1).all()


def test_sentences_of_words(tmp_path: Path):
    trained, split = save_tiny(tmp_path, "regression").read(TEXT)
    (row,) = read_rows(trained, split)
    # 6 + 5 words with their marks in the first line, 7 in the second.
    assert np.bincount(row.sentences).tolist() == [6, 5, 7]
    assert row.part_text(row.sentences == 1) == "But not the story!"


def test_words_behind_the_last_token_are_counted(tmp_path: Path):
    trained, split = save_tiny(tmp_path, "regression", max_length=6).read("good bad good bad good bad good")
    (row,) = read_rows(trained, split)
    assert (len(row.words), row.num_unread_words) == (4, 3)  # 6 tokens, two of them special


def test_both_texts_of_a_pair(tmp_path: Path):
    saved = save_tiny(tmp_path, "classification", is_pair=True)
    trained, split = saved.read("good film", pairs=("bad. ugly",))
    (row,) = read_rows(trained, split)
    assert [(word.text, row.word_text(at)) for at, word in enumerate(row.words)] == [
        (0, "good"), (0, "film"), (1, "bad"), (1, "."), (1, "ugly"),
    ]  # fmt: skip
    assert row.sentences.tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_tokens_of_all_kinds_of_tokenizers_belong_to_words(tmp_path: Path, kind: str):
    saved, tokenizer, text = save_tiny(tmp_path, "regression"), KINDS[kind](), "I saw a dog. A é in Lisbon"
    model = tiny_model(num_labels=1)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    trained, split = saved.read(text)
    (row,) = read_rows(trained, split)
    assert [row.word_text(word) for word in range(len(row.words))] == ["I", "saw", "a", "dog", ".", *text[12:].split()]
    # Special tokens have no word, and neither has a token of only white space.
    without = [token for token, word in zip(row.ids.tolist(), row.token_words.tolist(), strict=True) if word < 0]
    assert {text.strip() for text in tokenizer.convert_ids_to_tokens(without)} <= {"<s>", "</s>", "Ġ", "▁"}
    assert sorted(set(row.token_words.tolist()) - {-1}) == list(range(len(row.words)))


def test_tokens_with_spaces_and_over_several_words():
    # Tokens of a decoder begin with the space; ").", one token, covers two words.
    text = "a (b). c"
    places, owners = _words_of_tokens(text, [(0, 1), (1, 3), (3, 4), (4, 6), (6, 8), (8, 8)], 0)
    assert [text[start:end] for start, end in places] == ["a", "(", "b", ").", "c"]
    assert owners == [0, 1, 2, 3, 4, None]


def test_a_token_of_only_white_space_has_no_word():
    assert _words_of_tokens("a  b", [(0, 1), (1, 2), (2, 4)], 0)[1] == [0, None, 1]


def test_a_slow_tokenizer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    trained = save_tiny(tmp_path, "regression").load()
    monkeypatch.setattr(type(trained.tokenizer), "is_fast", False)
    with raises_code("tokenizer.unsupported"):
        require_explainable(trained, "run")


def test_texts_without_their_middle_are_refused(tmp_path: Path):
    trained = save_tiny(tmp_path, "regression").load()
    with raises_code("task.unsupported", key="data.truncation", value="head_tail"):
        require_explainable(replace(trained, truncation="head_tail"), "run")


def test_bytes_of_a_decoder_belong_to_words(tmp_path: Path):
    trained, split = save_tiny(tmp_path, "regression").read("good é")
    tokenizer = tiny_decoder_tokenizer()
    encoding = tokenizer(["né!"]).encodings[0]
    places, owners = _words_of_tokens("né!", encoding.offsets, 0)
    assert len(places) == 2
    assert owners == [0, 0, 0, 1]  # n, two bytes of é, !
    assert read_rows(trained, split)[0].words
