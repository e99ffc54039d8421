"""The score of chosen answers.

Dimensions: `N` questions, `K` most choices of a question.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from paratune.metrics.values import all_none

NAMES: Final = ("accuracy",)


def choice_scores(logits: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float | None]:
    """Return the share of questions whose choice with the largest logit is the right one; of equal logits, the first.

    `logits` are (N, K), -inf behind the last choice of a question; `labels`, (N,), the places of the right choices,
    from 0. The value, in [0, 1], is None without questions or with a NaN logit.
    """
    logits_NK, labels_N = np.asarray(logits), np.asarray(labels)
    if len(labels_N) == 0 or np.isnan(logits_NK).any():
        return all_none(NAMES)
    return {"accuracy": float((logits_NK.argmax(axis=1) == labels_N).mean())}
