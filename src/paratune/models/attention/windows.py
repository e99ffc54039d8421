"""Attention of packed rows within a window, in one call of PyTorch's public function, where no kernel has windows.

The tokens of all rows are cut into chunks of at least `window - 1` tokens, so that a query finds all its keys in its
own chunk and the two beside it; a mask hides the other keys. Time and memory grow linearly with T, also for long rows,
and no number is read on the host.

Dimensions: `T` tokens of all rows, `H` heads, `K` head width, `N` chunks, `C` tokens of a chunk.
"""

from collections.abc import MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.weak import WeakIdKeyDictionary

STEP = 8
"""The tokens of a chunk are a multiple of this: PyTorch's memory-efficient kernel needs aligned masks."""
_masks: MutableMapping[Tensor, tuple[Any, Tensor]] = WeakIdKeyDictionary()
"""`cu_seqlens` -> the mask of its batch with its key, so that the layers of a pass share one."""


def attend_windows(
    query: Tensor, key: Tensor, value: Tensor, cu_seqlens: Tensor, *, scale: float, dropout: float, window: int
) -> Tensor:
    """Return softmax(scale Q K^T) V of each row by itself, (T, H, K); arguments as in `cuda.attend`."""
    T, C = len(query), -(-max(1, window - 1) // STEP) * STEP
    N = max(1, -(-T // C))
    queries, keys, values = (pad(x, (0, 0, 0, 0, 0, N * C - T)).view(N, C, *x.shape[1:]) for x in (query, key, value))
    keys, values = (_with_neighbours(x) for x in (keys, values))
    mask = _mask(cu_seqlens, (N, C), window)
    # (N, H, C, K) and (N, H, 3 C, K)
    q, k, v = (x.transpose(1, 2) for x in (queries, keys, values))
    out = scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, scale=scale)
    return out.transpose(1, 2).flatten(0, 1)[:T]


def _with_neighbours(x: Tensor) -> Tensor:
    """Return each chunk of (N, C, H, K) between the chunks beside it, (N, 3 C, H, K); 0 outside."""
    nothing = torch.zeros_like(x[:1])
    return torch.cat([torch.cat([nothing, x[:-1]]), x, torch.cat([x[1:], nothing])], dim=1)


def _mask(cu_seqlens: Tensor, shape: tuple[int, int], window: int) -> Tensor:
    """Return (N, 1, C, 3 C), true for each query and the keys of its row within the window."""
    about = (shape, window, None if cu_seqlens.is_inference() else cu_seqlens._version)
    # A captured step is repeated with other values in `cu_seqlens`, and so computes the mask itself.
    is_captured = cu_seqlens.is_cuda and torch.cuda.is_current_stream_capturing()
    if not is_captured and (found := _masks.get(cu_seqlens)) is not None and found[0] == about:
        return found[1]
    N, C = shape
    places = torch.arange(-C, (N + 1) * C, device=cu_seqlens.device)
    # Tokens that fill the last chunk are a row of their own: a query without a key would have no softmax.
    rows = torch.bucketize(places, cu_seqlens[1:].to(places.dtype), right=True).masked_fill(places < 0, -1)
    i, j = places[C:-C].view(N, C, 1), places.unfold(0, 3 * C, C).unsqueeze(1)
    row_i, row_j = rows[C:-C].view(N, C, 1), rows.unfold(0, 3 * C, C).unsqueeze(1)
    mask = ((row_i == row_j) & ((i - j).abs() < window)).unsqueeze(1)
    _masks[cu_seqlens] = about, mask
    return mask
