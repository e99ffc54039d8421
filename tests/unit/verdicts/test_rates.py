"""The interval of a noise scale over runs: written-out arithmetic, and how often it covers the true value."""

import numpy as np
import pytest
from fake_run import make_run

from paratune.verdicts.speeds import noise_interval


def runs_of(pairs):
    keys = [f"summary__noise_scale__{key}" for key in ("trace", "squared_norm", "num_steps")]
    return [make_run(str(at), at, 1.0, **dict(zip(keys, (*pair, 10), strict=True))) for at, pair in enumerate(pairs)]


def test_with_one_norm_it_is_the_interval_of_the_mean_trace():
    # Mean 120, deviation 20: 120 +- 4.3027 * 20 / sqrt(3) = 70.32 and 169.68, over the norm of 2.
    limits = noise_interval(runs_of([(100.0, 2.0), (120.0, 2.0), (140.0, 2.0)]))
    assert limits == pytest.approx((35.16, 84.84), abs=0.01)


@pytest.mark.parametrize("pairs", [[(100.0, 2.0)], [(300.0, 3.0), (500.0, -1.0)], [(1.0, None), (2.0, 1.0)]])
def test_one_run_or_a_norm_near_zero_has_no_interval(pairs):
    assert noise_interval(runs_of(pairs)) is None


@pytest.mark.parametrize("slope", [0.0, 60.0])
def test_it_covers_the_ratio_of_the_means(slope):
    """With a slope, runs with a larger norm have a larger trace."""
    draw = np.random.default_rng(7)
    inside = 0
    for _ in range(1000):
        norms = draw.normal(2.0, 0.1, 4)
        traces = draw.normal(120.0 + slope * (norms - 2.0), 2.0)
        limits = noise_interval(runs_of(zip(traces.tolist(), norms.tolist(), strict=True)))
        inside += limits is not None and limits[0] <= 60 <= limits[1]
    # 95% of 1,000, with a standard error of 7.
    assert inside == pytest.approx(950, abs=21)
