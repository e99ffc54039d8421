"""Outputs of sequences become outputs of their samples."""

import pytest
import torch

from paratune.models.objectives import by_sample, pool_sequences
from paratune.models.task_model import trial_batch

OFFSETS = [0, 2, 3, 6]
VALUES = torch.tensor([[1.0, 8.0], [3.0, 2.0], [5.0, 5.0], [0.0, -1.0], [2.0, -4.0], [7.0, -1.0]])


def batch(offsets=OFFSETS):
    ids = torch.ones(6, 4, dtype=torch.int64)
    return trial_batch(ids, ids, sample_offsets=None if offsets is None else torch.tensor(offsets))


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [("mean", [[2, 5], [5, 5], [3, -2]]), ("max", [[3, 8], [5, 5], [7, -1]])],
)
def test_outputs_are_pooled_within_samples(pooling, expected):
    assert pool_sequences(VALUES, batch(), pooling).tolist() == expected
    assert pool_sequences(VALUES, batch(None), pooling) is VALUES


def test_gradients_of_pooled_outputs_reach_their_sequences():
    values = VALUES.clone().requires_grad_()
    (pool_sequences(values, batch(), "mean") * torch.tensor([[6.0], [1.0], [3.0]])).sum().backward()
    assert values.grad[:, 0].tolist() == [3, 3, 1, 1, 1, 1]


def test_values_of_a_sample_are_one_row():
    rows = by_sample(VALUES[:, 0], batch(), 4, fill=-1.0)
    assert rows.tolist() == [[1, 3, -1, -1], [5, -1, -1, -1], [0, 2, 7, -1]]
