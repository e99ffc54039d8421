"""Methods that give each word an effect on an output: gradients, removal (occlusion), and Shapley values.

Positive effects raise the output.

Dimensions: `W` words, `T` tokens, `D` width, `P` parts.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from paratune.errors import require
from paratune.explain.outputs import Floats, RowOutput

MIN_ORDERS = 10
"""Fewest orders of the words from which Shapley values are computed for words."""
ENOUGH = 0.01
"""Relative gap of integrated gradients below which the number of steps is not doubled."""


def integrated_gradients(output: RowOutput, num_steps: int, max_steps: int) -> Floats:
    """Return integrated gradients from the embeddings of hidden words to those of the words, (W,), by captum.

    The steps of the quadrature are doubled while the gap of completeness is above 1%, up to `max_steps`.

    Raises:
        MissingDependency: captum is not installed.

    Source: Sundararajan, Taly and Yan, Axiomatic Attribution for Deep Networks, ICML 2017.
    """
    captum: Any = require("captum.attr", extra="serve")
    method = captum.LayerIntegratedGradients(output.read, output.model.hf.get_input_embeddings())
    width, owners = len(output.row.words), output.row.token_words
    ends = np.asarray([[True] * width, [False] * width])
    end, start = output.values(ends).tolist()
    given, hidden = output.ids(ends[:1]), output.ids(ends[1:])
    while True:
        # Gauss-Legendre: the output is smooth along the path, so that it needs far fewer steps than equal distances.
        by_token_TD = method.attribute(
            given, hidden, n_steps=num_steps, method="gausslegendre", internal_batch_size=output.batch_size
        )[0]
        by_token = by_token_TD.detach().sum(dim=1).double().cpu().numpy()
        gap = abs(by_token.sum() - (end - start))
        if gap <= ENOUGH * abs(end - start) or 2 * num_steps > max_steps:
            return np.bincount(owners[owners >= 0], by_token[owners >= 0], width).astype(np.float64)
        num_steps *= 2


def occlusion(output: RowOutput, parts: npt.NDArray[np.int64]) -> Floats:
    """Return for each part how much the output falls when its words are hidden, (P,).

    Args:
        parts: (W,), the part of each word, as indices from 0.

    Source: Zeiler and Fergus, Visualizing and Understanding Convolutional Networks, ECCV 2014.
    """
    names = np.unique(parts)
    visible = np.concatenate([np.ones((1, len(parts)), dtype=np.bool_), parts[None, :] != names[:, None]])
    values = output.values(visible)
    falls: Floats = values[0] - values[1:]
    return falls


def shapley(output: RowOutput, max_evals: int, seed: int) -> Floats:
    """Return Shapley values of the words, (W,), by captum: their mean effect while words are shown in random orders.

    Their sum is the output minus that with all words hidden. Where `max_evals` outputs are too few for `MIN_ORDERS`
    orders of the words, sentences are shown, and the words of a sentence share its value equally.

    Args:
        max_evals: Most outputs to compute, but those of at least one order.
        seed: Determines the orders.

    Raises:
        MissingDependency: captum is not installed.

    Source: Castro, Gómez and Tejada, Polynomial calculation of the Shapley value based on sampling, 2009; Lundberg and
    Lee, A Unified Approach to Interpreting Model Predictions, NeurIPS 2017.
    """
    captum: Any = require("captum.attr", extra="serve")
    width = len(output.row.words)
    parts = np.arange(width) if width * MIN_ORDERS <= max_evals else output.row.sentences
    _, parts, sizes = np.unique(parts, return_inverse=True, return_counts=True)
    method = captum.ShapleyValueSampling(lambda visible: torch.from_numpy(output.values(visible.bool().numpy())))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        by_word = method.attribute(
            torch.ones(1, width),
            feature_mask=torch.from_numpy(parts)[None],
            n_samples=max(1, (max_evals - 1) // len(sizes)),
            perturbations_per_eval=output.batch_size,
        )[0]
    values: Floats = by_word.double().numpy() / sizes[parts]
    return values
