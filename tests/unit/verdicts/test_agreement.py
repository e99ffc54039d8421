"""Agreement of effects: Spearman's correlation written out."""

import numpy as np
import pytest

from paratune.verdicts.agreement import rank_correlation


def test_rank_correlation():
    up, down = np.asarray([1.0, 2.0, 3.0]), np.asarray([3.0, 2.0, 1.0])
    swapped = np.asarray([1.0, 3.0, 2.0])  # Spearman: 1 - 6 * (0 + 1 + 1) / (3 * 8) = 0.5
    assert rank_correlation(up, swapped) == pytest.approx(0.5)
    assert rank_correlation(up, down) == pytest.approx(-1.0)
    assert rank_correlation(up, np.ones(3)) is None
