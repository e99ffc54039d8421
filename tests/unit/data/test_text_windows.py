"""Windows of long texts: their tokens, and what `max_windows` leaves out."""

import numpy as np
import pytest
from raised import raises_code
from tiny import tiny_tokenizer

from paratune.config.task_sections import ClassificationTask, WindowOptions
from paratune.data.columns import Samples
from paratune.data.encode import TokenizeOptions
from paratune.data.load import Split, truncation_warnings
from paratune.data.slices import num_tokens
from paratune.data.tokens import tokenize

TASK = ClassificationTask(kind="classification", labels=["a", "b"])
TOKENIZER = tiny_tokenizer()
WORDS = ["the", "film", "was", "very", "good", "and", "it", "is", "fine", "bad", "really"]
TEXTS = [" ".join(WORDS[:count]) for count in (3, 11, 6, 7)]
PAIRS = ["zoe was", "good", "one", "two"]


def samples(texts=TEXTS, pairs=None):
    return Samples(list(texts), pairs, None, None, np.arange(len(texts)), None, {})


def windows_of(given, *, max_length=8, truncation="longest_first", **options):
    made = TokenizeOptions(TOKENIZER, max_length, truncation=truncation, need_token_type_ids=True, is_cached=False)
    return tokenize(given, made, TASK.model_copy(update={"windows": WindowOptions(**options)}))


def ids(store, place):
    return store.tokens[store.offsets[place] : store.offsets[place + 1]].tolist()


def inner(text):
    return TOKENIZER(text, add_special_tokens=False)["input_ids"]


def test_windows_have_all_tokens_of_a_text_in_order():
    store = windows_of(samples())
    # 6 tokens of text in a window: 3 | 6 + 5 | 6 | 6 + 1.
    assert store.num_sequences.tolist() == [1, 2, 1, 2]
    assert store.sequence_lengths.tolist() == [5, 8, 7, 8, 8, 3]
    found = [token for place in (1, 2) for token in ids(store, place)[1:-1]]
    assert found == inner(TEXTS[1])
    assert store.num_truncated == 0
    assert store.full_sample_lengths.tolist() == [5, 15, 8, 11]


def test_neighbouring_windows_share_the_stride():
    store = windows_of(samples(TEXTS[1:2]), stride=2)
    # Windows of 6 tokens begin at 0, 4 and 8 of the 11 tokens; the last one has 3.
    first, second, third = (ids(store, place)[1:-1] for place in range(3))
    whole = inner(TEXTS[1])
    assert (first, second, third) == (whole[:6], whole[4:10], whole[8:])


def test_a_text_that_fits_has_the_tokens_without_windows():
    for pairs, truncation in ((None, "longest_first"), (PAIRS, "only_first")):
        given = samples(pairs=pairs)
        options = TokenizeOptions(TOKENIZER, 32, truncation=truncation, need_token_type_ids=True, is_cached=False)
        plain, store = tokenize(given, options), windows_of(given, max_length=32, truncation=truncation)
        assert np.array_equal(store.tokens, plain.tokens)
        assert np.array_equal(store.type_ids, plain.type_ids)
        assert store.lengths.tolist() == plain.lengths.tolist()


@pytest.mark.parametrize("truncation", ["only_first", "only_second"])
def test_each_window_of_a_pair_has_the_whole_other_text(truncation):
    texts, pairs = (TEXTS, PAIRS) if truncation == "only_first" else (PAIRS, TEXTS)
    store = windows_of(samples(texts, pairs), max_length=10, truncation=truncation)
    other = inner(PAIRS[1])
    for place in range(*store.sample_offsets[1:3]):
        row = ids(store, place)
        assert (row[1 : 1 + len(other)] if truncation == "only_second" else row[-1 - len(other) : -1]) == other
    with raises_code("data.max_length_unfit"):
        windows_of(samples(texts, pairs), max_length=5, truncation=truncation)


def test_windows_beyond_the_most_are_counted_as_truncation():
    given = samples([" ".join(WORDS * 2), TEXTS[0]])
    store = windows_of(given, max_windows=2, stride=1)
    assert store.num_sequences.tolist() == [2, 1]
    # 22 tokens in windows of 6 that share 1: at 0, 5, 10 and 15 with 6, and 20 with 2; 11 are in the first two.
    assert store.row_values["dropped_windows"].tolist() == [0, 3, 0]
    assert store.full_lengths.tolist() == [8, 8 + 11, 5]
    assert store.num_truncated == 1
    split = Split("train", "t", given, store, "")
    assert num_tokens(split).tolist() == [27, 5]
    (warning,) = truncation_warnings({"train": split}, TASK)
    assert "50.0%" in warning
    assert "3 windows" in warning


def test_impossible_limits_are_refused():
    with raises_code("task.stride", value=6, most=5):
        windows_of(samples(), stride=6)
    with raises_code("data.max_length_unfit"):
        windows_of(samples(), max_length=2)
    windows_of(samples(), stride=5)
