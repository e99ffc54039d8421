"""Windows of running text: starts of documents and words, and errors."""

from pathlib import Path

import numpy as np
import pytest
import tokenizers
import transformers
from raised import raises_code
from tiny import VOCABULARY, tiny_tokenizer
from tokenizers import decoders, models, pre_tokenizers, trainers

import paratune.data.tokens as tokens_module
from paratune.config.task_sections import MaskedLMTask
from paratune.data.columns import Samples
from paratune.data.encode import ASKED, NUM_MASKABLE, TokenizeOptions
from paratune.data.tokenizers import check_mask_tokenizer, mask_vocabulary
from paratune.tasks import make_recipe

CLS, SEP, MASK, PAD, UNK = (VOCABULARY.index(f"[{name}]") for name in ("CLS", "SEP", "MASK", "PAD", "UNK"))
TEXTS = ["good film", "one two three four five", "bad", "the very very good book"]


def ids(text: str) -> list[int]:
    return [VOCABULARY.index(word) for word in text.split()]


def samples(texts: list[str]) -> Samples:
    return Samples(texts, None, None, None, np.arange(len(texts)) + 10, None, {})


def windows(texts: list[str], folder: Path, kind="joined", max_length=6, tokenizer=None, source="data", **options):
    how = TokenizeOptions(tokenizer or tiny_tokenizer(), max_length, cache_dir=folder, need_token_type_ids=True)
    return tokens_module.tokenize(samples(texts), how, MaskedLMTask(kind="mlm", windows=kind, **options), source=source)


def rows_of(store, values=None):
    values = store.tokens if values is None else values
    return [part.tolist() for part in np.split(values, store.offsets[1:-1])]


@pytest.mark.parametrize("chunk_size", [1, 2, 3, 1000])
def test_joined_documents_are_cut_every_max_length(tmp_path, monkeypatch, chunk_size):
    monkeypatch.setattr(tokens_module, "CHUNK_SIZE", chunk_size)
    store = windows(TEXTS, tmp_path)
    # Four tokens a window beside [CLS] and [SEP]; between two documents a [SEP]; the last window has what is left.
    assert rows_of(store) == [
        [CLS, *ids("good film"), SEP, *ids("one"), SEP],
        [CLS, *ids("two three four five"), SEP],
        [CLS, SEP, *ids("bad"), SEP, *ids("the"), SEP],
        [CLS, *ids("very very good book"), SEP],
    ]
    assert store.examples.tolist() == [0, 1, 1, 3]
    assert store.row_values[NUM_MASKABLE].tolist() == [3, 4, 2, 4]
    assert store.full_lengths.tolist() == store.lengths.tolist()
    assert (store.num_truncated, store.type_ids.sum()) == (0, 0)


