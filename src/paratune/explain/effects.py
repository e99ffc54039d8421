"""Methods that give each word an effect on an output: gradients, removal (occlusion), and Shapley values.

Positive effects raise the output.

Dimensions: `W` words, `T` tokens, `D` width, `P` parts.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.errors import require
from paratune.explain.outputs import Bools, Floats, RowOutput

Ints = npt.NDArray[np.int64]
Values = Callable[[Bools], Floats]
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


def occlusion(output: RowOutput, parts: Ints) -> Floats:
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


def partition_shap(output: RowOutput, max_evals: int) -> Floats:
    """Return Owen values, (W,): Shapley values that keep the words of a sentence and of a paragraph together."""
    tree = partition_tree([output.row.paragraphs, output.row.sentences])
    return owen_values(output.values, tree, len(output.row.words), max_evals, output.batch_size)


Tree = Sequence[tuple[int, int]]
"""Joins of two nodes: words are nodes 0 to W - 1, join k is node W + k, the last one is the root."""


def partition_tree(levels: Sequence[Ints]) -> Tree:
    """Return a tree that halves groups: first paragraphs, then their sentences, then their words.

    Args:
        levels: (W,) each, ascending: the group of each word, the widest level first.
    """
    joins: list[tuple[int, int]] = []
    num_words = len(levels[0])

    def halve(nodes: list[int]) -> int:
        if len(nodes) == 1:
            return nodes[0]
        middle = len(nodes) // 2
        joins.append((halve(nodes[:middle]), halve(nodes[middle:])))
        return num_words + len(joins) - 1

    def join(words: Ints, depth: int) -> int:
        if depth == len(levels):
            return halve(words.tolist())
        groups = levels[depth][words]
        return halve([join(words[groups == group], depth + 1) for group in np.unique(groups)])

    join(np.arange(num_words), 0)
    return joins


@dataclass(frozen=True, eq=False)
class _Branch:
    """A node of the tree, next to a set of other visible words."""

    node: int
    context: Bools
    """(W,): visible words outside of the node."""
    without: float
    """The output with the context alone."""
    with_it: float
    """The output with the words of the node, too."""
    weight: float

    @property
    def effect(self) -> float:
        return (self.with_it - self.without) * self.weight


def owen_values(values: Values, tree: Tree, num_words: int, max_evals: int, batch_size: int) -> Floats:
    """Return the Owen values of words, (W,); their sum is exactly the output minus the output without words.

    The branch with the largest effect is divided first. When `max_evals` outputs were computed, the words of a branch
    that is not divided share its effect equally. These are the values of shap's PartitionExplainer.

    Args:
        values: From visible words, (B, W), to outputs, (B,).
        tree: Joins of the words.
        num_words: W, at least 1.
        max_evals: Most outputs to compute, at least 2.

    Source: Lundberg and Lee, A Unified Approach to Interpreting Model Predictions, NeurIPS 2017; Owen, Values of Games
    with a Priori Unions, 1977.
    """
    members = np.zeros((num_words + len(tree), num_words), dtype=np.bool_)
    members[:num_words] = np.eye(num_words, dtype=np.bool_)
    for number, (left, right) in enumerate(tree):
        members[num_words + number] = members[left] | members[right]
    nothing, all_words = values(np.asarray([[False] * num_words, [True] * num_words])).tolist()
    root = _Branch(len(members) - 1, np.zeros(num_words, dtype=np.bool_), nothing, all_words, 1.0)
    queue: list[tuple[float, int, _Branch]] = [(0.0, 0, root)]
    effects, num_evals, number = np.zeros(num_words), 2, 1
    while queue:
        chosen: list[_Branch] = []
        while queue and 2 * len(chosen) < max(2, batch_size):
            branch = heapq.heappop(queue)[2]
            if branch.node < num_words or num_evals + 2 * len(chosen) + 2 > max_evals:
                effects[members[branch.node]] += branch.effect / members[branch.node].sum()
            else:
                chosen.append(branch)
        if not chosen:
            continue
        children = [tree[branch.node - num_words] for branch in chosen]
        visible = [
            branch.context | members[child] for branch, pair in zip(chosen, children, strict=True) for child in pair
        ]
        outputs = values(np.asarray(visible)).tolist()
        num_evals += len(outputs)
        for at, (branch, (left, right)) in enumerate(zip(chosen, children, strict=True)):
            only_left, only_right = outputs[2 * at : 2 * at + 2]
            half = branch.weight / 2
            for part in (
                _Branch(left, branch.context, branch.without, only_left, half),
                _Branch(right, branch.context, branch.without, only_right, half),
                _Branch(left, visible[2 * at + 1], only_right, branch.with_it, half),
                _Branch(right, visible[2 * at], only_left, branch.with_it, half),
            ):
                # The number decides between equal effects, so that branches are never compared.
                heapq.heappush(queue, (-abs(part.effect), number, part))
                number += 1
    return effects
