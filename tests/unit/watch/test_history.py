import pytest

from paratune.watch.history import RankHistory, rates


def history(**more):
    result = RankHistory()
    for step, wall_ms in ((1, 900.0), (2, 100.0), (3, 100.0)):
        event = {"event": "step", "step": step, "wall_ms": wall_ms, "num_tokens": 50, "num_samples": 5, **more}
        result.add(event | ({"profiled": True} if step == 1 else {}))
    return result


def test_rates_are_of_all_ranks_without_steps_under_a_profiler():
    # 10 samples in 0.2 s on each of two ranks, with and without a record of whose data they are.
    assert rates([history(), history()]) == pytest.approx((1000.0, 100.0))
    assert rates([history(data_rank=0), history(data_rank=1)]) == pytest.approx((1000.0, 100.0))
    # Stages of a pipeline see the same samples.
    assert rates([history(data_rank=0), history(data_rank=0)]) == pytest.approx((500.0, 50.0))
