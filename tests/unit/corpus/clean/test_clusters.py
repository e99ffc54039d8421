import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from raised import raises_code
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from paratune.corpus.clean import clusters
from paratune.corpus.clean.clusters import read_roots, write_roots

NUM = 12


def roots(folder, num_documents, pairs):
    write_roots(folder / "roots.bin", num_documents, pairs)
    return read_roots(folder / "roots.bin", 0, num_documents)


def test_clusters_are_connected_components_with_the_first_as_root(tmp_path):
    assert roots(tmp_path, 7, [(5, 6), (1, 4), (4, 6), (2, 3)]) == [0, 1, 2, 2, 1, 1, 1]
    assert roots(tmp_path, 3, []) == [0, 1, 2]
    assert roots(tmp_path, 0, []) == []
    assert [path.name for path in tmp_path.iterdir()] == ["roots.bin"]


@settings(max_examples=60)
@given(pairs=st.lists(st.tuples(*[st.integers(0, NUM - 1)] * 2), max_size=15))
def test_clusters_are_the_connected_components_of_scipy(tmp_path_factory, pairs):
    result = roots(tmp_path_factory.mktemp("clusters"), NUM, pairs)
    first, other = ([pair[index] for pair in pairs] for index in range(2))
    _, labels = connected_components(coo_array((np.ones(len(pairs)), (first, other)), shape=(NUM, NUM)), directed=False)
    assert result == [labels.tolist().index(label) for label in labels]


def test_blocks_and_the_order_of_the_pairs_change_nothing(tmp_path, monkeypatch):
    pairs = [(n, n + 3) for n in range(97)]
    before = roots(tmp_path, 100, pairs)
    monkeypatch.setattr(clusters, "ROOTS_AT_ONCE", 7)
    random.Random(1).shuffle(pairs)
    assert roots(tmp_path, 100, pairs) == before == [n % 3 for n in range(100)]
    assert read_roots(tmp_path / "roots.bin", 50, 3) == [2, 0, 1]


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with raises_code("corpus.not_writable", "roots.bin"):
        write_roots(tmp_path / "none" / "roots.bin", 1, [])
