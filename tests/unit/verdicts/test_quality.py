import numpy as np
import pytest

from paratune.verdicts.jackknife import of_mean
from paratune.verdicts.quality import over_samples, over_seeds_and_samples

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
    assert [side.mean_square for side in apart.sides] == pytest.approx([1 / 8, 1 / 12])


def test_models_that_answer_the_same_do_not_vary():
    runs = [of_mean([0, 1, 1, 1]), of_mean([0, 0, 1, 1])]
    assert over_seeds_and_samples(runs, runs, is_paired=True).variance == 0


def test_over_samples_is_the_paired_t_test_of_samples():
    from scipy import stats

    first, second = RNG.normal(size=(2, 100))
    found = over_samples([of_mean(first)], [of_mean(second)])
    expected = stats.ttest_rel(second, first).confidence_interval(0.95)
    assert found.interval() == pytest.approx(tuple(expected))
