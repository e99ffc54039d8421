"""The noise scale from sums of squares: written-out arithmetic, and quadratics whose noise is known."""

import math

import numpy as np
import pytest

from paratune.records.efficiency import noise_estimates, noise_summary, statistical_efficiency


def _sums(parts: list[np.ndarray], counts: list[int]) -> tuple[float, float, float, int]:
    """Return the sums of a step from the gradients of its micro-batches, each a part of the step's."""
    total = sum(counts)
    whole = np.sum(parts, axis=0)
    return (
        float(whole @ whole),
        sum(float(part @ part) for part in parts),
        sum((n / total) ** 2 for n in counts),
        total,
    )


def test_two_micro_batches_by_hand():
    # Means over 2 samples each are (3, 0) and (1, 2): parts (1.5, 0) and (0.5, 1), whole (2, 1).
    # |g|^2 = 5, sum |g_i|^2 = 2.25 + 1.25 = 3.5, s = 0.5, B = 4.
    # |G|^2 = (5 - 3.5) / 0.5 = 3 = the product of both means; tr = 4 (3.5 - 2.5) / 0.5 = 8.
    sums = _sums([np.array([1.5, 0.0]), np.array([0.5, 1.0])], [2, 2])
    assert sums == (5.0, 3.5, 0.5, 4)
    assert noise_estimates(*sums) == pytest.approx((8.0, 3.0))


def test_it_is_the_estimator_of_the_paper_for_equal_micro_batches():
    # McCandlish et al., appendix A.1: |G|^2 = (B |G_B|^2 - b |G_b|^2) / (B - b), S = (|G_b|^2 - |G_B|^2) / (1/b - 1/B).
    random = np.random.default_rng(0)
    means = random.normal(size=(4, 5))
    b, big = 6, 24
    norm_small = float((means**2).sum(axis=1).mean())
    norm_big = float((means.mean(axis=0) ** 2).sum())
    expected = (norm_small - norm_big) / (1 / b - 1 / big), (big * norm_big - b * norm_small) / (big - b)
    assert noise_estimates(*_sums(list(means / 4), [b] * 4)) == pytest.approx(expected)


def _quadratic(counts: list[int], *, num_steps: int = 20_000) -> tuple[float, float, float]:
    """Return trace, squared norm and noise scale of 0.5 |theta - x|^2 with x ~ N(mu, sigma^2 I), and their truth.

    The gradient of a sample is theta - x: G = theta - mu and tr(Sigma) = d sigma^2.
    """
    random = np.random.default_rng(1)
    gradient, sigma = np.array([1.0, -2.0, 0.5, 0.0]), 1.5
    events = []
    for _ in range(num_steps):
        samples = gradient - sigma * random.normal(size=(sum(counts), 4))
        parts = [part.sum(axis=0) / sum(counts) for part in np.split(samples, np.cumsum(counts)[:-1])]
        trace, squared_norm = noise_estimates(*_sums(parts, counts))
        events.append({"noise_scale": {"trace": trace, "squared_norm": squared_norm}})
    summary = noise_summary(events, global_batch_size=sum(counts), reason=None)
    assert summary["num_steps"] == num_steps
    return summary["trace"], summary["squared_norm"], summary["value"]


@pytest.mark.parametrize("counts", [[4, 4], [1, 7], [8, 8, 8, 8], [5, 3, 1, 0, 2]])
def test_the_noise_of_a_quadratic_is_found(counts: list[int]):
    trace, squared_norm, value = _quadratic(counts)
    # d sigma^2 = 4 * 2.25 = 9; |G|^2 = 1 + 4 + 0.25 = 5.25. Over 20,000 steps both are known to about a per cent.
    assert trace == pytest.approx(9.0, rel=0.04)
    assert squared_norm == pytest.approx(5.25, rel=0.04)
    assert value == pytest.approx(9 / 5.25, rel=0.06)


