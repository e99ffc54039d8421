import hashlib

import numpy as np
import pytest
from raised import raises_code

from paratune.corpus.clean import signatures as minhash


def pair(num_shared, num_own, number=0):
    """Return two sets that share so many shingles, and have so many each that the other has not."""
    shared = [f"{number} both {n}" for n in range(num_shared)]
    return [shared + [f"{number} {which} {n}" for n in range(num_own)] for which in "ab"]


def test_words_have_one_case_and_one_form():
    # The c with a cedilla as one character and as two; the ligature fi; a no-break space.
    assert minhash.normalized_words("Pre\u00e7o, PREC\u0327O!\u00a0\ufb01m-3") == ["preço", "preço", "fim", "3"]


def test_the_hash_is_that_of_the_words_and_of_the_text_where_there_are_none():
    assert (
        minhash.words_sha256("Um,  DOIS!", minhash.normalized_words("Um,  DOIS!"))
        == hashlib.sha256(b"um dois").digest()
    )
    assert minhash.words_sha256(" ... ", []) == hashlib.sha256(b"...").digest()


def test_shingles_are_all_sequences_or_the_whole_of_a_short_text():
    assert minhash.shingles(list("abcd"), 3) == ["a b c", "b c d"]
    assert minhash.shingles(list("ab"), 3) == ["a b"]
    assert minhash.shingles([], 3) == [""]


@pytest.mark.parametrize(
    ("num_shared", "num_own", "similarity"), [(50, 25, 0.5), (80, 10, 0.8), (10, 45, 0.1), (100, 0, 1.0), (0, 30, 0.0)]
)
def test_signatures_estimate_the_jaccard_similarity(num_shared, num_own, similarity):
    # 50 shared of 50 + 25 + 25 are a half. The deviation of 2000 hashes is at most sqrt(.25 / 2000) = .011.
    first, other = minhash.signatures(pair(num_shared, num_own), 2000, seed=1)
    assert np.mean(first == other) == pytest.approx(similarity, abs=0.045)


def test_a_signature_depends_only_on_set_and_seed():
    sets = pair(20, 5)
    result = minhash.signatures([sets[0], sets[0][::-1] * 2, sets[1]], 60, seed=1)
    assert result[0].tolist() == result[1].tolist()
    assert result[2].tolist() == minhash.signatures([sets[1]], 60, seed=1)[0].tolist()
    assert result[0].tolist() != minhash.signatures([sets[0]], 60, seed=2)[0].tolist()


def test_the_s_curve_is_that_of_the_book():
    # Leskovec, Rajaraman and Ullman, example 3.12: b = 20, r = 5.
    book = {0.2: 0.006, 0.3: 0.047, 0.4: 0.186, 0.5: 0.470, 0.6: 0.802, 0.7: 0.975, 0.8: 0.9996}
    for similarity, probability in book.items():
        assert minhash.candidate_probability(similarity, 20, 5) == pytest.approx(probability, abs=0.0005)


@pytest.mark.parametrize(("num_shared", "num_own", "similarity"), [(50, 25, 0.5), (60, 20, 0.6), (30, 35, 0.3)])
def test_bands_agree_with_the_probability_of_the_s_curve(num_shared, num_own, similarity):
    sets = [item for number in range(500) for item in pair(num_shared, num_own, number)]
    keys = minhash.band_keys(minhash.signatures(sets, 100, seed=3), 20, 5)
    result = np.mean((keys[::2] == keys[1::2]).any(axis=1))
    # The deviation of a share of 500 is at most sqrt(.25 / 500) = .022.
    assert result == pytest.approx(minhash.candidate_probability(similarity, 20, 5), abs=0.075)


def test_a_band_agrees_where_all_of_its_rows_do():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2**32, 12, np.uint32)
    other = first.copy()
    other[[0, 5]] += 1
    keys = minhash.band_keys(np.stack([first, other]), 4, 3)
    assert (keys[0] == keys[1]).tolist() == [False, False, True, True]
    # The order of the rows counts.
    swapped = first[[1, 0, 2, *range(3, 12)]]
    assert (minhash.band_keys(swapped[None], 4, 3)[0] == keys[0]).tolist() == [False, True, True, True]


def test_rows_are_found_by_position_over_many_files(tmp_path):
    sizes, starts, position = [2, 0, 3, 1, 4], [], 0
    for number, size in enumerate(sizes):
        rows = np.zeros(size, minhash.row_dtype(3))
        rows["id"] = [f"d{position + n}" for n in range(size)]
        rows.tofile(tmp_path / minhash.signature_file(number))
        starts.append(position)
        position += size
    for place in range(10):
        assert minhash.signature_at(tmp_path, starts, 3, place)["id"].decode() == f"d{place}"
    with raises_code("corpus.damaged"):
        minhash.signature_at(tmp_path, starts, 3, 10)
    with raises_code("corpus.damaged"):
        minhash.signature_at(tmp_path / "none", starts, 3, 0)
