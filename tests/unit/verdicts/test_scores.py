from dataclasses import replace

import numpy as np
import pytest

from paratune.verdicts.estimate import change_of_means
from paratune.verdicts.jackknife import of_mean
from paratune.verdicts.scores import over_seeds_and_samples, with_family_variance

RNG = np.random.default_rng(3)


def table(num_runs, num_samples, seed_deviation=0.1, shared=None):
    """Values of runs on samples: a mean of its own for each run, something of its own for each sample, and noise."""
    shared = RNG.normal(size=num_samples) if shared is None else shared
    return RNG.normal(0, seed_deviation, (num_runs, 1)) + shared + RNG.normal(0, 0.5, (num_runs, num_samples))


def test_pairs_are_the_analysis_of_variance_of_seeds_and_samples():
    first, second = table(4, 50), table(4, 50)
    d = second - first
    seeds, samples = d.mean(axis=1, keepdims=True), d.mean(axis=0, keepdims=True)
    rest = d - seeds - samples + d.mean()
    mean_squares = 50 * seeds.var(ddof=1), 4 * samples.var(ddof=1), (rest**2).sum() / (3 * 49)
    # Var(mean) = (MS of seeds + MS of samples - MS of the rest) / (seeds x samples): two crossed random factors.
    expected = (mean_squares[0] + mean_squares[1] - mean_squares[2]) / (4 * 50)
    found = over_seeds_and_samples([*map(of_mean, first)], [*map(of_mean, second)], is_paired=True)
    assert found.value == pytest.approx(d.mean())
    assert found.variance == pytest.approx(expected)


def test_runs_without_partners_share_their_samples():
    # The samples' part falls out where both sides have the same: runs differ by their seeds alone.
    shared = RNG.normal(size=400)
    first, second = table(5, 400, 0.2, shared), table(7, 400, 0.2, shared)
    found = over_seeds_and_samples([*map(of_mean, first)], [*map(of_mean, second)], is_paired=False)
    of_means = first.mean(axis=1).var(ddof=1) / 5 + second.mean(axis=1).var(ddof=1) / 7
    assert found.variance == pytest.approx(of_means, rel=0.1)
    assert found.shared < 0.1 * found.variance


def test_seeds_that_score_the_same_by_chance_vary_as_their_answers_do():
    # Each seed gains one answer of four, and not the same one: scores do not vary, answers do. Without the means of
    # samples (1/2, 1/2, 0, 0) differences of 1/2 are left, four times: 1 over 1 x 3 degrees of freedom, over 4 samples.
    first = [of_mean([0, 0, 1, 1]), of_mean([0, 0, 1, 1])]
    second = [of_mean([1, 0, 1, 1]), of_mean([0, 1, 1, 1])]
    found = over_seeds_and_samples(first, second, is_paired=True)
    assert (found.value, found.shared) == (0.25, 0)
    assert found.variance == pytest.approx(1 / 3 / 4 / 2)
    assert found.degrees_of_freedom == pytest.approx(1)
    # The same of one side, where the other has it in its scores: (1/4 - 3/4)^2 / 2.
    apart = over_seeds_and_samples([of_mean([0, 0, 0, 1]), of_mean([0, 1, 1, 1])], second, is_paired=False)
    assert [side.variance for side in apart.sides] == pytest.approx([1 / 8 / 2, 1 / 12 / 2])


def test_models_that_answer_the_same_do_not_vary():
    runs = [of_mean([0, 1, 1, 1]), of_mean([0, 0, 1, 1])]
    assert over_seeds_and_samples(runs, runs, is_paired=True).variance == 0


def test_over_samples_is_the_paired_t_test_of_samples():
    from scipy import stats

    first, second = RNG.normal(size=(2, 100))
    found = over_seeds_and_samples([of_mean(first)], [of_mean(second)], is_paired=True)
    expected = stats.ttest_rel(second, first).confidence_interval(0.95)
    assert found.interval() == pytest.approx(tuple(expected))
    assert found.scope == "samples"


