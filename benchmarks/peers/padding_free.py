"""Training without padding by Hugging Face Trainer, its fastest way on a GPU: batches, attention, and heads.

Nothing of paratune is imported here. The rows of a batch are one sequence of T tokens. Attention gets their ends as
`cu_seq_lens_q`, `cu_seq_lens_k`, `max_length_q` and `max_length_k`, the names that transformers passes to
FlashAttention from the forward pass of a model (BERT, RoBERTa, ModernBERT and others, since 2026). transformers'
DataCollatorWithFlattening makes such batches for causal language models: it shifts labels, and has no token types.

A masked LM runs unchanged. Other heads read the first token of the whole sequence, or compare all of its tokens, so
`make_padding_free` replaces the forward pass of these models by one that reads each row.

Dimensions: `B` rows, `S` tokens of the longest row, `T` tokens of all rows, `H` heads, `K` head width, `D` width.
"""

import importlib.util
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, pad, scaled_dot_product_attention
from transformers import AttentionInterface, DataCollatorForLanguageModeling
from transformers.modeling_outputs import QuestionAnsweringModelOutput, SequenceClassifierOutput

ARGUMENTS = {"optim": "adamw_torch_fused", "logging_nan_inf_filter": False, "remove_unused_columns": False}
"""Arguments of TrainingArguments. Its filter of losses that are NaN waits for the GPU in each step."""
FLASH, EACH_ROW = "torch_flash_rows", "torch_each_row"
"""Names of attention functions. A name that transformers has no mask for gets none: rows are known by their ends."""


class FlatCollator:
    """Joins tokenized rows to one sequence, in their order."""

    def __init__(self, kind: str, tokenizer: Any, *, first_position: int = 0) -> None:
        """Make a collator.

        Args:
            kind: classification, qa or mlm.
            tokenizer: Tokenizer of the rows; a masked LM hides 15% of their tokens.
            first_position: Position of the first token of a row: `padding_idx + 1` for RoBERTa, 0 for BERT.
        """
        self._kind, self._first = kind, first_position
        self._masking = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15) if kind == "mlm" else None

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Return inputs, (1, T), the ends of the rows, (B + 1,), int32, and labels, (B,), or (1, T) of a masked LM."""
        ids = [torch.as_tensor(row["input_ids"]) for row in rows]
        lengths_B = torch.tensor([len(row) for row in ids])
        ends, longest = pad(lengths_B.cumsum(0), (1, 0)).int(), int(lengths_B.max())
        positions_T = torch.cat([torch.arange(len(row)) for row in ids])
        batch: dict[str, Any] = {
            "input_ids": torch.cat(ids)[None],
            "position_ids": positions_T[None] + self._first,
            **dict.fromkeys(("cu_seq_lens_q", "cu_seq_lens_k"), ends),
            **dict.fromkeys(("max_length_q", "max_length_k"), longest),
        }
        if "token_type_ids" in rows[0]:
            batch["token_type_ids"] = torch.cat([torch.as_tensor(row["token_type_ids"]) for row in rows])[None]
        if self._masking is not None:
            special = torch.cat([torch.as_tensor(row["special_tokens_mask"]) for row in rows])[None].bool()
            batch["input_ids"], batch["labels"] = self._masking.torch_mask_tokens(batch["input_ids"], special)
        for key in ("labels", "start_positions", "end_positions"):
            if key in rows[0] and self._masking is None:
                batch[key] = torch.tensor([int(row[key]) for row in rows])
        if self._kind == "qa":  # the place of each token among (B, S)
            batch["places"] = positions_T + torch.arange(len(ids)).repeat_interleave(lengths_B) * longest
        return batch


def make_padding_free(model: Any, kind: str, *, on_gpu: bool) -> str:
    """Let a model read the batches of `FlatCollator`; return the name of its attention.

    Args:
        model: A model of transformers for question answering, masked LM, or classification (BERT or ModernBERT).
        kind: classification, qa or mlm.
        on_gpu: Whether FlashAttention 2 is used: of the package flash-attn if it is installed, otherwise PyTorch's own
            copy of the same kernel. Other versions have no dropout. On a CPU, each row is computed by itself.
    """
    if on_gpu and importlib.util.find_spec("flash_attn") is not None:
        name = "flash_attention_2"
    else:
        name = FLASH if on_gpu else EACH_ROW
        AttentionInterface.register(name, attend_flash if on_gpu else attend_each_row)
    model.set_attn_implementation(name)
    if kind != "mlm":
        model.forward = MethodType(_classify if kind == "classification" else _answer, model)
    return name


def attend_flash(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: Tensor,
    cu_seq_lens_k: Tensor,
    max_length_q: int,
    max_length_k: int,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention of each row, (1, T, H, K), by PyTorch's FlashAttention 2; inputs are (1, H, T, K)."""
    query, key, value = (x.transpose(1, 2)[0] for x in (query, key, value))
    if query.dtype == torch.float32:  # rotary positions are computed in float32
        query, key, value = (x.to(torch.get_autocast_dtype("cuda")) for x in (query, key, value))
    side = _keys_per_side(sliding_window)
    rows = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k, dropout, False, False)
    out = torch.ops.aten._flash_attention_forward(
        *(query, key, value, *rows), scale=scaling, window_size_left=side, window_size_right=side
    )[0]
    return out[None], None


