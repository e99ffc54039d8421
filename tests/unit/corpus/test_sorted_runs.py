import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from raised import raises_code

from paratune.corpus import sorted_runs
from paratune.corpus.sorted_runs import END, RECORD, RunWriter, counts, groups, hash_64, merge, repeats, spans

FEW = st.tuples(*[st.integers(0, 3)] * 3)
SHARDS = st.lists(st.lists(FEW, max_size=40), max_size=5)


def write(folder, *shards):
    """Write runs and return their paths."""
    paths = []
    for number, shard in enumerate(shards):
        with RunWriter(folder, number) as writer:
            for record in shard:
                writer.add(*record)
        paths += [folder / name for name in writer.names]
    return paths


def cut(records, size):
    """Return records as blocks of so many."""
    table = np.array(records, RECORD)
    return [table[start : start + size] for start in range(0, len(table), size)]


@settings(max_examples=60)
@given(shards=SHARDS, block=st.sampled_from([1, 20, 1000]))
def test_a_merge_is_the_sorted_set_of_all_records(tmp_path_factory, shards, block):
    paths = write(tmp_path_factory.mktemp("runs"), *shards)
    result = [record for item in merge(paths, block=block) for record in item.tolist()]
    assert result == sorted({record for shard in shards for record in shard})


def test_a_merge_is_in_blocks_and_a_shard_may_have_several_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_runs, "BLOCK", 100)
    values = np.random.default_rng(0).integers(0, 2**63, (1000, 3), np.uint64)
    with RunWriter(tmp_path, 7) as writer:
        for part in np.array_split(values, 50):
            writer.add(*part.T)
    assert writer.names == [f"run-00007-{number:03d}.bin" for number in range(10)]
    blocks = list(merge([tmp_path / name for name in writer.names], block=300))
    # Each of ten runs has 30 of its records in memory.
    assert max(len(block) for block in blocks) <= 300
    assert len(blocks) > 3
    assert [r for item in blocks for r in item.tolist()] == sorted(tuple(item) for item in values.tolist())


def test_spans_cut_the_keys_without_a_gap(tmp_path):
    highs = [0, 1, 2**62, 2**63 - 1, 2**63, END - 1]
    paths = write(tmp_path, [(high, 0, 0) for high in highs])
    result = spans(paths, per_span=2)
    assert result == [(0, END // 3), (END // 3, END * 2 // 3), (END * 2 // 3, END)]
    merged = [[int(high) for item in merge(paths, span) for high in item["high"]] for span in result]
    # 2 to the power of 64 by three is 6.1e18; 2 to the power of 62 is 4.6e18, to that of 63 9.2e18.
    assert merged == [highs[:3], highs[3:5], highs[5:]]


def test_groups_cross_block_boundaries():
    #          alone      shared by three                    alone      shared by two
    records = [(0, 0, 9), (1, 0, 1), (1, 0, 4), (1, 0, 5), (1, 1, 2), (2, 0, 3), (2, 0, 8)]
    for size in (1, 2, 3, 4, 7):
        blocks = cut(records, size)
        assert list(groups(blocks)) == [(True, 1), (False, 4), (False, 5), (True, 3), (False, 8)]
        assert [value for repeat in repeats(blocks) for value in repeat.tolist()] == [4, 5, 8]
        assert [key for count in counts(blocks) for key in count.tolist()] == [
            (0, 0, 1),
            (1, 0, 3),
            (1, 1, 1),
            (2, 0, 2),
        ]


def test_no_records_are_no_blocks(tmp_path):
    assert write(tmp_path, []) == []
    assert list(merge([])) == list(groups([])) == list(counts([])) == []
    assert spans([]) == [(0, END)]


def test_hashes_are_the_same_everywhere():
    # Python's hashlib.blake2b(b"abc", digest_size=8).hexdigest() and `b2sum -l 64` print d8bb14d833d59559.
    assert hash_64(b"abc") == int.from_bytes(bytes.fromhex("d8bb14d833d59559"), "little")


def test_a_run_that_is_gone_is_named(tmp_path):
    (path,) = write(tmp_path, [(1, 2, 3)])
    path.unlink()
    with raises_code("corpus.damaged", "run-00000-000"):
        list(merge([path]))
