"""The slowest rank from events written out by hand."""

from typing import Any

import pytest

from paratune.config.traits import TRAITS, traits_of
from paratune.metrics.stragglers import stragglers

OWN = ("get_batch", "forward")


def events(*own_ms: float, wall_ms: float = 20.0, warmup: int = 0, first: int = 1) -> list[dict[str, Any]]:
    """Return steps of one rank, with 1 ms of get batch and the rest of its own time in forward."""
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
    found = stragglers([events(4, 4), events(4, 5), events(8, 7, wall_ms=25.0)], OWN, "ddp")
    # Totals 8, 9, 15; median 9. Waiting: step 1 8 - 16/3, step 2 7 - 16/3; wall 25 + 25.
    assert found["slowest_rank"] == 2
    assert found["slowdown"] == pytest.approx(15 / 9)
    assert found["wait_share"] == pytest.approx((8 - 16 / 3 + 7 - 16 / 3) / 50)
    assert (found["phases"], found["reason"]) == (list(OWN), None)


def test_ranks_that_take_turns_wait_though_none_is_slower():
    found = stragglers([events(6, 2), events(2, 6)], OWN, "ddp")
    assert found["slowdown"] == 1.0
    assert found["wait_share"] == pytest.approx((2 + 2) / 40)


def test_warm_up_and_steps_that_not_all_took_are_left_out():
    found = stragglers([events(100, 4, 4, warmup=1), events(4, 5, warmup=1)], OWN, "ddp")
    assert (found["slowest_rank"], found["slowdown"]) == (1, pytest.approx(5 / 4.5))
    assert found["wait_share"] == pytest.approx(0.5 / 20)


@pytest.mark.parametrize(
    ("ranks", "own", "reason"),
    [
        ([events(4)], OWN, "one process waits for nobody"),
        ([events(4), events(5)], ("get_batch",), "under zero3 all that a rank computes also waits for others"),
        ([events(4, warmup=1), events(5, warmup=1)], OWN, "no step was measured on all ranks"),
        ([events(4), events(5, first=2)], OWN, "no step was measured on all ranks"),
    ],
)
def test_what_is_unknown_has_a_reason(ranks: Any, own: Any, reason: str):
    found = stragglers(ranks, own, "zero3")
    assert found["reason"] == reason
    assert (found["slowest_rank"], found["slowdown"], found["wait_share"]) == (None, None, None)


@pytest.mark.parametrize("kind", TRAITS)
def test_no_phase_with_an_exchange_between_ranks_is_a_ranks_own(kind: str):
    exchanges = ("all-reduce", "all-gather", "reduce-scatter", "broadcast", "over pipelines", "reduction")
    variants = [traits_of(kind, {"stages": 2})]
    variants += [traits_of(kind, {"stage": stage}) for stage in range(4)] if kind == "deepspeed" else []
    for traits in variants:
        assert "get_batch" in traits.own_phases
        for phase in traits.own_phases:
            assert not any(word in traits.phases[phase] for word in exchanges), (kind, phase)
