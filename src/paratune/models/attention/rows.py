"""Attention of packed rows with PyTorch's public function, on any device and in any dtype.

Consecutive rows of equal length share a call; evaluations sort rows by length. Dimensions: `T` tokens of all rows,
`H` heads, `K` head width, `L` tokens of a row.
"""

from collections.abc import Sequence
from itertools import groupby

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
    """Return softmax(scale Q K^T) V of each row by itself, (T, H, K); arguments as in `cpu.attend_tiles`."""
    runs = [(length, len(list(rows))) for length, rows in groupby(length for length in lengths if length)]
    sizes = [length * num_rows for length, num_rows in runs]
    outs = []
    for (length, _), *run in zip(runs, *(torch.split(x, sizes) for x in (query, key, value)), strict=True):
        mask = None
        if window is not None and window < length:
            i = torch.arange(length, device=query.device)
            mask = (i[:, None] - i).abs() < window
        # (rows, H, L, K)
        q, k, v = (x.unflatten(0, (-1, length)).transpose(1, 2) for x in run)
        out = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
        outs.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(outs)
