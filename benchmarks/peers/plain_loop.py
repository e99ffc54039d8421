"""A hand-written training loop in PyTorch, without logging, measuring or saving.

The peer of `overhead.py`. Nothing of paratune is imported here.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR


class PlainLoop:
    """A model, its fused AdamW without decay of biases and norms, a constant schedule, and gradients clipped to 1."""

    def __init__(self, model: nn.Module, *, learning_rate: float, weight_decay: float) -> None:
        self.model = model
        kept = [parameter for parameter in model.parameters() if parameter.ndim <= 1]
        decayed = [parameter for parameter in model.parameters() if parameter.ndim > 1]
        groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]
        self._optimizer = AdamW(groups, lr=learning_rate, fused=True)
        self._scheduler = LambdaLR(self._optimizer, lambda step: 1.0)

    def run(self, batches: Iterable[Mapping[str, Tensor]]) -> None:
        """Run one optimizer step for each batch, whose entries include `labels`."""
        self.model.train()
        for batch in batches:
            loss = self.model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self._optimizer.step()
            self._scheduler.step()
            self._optimizer.zero_grad()
