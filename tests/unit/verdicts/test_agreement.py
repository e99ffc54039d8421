"""Agreement of effects: means of Spearman's correlation written out."""

import numpy as np
import pytest

from paratune.verdicts.agreement import mean_correlation, rank_correlation


def test_mean_over_rows_of_the_mean_over_pairs():
    up, down = np.asarray([1.0, 2.0, 3.0]), np.asarray([3.0, 2.0, 1.0])
    swapped = np.asarray([1.0, 3.0, 2.0])  # Spearman: 1 - 6 * (0 + 1 + 1) / (3 * 8) = 0.5
    assert rank_correlation(up, swapped) == pytest.approx(0.5)
    # Rows: (1 + -1) / 2 = 0 and 0.5. Mean 0.25; t(0.975, 1) = 12.706 times sqrt(0.125 / 2): limits beyond -1 and 1.
    value, interval, count = mean_correlation([[(up, up), (up, down)], [(up, swapped)]])
    assert (value, interval, count) == (pytest.approx(0.25), (-1.0, 1.0), 2)
    assert mean_correlation([[(up, np.ones(3))]]) is None
    assert mean_correlation([[(up, down)]]) == (pytest.approx(-1.0), None, 1)
