"""Two steps on two ranks, computed by hand."""

from typing import Any

import pytest

from paratune.config.traits import TRAITS, strategy_traits
from paratune.metrics.throughput import rates, stragglers, wall_s
from paratune.records import PHASES


def step(number, wall_ms, phases_ms, *, samples=4, tokens=40, padded=50, warmup=False, **more):
    return {
        "event": "step",
        "step": number,
        "warmup": warmup,
        "wall_ms": wall_ms,
        "num_samples": samples,
        "num_tokens": tokens,
        "num_padded_tokens": padded,
        "phases_ms": dict(zip((*PHASES, "other"), phases_ms, strict=True)),
        **more,
    }


RANKS = [
    [
        step(1, 9000, (9000, 0, 0, 0, 0), warmup=True),
        step(2, 100, (10, 30, 40, 15, 5)),
        step(3, 300, (20, 90, 160, 25, 5)),
    ],
    [
        step(1, 9000, (9000, 0, 0, 0, 0), warmup=True),
        step(2, 120, (30, 30, 40, 15, 5)),
        step(3, 280, (10, 80, 160, 25, 5), samples=2, tokens=10, padded=50),
    ],
]


def test_rates_are_totals_over_totals():
    # Walls of 100 + 300 and of 120 + 280 ms: 400 ms, whichever rank was slower in which step.
    # Samples 4 + 4 + 4 + 2, tokens 40 + 40 + 40 + 10, padded 4 x 50.
    assert rates(RANKS)["throughput"] == {
        "samples_per_s": pytest.approx(14 / 0.4),
        "tokens_per_s": pytest.approx(130 / 0.4),
        "padded_tokens_per_s": pytest.approx(200 / 0.4),
        "padding_share": pytest.approx(70 / 200),
        "num_steps_measured": 2,
    }


def test_the_slowest_rank_is_the_time_of_the_run():
    slow = [step(2, 500, (100, 100, 100, 100, 100))]
    assert rates([RANKS[0][1:2], slow])["throughput"]["samples_per_s"] == pytest.approx(8 / 0.5)


def test_phases_are_means_of_totals_and_percentiles_of_steps():
    phases = rates(RANKS)["phases"]
    # get_batch 10, 20, 30, 10 ms: 70 ms in all, 35 a rank; sorted 10 10 20 30: median 15, p10 at 0.3 of the way from
    # the first to the second, p90 at 2.7: 20 + 0.7 x 10. All phases: 100 + 300 + 120 + 280 = 800 ms.
    assert phases["get_batch"] == {
        "total_s": pytest.approx(0.035),
        "median_ms": pytest.approx(15),
        "p10_ms": pytest.approx(10),
        "p90_ms": pytest.approx(27),
        "share": pytest.approx(70 / 800),
    }
    assert phases["backward"]["total_s"] == pytest.approx(0.200)
    assert sum(phase["share"] for phase in phases.values()) == pytest.approx(1)
    assert sum(phase["total_s"] for phase in phases.values()) == pytest.approx(0.4)
    assert list(phases) == [*PHASES, "other"]


def test_step_times_are_percentiles_over_all_ranks():
    # 100 120 280 300: median 200; p10 at 0.3: 106; p90 at 2.7: 294.
    assert rates(RANKS)["step_ms"] == pytest.approx({"median": 200, "p10": 106, "p90": 294})


def test_other_events_are_ignored():
    evaluation = {"event": "evaluation", "step": 2, "scores": {}}
    assert rates([[*RANKS[0], evaluation], RANKS[1]]) == rates(RANKS)


def test_a_rank_that_came_later_counts_its_own_steps():
    # A run of one process that was resumed on two: rank 1 has the second step only.
    result = rates([RANKS[0], RANKS[1][2:]])
    assert result["throughput"]["num_steps_measured"] == 2
    assert result["throughput"]["samples_per_s"] == pytest.approx(10 / 0.4)


def even(numbers, samples):
    return [step(number, 100, (20, 20, 20, 20, 20), samples=samples) for number in numbers]


@pytest.mark.parametrize(
    "ranks",
    [
        [even(range(1, 101), 16)[:50] + even(range(51, 101), 32), even(range(1, 51), 16)],
        [even(range(1, 51), 32) + even(range(51, 101), 16), even(range(51, 101), 16)],
    ],
    ids=["2 to 1", "1 to 2"],
)
def test_a_run_resumed_with_other_ranks_counts_each_step_once(ranks):
    # 100 steps of 100 ms and 32 samples each, whoever took them: 320 samples/s, and 20 ms a phase and step.
    result = rates(ranks)
    assert result["throughput"]["samples_per_s"] == pytest.approx(320)
    assert result["throughput"]["num_steps_measured"] == 100
    assert [phase["total_s"] for phase in result["phases"].values()] == pytest.approx([2.0] * 5)
    assert [phase["share"] for phase in result["phases"].values()] == pytest.approx([0.2] * 5)
    assert wall_s(ranks) == pytest.approx(10)


def test_ranks_that_share_data_count_it_once():
    # Two stages of a pipeline, twice: 4 ranks, 2 shares of the data of 4 samples each.
    ranks = [[step(1, 100 + rank, (20, 20, 20, 20, 20 + rank), data_rank=rank // 2)] for rank in range(4)]
    result = rates(ranks)
    assert result["throughput"]["samples_per_s"] == pytest.approx(8 / 0.103)
    assert result["throughput"]["tokens_per_s"] == pytest.approx(80 / 0.103)
    assert result["phases"]["other"]["total_s"] == pytest.approx(0.0215), "time is that of all four ranks"


def test_the_time_of_all_steps_includes_warm_up_and_is_of_one_rank():
    # 9 s, and 400 ms on both.
    assert wall_s(RANKS) == pytest.approx(9.4)
    late = [*RANKS[1][:2], step(3, 290, (10, 80, 170, 25, 5))]
    assert wall_s([RANKS[0], late]) == pytest.approx(9.41)


@pytest.mark.parametrize("ranks", [[], [[], []], [[step(1, 5, (1, 1, 1, 1, 1), warmup=True)]]])
def test_without_measured_steps_values_are_none(ranks):
    result = rates(ranks)
    assert result["throughput"].pop("num_steps_measured") == 0
    values = [*result["throughput"].values(), *result["step_ms"].values()]
    values += [value for phase in result["phases"].values() for value in phase.values()]
    assert values
    assert set(values) == {None}


def test_the_bubble_is_the_idle_share_of_the_schedules():
    # Rank 0 waits 30 of 200 ms, rank 1 90 of 200.
    ranks = [
        [step(2, 300, (0, 100, 70, 0, 130), schedule_ms=200, bubble_ms=30)],
        [step(2, 300, (0, 60, 50, 0, 190), schedule_ms=200, bubble_ms=90)],
    ]
    assert rates(ranks)["pipeline"]["bubble_share"] == pytest.approx(120 / 400)
    assert rates(RANKS)["pipeline"]["bubble_share"] is None


def test_profiled_steps_count_only_for_the_time():
    profiled = [[*rank, step(4, 5000, (1000,) * 5, profiled=True)] for rank in RANKS]
    assert rates(profiled) == rates(RANKS)
    assert wall_s(profiled) == pytest.approx(wall_s(RANKS) + 5)


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
