"""Expected values are those of scikit-learn."""

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from paratune.metrics.kappa import quadratic_kappa

RNG = np.random.default_rng(5)


@pytest.mark.parametrize("num_grades", [2, 5, 300])
@pytest.mark.parametrize("are_weighted", [False, True])
def test_kappa_is_that_of_scikit_learn(num_grades, are_weighted):
    true = RNG.integers(0, num_grades, 200)
    weights = RNG.integers(0, 3, 200).astype(float) if are_weighted else None
    for given in (true, RNG.integers(0, num_grades, 200), np.full(200, 1), (true + 1) % num_grades):
        expected = cohen_kappa_score(
            true, given, labels=np.arange(num_grades), weights="quadratic", sample_weight=weights
        )
        assert quadratic_kappa(true, given, weights) == pytest.approx(expected, abs=1e-12)


def test_kappa_of_one_grade_is_undefined():
    assert quadratic_kappa(np.full(9, 3), np.full(9, 3)) is None
    assert quadratic_kappa(np.asarray([3, 3, 4]), np.asarray([3, 3, 5]), np.asarray([1.0, 2.0, 0.0])) is None


def test_a_million_grades_need_no_matrix():
    true = np.arange(0, 1_000_000, 10_000)
    # x - y is 1 everywhere: 1 - 1 / (variance of x + variance of y + 1), 2 * (100^2 - 1) / 12 * 1e8 + 1
    assert quadratic_kappa(true, true + 1) == pytest.approx(1 - 1 / (2 * 9999 / 12 * 1e8 + 1), rel=1e-12)
