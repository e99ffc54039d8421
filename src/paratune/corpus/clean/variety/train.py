"""Trains the classifier, and says how well it does: on texts held out, and on sources that it has not seen.

Each source, each variety and each length (a line, a document of some lines) weighs the same, however much there is.
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
"""Inverse strength of the regularisation, as scikit-learn has it."""
MAX_STEPS = 50
"""Of L-BFGS; more change the figures in the third digit."""
NUM_BINS = 10
LENGTHS = ("line", "document")

Array = npt.NDArray[np.float64]
Texts = Mapping[str, tuple[Sequence[LineGroup], Sequence[LineGroup]]]
"""Of each source the groups in Brazilian, and those in European Portuguese."""


@dataclass(frozen=True)
class _Block:
    """Texts of one source, one variety and one length."""

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
    """Scores of the texts of a block, by a model that has not seen them."""

    block: _Block
    scores: Array
    num_characters: Array


def train(texts: Texts) -> tuple[VarietyModel, dict[str, Any]]:
    """Return a classifier that has seen all texts, and what was found of ones that had not.

    Returns:
        The model; and `held_out`, by source and length, of a model that was trained on nine tenths of all sources;
        `unseen`, of models that were trained on the other sources, or None if there is one only; `calibration`, the
        probabilities of the latter (or of the former) in ten steps, with the share that was European.
    """
    from threadpoolctl import threadpool_limits

    # With one thread sums are taken in the same order, whatever the number of threads of this machine.
    with threadpool_limits(limits=1):
        blocks = _blocks(texts)
        held_out = _scored(blocks, fit_without=lambda block: block.is_held_out, test=lambda block: block.is_held_out)
        unseen = [each for source in texts for each in _unseen(blocks, source)] if len(texts) > 1 else []
        calibration = _calibrate(unseen or held_out)
        weights, bias = _fit(blocks, [np.ones(len(block.is_held_out), np.bool_) for block in blocks])
    evaluation = {
        "held_out": _figures(held_out, calibration),
        "unseen": _figures(unseen, calibration) if unseen else None,
        "calibration": _bins(unseen or held_out, calibration),
    }
    return VarietyModel(weights.astype(np.float32), bias, calibration), evaluation


def _blocks(texts: Texts) -> list[_Block]:
    found = []
    for source, varieties in texts.items():
        for is_european, groups in enumerate(varieties):
            lines = [(line, group.is_held_out) for group in groups for line in group.lines]
            documents = [(group.document, group.is_held_out) for group in groups]
            for length, rows in zip(LENGTHS, (lines, documents), strict=True):
                sizes = np.array([len(text) for text, _ in rows], np.float64)
                is_held_out = np.array([held_out for _, held_out in rows], np.bool_)
                matrix = _matrix([text for text, _ in rows])
                found.append(_Block(source, bool(is_european), length, matrix, sizes, is_held_out))
    return found


def _matrix(texts: Sequence[str]) -> Any:
    from scipy.sparse import csr_matrix

    rows = [features(text) for text in texts]
    ends = np.cumsum([0, *(len(indices) for indices, _ in rows)])
    indices, values = (np.concatenate([row[k] for row in rows]) for k in (0, 1))
    return csr_matrix((values, indices, ends), shape=(len(texts), 2**NUM_BITS))


def _unseen(blocks: Sequence[_Block], source: str) -> list[_Scored]:
    """Return scores of one source, by a model of the others."""

    def is_it(block: _Block) -> npt.NDArray[np.bool_]:
        return np.full(len(block.is_held_out), block.source == source)

    return _scored(blocks, fit_without=is_it, test=is_it)


Choice = Callable[[_Block], npt.NDArray[np.bool_]]


def _scored(blocks: Sequence[_Block], *, fit_without: Choice, test: Choice) -> list[_Scored]:
    weights, bias = _fit(blocks, [~fit_without(block) for block in blocks])
    found = []
    for block in blocks:
        chosen = test(block)
        if chosen.any():
            scores = np.asarray(block.matrix[chosen] @ weights, np.float64) + bias
            found.append(_Scored(block, scores, block.num_characters[chosen]))
    return found


def _fit(blocks: Sequence[_Block], chosen: Sequence[npt.NDArray[np.bool_]]) -> tuple[Array, float]:
    """Return weights, (2 ** NUM_BITS,), and bias of a regression on the chosen rows of each block."""
    from scipy.sparse import vstack
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    used = [(block, rows) for block, rows in zip(blocks, chosen, strict=True) if rows.any()]
    sizes = [int(rows.sum()) for _, rows in used]
    labels = np.concatenate([np.full(n, block.is_european) for n, (block, _) in zip(sizes, used, strict=True)])
    each = sum(sizes) / len(sizes)
    row_weights = np.concatenate([np.full(n, each / n) for n in sizes])
    matrix = vstack([block.matrix[rows] for block, rows in used]).tocsr()
    columns = np.unique(matrix.indices)  # of few texts most features are never there
    model = LogisticRegression(C=C, max_iter=MAX_STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # it may stop before it is at the very best
        model.fit(matrix[:, columns], labels, sample_weight=row_weights)
    weights = np.zeros(2**NUM_BITS)
    weights[columns] = model.coef_[0]
    return weights, float(model.intercept_[0])


def _calibrate(scored: Sequence[_Scored]) -> VarietyCalibration:
    """Return what makes probabilities of scores (Platt, 1999), with a slope that grows with the length of a text."""
    from sklearn.linear_model import LogisticRegression

    scores = np.concatenate([each.scores for each in scored])
    lengths = np.log(np.concatenate([each.num_characters for each in scored]))
    labels = np.concatenate([np.full(len(each.scores), each.block.is_european) for each in scored])
    row_weights = np.concatenate([np.full(len(each.scores), 1000 / len(each.scores)) for each in scored])
    model = LogisticRegression(C=1e3, max_iter=MAX_STEPS)
    model.fit(np.stack([scores, scores * lengths], axis=1), labels, sample_weight=row_weights)
    return VarietyCalibration(float(model.coef_[0][0]), float(model.coef_[0][1]), float(model.intercept_[0]))


def _probabilities(each: _Scored, calibration: VarietyCalibration) -> Array:
    pairs = zip(each.scores, each.num_characters, strict=True)
    return np.array([calibration.probability(float(score), int(size)) for score, size in pairs])


def _figures(scored: Sequence[_Scored], calibration: VarietyCalibration) -> dict[str, dict[str, Any]]:
    """Return by source and length: texts, share of each variety that was told, their mean, area under the curve."""
    from sklearn.metrics import roc_auc_score

    found: dict[str, dict[str, Any]] = {}
    for source in dict.fromkeys(each.block.source for each in scored):
        for length in LENGTHS:
            chosen = [each for each in scored if (each.block.source, each.block.length) == (source, length)]
            by_variety = {each.block.is_european: _probabilities(each, calibration) for each in chosen}
            if len(by_variety) < 2:
                continue
            brazilian, european = by_variety[False], by_variety[True]
            told = float((european >= 0.5).mean()), float((brazilian < 0.5).mean())
            labels = [0] * len(brazilian) + [1] * len(european)
            found.setdefault(source, {})[length] = {
                "num_european": len(european),
                "num_brazilian": len(brazilian),
                "european": round(told[0], 4),
                "brazilian": round(told[1], 4),
                "balanced_accuracy": round(sum(told) / 2, 4),
                "auc": round(float(roc_auc_score(labels, np.concatenate([brazilian, european]))), 4),
            }
    return found


def _bins(scored: Sequence[_Scored], calibration: VarietyCalibration) -> list[dict[str, Any]]:
    """Return what was said and what was true, in steps of the probability that was said; blocks weigh the same."""
    said = np.concatenate([_probabilities(each, calibration) for each in scored])
    labels = np.concatenate([np.full(len(each.scores), each.block.is_european) for each in scored])
    weights = np.concatenate([np.full(len(each.scores), 1 / len(each.scores)) for each in scored])
    steps = np.minimum((said * NUM_BINS).astype(int), NUM_BINS - 1)
    found = []
    for step in range(NUM_BINS):
        chosen = steps == step
        mean = [
            round(float(np.average(x[chosen], weights=weights[chosen])), 4) if chosen.any() else None
            for x in (said, labels)
        ]
        found.append({"from": step / NUM_BINS, "num": int(chosen.sum()), "said": mean[0], "european": mean[1]})
    return found
