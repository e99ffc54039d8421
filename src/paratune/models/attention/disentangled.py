"""Disentangled attention of packed rows: DeBERTa-v2 and -v3 without padding, on the CPU.

These models have their own attention, which transformers' attention interface does not replace. A score is the sum of
three products: content of query and key, content of the query with the position of the key, and content of the key with
the position of the query; positions are relative, in buckets of the distance i - j. Here each row of a packed batch is
computed separately. A product with positions has only 2L - 1 different distances: it is computed for these, and read
through a slanted view as L x L scores. transformers gathers L x L entries by index, and scatters as many in backward.

Dimensions: `T` tokens of all rows, `H` heads, `K` head width, `L` tokens of a row, `D` width, `P` relative positions.

Source: He et al., DeBERTa, ICLR 2021, equations 2 to 4; scores are those of transformers' DisentangledSelfAttention.
"""

from functools import lru_cache
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ENCODER, ATTENTION = "DebertaV2Encoder", "DisentangledSelfAttention"
"""Classes of DeBERTa-v2 in transformers."""


class PackedRows:
    """The lengths of packed rows, which layers receive instead of relative positions.

    Not a dataclass, because torch.compile guards on fields of dataclasses and would compile for each set of lengths.
    """

    def __init__(self, lengths: list[int]) -> None:
        """Store the tokens of each row, at least 1, in order."""
        self.lengths = lengths


def attach(hf: nn.Module) -> nn.Module | None:
    """Add `packed_rows` to the encoder of a DeBERTa-v2 and return the encoder; None for other models, without a change.

    The attribute `packed_rows` is set during a forward pass of a packed batch; without it, nothing changes.
    """
    encoder: Any = next((module for module in hf.modules() if type(module).__name__ == ENCODER), None)
    layers: list[Any] = [module for module in hf.modules() if type(module).__name__ == ATTENTION]
    if encoder is None or not all(layer.relative_attention for layer in layers):
        return None
    encoder.packed_rows = None
    encoder.get_attention_mask = MethodType(_attention_mask, encoder)
    encoder.get_rel_pos = MethodType(_relative_positions, encoder)
    for layer in layers:
        layer.forward = MethodType(_forward, layer)
    module: nn.Module = encoder
    return module


def _attention_mask(encoder: Any, attention_mask: Tensor) -> Tensor:
    if encoder.packed_rows is not None:
        return attention_mask  # not expanded to (1, 1, T, T), because packed attention does not use it
    mask: Tensor = type(encoder).get_attention_mask(encoder, attention_mask)
    return mask


def _relative_positions(encoder: Any, *args: Any, **kwargs: Any) -> Any:
    if encoder.packed_rows is not None:
        return encoder.packed_rows
    return type(encoder).get_rel_pos(encoder, *args, **kwargs)


