import pytest

from paratune.config.traits import TRAITS, strategy_traits


@pytest.mark.parametrize(
    ("options", "share"),
    [
        # 4 stages, 8 micro-batches: 3 of 11 slots.
        ({"stages": 4}, 3 / 11),
        # With two chunks a rank the 3 slots are half as long: 3 of 19; with three, 3 of 27.
        ({"stages": 4, "schedule": "interleaved"}, 3 / 19),
        ({"stages": 4, "schedule": "interleaved", "chunks": 3}, 3 / 27),
    ],
)
def test_the_ideal_bubble_is_that_of_the_gpipe_paper(options, share):
    traits = strategy_traits("pipeline", options)
    assert traits is not None
    assert traits.ideal_bubble_share(8) == pytest.approx(share)


def test_only_a_pipeline_has_a_bubble():
    assert TRAITS["ddp"].ideal_bubble_share(8) is None
