"""Attention of packed rows, one row after another, with PyTorch's public function: on any device, in any dtype.

Floor 3. T tokens of all rows, H heads, K head width, L tokens of a row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def attend_rows(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    lengths: Sequence[int],
    *,
    scale: float,
    dropout: float = 0.0,
    window: int | None = None,
) -> Tensor:
    """Return softmax(scale Q K^T) V of each row by itself, with dropout on the probabilities.

    Args:
        query: (T, H, K).
        key: As `query`.
        value: As `query`.
        lengths: Tokens of each row, in order, known on the host; they add up to T.
        scale: What scores are multiplied by, commonly K ** -0.5.
        dropout: Probability of dropping an attention probability.
        window: Query i meets keys j of its row with |i - j| < window; None for all.

    Returns:
        (T, H, K), in the dtype of `query`.
    """
    lengths = [length for length in lengths if length]
    outs = []
    for q, k, v in zip(*(torch.split(x, lengths) for x in (query, key, value)), strict=True):
        mask = None
        if window is not None:
            i = torch.arange(len(q), device=q.device)
            mask = (i[:, None] - i).abs() < window
        q, k, v = (x.transpose(0, 1).unsqueeze(0) for x in (q, k, v))
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
        outs.append(out.squeeze(0).transpose(0, 1))
    return torch.cat(outs)
