"""Makes batches of windows for question answering."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch

from paratune.batch import Batch
from paratune.data.loader import ChangedBatches, Collator
from paratune.data.token_store import TokenStore
from paratune.data.windows import BOUNDS


def window_batches(collator: Collator) -> ChangedBatches:
    """Return a collator whose batches have `row_bounds`: where the context of each window is."""
    return ChangedBatches(collator, partial(_add_bounds, store=collator.store))


def _add_bounds(batch: Batch, *, epoch: int | None, store: TokenStore) -> Batch:
    # A filler row has only the first tokens of a window: its bounds and labels are set to those, for valid indices.
    bounds_B3 = np.tile(np.asarray([0, 0, 1], dtype=np.int64), (len(batch.index), 1))
    bounds_B3[: batch.num_samples] = store.row_values[BOUNDS][batch.index[: batch.num_samples].numpy()]
    if batch.labels is not None:
        batch.labels[batch.num_samples :] = 0
    return replace(batch, row_bounds=torch.from_numpy(bounds_B3))
