"""Evaluation: every sample exactly once, whatever the number of ranks; outputs are kept on the host.

`N` samples, `K` numbers kept of each.
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
"""Batches after which outputs come to the host: so far it may be ahead of the device."""
FLUSH_BYTES: Final = 64 * MIB
"""Of outputs on the device, after which they come to the host."""


class BatchPredictor(Protocol):
    """What an evaluation asks of a strategy; see `protocol.Strategy`."""

    layout: Layout

    def predict(self, batch: Batch) -> Tensor: ...

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor: ...


@dataclass(frozen=True)
class Evaluation:
    """What a model says of a split, in the order of its rows, on every rank."""

    outputs: np.ndarray[Any, Any]
    """(N, K), float32 or float64: what the model keeps of each row, such as logits or predictions."""
    loss: float | None
    """Mean over what the task's loss is averaged over, samples or labelled tokens; None without labels."""


class Interrupted(Exception):
    """A signal came in the middle of an evaluation; its result is dropped."""


def evaluate(
    strategy: BatchPredictor,
    model: BatchModel,
    batches: Iterable[Batch],
    *,
    device: torch.device,
    should_stop: Callable[[], bool],
    on_batch: Callable[[int], None] = lambda done: None,
) -> Evaluation:
    """Run the model over this rank's share of a split and bring all shares together. Collective.

    Args:
        strategy: Runs the forward passes.
        model: Gives the loss, and what is kept of a row.
        batches: This rank's share, the same number of batches on every rank, filler where there is nothing; their
            `loss_denominator` is that of the whole split.
        device: Where batches go.
        should_stop: Asked between batches, the same answer on every rank.
        on_batch: Called with the number of batches done.

    Raises:
        Interrupted: `should_stop` said so.
    """
    index, results = [], _Results()
    for done, batch in enumerate(batches, start=1):
        if should_stop():
            raise Interrupted
        moved = batch.to(device, non_blocking=True)
        predicted = strategy.predict(moved)
        kept = model.row_outputs(predicted, moved)
        loss = None if batch.labels is None else model.loss_sum(predicted, moved, kept)
        results.add(kept, loss, batch.loss_denominator)
        index.append(batch.index)
        on_batch(done)
    results.flush()
    return _bring_together(strategy, torch.cat(index), torch.cat(results.outputs), results.loss)


class _Results:
    """Outputs and losses of batches: kept on the device, and brought to the host together, which waits for it."""

    def __init__(self) -> None:
        self.outputs: list[Tensor] = []
        """On the host, float32 or float64."""
        self.loss: Tensor | None = None
        """Sum so far, a float64 scalar on the host; None without labels."""
        self._held: list[Tensor] = []
        self._losses: list[Tensor] = []
        self._denominators: list[float] = []

    def add(self, kept: Tensor, loss: Tensor | None, loss_denominator: float) -> None:
        """Take what is kept of a batch, (B, K), and the sum of its losses, which is divided by the denominator."""
        self._held.append(kept.detach())
        if loss is not None:
            self._losses.append(loss.detach().double())
            self._denominators.append(loss_denominator)
        if len(self._held) >= FLUSH_BATCHES or sum(each.nbytes for each in self._held) >= FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        """Bring everything to the host."""
        if self._held:
            outputs = torch.cat(self._held)
            self.outputs.append(outputs.to("cpu", torch.float64 if outputs.dtype == torch.float64 else torch.float32))
        if self._losses:
            for part, denominator in zip(torch.stack(self._losses).cpu(), self._denominators, strict=True):
                self.loss = part / denominator if self.loss is None else self.loss + part / denominator
        self._held, self._losses, self._denominators = [], [], []


def _bring_together(strategy: BatchPredictor, index: Tensor, outputs: Tensor, loss: Tensor | None) -> Evaluation:
    """Concatenate over ranks, drop filler (index -1), sort by row."""
    real = index >= 0
    rows = strategy.reduce(index[real], "concat")
    order = torch.argsort(rows)
    # Ranks of one replica see the same rows; each row is wanted once.
    _, first = np.unique(rows[order].numpy(), return_index=True)
    gathered = strategy.reduce(outputs[real], "concat")[order[torch.from_numpy(first)]]
    if loss is None:
        return Evaluation(gathered.numpy(), None)
    replicas = strategy.layout.world_size // strategy.layout.data_world_size
    return Evaluation(gathered.numpy(), float(strategy.reduce(loss, "sum")) / replicas)
