"""Loss and best answers of extractive question answering, from the logits of first and last tokens.

Dimensions: `B` rows, `S` padded length, `L` tokens of an answer.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paratune.batch import Batch
from paratune.batch.packing import unpack
from paratune.models.sequences import at_least_float32


def span_logits(model_output: Any, batch: Batch) -> Tensor:
    """Return the logits of first and last tokens, (B, S, 2), from the output of the transformers model.

    For a packed batch, padding gets the lowest number of the dtype, which is 0 after a softmax.
    """
    logits = torch.stack((model_output.start_logits, model_output.end_logits), dim=-1)
    return unpack(logits.squeeze(0), batch, torch.finfo(logits.dtype).min) if batch.is_packed else logits


def span_losses(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the mean of the cross-entropies of first and last token, (B,), over the tokens of each row.

    Padding is excluded, so that the loss does not depend on the padded length. (The heads of transformers include it;
    without padding they give the same loss.)
    """
    assert batch.labels is not None
    if batch.attention_mask is not None:
        lowest = torch.finfo(outputs.dtype).min
        outputs = outputs.masked_fill(batch.attention_mask.unsqueeze(-1) == 0, lowest)
    losses_B2 = functional.cross_entropy(outputs, batch.labels, reduction="none")  # (B, S, 2) against (B, 2)
    return losses_B2.mean(dim=1)


def best_spans(outputs: Tensor, batch: Batch, *, num_best: int, max_answer_tokens: int) -> Tensor:
    """Return the best answers of each row, (B, 4 * num_best + 2).

    The columns are: logits of first tokens, logits of last tokens, first tokens, last tokens, `num_best` of each, the
    best answer first; then both logits of the token for "no answer". All pairs of a first and a last token in the
    context with at most `max_answer_tokens` tokens are compared. Where there are fewer, logits are -inf and tokens -1.
    """
    assert batch.row_bounds is not None
    outputs = at_least_float32(outputs)
    null_B1, first_B1, behind_B1 = batch.row_bounds.unsqueeze(-1).unbind(1)
    places_S = torch.arange(outputs.shape[1], device=outputs.device)
    outside_BS = (places_S < first_B1) | (places_S >= behind_B1)
    start_BS, end_BS = outputs.masked_fill(outside_BS.unsqueeze(-1), -torch.inf).unbind(-1)
    longest = min(max_answer_tokens, outputs.shape[1])
    ends_BSL = functional.pad(end_BS, (0, longest - 1), value=-torch.inf).unfold(1, longest, 1)
    scores = (start_BS.unsqueeze(-1) + ends_BSL).flatten(1)
    top = scores.topk(min(num_best, scores.shape[1]), dim=1)
    first, more = top.indices // longest, top.indices % longest
    last = (first + more).clamp(max=outputs.shape[1] - 1)
    none = top.values.isneginf()
    columns = [
        start_BS.gather(1, first).masked_fill(none, -torch.inf),
        end_BS.gather(1, last).masked_fill(none, -torch.inf),
        first.masked_fill(none, -1).to(outputs.dtype),
        last.masked_fill(none, -1).to(outputs.dtype),
    ]
    missing = num_best - none.shape[1]
    fill = (-torch.inf, -torch.inf, -1.0, -1.0)
    padded = [functional.pad(part, (0, missing), value=value) for part, value in zip(columns, fill, strict=True)]
    null_B2 = outputs.gather(1, null_B1.unsqueeze(-1).expand(-1, -1, 2)).squeeze(1)
    return torch.cat([*padded, null_B2], dim=1)
