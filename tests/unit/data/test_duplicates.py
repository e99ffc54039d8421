"""Counting repeated texts inside and across splits, by hand."""

import numpy as np

from paratune.data.columns import Samples
from paratune.data.duplicates import Overlap, Repeats, overlap_warnings, overlaps, repeats


def samples(texts, labels=None, pairs=None) -> Samples:
    found = None if labels is None else np.asarray(labels)
    return Samples(list(texts), pairs, found, None, np.arange(len(texts)), None, {})


def test_repeats_inside_a_split():
    # "a b" three times with two labels, "c" twice with one, "d" once: 3 rows repeat an earlier one.
    texts = ["a b", "c", " a  b\n", "d", "c", "a\tb"]
    assert repeats(samples(texts, [0, 1, 0, 1, 1, 1])) == Repeats(3, 1, 3)
    assert repeats(samples(texts)) == Repeats(3, 0, 0)


def test_pairs_are_the_same_when_both_texts_are():
    assert repeats(samples(["a", "a", "a"], pairs=["x", "y", "x "])).num_rows == 1


def test_overlaps_across_splits():
    splits = {"train": samples("abcd"), "validation": samples("xyz"), "test": samples(["a", "a ", "x", "q"])}
    assert overlaps(splits) == [Overlap("train", "test", 2, 4), Overlap("validation", "test", 1, 4)]
    assert overlap_warnings(splits)[0].startswith("2 of 4 rows of test (50.0%) have a text that is also in train")
