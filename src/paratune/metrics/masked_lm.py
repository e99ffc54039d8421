"""Scores of a masked LM: how surprised it is by the hidden tokens, and how many of them it finds.

Dimension: `N` windows.
"""

import math

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import all_none, known

NAMES = ("perplexity", "accuracy")


def masked_lm_scores(outputs: npt.ArrayLike) -> dict[str, float | None]:
    """Score the windows of a split, all hidden tokens alike, in float64.

    Args:
        outputs: (N, 3): of each window the sum of the losses of its hidden tokens (natural logarithm), their number,
            and how many were found.

    Returns:
        perplexity, exp of the mean loss of a token, None where that is more than a float64 holds or not known;
        accuracy, the share of the tokens that the model finds most probable of all. Both None without hidden tokens.

    Raises:
        ValueError: The shape is another.
    """
    windows_N3 = np.asarray(outputs, dtype=np.float64)
    if windows_N3.ndim != 2 or windows_N3.shape[1] != 3:
        raise ValueError(f"outputs have the shape {windows_N3.shape}; (windows, 3) is needed")
    loss, num_hidden, num_found = windows_N3.sum(axis=0).tolist()
    if num_hidden == 0:
        return all_none(NAMES)
    try:
        perplexity = math.exp(loss / num_hidden)
    except OverflowError:
        perplexity = math.inf
    return {"perplexity": known(perplexity), "accuracy": num_found / num_hidden}
