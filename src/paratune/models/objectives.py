"""Objectives of tasks: the loss of each row, and the row outputs that an evaluation collects.

Dimensions: `B` rows, `S` padded length, `T` tokens of a packed batch, `M` labelled tokens, `C` classes, `V` words,
`K` row outputs, `L` tokens of an answer.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any, Final, Literal

import torch
from torch import Tensor
from torch.nn import functional

from paratune.batch import Batch
from paratune.batch.packing import unpack
from paratune.config.own_code import import_callable, own_code_errors, wrong_result

SamplePooling = Literal["mean", "max", "sum"]
NUM_GUESSES: Final = 5
"""Default number of words that a masked LM returns for each mask that it fills in."""


def at_least_float32(values: Tensor) -> Tensor:
    """Return values of 16 bits in float32, and others as they are: sums in 16 bits would lose digits."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def pool_sequences(values: Tensor, batch: Batch, pooling: SamplePooling) -> Tensor:
    """Return outputs pooled over the sequences of each sample, (B, C); gradients are the same in every run.

    `values` are (Q, C) or (Q,), at least float32; without `sample_offsets` of the batch they are returned as they are.
    """
    offsets = batch.sample_offsets
    if offsets is None:
        return values
    # It adds in a fixed order, unlike `index_add` on a GPU; `unsafe` skips a check that would wait for the device.
    return torch.segment_reduce(values, pooling, offsets=offsets, unsafe=True)


def by_sample(values: Tensor, batch: Batch, num_columns: int, *, fill: float) -> Tensor:
    """Return the values of sequences, (Q,), as one row for each sample, (B, K), with `fill` at the end.

    `num_columns` is K, at least the sequences of any sample of the batch, which has `sample_offsets`.
    """
    offsets = batch.sample_offsets
    assert offsets is not None
    samples = len(offsets) - 1
    # With `output_size`, the device need not report the number of sequences, for which the host would wait.
    sample_Q = torch.repeat_interleave(offsets.diff(), output_size=len(values))
    slots_Q = torch.arange(len(values), device=values.device) - offsets[sample_Q] + sample_Q * num_columns
    return values.new_full((samples * num_columns,), fill).index_copy(0, slots_Q, values).view(samples, num_columns)


def _logits(model_output: Any, batch: Batch) -> Tensor:
    logits: Tensor = model_output.logits
    return logits


def _all(outputs: Tensor, batch: Batch) -> Tensor:
    return outputs


@dataclass(frozen=True)
class Objective:
    """Functions that train and evaluate a kind of task; tensors are those of one batch."""

    row_losses: Callable[[Tensor, Batch], Tensor]
    """From outputs (float32 or float64) and batch to the loss of each row, (B,)."""
    outputs: Callable[[Any, Batch], Tensor] = _logits
    """From the output of the transformers model and the batch to one tensor: (B, ...), or one entry for each labelled
    token."""
    row_outputs: Callable[[Tensor, Batch], Tensor] = _all
    """From outputs and batch to the values of each row that an evaluation collects, (B, K); K is fixed."""
    losses_in_row_outputs: Callable[[Tensor], Tensor] | None = None
    """From row outputs of a batch with labels to `row_losses`, where row outputs contain them."""
    head_reads: Literal["rows", "labelled", "tokens"] = "rows"
    """Which outputs of the encoder the head reads: one for each row, those of labelled tokens, or all tokens."""
    takes_choices: bool = False
    """Whether the model of transformers takes (samples, choices, S); each sequence is its only choice of a sample."""


def weighted_sum(objective: Objective, outputs: Tensor, batch: Batch, row_outputs: Tensor | None = None) -> Tensor:
    """Return the sum over rows of the loss, weighted by `row_weight`; a scalar, at least float32."""
    if row_outputs is not None and objective.losses_in_row_outputs is not None:
        losses = objective.losses_in_row_outputs(row_outputs)
    else:
        losses = objective.row_losses(at_least_float32(outputs), batch)
    return (losses * batch.row_weight.to(losses.dtype)).sum()


def _cross_entropy(
    outputs: Tensor, batch: Batch, *, class_weights: tuple[float, ...] | None = None, label_smoothing: float = 0.0
) -> Tensor:
    assert batch.labels is not None
    weights_C = None if class_weights is None else _constant(class_weights, outputs.dtype, outputs.device)
    return functional.cross_entropy(
        outputs, batch.labels, weight=weights_C, reduction="none", label_smoothing=label_smoothing
    )


