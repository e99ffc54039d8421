"""Scores of a masked LM: perplexity and accuracy of the hidden tokens.

Dimension: `N` windows.
"""

import math

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import all_none, known

NAMES = ("perplexity", "accuracy")


def masked_lm_scores(outputs: npt.ArrayLike) -> dict[str, float | None]:
    """Return the scores of the windows of a split, averaged over hidden tokens in float64.

    Args:
        outputs: (N, 3): for each window the sum of the losses of its hidden tokens (natural logarithm), their number,
            and the number of correct predictions.

    Returns:
        perplexity: exp of the mean loss of a token, None where it is unknown or overflows float64; accuracy: the share
        of hidden tokens that the model predicts correctly. Both None without hidden tokens.

    Raises:
        ValueError: Another shape.
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
