import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus_documents import content, document, dropped, extracted, kept, runner
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from paratune.corpus.clean import duplicates
from paratune.corpus.clean.duplicates import (
    band_keys,
    candidate_probability,
    find_clusters,
    run_duplicates,
    shingles,
    signatures_of,
)
from paratune.corpus.clean.step import normalized_words
from paratune.corpus.settings import Clean, Corpus

FOLDER = "4_clean/4_duplicates"


def words(number, count=200):
    return [f"palavra{random.Random(number).randrange(10**6)}x{n}" for n in range(count)]


def edited(result, places):
    return [f"outra{place}" if place in places else word for place, word in enumerate(result)]


def run(work, workers=1, **options):
    corpus = Corpus(work=str(work), clean=Clean(duplicates=options))
    return run_duplicates(corpus, work / "3_extract", work / FOLDER, runner(workers))


def ids(work):
    return [row["id"] for shard in kept(work / FOLDER) for row in shard]


def drops(work):
    return [(row["id"], row["reason"], row["detail"]) for row in dropped(work / FOLDER)]


def planted():
    """Return texts, and which of them are duplicates of which, with the similarity of their shingles of five words."""
    text = words(1)
    return [
        " ".join(text),
        # 1 of 200 words: 5 of 196 shingles change, 191 of 201 are shared.
        " ".join(edited(text, {100})),
        " ".join(words(2)),
        " ".join(text).upper().replace(" ", ",  "),
        # 4 words far apart: 20 shingles change, 176 of 216 are shared: 0.815.
        " ".join(edited(text, {20, 60, 100, 140})),
        # 20 words far apart: 96 or so of 296, 0.32.
        " ".join(edited(text, set(range(0, 200, 10)))),
        " ".join(words(3, 3)),
        " ".join(words(3, 3)),
        " ".join(words(4, 3)),
    ]


def test_the_first_of_each_cluster_stays_and_the_others_name_it(tmp_path):
    texts = planted()
    extracted(tmp_path, texts[:3], [], texts[3:])
    totals = run(tmp_path)
    assert ids(tmp_path) == ["d0", "d2", "d5", "d6", "d8"]
    result = drops(tmp_path)
    assert [(item[0], item[1], item[2].split()[0]) for item in result] == [
        ("d1", "near-duplicate", "d0"),
        ("d3", "duplicate", "d0"),
        ("d4", "near-duplicate", "d0"),
        ("d7", "duplicate", "d6"),
    ]
    # The estimate of 120 hashes has a deviation of sqrt(.815 * .185 / 120) = .035.
    assert float(result[0][2].split()[1]) == pytest.approx(191 / 201, abs=0.07)
    assert float(result[2][2].split()[1]) == pytest.approx(176 / 216, abs=0.11)
    assert (totals["kept"], totals["dropped"]) == (5, {"duplicate": 2, "near-duplicate": 2})
    # 1 - (1 - 0.7 to the power of 6) to the power of 20; 0.117649, 0.0818.
    assert totals["found_at_threshold"] == 0.9182
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir() if path.is_dir()) == []


def test_texts_without_words_are_only_exact_duplicates(tmp_path):
    extracted(tmp_path, ["* * *", "...", "——", "* * *", "☎ ☎"])
    run(tmp_path)
    assert ids(tmp_path) == ["d0", "d1", "d2", "d4"]
    assert drops(tmp_path) == [("d3", "duplicate", "d0")]


def test_with_a_threshold_of_1_only_equal_sets_of_shingles_are_dropped(tmp_path):
    extracted(tmp_path, planted())
    totals = run(tmp_path, threshold=1)
    assert [drop[:2] for drop in drops(tmp_path)] == [("d3", "duplicate"), ("d7", "duplicate")]
    assert totals["found_at_threshold"] == 1


