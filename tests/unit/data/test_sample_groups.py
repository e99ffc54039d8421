"""Groups of consecutive samples stay together in one micro-batch, whatever the number of ranks and micro-batches."""

import numpy as np
import pytest
from tiny_data import tiny_collator

from paratune.data.loader import TrainBatches, eval_batches
from paratune.data.order import SampleGroups

GROUP = 4


def test_a_short_group_comes_last():
    groups = SampleGroups(np.array([9, 8, 7, 6, 5, 4, 3]), 3)
    assert len(groups) == 3
    assert groups.samples_of(np.array([2, 0, 1])).tolist() == [9, 8, 7, 6, 5, 4, 3]
    assert groups.samples_of(np.array([1, 2])).tolist() == [6, 5, 4, 3]
    assert groups.samples_of(np.array([], dtype=np.int64)).tolist() == []
    assert groups.sums(np.arange(7)).tolist() == [3, 12, 6]
    assert groups.maxima(np.arange(7)).tolist() == [2, 5, 6]
    assert SampleGroups(np.array([5, 3]), 1).samples_of(np.array([1, 0])).tolist() == [3, 5]


def groups_of(batches) -> set[tuple[int, ...]]:
    """Return the samples of each group of all batches, by their places in a batch."""
    found = set()
    for batch in batches:
        rows = [row for row in batch.index.tolist() if row >= 0]
        assert batch.index.tolist()[: len(rows)] == rows  # filler is last
        found |= {tuple(rows[start : start + GROUP]) for start in range(0, len(rows), GROUP)}
    return found


@pytest.mark.parametrize(
    ("ranks", "size", "micro_steps", "options"),
    [
        (1, 4, 4, {}),
        (2, 8, 1, {}),
        (2, 4, 2, {"num_buckets": 2}),
        (1, 16, 1, {"num_buckets": 3}),
        (1, 16, 1, {"compare_every": 1}),
        (2, 4, 2, {"equal_shapes": True}),
    ],
)
def test_groups_do_not_depend_on_ranks_and_micro_batches(ranks, size, micro_steps, options):
    # 54 samples in steps of 16: the last step has 6, a group of 4 and one of 2.
    collator = tiny_collator(54)
    whole = TrainBatches(collator, 3, 16, 16, 1, 0, 1, group_size=GROUP)
    for step in range(whole.steps_per_epoch):
        expected = groups_of(whole.step(step))
        assert {len(group) for group in expected} == ({4, 2} if step == 3 else {4})
        made = []
        for rank in range(ranks):
            batches = TrainBatches(collator, 3, 16, size, micro_steps, rank, ranks, group_size=GROUP, **options)
            made += batches.step(step)
        assert groups_of(made) == expected


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_evaluations_have_the_groups_of_the_split(ranks):
    collator = tiny_collator(27)
    batches = [
        batch
        for rank in range(ranks)
        for batch in eval_batches(collator, batch_size=6, data_rank=rank, data_world_size=ranks, group_size=GROUP)
    ]
    assert groups_of(batches) == {tuple(range(start, min(start + GROUP, 27))) for start in range(0, 27, GROUP)}
