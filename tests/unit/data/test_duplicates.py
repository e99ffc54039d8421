"""Counting repeated texts inside and across splits, by hand."""

import hashlib
from pathlib import Path

import numpy as np
from raised import raises_code

from paratune.data.columns import Samples
from paratune.data.duplicates import (
    Overlap,
    Repeats,
    overlaps,
    read_text_hashes,
    repeats,
    text_hashes,
    write_text_hashes,
)


def samples(texts, labels=None, pairs=None) -> Samples:
    actual = None if labels is None else np.asarray(labels)
    return Samples(list(texts), pairs, actual, None, np.arange(len(texts)), None, {})


def test_repeated_texts_of_a_split_are_counted():
    # "a b" three times with two labels, "c" twice with one, "d" once: 3 rows repeat an earlier one.
    texts = ["a b", "c", " a  b\n", "d", "c", "a\tb"]
    assert repeats(samples(texts, [0, 1, 0, 1, 1, 1])) == Repeats(3, 1, 3)
    assert repeats(samples(texts)) == Repeats(3, 0, 0)


def test_pairs_are_equal_when_both_texts_are_equal():
    assert repeats(samples(["a", "a", "a"], pairs=["x", "y", "x "])).num_rows == 1


def test_overlaps_of_splits_are_counted():
    splits = {"train": samples("abcd"), "validation": samples("xyz"), "test": samples(["a", "a ", "x", "q"])}
    assert overlaps(splits) == [Overlap("train", "test", 2, 4), Overlap("validation", "test", 1, 4)]
    assert overlaps(splits)[0].message.startswith("2 of 4 rows of test (50.0%) have a text that is also in train")
    pairs = [("train", "test"), ("train", "validation"), ("train", "hard"), ("validation", "test")]
    assert ["drop_duplicates" in Overlap(*pair, 1, 4).message for pair in pairs] == [True, True, False, False]


def test_hashes_depend_on_both_texts_but_not_on_white_space():
    first, other, same = text_hashes(samples(["a b", "a", " a\tb "], pairs=["c", "b c", "c"]))
    assert first == same != other
    assert int(first) == int.from_bytes(hashlib.blake2b(b"a b\nc", digest_size=8).digest(), "little")


def test_texts_of_an_earlier_training_are_found(tmp_path: Path):
    path = tmp_path / "texts.parquet"
    assert read_text_hashes(path) is None, "nothing was kept"
    write_text_hashes(path, samples(["good film", "bad film", "good film"]))

    def is_seen(texts, pairs=None) -> list[bool]:
        return np.isin(text_hashes(samples(texts, pairs=pairs)), read_text_hashes(path)).tolist()

    assert is_seen(["bad  film\n", "good", "good film", "film"]) == [True, False, True, False]
    assert is_seen(["good film"], pairs=["x"]) == [False]
    path.write_bytes(b"PAR1")
    with raises_code("run.damaged", "texts.parquet"):
        read_text_hashes(path)