def test_the_threshold_decides(tmp_path):
    extracted(tmp_path, planted())
    run(tmp_path, threshold=0.9)
    assert "d4" in ids(tmp_path)
    run(tmp_path, threshold=0.2, bands=60, rows=2)
    assert ids(tmp_path) == ["d0", "d2", "d6", "d8"]


def test_connected_pairs_are_one_cluster(tmp_path):
    # Each has 4 words that the one before has not: 0.815 of neighbours, 136 of 256 of the first and the last.
    text = words(1)
    places = [{20, 60, 100, 140}, {10, 50, 90, 130}, {30, 70, 110, 150}]
    chain = [edited(text, set().union(*places[:n])) for n in range(4)]
    extracted(tmp_path, [" ".join(item) for item in chain])
    run(tmp_path)
    assert ids(tmp_path) == ["d0"]
    assert [drop[2].split()[0] for drop in drops(tmp_path)] == ["d0", "d0", "d0"]


def many(num_groups=25):
    """Return documents in an order of chance: texts with copies and edited copies."""
    texts = []
    for number in range(num_groups):
        text = words(number)
        texts += [text, text, edited(text, {50}), edited(text, {50, 150})]
    random.Random(5).shuffle(texts)
    return [document(" ".join(text), number) for number, text in enumerate(texts)]


@pytest.mark.slow
def test_workers_shards_and_ranges_change_no_document(tmp_path, monkeypatch):
    rows = many()
    cuts = {"1": [rows[:40], rows[40:70], rows[70:]], "3": [rows[:7], [], rows[7:90], rows[90:]], "4": [rows]}
    cuts["2"] = cuts["1"]
    result = {}
    for name, shards in sorted(cuts.items()):
        if name == "3":
            monkeypatch.setattr(duplicates, "KEYS_PER_RANGE", 300)
        extracted(tmp_path / name, *shards)
        run(tmp_path / name, workers=2 if name == "2" else 1)
        result[name] = ids(tmp_path / name), drops(tmp_path / name)
    assert content(tmp_path / "1" / FOLDER) == content(tmp_path / "2" / FOLDER)
    assert result["1"] == result["3"] == result["4"]
    assert len(result["1"][0]) == 25


def roots(folder, num_documents, pairs, shards=1):
    """Return the first document of the cluster of each document."""
    paths = [folder / f"pairs-{number}.parquet" for number in range(shards)]
    for number, path in enumerate(paths):
        rows = [{"first": min(pair), "other": max(pair)} for pair in pairs[number::shards]]
        pq.write_table(pa.Table.from_pylist(rows, schema=duplicates.PAIRS_SCHEMA), path)
    rows = [
        {"position": number, "id": str(number), "sha256": bytes([number]), "signature": bytes([number] * 4)}
        for number in range(num_documents)
    ]
    signatures = folder / "signatures.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema=duplicates.SIGNATURES_SCHEMA), signatures)
    found = {row["document"]: int(row["first"]) for row in find_clusters(folder, paths, [signatures])}
    assert list(found) == sorted(found)
    return [found.get(number, number) for number in range(num_documents)]


def test_clusters_are_connected_components_with_the_first_as_root(tmp_path):
    assert roots(tmp_path, 7, [(5, 6), (1, 4), (4, 6), (2, 3)]) == [0, 1, 2, 2, 1, 1, 1]
    assert roots(tmp_path, 3, []) == [0, 1, 2]
    chain = [(n, n + 3) for n in range(97)]
    random.Random(1).shuffle(chain)
    assert roots(tmp_path, 100, chain, shards=3) == [n % 3 for n in range(100)]


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_the_connected_components_of_scipy(tmp_path, seed):
    chance = random.Random(seed)
    pairs = [tuple(chance.sample(range(60), 2)) for _ in range(25 + 10 * seed)]
    first, other = ([pair[index] for pair in pairs] for index in range(2))
    _, labels = connected_components(coo_array((np.ones(len(pairs)), (first, other)), shape=(60, 60)), directed=False)
    assert roots(tmp_path, 60, pairs) == [labels.tolist().index(label) for label in labels]


