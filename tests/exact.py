"""Plain models and batches for exact arithmetic, in place of a transformer: `from exact import RowModel, row_batches`.

`B` rows, `S` tokens, `D` width, `C` outputs.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from paratune.batch import Batch

VOCABULARY_SIZE = 50


class RowModel(nn.Module):
    """A `BatchModel`: mean of embeddings, one hidden layer, a head; with optional dropout and an optional tied pair."""

    def __init__(self, num_outputs: int = 3, *, dropout: float = 0.0, tied: bool = False, seed: int = 1) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.embed = nn.Embedding(VOCABULARY_SIZE, 8)
            self.hidden = nn.Linear(8, 8)
            self.norm = nn.LayerNorm(8)
            self.head = nn.Linear(8, num_outputs)
        if tied:
            self.again = nn.Linear(8, 8, bias=False)
            self.again.weight = self.hidden.weight
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("seen", torch.zeros(3))
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, batch: Batch) -> Tensor:
        mask = batch.attention_mask.unsqueeze(-1).to(self.head.weight.dtype)
        mean = (self.embed(batch.input_ids) * mask).sum(1) / mask.sum(1)
        hidden = self.norm(self.dropout(torch.tanh(self.hidden(mean))))
        if hasattr(self, "again"):
            hidden = self.again(hidden)
        return self.head(hidden)

    def loss_sum(self, outputs: Tensor, batch: Batch, kept: Tensor | None = None) -> Tensor:
        if outputs.shape[1] == 1:
            losses = (outputs[:, 0] - batch.labels.to(outputs.dtype)).square()
        else:
            losses = nn.functional.cross_entropy(outputs, batch.labels, reduction="none")
        return (losses * batch.row_weight.to(losses.dtype)).sum()

    def row_outputs(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs


def row_batch(rows: Sequence[int], denominator: float, *, num_outputs: int = 3, filler: bool = False) -> Batch:
    """Return samples `rows` as a batch: row r has 3 + r % 5 tokens; tokens and label are computed from r."""
    rows = [0] if filler else list(rows)
    lengths = [3 + row % 5 for row in rows]
    ids = np.zeros((len(rows), max(lengths)), dtype=np.int64)
    for place, (row, length) in enumerate(zip(rows, lengths, strict=True)):
        ids[place, :length] = [(7 * row + 11 * at) % VOCABULARY_SIZE for at in range(length)]
    mask = (np.arange(ids.shape[1]) < np.array(lengths)[:, None]).astype(np.int64)
    labels = torch.tensor([(row * row) % max(2, num_outputs) for row in rows])
    return Batch(
        input_ids=torch.from_numpy(ids),
        row_weight=torch.zeros(1) if filler else torch.ones(len(rows)),
        index=torch.full((1,), -1) if filler else torch.tensor(rows),
        num_samples=0 if filler else len(rows),
        num_tokens=0 if filler else sum(lengths),
        num_padded_tokens=ids.size,
        loss_denominator=float(denominator),
        attention_mask=torch.from_numpy(mask),
        max_seqlen=ids.shape[1],
        labels=labels.float() if num_outputs == 1 else labels,
    )


def row_steps(num_steps: int, size: int = 4, **options: int) -> list[list[Batch]]:
    """Return one micro-batch of `size` samples for each step."""
    return [[row_batch(range(size * step, size * step + size), size, **options)] for step in range(num_steps)]


@contextmanager
def no_clock(phase: str) -> Iterator[None]:
    """Time nothing."""
    yield
