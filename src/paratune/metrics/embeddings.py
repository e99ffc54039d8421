"""Scores of sentence embeddings: similarity of pairs against their scores or labels, retrieval in groups, triplets.

Dimension: `N` samples.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from paratune.metrics.regression import regression_scores
from paratune.metrics.values import known

SIMILARITY: Final = ("spearman", "pearson")
RANKING: Final = ("average_precision", "roc_auc")
RETRIEVAL: Final = ("recall_at_1", "mrr")
TRIPLETS: Final = ("accuracy",)


def similarity_scores(cosines: npt.ArrayLike, scores: npt.ArrayLike) -> dict[str, float | None]:
    """Return Spearman's and Pearson's correlations of cosines and scores, (N,) each; None where undefined.

    Source: Reimers et al., Task-Oriented Intrinsic Evaluation of Semantic Textual Similarity, COLING 2016;
    scipy.stats.spearmanr and pearsonr, as in sentence_transformers.evaluation.EmbeddingSimilarityEvaluator.
    """
    all_scores = regression_scores(cosines, scores)
    return {name: all_scores[name] for name in SIMILARITY}


def ranking_scores(cosines: npt.ArrayLike, labels: npt.ArrayLike) -> dict[str, float | None]:
    """Return the average precision and the area under the ROC curve of cosines, (N,); None with labels of one value.

    `labels`, (N,), are 1 for related texts and 0 for unrelated ones.

    Source: sklearn.metrics.average_precision_score and roc_auc_score.
    """
    from sklearn import metrics

    cosines_N, labels_N = np.asarray(cosines, dtype=np.float64), np.asarray(labels)
    if not np.isfinite(cosines_N).all() or len(np.unique(labels_N)) < 2:
        return dict.fromkeys(RANKING)
    scorers: dict[str, Any] = dict(zip(RANKING, (metrics.average_precision_score, metrics.roc_auc_score), strict=True))
    return {name: known(score(labels_N, cosines_N)) for name, score in scorers.items()}


def retrieval_scores(ranks: npt.ArrayLike) -> dict[str, float | None]:
    """Return the share of texts whose own pair is first among the candidates, and the mean of 1 / rank.

    `ranks`, (N,), are those of the own pairs, from 1.

    Source: Voorhees, The TREC-8 Question Answering Track Report, 1999, for the mean reciprocal rank.
    """
    ranks_N = np.asarray(ranks, dtype=np.float64)
    if ranks_N.size == 0 or not np.isfinite(ranks_N).all():
        return dict.fromkeys(RETRIEVAL)
    return dict(zip(RETRIEVAL, (float((ranks_N == 1).mean()), float((1 / ranks_N).mean())), strict=True))


def triplet_scores(positives: npt.ArrayLike, negatives: npt.ArrayLike) -> dict[str, float | None]:
    """Return the share of triplets in which the cosine with the related text, (N,), is larger than the other one, (N,).

    Source: sentence_transformers.evaluation.TripletEvaluator.
    """
    difference_N = np.asarray(positives, dtype=np.float64) - np.asarray(negatives, dtype=np.float64)
    if difference_N.size == 0 or not np.isfinite(difference_N).all():
        return dict.fromkeys(TRIPLETS)
    return {"accuracy": float((difference_N > 0).mean())}
