"""Runs in which the noise scale can be measured."""

import pytest

from paratune.config.batch_size import ResolvedBatch
from paratune.config.sections import MeasureOptions
from paratune.strategies.protocol import Layout
from paratune.training.steps import noise_interval, noise_unavailable_reason

ALONE = Layout(rank=0, world_size=1, data_rank=0, data_world_size=1)
PAIR = Layout(rank=1, world_size=2, data_rank=1, data_world_size=2)
STAGES = Layout(rank=1, world_size=2, data_rank=0, data_world_size=1)


@pytest.mark.parametrize("compiles", [False, True])
@pytest.mark.parametrize(
    ("layout", "accumulation"), [(ALONE, 2), (PAIR, 1), (STAGES, 4)], ids=["accumulation", "ranks", "stages"]
)
def test_two_micro_batches_are_enough_for_the_noise_scale(layout: Layout, accumulation: int, compiles: bool):
    assert noise_unavailable_reason(ResolvedBatch(32, 8, accumulation), layout, compiles=compiles) is None


def test_one_micro_batch_is_divided_unless_it_is_compiled():
    assert noise_unavailable_reason(ResolvedBatch(12, 12, 1), ALONE, compiles=False) is None
    reason = noise_unavailable_reason(ResolvedBatch(12, 12, 1), ALONE, compiles=True)
    assert "train.compile" in reason
    assert "batch.micro_batch_size: 6," in reason
    # 9 samples cannot be halved: three micro-batches of 3.
    assert "batch.micro_batch_size: 3," in noise_unavailable_reason(ResolvedBatch(9, 9, 1), ALONE, compiles=True)
    for compiles in (False, True):
        assert noise_unavailable_reason(ResolvedBatch(1, 1, 1), ALONE, compiles=compiles).startswith(
            "one sample, or one group"
        )


@pytest.mark.parametrize(("num_steps", "interval"), [(30, 5), (105, 5), (205, 10), (405, 20), (5000, 20)])
def test_short_runs_sample_the_noise_scale_more_often(num_steps: int, interval: int):
    # (num_steps - 5 steps of warm-up) / 20, from 5 to 20.
    assert noise_interval(MeasureOptions(), num_steps) == interval
    assert noise_interval(MeasureOptions(noise_scale_every=3), num_steps) == 3
    assert noise_interval(MeasureOptions(noise_scale_every=None), num_steps) is None
