"""Batches of windows in which answers are looked for.

Floor 3. Dimensions: `B` windows.
"""

from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import torch

from paratune.batch import Batch
from paratune.data.loader import Collator, How, IntArray
from paratune.data.token_store import TokenStore
from paratune.data.windows import BOUNDS


@dataclass(frozen=True, eq=False)
class WindowCollator:
    """A `Collator` of windows, which also says where the context of each is."""

    inner: Collator

    @property
    def store(self) -> TokenStore:
        return self.inner.store

    def loss_denominator(self, indices: IntArray, *, epoch: int | None = None) -> float:
        return self.inner.loss_denominator(indices, epoch=epoch)

    def __call__(self, indices: IntArray, loss_denominator: float, **how: Unpack[How]) -> Batch:
        """Return the windows at `indices` as one batch; see `Collate`."""
        batch = self.inner(indices, loss_denominator, **how)
        # A filler row is shorter than the window it is made of, and its answer may not be in it.
        bounds = np.tile(np.asarray([0, 0, 1], dtype=np.int64), (len(batch.index), 1))
        bounds[: len(indices)] = self.store.of_rows[BOUNDS][indices]
        labels = batch.labels
        if labels is not None:
            labels[len(indices) :] = 0
        return replace(batch, row_bounds=torch.from_numpy(bounds))
