"""How well sentences read to a masked language model: each token masked in turn, and asked for.

Dimensions: `B` copies of a sentence, each with another token masked, `S` its tokens.
Source: Salazar et al., Masked language model scoring, ACL 2020 (arXiv 1910.14659), section 2.
"""

import math
from collections.abc import Iterator, Sequence

import torch

from paratune.batch import Batch
from paratune.infer.masks import check_masked_lm
from paratune.infer.trained import ForwardOnly, TrainedModel

TOKENS_AT_ONCE = 4096
"""Most tokens of a batch, if one copy of a sentence is not longer."""


def pseudo_perplexities(trained: TrainedModel, sentences: Sequence[str]) -> list[float | None]:
    """Return exp(-PLL / N) of each sentence: PLL is the sum over its N tokens of log p(token | all others).

    Copies of one sentence make batches of their own, so that nothing depends on which sentences stand beside it. For
    the paper's figure of a whole corpus, take the mean of the logarithms, weighted by N.

    Args:
        trained: A masked language model.
        sentences: Any number; special tokens are put around each, and are not asked for.

    Returns:
        Perplexities, at least 1; None for a sentence with more tokens than the model takes, or none.

    Raises:
        ConfigError: The model is another one, or its tokenizer has no mask.
    """
    check_masked_lm(trained)
    model = ForwardOnly(trained.model, trained.precision, trained.device)
    return [_perplexity(trained, model, sentence) for sentence in sentences]


def _perplexity(trained: TrainedModel, model: ForwardOnly, sentence: str) -> float | None:
    encoded = trained.tokenizer(sentence, return_special_tokens_mask=True, verbose=False)
    ids = torch.tensor(encoded["input_ids"])
    asked = [place for place, special in enumerate(encoded["special_tokens_mask"]) if not special]
    if not asked or len(ids) > trained.max_length:
        return None
    total = 0.0
    for batch in _batches(ids, asked, trained.tokenizer.mask_token_id):
        moved = batch.to(trained.device)
        total += float(trained.model.loss_sum(model.predict(moved), moved))
    return math.exp(total / len(asked))


def _batches(ids: torch.Tensor, asked: Sequence[int], mask: int) -> Iterator[Batch]:
    """Yield copies of a sentence, (B, S), in each of which another one of the tokens `asked` is masked."""
    at_once = max(1, TOKENS_AT_ONCE // len(ids))
    for start in range(0, len(asked), at_once):
        places_B = torch.tensor(asked[start : start + at_once])
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
