"""A masked LM whose decoder is tied to its embeddings, and its batches: `from tied_lm import TiedLM, MaskedBatches`.

What training strategies find hard about it: one weight in two places, a loss that is averaged over tokens of which each
rank has another number, and outputs for each token. `B` rows, `S` padded length, `V` words.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from tiny import tiny_config
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertForMaskedLM

from paratune.batch import Batch
from paratune.data.loader import TrainBatches

IGNORED = -100
MASK_ID = 4
"""Of `tiny.SPECIAL`."""


class TiedLM(nn.Module):
    """A `BatchModel` around transformers' `BertForMaskedLM`, as `TaskModel` is one around a classifier."""

    def __init__(self, hf: Any) -> None:
        super().__init__()
        self.hf = hf

    def forward(self, batch: Batch) -> Tensor:
        """Return logits (B, S, V)."""
        logits: Tensor = self.hf(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        return logits

    def loss_sum(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the sum of the cross-entropies of all labelled tokens."""
        assert batch.labels is not None
        return functional.cross_entropy(
            outputs.flatten(0, 1), batch.labels.flatten(), ignore_index=IGNORED, reduction="sum"
        )


def tiny_tied_lm(*, tied: bool = True, seed: int = 0) -> TiedLM:
    """Return a small BERT without dropout, always the same weights for a seed; with `tied` false the tie is lost."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        hf = BertForMaskedLM(tiny_config(dropout=0.0, num_layers=4))
    assert hf.cls.predictions.decoder.weight is hf.bert.embeddings.word_embeddings.weight
    if not tied:
        hf.cls.predictions.decoder.weight = nn.Parameter(hf.cls.predictions.decoder.weight.detach().clone())
    return TiedLM(hf)


@dataclass(frozen=True)
class MaskedBatches:
    """The micro-batches of `inner` with tokens masked, as a function of the sample alone."""

    inner: TrainBatches

    def step(self, step: int) -> list[Batch]:
        """Return this rank's micro-batches, whose `loss_denominator` counts the labelled tokens of all ranks."""
        lengths = self.inner.collator.store.lengths
        labelled = sum(len(_masked_places(row, int(lengths[row]))) for row in self.inner.indices(step).tolist())
        return [_mask(batch, float(labelled)) for batch in self.inner.step(step)]


def _masked_places(row: int, length: int) -> list[int]:
    """Return every fourth to sixth token, by the row: 0 to 5 of its 3 to 20."""
    return list(range(row % 7, length, 4 + row % 3))


def _mask(batch: Batch, denominator: float) -> Batch:
    labels_BS = torch.full_like(batch.input_ids, IGNORED)
    assert batch.attention_mask is not None
    for place, row in enumerate(batch.index.tolist()):
        if row >= 0:  # filler has no labels
            chosen = _masked_places(row, int(batch.attention_mask[place].sum()))
            labels_BS[place, chosen] = batch.input_ids[place, chosen]
    return replace(
        batch,
        input_ids=torch.where(labels_BS == IGNORED, batch.input_ids, MASK_ID),
        labels=labels_BS,
        loss_denominator=denominator,
    )