def test_the_last_window_has_the_rest_and_no_token_is_lost(tmp_path):
    for max_length in range(3, 20):
        store = windows(TEXTS, tmp_path, max_length=max_length)
        inner = [token for row in rows_of(store) for token in row[1:-1]]
        assert inner == [token for text in TEXTS for token in [*ids(text), SEP]][:-1]
        # 2 + 5 + 1 + 5 words and 3 separators.
        assert len(store) == -(-16 // (max_length - 2))
        assert (store.lengths[:-1] == max_length).all()


@pytest.mark.parametrize("chunk_size", [1, 3, 1000])
def test_separate_documents_are_cut_where_a_window_is_full(tmp_path, monkeypatch, chunk_size):
    monkeypatch.setattr(tokens_module, "CHUNK_SIZE", chunk_size)
    store = windows(TEXTS, tmp_path, "separate", max_length=10, whole_words=True)
    assert rows_of(store) == [
        *([CLS, *ids("good film"), SEP], [CLS, *ids("one two three four"), SEP]),
        *([CLS, *ids("five"), SEP], [CLS, *ids("bad"), SEP], [CLS, *ids("the very"), SEP]),
        [CLS, *ids("very good book"), SEP],
    ]
    assert store.sample_offsets.tolist() == [0, 2, 5, 6]
    assert store.lengths.tolist() == [10, 10, 5]
    assert store.examples.tolist() == [0, 1, 1, 2, 3, 3]
    assert store.row_values[NUM_MASKABLE].tolist() == [2, 4, 1, 1, 2, 3]
    assert (store.num_truncated, store.token_values["word_start"].all()) == (0, True)


def test_separate_windows_lose_no_token_and_are_as_full_as_pieces_allow(tmp_path):
    for max_length in range(3, 24):
        store = windows(TEXTS, tmp_path, "separate", max_length=max_length)
        assert [token for row in rows_of(store) for token in row[1:-1]] == [t for text in TEXTS for t in ids(text)]
        assert store.lengths.max() <= max_length
        assert (store.lengths[:-1] >= max_length - 2).all()  # no room for two special tokens and another one
    # A document that begins a window is whole where `max_length` allows, as without other documents.
    alone = windows(TEXTS[1:2], tmp_path, "separate", max_length=7)
    assert rows_of(alone) == rows_of(windows(TEXTS[1:2], tmp_path, "documents", max_length=7))


def test_a_window_of_one_document_equals_the_output_of_the_tokenizer(tmp_path):
    tokenizer = tiny_tokenizer()
    store = windows(TEXTS, tmp_path, "documents")
    assert rows_of(store) == tokenizer(TEXTS, truncation=True, max_length=6)["input_ids"]
    assert store.full_lengths.tolist() == [4, 7, 3, 7]
    assert store.num_truncated == 2
    assert store.examples.tolist() == [0, 1, 2, 3]
    tokenizer.truncation_side = "left"
    ends = windows(TEXTS, tmp_path, "documents", tokenizer=tokenizer)
    assert rows_of(ends)[1] == [CLS, *ids("two three four five"), SEP]


def test_a_document_with_a_separator_in_it_has_the_ids_of_a_pair(tmp_path):
    store = windows(["good film [SEP] bad book"], tmp_path, "documents", max_length=10)
    assert rows_of(store) == [tiny_tokenizer()("good film", "bad book")["input_ids"]]
    assert store.row_values[NUM_MASKABLE].tolist() == [4]


def test_word_starts_are_those_of_the_tokenizer(tmp_path):
    # Letters that are no word of the vocabulary: "xyz" is x ##y ##z.
    store = windows(["good xyz", "bad xyz"], tmp_path, max_length=7, whole_words=True)
    assert rows_of(store) == [
        [CLS, *ids("good x ##y ##z"), SEP, SEP],
        [CLS, *ids("bad x ##y ##z"), SEP],
    ]
    assert rows_of(store, store.token_values["word_start"]) == [[1, 1, 1, 0, 0, 1, 1], [1, 1, 1, 0, 0, 1]]
    # What a cut leaves of a word is a separate word, and no part of [CLS].
    store = windows(["good xyz"], tmp_path, max_length=5, whole_words=True)
    assert rows_of(store) == [[CLS, *ids("good x ##y"), SEP], [CLS, *ids("##z"), SEP]]
    assert rows_of(store, store.token_values["word_start"]) == [[1, 1, 1, 0, 1], [1, 1, 1]]


CORPUS = ["the film was unbelievably good", "the believable book", "unbelievable films and books"] * 4


def bpe() -> transformers.PreTrainedTokenizerFast:
    """Return a byte-level BPE with RoBERTa's special tokens."""
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    inner.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=special))
    return _roberta(inner)


def unigram() -> transformers.PreTrainedTokenizerFast:
    """Return a Unigram model as CamemBERT and XLM-R have it."""
    inner = tokenizers.Tokenizer(models.Unigram())
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    trainer = trainers.UnigramTrainer(vocab_size=40, special_tokens=special, unk_token="<unk>", show_progress=False)
    inner.train_from_iterator(CORPUS, trainer)
    return _roberta(inner)


def _roberta(inner: tokenizers.Tokenizer) -> transformers.PreTrainedTokenizerFast:
    inner.post_processor = tokenizers.processors.TemplateProcessing(
        single="<s> $A </s>",
        special_tokens=[("<s>", inner.token_to_id("<s>")), ("</s>", inner.token_to_id("</s>"))],
    )
    names = {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", mask_token="<mask>", model_max_length=64, **names
    )


@pytest.mark.parametrize("make", [bpe, unigram])
def test_word_starts_of_other_kinds_of_tokenizers(tmp_path, make):
    tokenizer = make()
    text = "unbelievable films the bookish"
    store = windows([text], tmp_path, "documents", 60, tokenizer, whole_words=True)
    starts = store.token_values["word_start"].astype(bool)
    tokens, places = store.tokens[1:-1], np.flatnonzero(starts[1:-1])
    words = [tokenizer.decode(part).strip() for part in np.split(tokens, places[1:])]
    assert words == text.split()
    assert len(tokens) > len(words), "some words have several tokens"
    # <s> ... </s> </s> ... </s>, as RoBERTa joins documents.
    joined = windows(["the", "the"], tmp_path, "joined", 60, tokenizer)
    inner = tokenizer("the", add_special_tokens=False)["input_ids"]
    end = tokenizer.eos_token_id
    assert rows_of(joined) == [[tokenizer.bos_token_id, *inner, end, *inner, end]]


def test_special_tokens_are_never_hidden_and_never_drawn():
    vocabulary = mask_vocabulary(tiny_tokenizer())
    assert np.flatnonzero(vocabulary.is_special).tolist() == [PAD, UNK, CLS, SEP, MASK]
    assert vocabulary.ordinary.tolist() == list(range(5, len(VOCABULARY)))
    assert vocabulary.mask_id == MASK


def test_unknown_characters_and_masks_in_a_text_are_not_maskable(tmp_path):
    store = windows(["good 漢 [MASK] film"], tmp_path)
    assert rows_of(store) == [[CLS, *ids("good"), UNK, MASK, *ids("film"), SEP]]
    assert store.row_values[NUM_MASKABLE].tolist() == [2]


