"""Evaluation: every sample exactly once, whatever the number of ranks; outputs are kept on the host.

`N` samples, `C` classes (1 for regression).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from paratune.batch import Batch, BatchModel
from paratune.strategies.protocol import Layout, ReduceOp


class Predictor(Protocol):
    """What an evaluation asks of a strategy; see `protocol.Strategy`."""

    layout: Layout

    def predict(self, batch: Batch) -> Tensor: ...

    def reduce(self, value: Tensor, op: ReduceOp) -> Tensor: ...


@dataclass(frozen=True)
class Evaluation:
    """What a model says of a split, in the order of its rows, on every rank."""

    outputs: np.ndarray[Any, Any]
    """(N, C), float32 or float64: logits or predictions."""
    labels: np.ndarray[Any, Any] | None
    """(N,), int64 class ids or float targets; None when the split has none."""
    loss: float | None
    """Mean over samples."""


class Interrupted(Exception):
    """A signal came in the middle of an evaluation; its result is dropped."""


def evaluate(
    strategy: Predictor,
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
        model: Gives the loss.
        batches: This rank's share; the same number of batches on every rank, filler where there is nothing.
        device: Where batches go.
        should_stop: Asked between batches, the same answer on every rank.
        on_batch: Called with the number of batches done.

    Raises:
        Interrupted: `should_stop` said so.
    """
    index, outputs, labels = [], [], []
    loss = torch.zeros((), dtype=torch.float64)
    for done, batch in enumerate(batches, start=1):
        if should_stop():
            raise Interrupted
        moved = batch.to(device, non_blocking=True)
        predicted = strategy.predict(moved)
        if batch.labels is not None:
            loss += model.loss_sum(predicted, moved).detach().double().cpu()
            labels.append(batch.labels)
        index.append(batch.index)
        outputs.append(predicted.to("cpu", torch.float64 if predicted.dtype == torch.float64 else torch.float32))
        on_batch(done)
    return _bring_together(strategy, torch.cat(index), torch.cat(outputs), torch.cat(labels) if labels else None, loss)


def _bring_together(
    strategy: Predictor, index: Tensor, outputs: Tensor, labels: Tensor | None, loss: Tensor
) -> Evaluation:
    """Concatenate over ranks, drop filler (index -1), sort by row."""
    real = index >= 0
    rows = strategy.reduce(index[real], "concat")
    order = torch.argsort(rows)
    # Ranks of one replica see the same rows; each row is wanted once.
    _, first = np.unique(rows[order].numpy(), return_index=True)
    keep = order[torch.from_numpy(first)]
    gathered = strategy.reduce(outputs[real], "concat")[keep]
    replicas = strategy.layout.world_size // strategy.layout.data_world_size
    total = float(strategy.reduce(loss, "sum")) / replicas
    if labels is None:
        return Evaluation(gathered.numpy(), None, None)
    targets = strategy.reduce(labels[real], "concat")[keep]
    return Evaluation(gathered.numpy(), targets.numpy(), total / max(1, len(keep)))
