"""Trains the classifier of varieties and evaluates it on held-out texts and on unseen sources.

Each source, variety and length (line, document) has the same weight, independent of its number of texts.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from paratune.corpus.clean.variety.features import NUM_BITS, features
from paratune.corpus.clean.variety.model import VarietyCalibration, VarietyModel
from paratune.corpus.clean.variety.texts import LineGroup

C = 10.0
"""Inverse strength of the regularisation, as in scikit-learn."""
MAX_STEPS = 50
"""Maximum iterations of L-BFGS; more change the scores in the third digit."""
NUM_BINS = 10
LENGTHS = ("line", "document")

Array = npt.NDArray[np.float64]
Texts = Mapping[str, tuple[Sequence[LineGroup], Sequence[LineGroup]]]
"""Brazilian and European groups of each source."""


@dataclass(frozen=True)
class _Block:
    """Texts of one source, variety and length."""

    source: str
    is_european: bool
    length: str
    matrix: Any
    """(N, 2 ** NUM_BITS), sparse."""
    num_characters: Array
    """(N,)."""
    is_held_out: npt.NDArray[np.bool_]
    """(N,)."""


@dataclass(frozen=True)
class _Scored:
    """Scores of the texts of a block, by a model that was not trained on them."""

    block: _Block
    scores: Array
    num_characters: Array


def train(texts: Texts) -> tuple[VarietyModel, dict[str, Any]]:
    """Train a classifier on all texts, and evaluate classifiers that were trained on a part of them.

    Returns:
        The classifier, and its evaluation: `held_out`, scores by source and length of a model that was trained on nine
        tenths of each source; `unseen`, scores on each source of a model that was trained on the other sources, None
        for a single source; `calibration`, predicted probabilities of the latter (or the former) in ten bins, with the
        share of European texts.
    """
    from threadpoolctl import threadpool_limits

    # With one thread the order of sums does not depend on the machine.
    with threadpool_limits(limits=1):
        blocks = _blocks(texts)
        held_out = _scored(blocks, lambda block: block.is_held_out)
        unseen = [scores for source in texts for scores in _unseen(blocks, source)] if len(texts) > 1 else []
        calibration = _calibrate(unseen or held_out)
        weights, bias = _fit(blocks, [np.ones(len(block.is_held_out), np.bool_) for block in blocks])
    evaluation = {
        "held_out": _figures(held_out, calibration),
        "unseen": _figures(unseen, calibration) if unseen else None,
        "calibration": _bins(unseen or held_out, calibration),
    }
    return VarietyModel(weights.astype(np.float32), bias, calibration), evaluation


def _blocks(texts: Texts) -> list[_Block]:
    blocks = []
    for source, varieties in texts.items():
        for is_european, groups in enumerate(varieties):
            lines = [(line, group.is_held_out) for group in groups for line in group.lines]
            documents = [(group.document, group.is_held_out) for group in groups]
            for length, rows in zip(LENGTHS, (lines, documents), strict=True):
                sizes = np.array([len(text) for text, _ in rows], np.float64)
                is_held_out = np.array([held_out for _, held_out in rows], np.bool_)
                matrix = _matrix([text for text, _ in rows])
                blocks.append(_Block(source, bool(is_european), length, matrix, sizes, is_held_out))
    return blocks


def _matrix(texts: Sequence[str]) -> Any:
    from scipy.sparse import csr_matrix

    rows = [features(text) for text in texts]
    ends = np.cumsum([0, *(len(indices) for indices, _ in rows)])
    indices, values = (np.concatenate([row[k] for row in rows]) for k in (0, 1))
    return csr_matrix((values, indices, ends), shape=(len(texts), 2**NUM_BITS))


def _unseen(blocks: Sequence[_Block], source: str) -> list[_Scored]:
    """Return the scores of one source, by a model that was trained on the others."""
    return _scored(blocks, lambda block: np.full(len(block.is_held_out), block.source == source))


def _scored(blocks: Sequence[_Block], is_left_out: Callable[[_Block], npt.NDArray[np.bool_]]) -> list[_Scored]:
    """Return the scores of some texts, by a model that was trained on the others."""
    left_out = [is_left_out(block) for block in blocks]
    weights, bias = _fit(blocks, [~chosen for chosen in left_out])
    scored = []
    for block, chosen in zip(blocks, left_out, strict=True):
        if chosen.any():
            scores = np.asarray(block.matrix[chosen] @ weights, np.float64) + bias
            scored.append(_Scored(block, scores, block.num_characters[chosen]))
    return scored


def _fit(blocks: Sequence[_Block], chosen: Sequence[npt.NDArray[np.bool_]]) -> tuple[Array, float]:
    """Return weights, (2 ** NUM_BITS,), and bias of a regression on the chosen rows of each block."""
    from scipy.sparse import vstack
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    used = [(block, rows) for block, rows in zip(blocks, chosen, strict=True) if rows.any()]
    sizes = [int(rows.sum()) for _, rows in used]
    labels = np.concatenate([np.full(n, block.is_european) for n, (block, _) in zip(sizes, used, strict=True)])
    mean_size = sum(sizes) / len(sizes)
    row_weights = np.concatenate([np.full(n, mean_size / n) for n in sizes])
    matrix = vstack([block.matrix[rows] for block, rows in used]).tocsr()
    columns = np.unique(matrix.indices)  # few texts lack most features
    model = LogisticRegression(C=C, max_iter=MAX_STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # may stop early
        model.fit(matrix[:, columns], labels, sample_weight=row_weights)
    weights = np.zeros(2**NUM_BITS)
    weights[columns] = model.coef_[0]
    return weights, float(model.intercept_[0])


def _calibrate(scored: Sequence[_Scored]) -> VarietyCalibration:
    """Fit probabilities to scores (Platt, 1999), with a slope that grows with the length of a text."""
    from sklearn.linear_model import LogisticRegression

    scores = np.concatenate([block.scores for block in scored])
    lengths = np.log(np.concatenate([block.num_characters for block in scored]))
    labels, row_weights = _labels_and_weights(scored, block_weight=1000)
    model = LogisticRegression(C=1e3, max_iter=MAX_STEPS)
    model.fit(np.stack([scores, scores * lengths], axis=1), labels, sample_weight=row_weights)
    return VarietyCalibration(float(model.coef_[0][0]), float(model.coef_[0][1]), float(model.intercept_[0]))


def _labels_and_weights(scored: Sequence[_Scored], *, block_weight: float) -> tuple[Any, Array]:
    """Return for each text whether it is European, and its weight; the weights of a block sum to `block_weight`."""
    sizes = [len(block.scores) for block in scored]
    labels = np.repeat([block.block.is_european for block in scored], sizes)
    return labels, np.repeat(block_weight / np.array(sizes), sizes)


def _probabilities(scores: _Scored, calibration: VarietyCalibration) -> Array:
    pairs = zip(scores.scores, scores.num_characters, strict=True)
    return np.array([calibration.probability(float(score), int(size)) for score, size in pairs])


def _figures(scored: Sequence[_Scored], calibration: VarietyCalibration) -> dict[str, dict[str, Any]]:
    """Return by source and length: numbers of texts, recall of each variety, their mean, area under the ROC curve."""
    from sklearn.metrics import roc_auc_score

    figures: dict[str, dict[str, Any]] = {}
    for source in dict.fromkeys(scores.block.source for scores in scored):
        for length in LENGTHS:
            chosen = [scores for scores in scored if (scores.block.source, scores.block.length) == (source, length)]
            by_variety = {scores.block.is_european: _probabilities(scores, calibration) for scores in chosen}
            if len(by_variety) < 2:
                continue
            brazilian, european = by_variety[False], by_variety[True]
            recalls = float((european >= 0.5).mean()), float((brazilian < 0.5).mean())
            labels = [0] * len(brazilian) + [1] * len(european)
            figures.setdefault(source, {})[length] = {
                "num_european": len(european),
                "num_brazilian": len(brazilian),
                "european": round(recalls[0], 4),
                "brazilian": round(recalls[1], 4),
                "balanced_accuracy": round(sum(recalls) / 2, 4),
                "auc": round(float(roc_auc_score(labels, np.concatenate([brazilian, european]))), 4),
            }
    return figures


def _bins(scored: Sequence[_Scored], calibration: VarietyCalibration) -> list[dict[str, Any]]:
    """Return mean predicted probability and true share in bins of the probability; blocks have equal weights."""
    probabilities = np.concatenate([_probabilities(scores, calibration) for scores in scored])
    labels, weights = _labels_and_weights(scored, block_weight=1)
    steps = np.minimum((probabilities * NUM_BINS).astype(int), NUM_BINS - 1)
    bins = []
    for step in range(NUM_BINS):
        chosen = steps == step
        mean = [
            round(float(np.average(x[chosen], weights=weights[chosen])), 4) if chosen.any() else None
            for x in (probabilities, labels)
        ]
        bins.append({"from": step / NUM_BINS, "num": int(chosen.sum()), "said": mean[0], "european": mean[1]})
    return bins