def classification(
    *, class_weights: Sequence[float] | None = None, label_smoothing: float = 0.0, focal_gamma: float | None = None
) -> Objective:
    """Return the objective of a classification; outputs are (B, C) logits.

    The loss of a row is that of `torch.nn.functional.cross_entropy` with reduction "none". Losses are summed and
    divided by the number of rows, and not by the sum of their weights.

    Args:
        class_weights: (C,), weights above 0; None for 1 each.
        label_smoothing: Share of the target that is spread over all classes, from 0 to below 1.
        focal_gamma: Exponent of the focal loss, above 0, without `label_smoothing`: the loss of a row is
            w_y (1 - p_y)^gamma (-log p_y), with the probability p_y and the weight w_y of its class.

    Source: Lin et al., Focal Loss for Dense Object Detection, ICCV 2017, equation 5; Szegedy et al., Rethinking the
    Inception Architecture for Computer Vision, CVPR 2016, section 7, for the smoothing.
    """
    weights = None if class_weights is None else tuple(class_weights)
    if focal_gamma is not None:
        return Objective(partial(_focal, class_weights=weights, gamma=focal_gamma))
    return Objective(partial(_cross_entropy, class_weights=weights, label_smoothing=label_smoothing))


def _focal(outputs: Tensor, batch: Batch, *, class_weights: tuple[float, ...] | None, gamma: float) -> Tensor:
    assert batch.labels is not None
    losses_B = functional.cross_entropy(outputs, batch.labels, reduction="none")
    # Not below epsilon: the gradient of a power below 1 is infinite at 0.
    error_B = -torch.expm1(-losses_B)
    losses_B = error_B.clamp_min(torch.finfo(outputs.dtype).eps).pow(gamma) * losses_B
    if class_weights is not None:
        losses_B = losses_B * _constant(class_weights, outputs.dtype, outputs.device)[batch.labels]
    return losses_B


@lru_cache(maxsize=8)
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a tensor, copied to the device once: each copy would wait for the device."""
    with torch.inference_mode(False):  # backward cannot use a tensor that an evaluation made
        return torch.tensor(values, dtype=dtype, device=device)


def pooled(objective: Objective, pooling: SamplePooling) -> Objective:
    """Return an objective whose outputs of sequences, (Q, C), are pooled over each sample, (B, C), before the loss."""

    def outputs(model_output: Any, batch: Batch) -> Tensor:
        return pool_sequences(at_least_float32(objective.outputs(model_output, batch)), batch, pooling)

    return replace(objective, outputs=outputs)


def own_loss(objective: Objective, name: str, options: Mapping[str, Any]) -> Objective:
    """Return an objective with the loss of rows of a function outside paratune.

    The function, `name`, is called as `function(outputs, labels, **options)` with one value for each row: outputs
    (B, C), or (B,) where the head has one output; labels (B,) or (B, C), integers in classification and ordinal tasks,
    otherwise of the dtype of the outputs. It returns the loss of each row, (B,). It is imported with the first loss, so
    that predictions without labels do not need it.
    """
    return replace(objective, row_losses=partial(_own_losses, name=name, options=dict(options)))


def require_gradient(losses: Tensor, outputs: Tensor, function: str, key: str) -> None:
    """Raise a ConfigError for own losses that were detached from the outputs, with which nothing can be trained."""
    if outputs.requires_grad and torch.is_grad_enabled() and not losses.requires_grad:
        what, wanted = "losses without a gradient", "losses computed from the outputs by functions of torch"
        raise wrong_result(function, key, what, f"{wanted}, without detach(), item(), numpy() or no_grad()")


def _own_losses(outputs: Tensor, batch: Batch, *, name: str, options: dict[str, Any]) -> Tensor:
    assert batch.labels is not None
    is_class = not batch.labels.is_floating_point() and batch.labels.ndim == 1
    labels = batch.labels if is_class else batch.labels.to(outputs.dtype)
    values = outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs
    call = f"outputs {tuple(values.shape)}, labels {tuple(labels.shape)} and task.loss.options"
    with own_code_errors(name, "task.loss.function", call=call):
        losses = import_callable(name, "task.loss.function", options)(values, labels, **options)
    if isinstance(losses, Tensor) and losses.shape == batch.labels.shape[:1] and losses.is_floating_point():
        require_gradient(losses, outputs, name, "task.loss.function")
        return losses
    is_tensor = isinstance(losses, Tensor)
    returned = f"a tensor {tuple(losses.shape)} of {losses.dtype}" if is_tensor else f"{type(losses).__name__}"
    wanted = f"the loss of each row, a tensor ({len(labels)},) of {outputs.dtype}"
    raise wrong_result(name, "task.loss.function", returned, wanted)


def _squared_error(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the squared error of each row, its mean over several targets."""
    assert batch.labels is not None
    errors = (outputs.squeeze(-1) - batch.labels.to(outputs.dtype)).square()
    return errors if errors.ndim == 1 else errors.mean(dim=-1)


