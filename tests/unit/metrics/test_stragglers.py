"""The slowest rank from events in the tests."""

from typing import Any

import pytest

from paratune.config.traits import TRAITS, strategy_traits
from paratune.metrics.stragglers import stragglers

OWN = ("get_batch", "forward")


def events(*own_ms: float, wall_ms: float = 20.0, warmup: int = 0, first: int = 1) -> list[dict[str, Any]]:
    """Return steps of one rank, with 1 ms of get batch and the rest of its time in forward."""
    return [
        {
            "event": "step",
            "step": step,
            "phases_ms": {"get_batch": 1.0, "forward": own - 1.0, "backward": 20.0 - own},
            "wall_ms": wall_ms,
            "warmup": step <= warmup,
        }
        for step, own in enumerate(own_ms, start=first)
    ]


def test_three_ranks_by_hand():
    actual = stragglers([events(4, 4), events(4, 5), events(8, 7, wall_ms=25.0)], OWN, "ddp")
    # Totals 8, 9, 15; median 9. Waiting: step 1 8 - 16/3, step 2 7 - 16/3; wall 25 + 25.
    assert actual["slowest_rank"] == 2
    assert actual["slowdown"] == pytest.approx(15 / 9)
    assert actual["wait_share"] == pytest.approx((8 - 16 / 3 + 7 - 16 / 3) / 50)
    assert (actual["phases"], actual["reason"]) == (list(OWN), None)


def test_ranks_that_alternate_wait_although_none_is_slower():
    actual = stragglers([events(6, 2), events(2, 6)], OWN, "ddp")
    assert actual["slowdown"] == 1.0
    assert actual["wait_share"] == pytest.approx((2 + 2) / 40)


def test_warm_up_and_steps_without_all_ranks_are_ignored():
    actual = stragglers([events(100, 4, 4, warmup=1), events(4, 5, warmup=1)], OWN, "ddp")
    assert (actual["slowest_rank"], actual["slowdown"]) == (1, pytest.approx(5 / 4.5))
    assert actual["wait_share"] == pytest.approx(0.5 / 20)


@pytest.mark.parametrize(
    ("ranks", "own", "reason"),
    [
        ([events(4)], OWN, "a run with one process has no stragglers"),
        ([events(4), events(5)], ("get_batch",), "with zero3, each phase of a rank waits for other ranks"),
        ([events(4, warmup=1), events(5, warmup=1)], OWN, "no step was measured on all ranks"),
        ([events(4), events(5, first=2)], OWN, "no step was measured on all ranks"),
    ],
)
def test_unknown_values_have_a_reason(ranks: Any, own: Any, reason: str):
    actual = stragglers(ranks, own, "zero3")
    assert actual["reason"] == reason
    assert (actual["slowest_rank"], actual["slowdown"], actual["wait_share"]) == (None, None, None)


@pytest.mark.parametrize("kind", TRAITS)
def test_phases_with_communication_are_not_own_phases(kind: str):
    exchanges = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "over pipelines", "reduction")
    variants = [strategy_traits(kind, {"stages": 2})]
    variants += [strategy_traits(kind, {"stage": stage}) for stage in range(4)] if kind == "deepspeed" else []
    for traits in variants:
        assert "get_batch" in traits.own_phases
        for phase in traits.own_phases:
            assert not any(word in traits.phases[phase] for word in exchanges), (kind, phase)
