"""Batches of windows: the bounds of contexts, and what a filler row has."""

import numpy as np
import torch
from tiny_questions import tiny_windows

from paratune.data.windows import BOUNDS


def test_a_filler_row_has_valid_bounds_and_labels():
    collator = tiny_windows(6)
    batch = collator(np.array([4, 2]), 1.0, num_rows=4)
    bounds = torch.from_numpy(collator.store.row_values[BOUNDS])
    assert batch.row_bounds is not None
    assert batch.labels is not None
    # Filler rows keep only the first tokens of window 0, so that positions of its context and answer may not exist.
    assert batch.row_bounds.tolist() == [bounds[4].tolist(), bounds[2].tolist(), [0, 0, 1], [0, 0, 1]]
    assert batch.labels[2:].tolist() == [[0, 0], [0, 0]]
    assert batch.labels[:2].tolist() == collator.inner.labels[[4, 2]].tolist()


def test_a_batch_without_samples_has_one_valid_row():
    batch = tiny_windows(6)(np.array([], dtype=np.int64), 1.0)
    assert batch.row_bounds is not None
    assert batch.row_bounds.tolist() == [[0, 0, 1]]