def _forward(
    layer: Any,
    hidden_states: Tensor,
    attention_mask: Tensor,
    output_attentions: bool = False,
    query_states: Tensor | None = None,
    relative_pos: Any = None,
    rel_embeddings: Tensor | None = None,
) -> tuple[Tensor, Tensor | None]:
    """As `DisentangledSelfAttention.forward`; hidden states of packed rows are (1, T, D)."""
    if not isinstance(relative_pos, PackedRows):
        inputs = (hidden_states, attention_mask, output_attentions, query_states, relative_pos, rel_embeddings)
        outputs: tuple[Tensor, Tensor | None] = type(layer).forward(layer, *inputs)
        return outputs
    assert rel_embeddings is not None
    q, k, v = (
        project(hidden_states[0]).unflatten(-1, (layer.num_attention_heads, -1))
        for project in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    return attend(layer, q, k, v, relative_pos, rel_embeddings).flatten(1).unsqueeze(0), None


@torch.compiler.disable  # type: ignore[untyped-decorator]
def attend(layer: Any, query: Tensor, key: Tensor, value: Tensor, rows: PackedRows, rel_embeddings: Tensor) -> Tensor:
    """Return the attention of each row by itself, (T, H, K), with dropout on the probabilities by `layer.dropout`.

    Queries, keys and values are (T, H, K); `rel_embeddings`, (P, D), are from the encoder. The layer, a
    DisentangledSelfAttention, gives the projections of positions and `pos_att_type`.
    """
    # Keys and queries of the relative positions, each (P, H, K), or None where the model does not use them.
    positions, found = layer.pos_dropout(rel_embeddings[: 2 * layer.pos_ebd_size]), list[Tensor | None]()
    for kind, own, shared in (("c2p", "pos_key_proj", "key_proj"), ("p2c", "pos_query_proj", "query_proj")):
        project: Any = getattr(layer, shared if layer.share_att_key else own, None)
        is_used = kind in layer.pos_att_type
        found.append(project(positions).unflatten(-1, (layer.num_attention_heads, -1)) if is_used else None)
    keys_PHK, queries_PHK = found
    kinds = (keys_PHK is not None) + (queries_PHK is not None)
    scale = 1 / float(torch.tensor((1 + kinds) * query.shape[-1], dtype=torch.float32).sqrt())  # rounded as there
    outs = []
    for row in zip(*(torch.split(x, rows.lengths) for x in (query * scale, key, value)), strict=True):
        q, k, v = (x.transpose(0, 1) for x in row)  # (H, L, K)
        sizes = layer.pos_ebd_size, layer.position_buckets, layer.max_relative_positions
        by_query, by_key = distances(q.shape[1], *sizes)
        scores = q @ k.mT
        # (2L - 1, H, K) to (H, K, 2L - 1): a product for each distance, which the view spreads over pairs (i, j).
        if keys_PHK is not None:
            scores = scores + slanted(q @ keys_PHK[by_query].permute(1, 2, 0))
        if queries_PHK is not None:
            scores = scores + slanted(k @ (queries_PHK[by_key] * scale).permute(1, 2, 0)).mT
        outs.append((layer.dropout(scores.softmax(-1)) @ v).transpose(0, 1))
    return torch.cat(outs)


@lru_cache(maxsize=1024)
def distances(length: int, span: int, buckets: int, max_position: int) -> tuple[Tensor, Tensor]:
    """Return the index of the relative position of each distance i - j, from L - 1 down to 1 - L, (2L - 1,): for
    content to position, and for position to content.

    `span` are the relative positions in each direction. Distances above half of `buckets` share positions; below 1 none
    do. `max_position` is the largest distance with a position.
    """
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    away = torch.arange(length - 1, -length, -1)
    if buckets > 0 and max_position > 0:
        away = make_log_bucket_position(away, buckets, max_position).long()
    return tuple((sign * away + span).clamp(0, 2 * span - 1) for sign in (1, -1))  # type: ignore[return-value]


def slanted(by_distance: Tensor) -> Tensor:
    """Return scores[h, i, j] = by_distance[h, i, (L - 1) - (i - j)], (H, L, L), of (H, L, 2L - 1)."""
    out: Tensor = _Slanted.apply(by_distance)  # type: ignore[no-untyped-call]
    return out


def _slanted(x: Tensor) -> Tensor:
    H, L, W = x.shape
    return x.as_strided((H, L, L), (L * W, W - 1, 1), x.storage_offset() + L - 1)


class _Slanted(torch.autograd.Function):
    """Reads (H, L, L) from (H, L, W), W = 2L - 1, by strides: from one row i to the next, the offset of entry (i, j)
    grows by W - 1. Each entry is read at most once, so that backward copies through the same view into zeros."""

    @staticmethod
    def forward(ctx: Any, by_distance: Tensor) -> Tensor:
        ctx.shape = by_distance.shape
        return _slanted(by_distance.contiguous()).clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        by_distance = gradient.new_zeros(ctx.shape)
        _slanted(by_distance).copy_(gradient)
        return by_distance
