"""What each kind of task makes of a model's outputs: the loss of each row, and what an evaluation keeps of it.

Floor 3. `B` rows, `C` classes, `K` numbers kept of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn import functional

from paratune.batch import Batch


def _logits(found: Any) -> Tensor:
    logits: Tensor = found.logits
    return logits


def _all(outputs: Tensor, batch: Batch) -> Tensor:
    return outputs


@dataclass(frozen=True)
class Objective:
    """How a kind of task is trained and evaluated; the tensors are those of one batch."""

    row_losses: Callable[[Tensor, Batch], Tensor]
    """From outputs (float32 or float64) and batch to the loss of each row, (B,)."""
    outputs: Callable[[Any], Tensor] = _logits
    """From what the transformers model returns to one tensor, (B, ...)."""
    row_outputs: Callable[[Tensor, Batch], Tensor] = _all
    """From outputs and batch to what an evaluation keeps of each row, (B, K): the same K for every batch."""


def weighted_sum(objective: Objective, outputs: Tensor, batch: Batch) -> Tensor:
    """Return the sum over rows of the loss, weighted by `row_weight`; a scalar, at least float32."""
    outputs = outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs
    losses = objective.row_losses(outputs, batch)
    return (losses * batch.row_weight.to(losses.dtype)).sum()


def _cross_entropy(outputs: Tensor, batch: Batch) -> Tensor:
    assert batch.labels is not None
    return functional.cross_entropy(outputs, batch.labels, reduction="none")


def _squared_error(outputs: Tensor, batch: Batch) -> Tensor:
    assert batch.labels is not None
    return (outputs.squeeze(-1) - batch.labels.to(outputs.dtype)).square()


def _mean_over_classes(outputs: Tensor, batch: Batch) -> Tensor:
    """As transformers with problem_type multi_label_classification, whose mean over all entries is that of the rows."""
    assert batch.labels is not None
    targets = batch.labels.to(outputs.dtype)
    return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(dim=-1)


def _cumulative(outputs: Tensor, batch: Batch) -> Tensor:
    """Sum of the cross-entropies of "is it above class k?", k = 0 to C - 2.

    Source: Niu et al., Ordinal Regression with Multiple Output CNN, CVPR 2016, equation 2 with equal weights.
    """
    assert batch.labels is not None
    is_above = (batch.labels.unsqueeze(-1) > torch.arange(outputs.shape[-1], device=outputs.device)).to(outputs.dtype)
    return functional.binary_cross_entropy_with_logits(outputs, is_above, reduction="none").sum(dim=-1)


OBJECTIVES: Final[dict[str, Objective]] = {
    "classification": Objective(_cross_entropy),
    "multi_label": Objective(_mean_over_classes),
    "ordinal": Objective(_cumulative),
    "regression": Objective(_squared_error),
}
"""By kind of task."""
