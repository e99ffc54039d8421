"""Attention to each word, of the last layer and by rollout. Where a model attends is not why it decides so.

Dimensions: `H` heads, `T` tokens, `W` words.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from paratune.explain.rows import TokenRow

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Attention:
    """Attention of a row, mean over heads; not an explanation."""

    last: Floats
    """(W,): attention of the last layer from the token that the head reads."""
    rollout: Floats
    """(W,): attention of all layers from this token."""
    matrix: Floats
    """(W, W): attention of the last layer from each word to each word."""


def word_attention(layers: Sequence[Tensor], row: TokenRow, reads: Sequence[int]) -> Attention:
    """Return the attention to words.

    Rollout multiplies the layers, each as the mean of its attention and the identity, which stands for the residual
    connection (Abnar and Zuidema, Quantifying Attention Flow in Transformers, ACL 2020).

    Args:
        layers: (H, T, T) each, from the first to the last one.
    """
    means = [layer.double().mean(dim=0).numpy() for layer in layers]
    flow = np.eye(len(row.ids))
    for mean in means:
        flow = (0.5 * mean + 0.5 * np.eye(len(row.ids))) @ flow
    is_word = row.token_words >= 0
    owners = np.zeros((len(row.ids), len(row.words)))
    owners[np.flatnonzero(is_word), row.token_words[is_word]] = 1.0
    last = means[-1]
    return Attention(
        last=last[list(reads)].mean(axis=0) @ owners,
        rollout=flow[list(reads)].mean(axis=0) @ owners,
        matrix=(owners / owners.sum(axis=0)).T @ last @ owners,
    )
