"""What each kind of task makes of a model's outputs: the loss of each row, and what an evaluation keeps of it.

Floor 3. `B` rows, `S` padded length, `T` tokens of a packed batch, `M` labelled tokens, `C` classes, `V` words, `K`
numbers kept of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from paratune.batch import Batch
from paratune.models.spans import best_spans, span_logits, span_losses

NUM_GUESSES: Final = 5
"""Words that are kept of each mask that a masked LM fills in, if no other number is asked for."""


def _logits(found: Any, batch: Batch) -> Tensor:
    logits: Tensor = found.logits
    return logits


def _all(outputs: Tensor, batch: Batch) -> Tensor:
    return outputs


@dataclass(frozen=True)
class Objective:
    """How a kind of task is trained and evaluated; the tensors are those of one batch."""

    row_losses: Callable[[Tensor, Batch], Tensor]
    """From outputs (float32 or float64) and batch to the loss of each row, (B,)."""
    outputs: Callable[[Any, Batch], Tensor] = _logits
    """From what the transformers model returns, and the batch, to one tensor: (B, ...), or one entry for each token
    that has a label."""
    row_outputs: Callable[[Tensor, Batch], Tensor] = _all
    """From outputs and batch to what an evaluation keeps of each row, (B, K): the same K for every batch."""
    kept_losses: Callable[[Tensor], Tensor] | None = None
    """From `row_outputs` of a batch with labels to `row_losses`, where they are among it."""
    head_reads: Literal["rows", "labelled", "tokens"] = "rows"
    """Of which of the encoder's outputs the head makes something: one for each row, those of tokens with a label, or
    all of them."""


def weighted_sum(objective: Objective, outputs: Tensor, batch: Batch, kept: Tensor | None = None) -> Tensor:
    """Return the sum over rows of the loss, weighted by `row_weight`; a scalar, at least float32."""
    if kept is not None and objective.kept_losses is not None:
        losses = objective.kept_losses(kept)
    else:
        losses = objective.row_losses(_at_least_float32(outputs), batch)
    return (losses * batch.row_weight.to(losses.dtype)).sum()


def _at_least_float32(outputs: Tensor) -> Tensor:
    return outputs.float() if outputs.dtype in (torch.float16, torch.bfloat16) else outputs


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


def _words(found: Any, batch: Batch) -> Tensor:
    """Return the logits of the tokens with a label, (M, V), row by row; of those that are asked for, (B, V); else all.

    At 15% of the tokens the loss in float32 takes a sixth of the memory, and stages of a pipeline send a sixth.
    """
    logits: Tensor = found.logits  # (B, S, V), or (1, M, V) of a head that was given no others
    if batch.label_places is not None:
        return logits.flatten(0, 1) if logits.shape[:2] != batch.input_ids.shape else _labelled(logits, batch)
    if batch.labels is not None:
        return _labelled(logits, batch)
    if batch.asked is not None:
        return logits[torch.arange(len(batch.asked), device=logits.device), batch.asked]
    return logits


def _places(batch: Batch) -> Tensor:
    """Return which of the tokens have a label, (M,)."""
    if batch.label_places is not None:
        return batch.label_places
    assert batch.labels is not None
    return (batch.labels.flatten() >= 0).nonzero().squeeze(1)


def _labelled(values: Tensor, batch: Batch) -> Tensor:
    """Return what belongs to the tokens with a label, (M, ...), of values of all: (B, S, ...), or (T,)."""
    return values.flatten(0, batch.input_ids.ndim - 1).index_select(0, _places(batch))


def _word_losses(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the sum over the labelled tokens of each row."""
    assert batch.labels is not None
    losses_M = functional.cross_entropy(outputs, _labelled(batch.labels, batch), reduction="none")
    return _by_row(losses_M, batch)


def _by_row(values: Tensor, batch: Batch) -> Tensor:
    """Return the sum of the values of each row, (B,), in an order that is always the same."""
    rows, places_M = len(batch.row_weight), _places(batch)
    slots_M = places_M if batch.slots is None else batch.slots[places_M]
    length = batch.input_ids.shape[1] if batch.slots is None else batch.max_seqlen
    return values.new_zeros(rows * length).index_copy(0, slots_M, values).view(rows, length).sum(dim=1)


def _word_outputs(outputs: Tensor, batch: Batch, num_guesses: int) -> Tensor:
    """Return of each row the sum of its losses, its labelled tokens, and those that were found, (B, 3).

    Where tokens are asked for: the ids of the most probable words and their probabilities, (B, 2 * num_guesses).
    """
    outputs = _at_least_float32(outputs)
    if batch.labels is None:
        best = outputs.softmax(dim=-1).topk(num_guesses, dim=-1)
        return torch.cat([best.indices.to(outputs.dtype), best.values], dim=1)
    labels_M = _labelled(batch.labels, batch)
    is_found_M = outputs.argmax(dim=-1) == labels_M
    columns = [
        _word_losses(outputs, batch),
        _by_row((labels_M >= 0).to(outputs.dtype), batch),
        _by_row(is_found_M.to(outputs.dtype), batch),
    ]
    return torch.stack(columns, dim=1)


def masked_lm(*, num_guesses: int = NUM_GUESSES) -> Objective:
    """Return the objective of a masked LM; outputs are (M, V): logits of the labelled tokens, or of those asked for.

    Args:
        num_guesses: Words that are kept of each token that is asked for, at most V.
    """
    keep = partial(_word_outputs, num_guesses=num_guesses)
    return Objective(_word_losses, _words, keep, kept_losses=itemgetter((slice(None), 0)), head_reads="labelled")


def question_answering(*, num_best: int = 20, max_answer_tokens: int = 30) -> Objective:
    """Return the objective of extractive question answering; outputs are (B, S, 2): logits of first and last tokens.

    Args:
        num_best: Answers that an evaluation keeps of each window.
        max_answer_tokens: Most tokens of an answer.
    """
    keep = partial(best_spans, num_best=num_best, max_answer_tokens=max_answer_tokens)
    return Objective(span_losses, span_logits, keep, head_reads="tokens")


OBJECTIVES: Final[dict[str, Objective]] = {
    "classification": Objective(_cross_entropy),
    "mlm": masked_lm(),
    "multi_label": Objective(_mean_over_classes),
    "ordinal": Objective(_cumulative),
    "regression": Objective(_squared_error),
    "qa": question_answering(),
}
"""By kind of task."""
