"""Makes batches of windows for question answering.

Dimension: `B` windows.
"""

from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import torch

from paratune.batch import Batch
from paratune.data.columns import IntArray
from paratune.data.loader import CollateOptions, Collator
from paratune.data.token_store import TokenStore
from paratune.data.windows import BOUNDS


@dataclass(frozen=True, eq=False)
class WindowCollator:
    """A collator that adds to the batches of another one where the context of each window is. See `loader.Collate`."""

    inner: Collator

    @property
    def store(self) -> TokenStore:
        return self.inner.store

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        return self.inner.loss_denominator(indices, epoch=epoch)

    def __call__(self, indices: IntArray, loss_denominator: float, **options: Unpack[CollateOptions]) -> Batch:
        """Return the windows at `indices` as one batch with `row_bounds`."""
        batch = self.inner(indices, loss_denominator, **options)
        # A filler row has only the first tokens of a window: its bounds and labels are set to those, for valid indices.
        bounds = np.tile(np.asarray([0, 0, 1], dtype=np.int64), (len(batch.index), 1))
        bounds[: len(indices)] = self.store.row_values[BOUNDS][indices]
        labels = batch.labels
        if labels is not None:
            labels[len(indices) :] = 0
        return replace(batch, row_bounds=torch.from_numpy(bounds))
