"""Evaluates a model: every sample exactly once for any number of ranks; outputs are stored on the host.

`N` samples, `K` numbers for each sample.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor

from paratune.base.units import MIB
from paratune.batch import Batch, BatchModel
from paratune.strategies.protocol import Layout, ReduceOp

FLUSH_BATCHES: Final = 100
"""Number of batches after which outputs are copied to the host, which then waits for the device."""
FLUSH_BYTES: Final = 64 * MIB
"""Size of the outputs on the device after which they are copied to the host."""


class BatchPredictor(Protocol):
    """The part of a strategy that an evaluation uses; see `protocol.Strategy`."""

    layout: Layout

    def predict(self, batch: Batch) -> Tensor: ...

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor: ...


@dataclass(frozen=True)
class Evaluation:
    """The outputs of a model for a split, in the order of its rows; the same on every rank."""

    outputs: np.ndarray[Any, Any]
    """(N, K), float32 or float64: the model's outputs for each row, such as logits or predictions."""
    loss: float | None
    """Mean over samples or, in tasks with labels for tokens, over labelled tokens; None without labels."""


class Interrupted(Exception):
    """A signal stopped an evaluation, which has no result."""


def evaluate(
    strategy: BatchPredictor,
    model: BatchModel,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    should_stop: Callable[[], bool],
    on_batch: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Run the model over this rank's share of a split, and combine the shares of all ranks. Collective.

    Args:
        batches: This rank's share: the same number of batches on every rank, filled with filler rows. Their
            `loss_denominator` is that of the whole split.
        should_stop: Called between batches; returns the same on every rank.

    Raises:
        Interrupted: `should_stop` returned True.
    """
    # Ranks exchange the outputs once, after the loop, and not in a blocking call after each batch.
    index, results = [], _Results()
    for done, batch in enumerate(batches, start=1):
        if should_stop():
            raise Interrupted
        moved = batch.to(device, non_blocking=True)
        predicted = strategy.predict(moved)
        row_outputs = model.row_outputs(predicted, moved)
        loss = None if batch.labels is None else model.loss_sum(predicted, moved, row_outputs)
        results.add(row_outputs, loss, batch.loss_denominator)
        index.append(batch.index)
        on_batch(done)
    results.flush()
    return _gather(strategy, torch.cat(index), torch.cat(results.outputs), results.loss)


class _Results:
    """Outputs and losses of batches, which stay on the device until many are copied to the host together."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        """On the host, float32 or float64."""
        self.loss: Tensor | None = None
        """Sum of the losses so far, a float64 scalar on the host; None without labels."""
        self._on_device: list[Tensor] = []
        self._losses: list[Tensor] = []
        self._denominators: list[float] = []

    def add(self, row_outputs: Tensor, loss: Tensor | None, loss_denominator: float) -> None:
        """Add the outputs of a batch, (B, K), and the sum of its losses, which is divided by the denominator."""
        self._on_device.append(row_outputs.detach())
        if loss is not None:
            self._losses.append(loss.detach().double())
            self._denominators.append(loss_denominator)
        if len(self._on_device) >= FLUSH_BATCHES or sum(tensor.nbytes for tensor in self._on_device) >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Copy everything to the host."""
        if self._on_device:
            outputs = torch.cat(self._on_device)
            self.outputs.append(outputs.to("cpu", torch.float64 if outputs.dtype == torch.float64 else torch.float32))
        if self._losses:
            for part, denominator in zip(torch.stack(self._losses).cpu(), self._denominators, strict=True):
                self.loss = part / denominator if self.loss is None else self.loss + part / denominator
        self._on_device, self._losses, self._denominators = [], [], []


def _gather(strategy: BatchPredictor, index: Tensor, outputs: Tensor, loss: Tensor | None) -> Evaluation:
    """Concatenate over ranks, remove filler rows (index -1), and sort by row."""
    real = index >= 0
    rows = strategy.reduce(index[real], "concat")
    order = torch.argsort(rows)
    # Ranks of one replica evaluate the same rows; each row is used once.
    _, first = np.unique(rows[order].numpy(), return_index=True)
    gathered = strategy.reduce(outputs[real], "concat")[order[torch.from_numpy(first)]]
    if loss is None:
        return Evaluation(gathered.numpy(), None)
    replicas = strategy.layout.world_size // strategy.layout.data_world_size
    return Evaluation(gathered.numpy(), float(strategy.reduce(loss, "sum")) / replicas)
