"""Words and their tokens; transformers' own alignment is the reference."""

import numpy as np
import pyarrow as pa
import pytest
import torch
from raised import raises_code
from tiny import tiny_decoder_tokenizer, tiny_tokenizer
from tokenizer_kinds import KINDS

from paratune.batch.packing import pack, round_up
from paratune.config.sections import Columns
from paratune.config.task_sections import TokenClassificationTask
from paratune.data.collators import IGNORED, WordCollator
from paratune.data.columns import TableReader
from paratune.data.encode import WORD, TokenizeOptions, tags_by_word
from paratune.data.selection import select_words
from paratune.data.tokens import tokenize

TASK = TokenClassificationTask(kind="token_classification", labels=["O", "B-PER", "I-PER"])
COLUMNS = Columns(text="tokens", label="tags")
WORDS = [["zoe", "was", "very", "good"], ["the", "film"], ["anna", "-", "lena", "xyz", "is", "fine"]]
TAGS = [["B-PER", "O", "O", "O"], ["O", "O"], ["B-PER", "I-PER", "I-PER", "I-PER", "O", "O"]]


def samples(words=WORDS, tags=TAGS, missing="refuse"):
    return select_words(TableReader(pa.table({"tokens": words, "tags": tags}), COLUMNS, missing, "t"), TASK)


def store_of(tmp_path, given, max_length=64, tokenizer=None):
    options = TokenizeOptions(tokenizer or tiny_tokenizer(), max_length, need_token_type_ids=True, cache_dir=tmp_path)
    return tokenize(given, options, TASK)


def test_first_tokens_are_those_of_transformers(tmp_path):
    given, tokenizer = samples(), tiny_tokenizer()
    store = store_of(tmp_path, given)
    for row, words in enumerate(WORDS):
        theirs = tokenizer(words, is_split_into_words=True)
        begin, end = store.offsets[row : row + 2]
        assert store.tokens[begin:end].tolist() == theirs["input_ids"]
        ids = theirs.word_ids()
        first = [word if word is not None and word not in ids[:place] else -1 for place, word in enumerate(ids)]
        assert store.token_values[WORD][begin:end].tolist() == first


def test_tokens_of_bytes_belong_to_words_too(tmp_path):
    given, tokenizer = samples(), tiny_decoder_tokenizer()
    store = store_of(tmp_path, given, tokenizer=tokenizer)
    text = tokenizer.decode(store.tokens[: store.offsets[1]].tolist())
    assert text == "zoe was very good"
    # One token for each letter: " was" begins with its space.
    assert np.flatnonzero(store.token_values[WORD][: store.offsets[1]] >= 0).tolist() in ([0, 4, 8, 13], [0, 3, 7, 12])


@pytest.mark.parametrize("kind", KINDS)
def test_words_of_one_letter_have_a_first_token(tmp_path, kind):
    words = ["I", "saw", "a", "dog", ".", "A", "é", "日本", "👩‍💻", "x"]
    store = store_of(tmp_path, samples([words], [["O"] * len(words)]), tokenizer=KINDS[kind]())
    first = store.token_values[WORD]
    assert first[first >= 0].tolist() == list(range(len(words)))


def test_labels_are_at_first_tokens_padded_and_packed(tmp_path):
    given = samples()
    store = store_of(tmp_path, given)
    collator = WordCollator(store, given.tags, 0)
    indices = np.array([2, 0])
    batch = collator(indices, collator.loss_denominator(indices))
    assert batch.loss_denominator == batch.loss_count == 10  # 6 + 4 words
    words = store.token_values[WORD]
    for row, sentence in enumerate(indices.tolist()):
        begin, end = store.offsets[sentence : sentence + 2]
        expected = [TASK.labels.index(TAGS[sentence][word]) if word >= 0 else IGNORED for word in words[begin:end]]
        assert batch.labels[row, : end - begin].tolist() == expected
        assert (batch.labels[row, end - begin :] == IGNORED).all()
    packed = round_up(pack(batch))
    kept = packed.label_places[: packed.loss_count]
    assert torch.equal(packed.labels[kept], batch.labels.flatten()[batch.label_places])


def test_without_tags_the_places_are_known(tmp_path):
    given = select_words(TableReader(pa.table({"tokens": WORDS}), COLUMNS, "drop", "t", require_labels=False), TASK)
    collator = WordCollator(store_of(tmp_path, given), given.tags, 0)
    padded = collator(np.arange(3), 1.0)
    assert padded.labels is None
    packed = pack(padded)
    assert torch.equal(packed.input_ids[packed.label_places], padded.input_ids.flatten()[padded.label_places])


def test_words_behind_the_limit_have_no_tag(tmp_path):
    given = samples()
    store = store_of(tmp_path, given, max_length=6)
    assert store.num_truncated == 2
    values = np.arange(6)
    # [CLS] z ##o ##e was [SEP]
    assert tags_by_word(values, store, 0, 4).tolist() == [1, 4, -1, -1]


@pytest.mark.parametrize(
    ("words", "tags", "code", "values"),
    [
        ([["a", "b"]], [["O"]], "data.value_missing", ["tags", "row 0"]),
        ([["a"], []], [["O"], []], "data.value_missing", ["text", "row 1"]),
        ([["a", " "]], [["O", "O"]], "data.value_missing", ["text"]),
        ([["a"]], [["B-LOC"]], "data.label_unseen", ["B-LOC", "row 0"]),
        (["a b"], [["O"]], "data.wrong_type", ["tags", "row 0"]),
        ([["a"]], ["O"], "data.wrong_type", ["data.columns.label"]),
    ],
)
def test_bad_rows_are_refused(words, tags, code, values):
    with raises_code(code, *values):
        samples(words, tags)


def test_bad_rows_can_be_dropped():
    kept = samples([*WORDS, ["a", "b"], []], [*TAGS, ["O"], []], missing="drop")
    assert (len(kept), kept.num_dropped) == (3, {"text": 1, "label": 1})
    assert kept.take(np.array([1])).words == [["the", "film"]]
