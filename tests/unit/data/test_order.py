"""The order of samples and how they are assigned to ranks."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paratune.data.order import deal, epoch_order, random_keys, steps_per_epoch


def test_every_epoch_is_another_permutation():
    orders = [epoch_order(100, 7, epoch) for epoch in range(3)] + [epoch_order(100, 8, 0)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(100))
    assert len({tuple(order) for order in orders}) == 4


def test_a_key_depends_only_on_seed_stream_and_index():
    assert random_keys(10, 7, 1).tolist() == random_keys(1000, 7, 1)[:10].tolist()
    assert epoch_order(10, 7, 1).tolist() == np.argsort(random_keys(1000, 7, 1)[:10]).tolist()


def test_the_order_never_changes():
    # Resuming a run on another machine or NumPy must find the same order; written down when the function was made.
    assert epoch_order(12, 42, 0).tolist() == [0, 1, 4, 10, 2, 6, 8, 5, 11, 9, 7, 3]


def test_orders_are_fair():
    # Each sample is in each place equally often: 2,000 seeds, 5 places; chi-squared with 16 degrees of freedom is below
    # 45 in all but one of 10,000 such experiments.
    counts = np.zeros((5, 5))
    for seed in range(2000):
        counts[np.arange(5), epoch_order(5, seed, 0)] += 1
    assert ((counts - 400) ** 2 / 400).sum() < 45


@given(st.lists(st.integers(1, 512), max_size=60), st.integers(1, 7), st.integers(1, 5))
def test_dealing_gives_every_sample_once_and_equal_counts(lengths, data_world_size, num_micro_steps):
    size = max(1, -(-len(lengths) // (data_world_size * num_micro_steps)))
    indices = np.arange(len(lengths)) + 100
    ranks = [
        deal(
            indices,
            np.asarray(lengths, dtype=np.int64),
            data_rank=rank,
            data_world_size=data_world_size,
            micro_batch_size=size,
            num_micro_steps=num_micro_steps,
        )
        for rank in range(data_world_size)
    ]
    assert {len(micro_batches) for micro_batches in ranks} == {num_micro_steps}
    shares = [sum(map(len, micro_batches)) for micro_batches in ranks]
    assert max(shares) - min(shares) <= 1
    assert max(len(batch) for batches in ranks for batch in batches) <= size
    assert sorted(np.concatenate([batch for batches in ranks for batch in batches])) == sorted(indices)
    # In a round who has less gets more, so that two ranks differ by no more than two samples of one round do, and by
    # one sample of a last round that is not for all.
    tokens = [sum(lengths[first - 100] for batch in batches for first in batch) for batches in ranks]
    assert max(tokens) - min(tokens) <= max(lengths, default=0)


def test_dealing_by_hand():
    options = {"data_world_size": 2, "micro_batch_size": 2, "num_micro_steps": 2}
    lengths = np.asarray([5, 9, 2, 7, 7, 1, 3])
    # Rounds: 9 and 7 (samples 1, 3); 7 to the rank with 7 and 5 to that with 9 (4, 0); at 14 each 3 and 2 (6, 2); 1 to
    # the rank with 16 (5). In the order of their first sample: (4, 0), (1, 3), (6, 2), and the last one.
    assert [list(part) for part in deal(np.arange(7), lengths, data_rank=0, **options)] == [[0, 1], [6]]
    assert [list(part) for part in deal(np.arange(7), lengths, data_rank=1, **options)] == [[4, 3], [2, 5]]
    assert [list(part) for part in deal(np.arange(1), lengths[:1], data_rank=1, **options)] == [[], []]
    with pytest.raises(ValueError, match="9 samples do not fit into 2 micro-batches of 2 on 2 ranks"):
        deal(np.arange(9), np.ones(9, dtype=np.int64), data_rank=0, **options)


def test_one_rank_keeps_the_order_and_equal_lengths_are_assigned_in_turn():
    first = {"micro_batch_size": 2, "num_micro_steps": 2, "data_rank": 0}
    lengths = np.asarray([3, 9, 1, 4])
    assert [list(part) for part in deal(np.arange(4), lengths, data_world_size=1, **first)] == [[0, 1], [2, 3]]
    alike = np.full(7, 512)
    assert [list(part) for part in deal(np.arange(7), alike, data_world_size=2, **first)] == [[0, 2], [4, 6]]


def test_a_round_with_fewer_samples_than_ranks_comes_last():
    # Longest first: rounds (1, 2), (3, 4) and (0), the last one for rank 0 alone. Sample 0 comes first in the batch; if
    # its round did too, rank 0 would have (0, 1) where rank 1 has (2, 4), which are not of one round.
    options = {"data_world_size": 2, "micro_batch_size": 2, "num_micro_steps": 2}
    lengths = np.asarray([1, 9, 9, 7, 7])
    assert [list(part) for part in deal(np.arange(5), lengths, data_rank=0, **options)] == [[1, 3], [0]]
    assert [list(part) for part in deal(np.arange(5), lengths, data_rank=1, **options)] == [[2, 4], []]


def test_the_last_step_has_the_remaining_samples():
    assert [steps_per_epoch(samples, 32) for samples in (1, 32, 33)] == [1, 1, 2]
    with pytest.raises(ValueError, match="0 samples"):
        steps_per_epoch(0, 32)