def _squares(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the mean of the squared outputs: for plans, in place of the loss of a task of the user's own."""
    return outputs.square().mean(dim=-1)


def _mean_over_classes(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the mean over classes of the binary cross-entropy; its mean over rows is the loss of transformers."""
    assert batch.labels is not None
    targets = batch.labels.to(outputs.dtype)
    return functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(dim=-1)


def _cumulative(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the sum of the binary cross-entropies of "is the label above class k?", k = 0 to C - 2.

    Source: Niu et al., Ordinal Regression with Multiple Output CNN, CVPR 2016, equation 2 with equal weights.
    """
    assert batch.labels is not None
    is_above = (batch.labels.unsqueeze(-1) > torch.arange(outputs.shape[-1], device=outputs.device)).to(outputs.dtype)
    return functional.binary_cross_entropy_with_logits(outputs, is_above, reduction="none").sum(dim=-1)


def _words(model_output: Any, batch: Batch) -> Tensor:
    """Return the logits of labelled tokens, (M, V), row by row; of masks to fill in, (B, V); else of all tokens.

    With 15% labelled tokens, the float32 loss needs a sixth of the memory, and pipeline stages send a sixth.
    """
    logits: Tensor = model_output.logits  # (B, S, V), or (1, M, V) where the head received only labelled tokens
    if batch.label_places is not None:
        return logits.flatten(0, 1) if logits.shape[:2] != batch.input_ids.shape else _labelled(logits, batch)
    if batch.labels is not None:
        return _labelled(logits, batch)
    if batch.asked is not None:
        return logits[torch.arange(len(batch.asked), device=logits.device), batch.asked]
    return logits


def _places(batch: Batch) -> Tensor:
    """Return the positions of labelled tokens, (M,), among all tokens of the batch."""
    if batch.label_places is not None:
        return batch.label_places
    assert batch.labels is not None
    return (batch.labels.flatten() >= 0).nonzero().squeeze(1)


def _labelled(values: Tensor, batch: Batch) -> Tensor:
    """Return the values of labelled tokens, (M, ...), from the values of all tokens, (B, S, ...) or (T,)."""
    return values.flatten(0, batch.input_ids.ndim - 1).index_select(0, _places(batch))


def _word_losses(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the sum of the losses of labelled tokens of each row, (B,)."""
    assert batch.labels is not None
    losses_M = functional.cross_entropy(outputs, _labelled(batch.labels, batch), reduction="none")
    return _by_row(losses_M, batch)


def _by_row(values: Tensor, batch: Batch) -> Tensor:
    """Return the sum of the values of each sample, (B,), over all its sequences.

    The values are copied into (Q, S) and summed there, and not by `index_add`, which adds in no fixed order on a GPU.
    """
    rows, (slots_M, length) = batch.num_sequences, _slots(batch)
    sums_Q = values.new_zeros(rows * length).index_copy(0, slots_M, values).view(rows, length).sum(dim=1)
    return pool_sequences(sums_Q, batch, "sum")


def _slots(batch: Batch) -> tuple[Tensor, int]:
    """Return the positions of labelled tokens, (M,), among those of padded rows, (B, S), and S."""
    if batch.slots is None:
        return _places(batch), batch.input_ids.shape[1]
    return batch.slots[_places(batch)], batch.max_seqlen


def _word_outputs(outputs: Tensor, batch: Batch, num_guesses: int) -> Tensor:
    """Return for each row the sum of losses, the number of labelled tokens and of correct predictions, (B, 3).

    For masks to fill in: the ids of the most probable words and their probabilities, (B, 2 * num_guesses).
    """
    outputs = at_least_float32(outputs)
    if batch.labels is None:
        best = outputs.softmax(dim=-1).topk(num_guesses, dim=-1)
        return torch.cat([best.indices.to(outputs.dtype), best.values], dim=1)
    labels_M = _labelled(batch.labels, batch)
    is_correct_M = outputs.argmax(dim=-1) == labels_M
    columns = [
        _word_losses(outputs, batch),
        _by_row((labels_M >= 0).to(outputs.dtype), batch),
        _by_row(is_correct_M.to(outputs.dtype), batch),
    ]
    return torch.stack(columns, dim=1)


def _tags(model_output: Any, batch: Batch) -> Tensor:
    """Return the logits of labelled tokens, (M, C); a copy, because FSDP warns of views, and few numbers."""
    return _words(model_output, batch).clone()


def _tag_outputs(outputs: Tensor, batch: Batch) -> Tensor:
    """Return the predicted class at each labelled token of each row, (B, row_size), float32.

    -1 at other tokens; NaN where a logit is NaN.
    """
    tags_M = outputs.argmax(dim=-1).float().where(~outputs.isnan().any(dim=-1), torch.nan)
    slots_M, length = _slots(batch)
    rows, targets_M = len(batch.row_weight), slots_M // length * batch.row_size + slots_M % length
    tags = tags_M.new_full((rows * batch.row_size,), -1)
    return tags.index_copy(0, targets_M, tags_M).view(rows, batch.row_size)


def masked_lm(*, num_guesses: int = NUM_GUESSES) -> Objective:
    """Return the objective of a masked LM; outputs are logits, (M, V) of labelled tokens or (B, V) of masks, for which
    row outputs have `num_guesses` words, at most V."""
    row_outputs = partial(_word_outputs, num_guesses=num_guesses)
    losses = itemgetter((slice(None), 0))
    return Objective(_word_losses, _words, row_outputs, losses_in_row_outputs=losses, head_reads="labelled")


def _span_logits(model_output: Any, batch: Batch) -> Tensor:
    """Return the logits of first and last tokens, (B, S, 2), from the output of the transformers model.

    For a packed batch, padding gets the lowest number of the dtype, which is 0 after a softmax.
    """
    logits = torch.stack((model_output.start_logits, model_output.end_logits), dim=-1)
    return unpack(logits.squeeze(0), batch, torch.finfo(logits.dtype).min) if batch.is_packed else logits


def _span_losses(outputs: Tensor, batch: Batch) -> Tensor:
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


def _best_spans(outputs: Tensor, batch: Batch, *, num_best: int, max_answer_tokens: int) -> Tensor:
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


def question_answering(*, num_best: int = 20, max_answer_tokens: int = 30) -> Objective:
    """Return the objective of extractive question answering; outputs are (B, S, 2): logits of first and last tokens.

    Row outputs have the `num_best` answers of each window.
    """
    row_outputs = partial(_best_spans, num_best=num_best, max_answer_tokens=max_answer_tokens)
    return Objective(_span_losses, _span_logits, row_outputs, head_reads="tokens")


def _choice_logits(model_output: Any, batch: Batch) -> Tensor:
    """Return the logits of the choices of each sample, (B, row_size); -inf behind its last choice.

    Without `sample_offsets` (trials of a model), the logits of sequences, (Q, 1).
    """
    logits: Tensor = model_output.logits
    if batch.sample_offsets is None:
        return logits
    return by_sample(logits.squeeze(-1), batch, batch.row_size, fill=float("-inf"))


OBJECTIVES: Final[dict[str, Objective]] = {
    "classification": classification(),
    "mlm": masked_lm(),
    "multi_label": Objective(_mean_over_classes),
    "multiple_choice": Objective(_cross_entropy, _choice_logits, takes_choices=True),
    "ordinal": Objective(_cumulative),
    "regression": Objective(_squared_error),
    "qa": question_answering(),
    "own": Objective(_squares),
    "token_classification": Objective(_word_losses, _tags, _tag_outputs, head_reads="labelled"),
}
"""Objective by kind of task."""
