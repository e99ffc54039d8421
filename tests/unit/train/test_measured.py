"""When the micro-batches of a step tell how noisy gradients are."""

import pytest

from paratune.config.batch_size import ResolvedBatch
from paratune.config.sections import MeasureOptions
from paratune.models.batch_layout import BatchLayout
from paratune.strategies.protocol import Layout
from paratune.train.measured import why_no_communication, why_no_noise, why_no_profile

ALONE = Layout(rank=0, world_size=1, data_rank=0, data_world_size=1)
PAIR = Layout(rank=1, world_size=2, data_rank=1, data_world_size=2)
STAGES = Layout(rank=1, world_size=2, data_rank=0, data_world_size=1)


@pytest.mark.parametrize(
    ("layout", "accumulation"), [(ALONE, 2), (PAIR, 1), (STAGES, 4)], ids=["accumulation", "ranks", "stages"]
)
@pytest.mark.parametrize("kind", ["packed", "padded"])
def test_two_micro_batches_in_random_order_are_enough(layout: Layout, accumulation: int, kind: str):
    assert why_no_noise(BatchLayout(kind), ResolvedBatch(32, 8, accumulation), layout) is None


def test_one_micro_batch_is_too_few():
    reason = why_no_noise(BatchLayout("packed"), ResolvedBatch(12, 12, 1), ALONE)
    assert reason.startswith("one micro-batch a step")
    assert "batch.micro_batch_size: 6," in reason
    # 9 samples cannot be halved: three micro-batches of 3.
    assert "batch.micro_batch_size: 3," in why_no_noise(BatchLayout("padded"), ResolvedBatch(9, 9, 1), ALONE)
    assert why_no_noise(BatchLayout("padded"), ResolvedBatch(1, 1, 1), ALONE).startswith("one sample a step")


def test_sorted_micro_batches_are_no_random_parts_of_a_step():
    assert "sorted by length" in why_no_noise(BatchLayout("bucketed"), ResolvedBatch(32, 8, 2), PAIR)


def test_why_nothing_is_profiled():
    assert "measure.profile_steps" in str(why_no_profile(MeasureOptions()))
    assert why_no_profile(MeasureOptions(profile_steps=3)) is None
    assert why_no_communication(MeasureOptions(profile_steps=3), ALONE) == "one process exchanges nothing"
    assert why_no_communication(MeasureOptions(), PAIR) == why_no_profile(MeasureOptions())
    assert why_no_communication(MeasureOptions(profile_steps=3), PAIR) is None