def family(scores):
    """Return the differences of the rows of a table of scores, (configurations, seeds), from the first, in a family."""
    tables = [dict(enumerate(row)) for row in scores]
    pairs = [change_of_means(scores[0], row, scope="seeds", is_paired=True) for row in scores[1:]]
    return pairs, with_family_variance(tables[0], tables[1:], pairs)


def test_the_variance_of_a_family_is_the_residual_of_configurations_and_seeds():
    scores = RNG.normal(size=(5, 4)) + RNG.normal(size=(1, 4)) * 3
    rest = scores - scores.mean(axis=1, keepdims=True) - scores.mean(axis=0) + scores.mean()
    mean_square = (rest**2).sum() / (4 * 3)  # MS(T * R) of Hillis 2007, of (t - 1)(r - 1) degrees of freedom
    for place, found in enumerate(family(scores)[1], start=1):
        assert found.value == pytest.approx(scores[place].mean() - scores[0].mean())
        assert (found.variance, found.degrees_of_freedom) == pytest.approx((2 * mean_square / 4, 12))


def test_equal_seeds_of_a_family_vary_as_their_answers_do():
    # Residuals of 1e-17 are rounding: as in a pair, the variance of a run is then the one if all are equal, 1e-4.
    scores = [[0.9] * 3, [0.8] * 3, [0.85] * 3]
    pairs = [change_of_means(scores[0], row, scope="seeds", is_paired=True) for row in scores[1:]]
    pairs = [replace(pair, sides=tuple(replace(side, if_equal=1e-4) for side in pair.sides)) for pair in pairs]
    base, *others = (dict(enumerate(row)) for row in scores)
    for found in with_family_variance(base, others, pairs):
        assert sum(side.variance for side in found.sides) == pytest.approx(len(found.sides) * 1e-4 / 3)


def test_a_family_of_two_is_the_paired_t_test():
    pairs, found = family(RNG.normal(size=(2, 3)))
    assert found == pairs
    assert found[0].degrees_of_freedom == 2


def test_two_ways_to_the_same_scores_keep_their_own_variance_in_a_family():
    scores = RNG.normal(size=(6, 3))
    scores[1] = scores[0] + [1e-4, -1e-4, 0]
    pairs, found = family(scores)
    assert found[0] == pairs[0]
    assert all(one.degrees_of_freedom > 8 for one in found[1:])


def test_seeds_that_only_some_have_are_in_no_pair_and_in_the_variance():
    base, one, two = {1: 0.1, 2: 0.3, 3: 0.2}, {1: 0.2, 2: 0.5, 3: 0.1}, {1: 0.4, 2: 0.4}
    pairs = [change_of_means([*base.values()], [*one.values()], scope="seeds", is_paired=True),
             change_of_means([0.1, 0.3], [0.4, 0.4], scope="seeds", is_paired=True)]  # fmt: skip
    found = with_family_variance(base, [one, two], pairs)
    # 8 scores, less 3 configurations, less 2 of 3 seeds.
    assert [estimate.degrees_of_freedom for estimate in found] == pytest.approx([3, 3])
    assert found[1].variance / found[0].variance == pytest.approx(3 / 2)


def test_runs_of_other_seeds_have_the_common_variance_of_configurations():
    scores = np.asarray([[0.1, 0.3, 0.2], [0.4, 0.1, 0.2], [0.5, 0.3, 0.5], [0.2, 0.4, 0.1]])
    tables = [{(place, seed): value for seed, value in enumerate(row)} for place, row in enumerate(scores)]
    pairs = [change_of_means(scores[0], row, scope="seeds", is_paired=False) for row in scores[1:]]
    mean_square = np.mean(scores.var(axis=1, ddof=1))
    for found in with_family_variance(tables[0], tables[1:], pairs):
        assert (found.variance, found.degrees_of_freedom) == pytest.approx((mean_square * 2 / 3, 8))
