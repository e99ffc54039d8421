import numpy as np
import pytest
from scipy import stats
from sklearn import metrics

from paratune.verdicts.jackknife import of_blocks, of_kinds, of_mean, of_sums

RNG = np.random.default_rng(7)
TRUE = RNG.integers(0, 2, 60)
GIVEN = np.where(RNG.random(60) < 0.7, TRUE, 1 - TRUE)


def left_out(score, *columns):
    """Pseudovalues by their definition: the score without each sample in turn."""
    whole, num = score(*columns), len(columns[0])
    return [num * whole - (num - 1) * score(*(np.delete(each, place) for each in columns)) for place in range(num)]


def test_of_a_mean_they_are_the_values_themselves():
    values = RNG.normal(size=20)
    assert left_out(np.mean, values) == pytest.approx(of_mean(values).pseudovalues)


def test_of_kinds_they_are_those_of_the_definition():
    def score(kinds, counts):
        return metrics.f1_score(kinds // 2, kinds % 2, sample_weight=counts)

    found = of_kinds(TRUE * 2 + GIVEN, score)
    assert found.score == pytest.approx(metrics.f1_score(TRUE, GIVEN))
    assert found.pseudovalues == pytest.approx(left_out(metrics.f1_score, TRUE, GIVEN))


def test_of_sums_they_are_those_of_the_definition():
    x, y = RNG.normal(size=(2, 30))
    found = of_sums(np.stack([x * y, x * x], axis=1), lambda sums: sums[..., 0] / sums[..., 1])
    assert found.pseudovalues == pytest.approx(left_out(lambda a, b: (a * b).sum() / (a * a).sum(), x, y))


def test_blocks_of_few_samples_hold_one_each():
    x, y = RNG.normal(size=(2, 40))

    def score(x, y):
        return stats.spearmanr(x, y).statistic

    found = of_blocks(40, lambda kept: score(x[kept], y[kept]))
    assert sorted(found.pseudovalues) == pytest.approx(sorted(left_out(score, x, y)))


def test_blocks_give_the_standard_error_of_single_samples():
    x, y = RNG.normal(size=(2, 2000))
    y = y + x

    def score(kept):
        return float(np.corrcoef(x[kept], y[kept])[0, 1])

    found = of_blocks(2000, score)
    assert (len(found.pseudovalues), found.num_samples) == (100, 2000)
    # Fisher: the standard error of r is (1 - r^2) / sqrt(n); of 100 blocks it is known to about 7%.
    expected = (1 - found.score**2) / np.sqrt(2000)
    assert found.pseudovalues.std(ddof=1) / 10 == pytest.approx(expected, rel=0.2)


def test_a_score_that_is_undefined_without_a_sample_has_no_known_pseudovalues():
    # Without the only sample of class 1 there is no recall.
    scores = [
        of_kinds(np.asarray([0, 0, 0, 1]), lambda kinds, counts: counts[1] if 1 in kinds else None),
        of_sums(np.asarray([[1.0, 1.0], [1.0, 0.0]]), lambda sums: sums[..., 0] / sums[..., 1]),
        of_sums(np.asarray([[1.0]]), lambda sums: sums[..., 0]),
        of_blocks(1, lambda kept: float(kept.sum())),
        of_kinds(np.asarray([0]), lambda kinds, counts: counts[0] / counts.sum()),
    ]
    assert [(found.score, found.is_known) for found in scores] == [
        *((1.0, False), (2.0, False), (1.0, False), (0.0, False), (1.0, False))
    ]


def test_a_score_that_is_undefined_with_all_samples_is_none():
    assert of_sums(np.asarray([[1.0, 0.0]]), lambda sums: sums[..., 0] / sums[..., 1]) is None


def test_the_variance_by_cluster_is_that_of_cluster_robust_errors():
    # Of a mean: sum over clusters of the squared sum of residuals, over N^2, times G / (G - 1); written out.
    values, clusters = RNG.normal(size=12), np.asarray([0, 0, 0, 1, 1, 2, 2, 2, 2, 3, 4, 4])
    found = of_mean(values).by_cluster(clusters)
    residuals = values - values.mean()
    sums = np.asarray([residuals[clusters == cluster].sum() for cluster in range(5)])
    expected = (sums**2).sum() / 12**2 * 5 / 4
    assert found.pseudovalues.var(ddof=1) / 5 == pytest.approx(expected)
    assert found.pseudovalues.mean() == pytest.approx(values.mean())
    assert (found.score, found.num_samples, found.num_clusters) == (pytest.approx(values.mean()), 12, 5)


def test_clusters_of_one_row_change_nothing():
    values = RNG.normal(size=9)
    found = of_mean(values).by_cluster(np.arange(9))
    assert found.pseudovalues == pytest.approx(values)


def test_blocks_keep_clusters_whole():
    clusters = np.repeat(np.arange(150), 4)
    kept_of_block = []
    found = of_blocks(600, lambda kept: kept_of_block.append(kept) or float(len(kept)), clusters)
    assert len(found.pseudovalues) == 100
    for kept in kept_of_block:
        assert set(np.bincount(clusters[kept], minlength=150)) <= {0, 4}
    few = of_blocks(40, lambda kept: float(len(kept)), np.repeat(np.arange(8), 5))
    assert len(few.pseudovalues) == 8


def test_intervals_of_clustered_rows_cover():
    # As independent rows intervals cover 86.5% with 5 rows of a cluster, and 61% with 20.
    rng = np.random.default_rng(3)
    covered = {"rows": 0, "clusters": 0}
    clusters = np.repeat(np.arange(50), 20)
    for _ in range(600):
        scored = of_mean(rng.normal(size=50)[clusters] + rng.normal(size=1000))
        for name, one in (("rows", scored), ("clusters", scored.by_cluster(clusters))):
            values = one.pseudovalues
            half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
            covered[name] += abs(one.score) <= half
    assert covered["rows"] / 600 < 0.6
    assert 0.92 < covered["clusters"] / 600 < 0.98
