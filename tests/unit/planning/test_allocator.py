"""The simulated allocator, held to its rules and to what others measured."""

from dataclasses import replace

import pytest

from paratune.base.units import MIB
from paratune.config.strategy_sections import SingleOptions
from paratune.config.task_sections import MaskedLMTask
from paratune.config.traits import strategy_traits
from paratune.models.known import known_config
from paratune.planning.allocator import CachingAllocator, StepAllocations, reserve
from paratune.planning.kinds import states_of_rank
from paratune.planning.memory import peak, step_allocations
from paratune.planning.profile import Shape, profile
from paratune.planning.states import STEP_BYTES, EngineInputs, PredictionSetup
from paratune.planning.trace import CUDA_ROUNDING, Mark, Timeline
from paratune.precision import POLICIES


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([0.5] * 4, 2),  # of at most 1 MiB: segments of 2 MiB
        ([0.5] * 5, 4),
        ([2.25] * 8, 20),  # below 10 MiB: segments of 20 MiB, the rest of 2 MiB is too small for another one
        ([2.25] * 9, 40),
        ([9.0] * 3, 40),
        ([11.0], 12),  # its own segment, a multiple of 2 MiB
        ([10.0, 10.0], 20),
    ],
)
def test_segments(sizes: list[float], reserved: int) -> None:
    allocator = CachingAllocator()
    for size in sizes:
        allocator.allocate(round(size * MIB))
    assert allocator.reserved == reserved * MIB
    assert allocator.allocated >= sum(sizes) * MIB


def test_free_blocks_are_divided_and_joined() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(30 * MIB))
    parts = [allocator.allocate(size * MIB) for size in (10, 12, 8)]
    for part in (parts[0], parts[2], parts[1]):
        allocator.free(part)
    allocator.allocate(30 * MIB)
    assert (allocator.reserved, allocator.most_allocated) == (30 * MIB, 30 * MIB)
    # The smallest block that is large enough: 14 MiB of the second segment, not 30 of the first.
    allocator = CachingAllocator()
    blocks = [allocator.allocate(size * MIB) for size in (30, 14)]
    for block in blocks:
        allocator.free(block)
    allocator.allocate(13 * MIB)
    allocator.allocate(30 * MIB)
    assert allocator.reserved == 44 * MIB


def test_steps() -> None:
    # An activation and the gradient of the only weight, 4 MiB each: five of this size fill a segment of 20 MiB.
    size = 4 * MIB
    timeline = Timeline((size, size), (0, 1, ~0), (Mark(3, "gradient", 0),), num_forward=1, gradients={1: 0})
    step = StepAllocations(timeline, weights=[size], moments=[size, size])
    cases = [
        (5, step),  # weight, two moments, activation, gradient
        # The earlier gradient too: kept after the step, of an earlier micro-batch, or in a bucket.
        (6, replace(step, keeps_gradients=True)),
        (6, replace(step, accumulates=True)),
        (6, replace(step, gradients=[size])),
        # At the update, without the activation: weight, gradient, two moments, and three temporary ones.
        (7, replace(step, update=[size] * 3)),
        (7, replace(step, workspace=size)),  # one for each pass
    ]
    for number, case in cases:
        allocator = reserve(case)
        assert allocator.most_allocated == number * size
        assert allocator.reserved == (20 if number <= 5 else 40) * MIB


def test_reserved_memory_of_bert_base_is_the_published_one() -> None:
    # max_reserved of 5 steps of 2 x 16 tokens on an A10G is 2520.776704 MB, with AdamW's foreach implementation, which
    # needs the square roots of all second moments: benchmarks/published.yaml, optimum-benchmark.
    traits = strategy_traits("single", {})
    assert traits is not None
    setup = PredictionSetup(SingleOptions(kind="single"), traits, POLICIES["fp32"], 1, 1, 2, 1)
    bert = known_config("bert-base-uncased")
    traced = profile(bert, MaskedLMTask(kind="mlm"), Shape((16, 15)), POLICIES["fp32"], attention="eager")
    view = EngineInputs(traced, setup, states_of_rank(traced, setup, 0), CUDA_ROUNDING)
    step = step_allocations(view)
    foreach = replace(step, update=[4 * parameter.numel for parameter in traced.parameters], workspace=8519680)
    assert reserve(foreach).reserved == 2_520_776_704
    # The plan of paratune's own training, whose AdamW is fused.
    memory, allocator = peak(traced, setup), reserve(step)
    assert memory.terms["fragmentation"] == allocator.reserved - allocator.most_allocated
    allocated = memory.total - memory.terms["context"] - memory.terms["fragmentation"]
    assert allocated == pytest.approx(allocator.most_allocated, rel=0.005)
    for kind in ("adamw_8bit", "adafactor"):
        smaller = replace(setup, optimizer=kind)
        states = states_of_rank(traced, smaller, 0)
        view = EngineInputs(traced, smaller, states, CUDA_ROUNDING)
        num_trained = sum(parameter.is_trained and parameter.has_gradient for parameter in traced.parameters)
        assert sum(step_allocations(view).moments) == states.optimizer - STEP_BYTES * num_trained
