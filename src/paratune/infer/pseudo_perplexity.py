"""Computes the pseudo-perplexity of sentences with a masked language model: each token is masked and predicted in turn.

Dimensions: `B` copies of a sentence, each with another masked token, `S` tokens of the sentence.
Source: Salazar et al., Masked language model scoring, ACL 2020 (arXiv 1910.14659), section 2.
"""

import math
from collections.abc import Iterator, Sequence

import torch

from paratune.batch import Batch
from paratune.infer.masks import check_masked_lm
from paratune.infer.trained import ForwardOnly, TrainedModel

TOKENS_AT_ONCE = 4096
"""Maximum number of tokens in a batch, unless a single copy of a sentence is longer."""


def pseudo_perplexities(trained: TrainedModel, sentences: Sequence[str]) -> list[float | None]:
    """Return exp(-PLL / N) of each sentence: PLL is the sum over its N tokens of log p(token | all others).

    A batch has copies of only one sentence, so that its result does not depend on other sentences. Special tokens are
    added to each, but not predicted. For the paper's value of a whole corpus, take the mean of the logarithms, weighted
    by N.

    Returns:
        Perplexities, at least 1; None for a sentence that has no tokens, or more than the model's maximum.

    Raises:
        ConfigError: The model is not a masked language model, or its tokenizer has no mask.
    """
    check_masked_lm(trained)
    model = ForwardOnly(trained.model, trained.precision, trained.device)
    return [_perplexity(trained, model, sentence) for sentence in sentences]


def _perplexity(trained: TrainedModel, model: ForwardOnly, sentence: str) -> float | None:
    encoded = trained.tokenizer(sentence, return_special_tokens_mask=True, verbose=False)
    ids = torch.tensor(encoded["input_ids"])
    positions = [position for position, special in enumerate(encoded["special_tokens_mask"]) if not special]
    if not positions or len(ids) > trained.max_length:
        return None
    total = 0.0
    for batch in _batches(ids, positions, trained.tokenizer.mask_token_id):
        moved = batch.to(trained.device)
        total += float(trained.model.loss_sum(model.predict(moved), moved))
    return math.exp(total / len(positions))


def _batches(ids: torch.Tensor, positions: Sequence[int], mask: int) -> Iterator[Batch]:
    """Yield copies of a sentence, (B, S); each copy has a mask at another one of the positions."""
    at_once = max(1, TOKENS_AT_ONCE // len(ids))
    for start in range(0, len(positions), at_once):
        places_B = torch.tensor(positions[start : start + at_once])
        rows_B = torch.arange(len(places_B))
        ids_BS = ids.repeat(len(places_B), 1)
        labels_BS = torch.full_like(ids_BS, -100)
        labels_BS[rows_B, places_B] = ids_BS[rows_B, places_B]
        ids_BS[rows_B, places_B] = mask
        yield Batch(
            input_ids=ids_BS,
            row_weight=torch.ones(len(places_B)),
            index=rows_B,
            num_samples=len(places_B),
            num_tokens=ids_BS.numel(),
            num_padded_tokens=ids_BS.numel(),
            loss_denominator=float(len(places_B)),
            attention_mask=torch.ones_like(ids_BS),
            max_seqlen=len(ids),
            labels=labels_BS,
            label_places=rows_B * len(ids) + places_B,
        )
