from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from raised import raises_code

from paratune.config.batch_size import ResolvedBatch, divisors
from paratune.config.batch_size import resolve_batch as resolve
from paratune.config.sections import BatchSize
from paratune.config.traits import TRAITS
from paratune.errors import ConfigError


def resolve_batch(batch: BatchSize, *, data_world_size: int, group_size: int = 1, **limits: int) -> ResolvedBatch:
    return resolve(batch, replace(TRAITS["ddp"], **limits), data_world_size=data_world_size, group_size=group_size)


def batch(**values: int) -> BatchSize:
    return BatchSize.model_validate(values)


@pytest.mark.parametrize(
    ("options", "ranks", "resolved"),
    [
        # global_batch_size, micro_batch_size, grad_accum_steps
        ({"global": 32}, 1, (32, 32, 1)),
        ({"global": 32}, 2, (32, 16, 1)),
        ({"global": 32, "micro_batch_size": 8}, 1, (32, 8, 4)),
        ({"global": 32, "micro_batch_size": 8}, 2, (32, 8, 2)),
        ({"global": 32, "micro_batch_size": 8}, 8, (32, 4, 1)),  # a share of 4 is below "at most 8"
        ({"per_device": 16}, 1, (16, 16, 1)),
        ({"per_device": 16}, 4, (64, 16, 1)),
        ({"per_device": 16, "grad_accum_steps": 2}, 2, (64, 16, 2)),
    ],
)
def test_resolve_batch(options, ranks, resolved):
    assert resolve_batch(batch(**options), data_world_size=ranks) == ResolvedBatch(*resolved)


@pytest.mark.parametrize(
    ("options", "ranks", "parts"),
    [
        ({"global": 32}, 3, ["batch.global is 32", "3 ranks", "30 or 33"]),
        ({"global": 2}, 4, ["batch.global is 2", "4 ranks", ": 4"]),
        ({"global": 32, "micro_batch_size": 5}, 2, ["micro_batch_size is 5", "divide 16", "4 or 8"]),
        ({"global": 7, "micro_batch_size": 3}, 1, ["size is 3", "divide 7", "1 or 7"]),
    ],
)
def test_a_size_that_does_not_divide_is_refused_with_the_nearest_sizes(options, ranks, parts):
    with pytest.raises(ConfigError) as caught:
        resolve_batch(batch(**options), data_world_size=ranks)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (1, [1]),
        (12, [1, 2, 3, 4, 6, 12]),
        (49, [1, 7, 49]),
        (10**9 + 7, [1, 10**9 + 7]),  # a prime; a loop over all numbers up to it takes minutes
    ],
)
def test_divisors(number, expected):
    assert divisors(number) == expected


@pytest.mark.parametrize("options", [{"global": 2**24 + 1}, {"per_device": 2**12, "grad_accum_steps": 2**13}])
def test_a_step_of_more_samples_than_any_data_has_is_refused(options):
    with raises_code("batch.too_large", str(2**24)):
        resolve_batch(batch(**options), data_world_size=1)


@given(size=st.integers(1, 300), micro=st.none() | st.integers(1, 64), ranks=st.integers(1, 16))
def test_the_parts_of_a_global_batch_always_make_the_whole(size, micro, ranks):
    values = {"global": size} | ({"micro_batch_size": micro} if micro else {})
    try:
        result = resolve_batch(batch(**values), data_world_size=ranks)
    except ConfigError:
        assert size % ranks or (micro and (size // ranks) % micro)
        return
    assert result.global_batch_size == size == result.micro_batch_size * result.grad_accum_steps * ranks
    assert micro is None or result.micro_batch_size <= micro


@pytest.mark.parametrize(
    ("options", "ranks", "stages", "resolved"),
    [
        ({"global": 32}, 1, 2, (32, 4, 8)),  # four times as many micro-batches as stages
        ({"global": 32}, 2, 4, (32, 1, 16)),
        ({"global": 12}, 1, 4, (12, 1, 12)),  # 16 are wanted, 12 can be had
        ({"global": 32, "micro_batch_size": 8}, 1, 4, (32, 8, 4)),
        ({"per_device": 4, "grad_accum_steps": 4}, 2, 4, (32, 4, 4)),
    ],
)
def test_a_pipeline_gets_enough_micro_batches(options, ranks, stages, resolved):
    result = resolve_batch(batch(**options), data_world_size=ranks, num_micro_batches=stages)
    assert result == ResolvedBatch(*resolved)


@pytest.mark.parametrize(
    ("options", "stages", "parts"),
    [
        (
            {"global": 32, "micro_batch_size": 16},
            4,
            ["has 2 micro-batches", "4 stages", "micro_batch_size to at most 8"],
        ),
        ({"per_device": 8}, 2, ["has 1 micro-batch;", "batch.grad_accum_steps to at least 2"]),
        ({"global": 3}, 4, ["has 3 micro-batches", "batch.global to at least 4"]),
    ],
)
def test_too_few_micro_batches_for_a_pipeline_are_refused(options, stages, parts):
    with pytest.raises(ConfigError) as caught:
        resolve_batch(batch(**options), data_world_size=1, num_micro_batches=stages)
    for part in parts:
        assert part in str(caught.value)


def test_an_interleaved_schedule_gets_a_multiple_of_its_stages():
    # ScheduleInterleaved1F1B raises a ValueError in the first step where 5 micro-batches meet 2 ranks.
    def resolved(options: dict[str, int], stages: int) -> ResolvedBatch:
        return resolve_batch(batch(**options), data_world_size=1, num_micro_batches=stages, micro_batch_multiple=stages)

    assert resolved({"global": 24}, 4) == ResolvedBatch(24, 1, 24, 4)
    assert resolved({"global": 36}, 2) == ResolvedBatch(36, 3, 12, 2)  # 9 x 4 would be four times as many, but odd
    sizes = resolved({"global": 40, "micro_batch_size": 10}, 2)
    assert sizes.possible() == [1, 2, 4, 5, 10, 20]  # 8 makes 5
    assert sizes.at_most(9) == ResolvedBatch(40, 5, 8, 2)
    for options, stages, wanted in (
        (
            {"global": 20, "micro_batch_size": 4},
            2,
            ("5 micro-batches", "multiple of 2", "micro_batch_size to 5"),
        ),
        (
            {"per_device": 8, "grad_accum_steps": 6},
            4,
            ("6 micro-batches", "multiple of 4", "grad_accum_steps to 4 or 8"),
        ),
        ({"global": 6}, 4, ("6 micro-batches", "batch.global", "now 6")),
    ):
        with raises_code("batch.micro_batches_not_multiple", *wanted):
            resolved(options, stages)


def test_halving_keeps_the_global_batch_and_ends_at_one():
    # A share of 12: 12, 6, 3; below 3 // 2 there is 1.
    sizes = resolve_batch(batch(**{"global": 24}), data_world_size=2)
    seen = [sizes]
    while smaller := seen[-1].halved():
        seen.append(smaller)
    assert [(step.micro_batch_size, step.grad_accum_steps) for step in seen] == [(12, 1), (6, 2), (3, 4), (1, 12)]
    assert {step.global_batch_size for step in seen} == {24}
    assert sizes.at_most(5) == ResolvedBatch(24, 4, 3)  # 5 does not divide 12
    assert sizes.at_most(100) == sizes


def test_auto_begins_with_the_whole_share():
    auto = BatchSize.model_validate({"global": 32, "micro_batch_size": "auto"})
    assert resolve_batch(auto, data_world_size=2) == ResolvedBatch(32, 16, 1)
