"""Scores of sentence embeddings equal those of SciPy and scikit-learn, and arithmetic by hand."""

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from paratune.metrics.embeddings import ranking_scores, retrieval_scores, similarity_scores, triplet_scores

RANDOM = np.random.default_rng(0)
COSINES, SCORES, LABELS = RANDOM.uniform(-1, 1, 30), RANDOM.uniform(0, 5, 30), RANDOM.integers(0, 2, 30)


def test_similarities_are_correlated_as_scipy_does():
    scores = similarity_scores(COSINES, SCORES)
    assert scores["spearman"] == pytest.approx(stats.spearmanr(COSINES, SCORES).statistic)
    assert scores["pearson"] == pytest.approx(stats.pearsonr(COSINES, SCORES).statistic)
    assert similarity_scores(np.ones(5), SCORES[:5]) == {"spearman": None, "pearson": None}


def test_labels_are_ranked_as_scikit_learn_does():
    assert ranking_scores(COSINES, LABELS) == {
        "average_precision": pytest.approx(metrics.average_precision_score(LABELS, COSINES)),
        "roc_auc": pytest.approx(metrics.roc_auc_score(LABELS, COSINES)),
    }
    assert set(ranking_scores(COSINES, np.ones(30)).values()) == {None}


def test_ranks_and_triplets_are_counted():
    assert retrieval_scores([1, 2, 4, 1]) == {"recall_at_1": 0.5, "mrr": pytest.approx((1 + 1 / 2 + 1 / 4 + 1) / 4)}
    assert triplet_scores([0.5, 0.2, 0.3], [0.4, 0.2, 0.9]) == {"accuracy": pytest.approx(1 / 3)}
    assert retrieval_scores([np.nan]) == {"recall_at_1": None, "mrr": None}
    assert triplet_scores([np.nan], [0.0]) == {"accuracy": None}