def test_all_settings_of_windows_change_the_fingerprint(tmp_path):
    made = [
        windows(TEXTS, tmp_path),
        windows(TEXTS, tmp_path, "documents"),
        windows(TEXTS, tmp_path, "separate"),
        windows(TEXTS, tmp_path, whole_words=True),
        windows(TEXTS, tmp_path, max_length=7),
    ]
    assert len({store.fingerprint for store in made}) == 5
    assert windows(TEXTS, tmp_path).fingerprint == made[0].fingerprint
    assert len(list((tmp_path / "tokens").glob("[0-9a-f]*[0-9a-f]"))) == 5


def test_a_window_without_room_for_text_is_an_error(tmp_path):
    with raises_code("data.max_length_unfit", "max_length", "2", "3"):
        windows(TEXTS, tmp_path, max_length=2)


def test_unknown_special_tokens_around_a_text_are_an_error(tmp_path):
    plain = tiny_tokenizer()  # it has no letter A, and an ordinary word is before each text
    plain.backend_tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="good $A [SEP]", special_tokens=[("good", *ids("good")), ("[SEP]", SEP)]
    )
    numbers = [*ids("good"), *ids("a"), SEP]
    with raises_code("tokenizer.unsupported", ids("a"), numbers, "model.tokenizer"):
        windows(["good"], tmp_path, tokenizer=plain)
    dropping = tiny_tokenizer()
    dropping.backend_tokenizer.normalizer = tokenizers.normalizers.Replace("a", "")
    with raises_code("tokenizer.unsupported", key="task.kind"):
        windows(["good"], tmp_path, tokenizer=dropping)


def test_documents_without_tokens_are_reported_with_their_rows(tmp_path):
    with raises_code("data.no_tokens", "11", "13", "0"):
        windows(["good", "\u200b", "bad", "\ufeff"], tmp_path, source="here")
    assert not list((tmp_path / "tokens").glob("*.tmp"))


def test_a_tokenizer_without_mask_token_or_word_starts_is_an_error():
    check_mask_tokenizer(tiny_tokenizer(), whole_words=True)
    without = tiny_tokenizer()
    without.mask_token = None
    with raises_code("tokenizer.token_missing", key="task.kind"):
        check_mask_tokenizer(without)
    made_up = tiny_tokenizer()
    vocabulary = {token: number for number, token in enumerate(VOCABULARY) if token != "[MASK]"}
    made_up.backend_tokenizer.model = models.WordPiece(vocab=vocabulary, unk_token="[UNK]")
    with raises_code("tokenizer.token_missing", key="task.kind"):
        check_mask_tokenizer(made_up)
    slow = transformers.ByT5Tokenizer(mask_token="<mask>")
    check_mask_tokenizer(slow)
    with raises_code("tokenizer.unsupported", "whole_words", "ByT5Tokenizer"):
        check_mask_tokenizer(slow, whole_words=True)


def test_a_tokenizer_that_treats_a_text_as_one_word_is_an_error():
    inner = tokenizers.Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0), ("b", -1.0), (" ", -1.0)], unk_id=0))
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", mask_token="<mask>")
    check_mask_tokenizer(whole)
    with raises_code("tokenizer.unsupported", "a b"):
        check_mask_tokenizer(whole, whole_words=True)
    for made in (bpe(), unigram()):
        check_mask_tokenizer(made, whole_words=True)


def test_slow_tokenizers_can_make_windows(tmp_path):
    tokenizer = transformers.ByT5Tokenizer(mask_token="<mask>")
    store = windows(["ab", "c"], tmp_path, "joined", 4, tokenizer)
    # Bytes + 3, and 1 for the end, of a window and between documents: the definition of ByT5 (Xue et al. 2022).
    assert rows_of(store) == [[100, 101, 1, 1], [102, 1]]


def test_each_mask_of_a_text_is_a_question(tmp_path):
    texts = [
        "the [MASK] was good",
        "no mask",
        "[MASK] and [MASK]",
        "one two three four five [MASK]",
        "[MASK] two three four [MASK]",
    ]
    how = TokenizeOptions(tiny_tokenizer(), 6, cache_dir=tmp_path)
    recipe = make_recipe(MaskedLMTask(kind="mlm"))
    split = recipe.make_split("data", "here", samples(texts), how, require_labels=False)
    asked, store = split.samples, split.store
    # The mask of the fourth is beyond the first six tokens, and so is the second one of the fifth.
    assert (asked.texts, asked.rows.tolist(), asked.num_dropped) == ([texts[0], texts[2]], [10, 12], {"mask": 3})
    assert store.examples.tolist() == [0, 1, 1]
    assert store.row_values[ASKED].tolist() == [2, 1, 3]
    assert rows_of(store)[1] == rows_of(store)[2] == [CLS, MASK, *ids("and"), MASK, SEP]
    with raises_code("data.no_tokens", "MASK", "6"):
        recipe.make_split("data", "here", samples(["<mask>"]), how, require_labels=False)