def attend_each_row(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: Tensor,
    scaling: float,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Return attention of each row, (1, T, H, K), one row after the other; inputs are (1, H, T, K)."""
    side, outs = _keys_per_side(sliding_window), []
    lengths = cu_seq_lens_q.diff().tolist()
    for q, k, v in zip(*(x.split(lengths, dim=2) for x in (query, key, value)), strict=True):
        place = torch.arange(q.shape[2], device=q.device)
        mask = None if side is None else (place[:, None] - place).abs() <= side
        outs.append(scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout, scale=scaling))
    return torch.cat(outs, dim=2).transpose(1, 2), None


def _keys_per_side(sliding_window: int | None) -> int | None:
    """Return the keys on each side that a query sees besides its own: transformers counts its own key as well."""
    return None if sliding_window is None else sliding_window - 1


def _classify(
    self: Any, labels: Tensor | None = None, num_items_in_batch: Any = None, **inputs: Any
) -> SequenceClassifierOutput:
    """Return the logits of each row, (B, C), read at its first token, and their mean loss."""
    hidden_TD = self.base_model(**inputs).last_hidden_state[0]
    first_BD = hidden_TD[inputs["cu_seq_lens_q"][:-1].long()]
    if self.config.model_type == "modernbert":
        pooled_BD = self.drop(self.head(first_BD))
    else:
        pooled_BD = self.dropout(self.base_model.pooler(first_BD[:, None]))
    logits_BC = self.classifier(pooled_BD)
    loss = None if labels is None else cross_entropy(logits_BC, labels)
    return SequenceClassifierOutput(loss=loss, logits=logits_BC)


def _answer(
    self: Any,
    places: Tensor,
    start_positions: Tensor | None = None,
    end_positions: Tensor | None = None,
    num_items_in_batch: Any = None,
    **inputs: Any,
) -> QuestionAnsweringModelOutput:
    """Return the logits of the first and the last token of an answer, (B, S), and their mean loss."""
    rows, longest = len(inputs["cu_seq_lens_q"]) - 1, inputs["max_length_q"]
    logits_T2 = self.qa_outputs(self.base_model(**inputs).last_hidden_state[0]).float()
    padded = logits_T2.new_full((rows * longest, 2), torch.finfo(torch.float32).min)
    begin_BS, end_BS = padded.index_copy(0, places, logits_T2).view(rows, longest, 2).unbind(-1)
    loss = None
    if start_positions is not None and end_positions is not None:
        loss = (cross_entropy(begin_BS, start_positions) + cross_entropy(end_BS, end_positions)) / 2
    return QuestionAnsweringModelOutput(loss=loss, start_logits=begin_BS, end_logits=end_BS)