@pytest.mark.parametrize(
    "sums",
    [
        (5.0, 5.0, 1.0, 8),  # one micro-batch
        (5.0, 5.0, 1.0 - 1e-16, 8),
        (math.inf, 5.0, 0.5, 8),
        (5.0, math.nan, 0.5, 8),
        (5.0, 5.0, math.nan, 8),
    ],
)
def test_percent_change_of_unknown_values_is_none(sums: tuple[float, float, float, int]):
    assert noise_estimates(*sums) is None


def _events(*samples: tuple[float, float]) -> list[dict]:
    return [{"noise_scale": {"trace": trace, "squared_norm": norm}} for trace, norm in samples]


def test_a_summary_is_a_ratio_of_means():
    # Means 4 and 2: 2, where the mean of the ratios is (1 + 5/1) / 2 = 3.
    summary = noise_summary(
        [*_events(*[(3, 3), (5, 1)] * 10), {"loss": 1.0}, {"noise_scale": None}], global_batch_size=8, reason="no"
    )
    assert (summary["value"], summary["trace"], summary["squared_norm"], summary["num_steps"]) == (2.0, 4.0, 2.0, 20)
    assert (summary["global_batch_size"], summary["reason"]) == (8, None)
    # Left-out ratios 77/37 and 75/39, ten of each, half their distance 0.079: sqrt(19) 0.079.
    assert summary["standard_error"] == pytest.approx(math.sqrt(19) * (77 / 37 - 75 / 39) / 2)


def test_nineteen_samples_are_too_few():
    summary = noise_summary(_events(*[(3, 3)] * 19), global_batch_size=8, reason=None)
    assert (summary["value"], summary["standard_error"], summary["num_steps"]) == (None, None, 19)
    assert "19" in summary["reason"]
    assert noise_summary(_events(*[(3, 3)] * 20), global_batch_size=8, reason=None)["value"] == 1.0


@pytest.mark.parametrize("samples", [[(3.0, -1.0)], [(-3.0, 1.0)], [(3.0, 0.0)]])
def test_an_estimate_below_zero_has_a_reason(samples: list[tuple[float, float]]):
    summary = noise_summary(_events(*samples * 20), global_batch_size=8, reason=None)
    assert (summary["value"], summary["standard_error"]) == (None, None)
    assert "20 sampled steps" in summary["reason"]


def test_without_samples_the_reason_is_given():
    summary = noise_summary([{"loss": 1.0}], global_batch_size=8, reason="one micro-batch a step")
    assert (summary["value"], summary["trace"], summary["num_steps"]) == (None, None, 0)
    assert summary["reason"] == "one micro-batch a step"
    # 40 measured steps: 40 / 20.
    summary = noise_summary([{"loss": 1.0}] * 40, global_batch_size=8, reason=None)
    assert "measure.noise_scale_every: 2" in summary["reason"]


def test_the_preconditioned_estimate_has_its_own_samples_and_reason():
    events = _events(*[(3, 3)] * 25)
    for event in events[:20]:
        event["noise_scale"]["preconditioned"] = {"trace": 8.0, "squared_norm": 2.0}
    summary = noise_summary(events, global_batch_size=8, reason=None)
    assert (summary["value"], summary["num_steps"]) == (1.0, 25)
    preconditioned = summary["preconditioned"]
    assert (preconditioned["value"], preconditioned["num_steps"], preconditioned["reason"]) == (4.0, 20, None)
    why = "zero1 shards them"
    sharded = noise_summary(_events(*[(3, 3)] * 25), global_batch_size=8, reason=None, why_not_preconditioned=why)
    assert sharded["value"] == 1.0
    assert sharded["preconditioned"]["reason"] == why


def test_statistical_efficiency_is_that_of_pollux():
    # (phi + m0) / (phi + m) with phi = 96: (96 + 32) / (96 + 64).
    assert statistical_efficiency(96, 64, 32) == pytest.approx(128 / 160)
    assert statistical_efficiency(96, 32, 32) == 1.0
    assert statistical_efficiency(0, 64, 32) == pytest.approx(0.5), "without noise twice the batch is half as good"
    assert statistical_efficiency(1e12, 64, 32) == pytest.approx(1.0)