def test_a_bucket_of_many_documents_is_compared_with_a_few(tmp_path, monkeypatch):
    monkeypatch.setattr(duplicates, "MAX_REPRESENTATIVES", 2)
    extracted(tmp_path, many(10))
    run(tmp_path, bands=1, rows=1, threshold=0.5)
    assert 10 <= len(ids(tmp_path)) < 40


def pair(num_shared, num_own, number=0):
    """Return two sets that share so many shingles, and have so many each that the other has not."""
    shared = [f"{number} both {n}" for n in range(num_shared)]
    return [shared + [f"{number} {which} {n}" for n in range(num_own)] for which in "ab"]


def test_words_have_one_case_and_one_form():
    # The c with a cedilla as one character and as two; the ligature fi; a no-break space.
    assert normalized_words("Pre\u00e7o, PREC\u0327O!\u00a0\ufb01m-3") == ["preço", "preço", "fim", "3"]


def test_shingles_are_all_sequences_or_the_whole_of_a_short_text():
    assert shingles(list("abcd"), 3) == ["a b c", "b c d"]
    assert shingles(list("ab"), 3) == ["a b"]
    assert shingles([], 3) == [""]


@pytest.mark.parametrize(
    ("num_shared", "num_own", "similarity"), [(50, 25, 0.5), (80, 10, 0.8), (10, 45, 0.1), (100, 0, 1.0), (0, 30, 0.0)]
)
def test_signatures_estimate_the_jaccard_similarity(num_shared, num_own, similarity):
    # 50 shared of 50 + 25 + 25 are a half. The deviation of 2000 hashes is at most sqrt(.25 / 2000) = .011.
    first, other = signatures_of(pair(num_shared, num_own), 2000, seed=1)
    assert np.mean(first == other) == pytest.approx(similarity, abs=0.045)


def test_a_signature_depends_only_on_set_and_seed():
    sets = pair(20, 5)
    result = signatures_of([sets[0], sets[0][::-1] * 2, sets[1]], 60, seed=1)
    assert result[0].tolist() == result[1].tolist()
    assert result[2].tolist() == signatures_of([sets[1]], 60, seed=1)[0].tolist()
    assert result[0].tolist() != signatures_of([sets[0]], 60, seed=2)[0].tolist()


def test_the_s_curve_is_that_of_the_book():
    # Leskovec, Rajaraman and Ullman, example 3.12: b = 20, r = 5.
    book = {0.2: 0.006, 0.3: 0.047, 0.4: 0.186, 0.5: 0.470, 0.6: 0.802, 0.7: 0.975, 0.8: 0.9996}
    for similarity, probability in book.items():
        assert candidate_probability(similarity, 20, 5) == pytest.approx(probability, abs=0.0005)


@pytest.mark.parametrize(("num_shared", "num_own", "similarity"), [(50, 25, 0.5), (60, 20, 0.6), (30, 35, 0.3)])
def test_bands_agree_with_the_probability_of_the_s_curve(num_shared, num_own, similarity):
    sets = [item for number in range(500) for item in pair(num_shared, num_own, number)]
    keys = band_keys(signatures_of(sets, 100, seed=3), 20, 5)
    result = np.mean((keys[::2] == keys[1::2]).any(axis=1))
    # The deviation of a share of 500 is at most sqrt(.25 / 500) = .022.
    assert result == pytest.approx(candidate_probability(similarity, 20, 5), abs=0.075)


def test_a_band_agrees_where_all_of_its_rows_do():
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2**32, 12, np.uint32)
    other = first.copy()
    other[[0, 5]] += 1
    keys = band_keys(np.stack([first, other]), 4, 3)
    assert (keys[0] == keys[1]).tolist() == [False, False, True, True]
    # The order of the rows counts.
    swapped = first[[1, 0, 2, *range(3, 12)]]
    assert (band_keys(swapped[None], 4, 3)[0] == keys[0]).tolist() == [False, True, True, True]
