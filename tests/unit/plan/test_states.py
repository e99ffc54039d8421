"""States by written-out arithmetic; tests/dist holds them to the tensors of real ranks."""

from typing import Any

import pytest

from paratune.config.strategy_sections import DDPStrategy, HSDPStrategy, SingleStrategy, Zero1Strategy, Zero3Strategy
from paratune.config.traits import traits_of
from paratune.plan.profile import Parameter, Profile
from paratune.plan.setup import Setup
from paratune.plan.states import Numbers, States, states, states_of_rank, whole
from paratune.plan.trace import Phase
from paratune.precision import POLICIES

PARAMETERS = (
    Parameter("embed.weight", (10, 4)),  # 40 numbers
    Parameter("a.weight", (4, 4), block=0),  # 16
    Parameter("a.bias", (4,), block=0),  # 4
    Parameter("frozen.weight", (4, 4), is_trained=False, has_gradient=False),  # 16
    Parameter("unused.weight", (2, 4), has_gradient=False),  # 8
)


def made(parameters: tuple[Parameter, ...] = PARAMETERS) -> Profile:
    return Profile(parameters, 1, 4, 0, 0, (0,), 0, Phase(), Phase())


def setup_of(strategy: Any, num_ranks: int) -> Setup:
    traits = traits_of(strategy.kind, strategy.model_dump(exclude={"kind"}))
    assert traits is not None
    return Setup(strategy, traits, POLICIES["fp32"], num_ranks, num_ranks, 1, 1)


def test_a_whole_model_with_frozen_and_unused_weights():
    # 84 numbers of 4 bytes; 60 trained with a gradient; two moments of those and a count for each of three tensors.
    expected = States(84 * 4, 60 * 4, 60 * 8 + 3 * 4)
    assert states(made(), setup_of(SingleStrategy(kind="single"), 1)) == expected


def test_buckets_of_ddp_hold_what_never_comes():
    assert states(made(), setup_of(DDPStrategy(kind="ddp"), 2)).gradients == (60 + 8) * 4


def test_zero1_gives_the_largest_first_to_whoever_has_least():
    # With decay: 40 to rank 0, 16 to rank 1; without: 4 to rank 1.
    of_ranks = [states_of_rank(made(), setup_of(Zero1Strategy(kind="zero1"), 2), rank).optimizer for rank in (0, 1)]
    assert of_ranks == [40 * 8 + 4, 20 * 8 + 8]
    assert states(made(), setup_of(Zero1Strategy(kind="zero1"), 2)).optimizer == 40 * 8 + 4


def test_fsdp_pads_weights_and_gradients_and_no_moments():
    # Rows in chunks of ceil(10 / 4) = 3, 1, 1, 1 and 1: 12 + 4 + 1 + 4 + 4 numbers; 12 + 4 + 1 with a gradient.
    setup = setup_of(Zero3Strategy(kind="zero3"), 4)
    assert states(made(), setup) == States(25 * 4, 17 * 4, 17 * 8 + 3 * 4)
    # The last rank has one row of the ten.
    assert states_of_rank(made(), setup, 3) == States(25 * 4, 17 * 4, (4 + 4 + 1) * 8 + 3 * 4)


def test_offload_moves_all_of_it():
    on_device = states(made(), setup_of(HSDPStrategy(kind="hsdp", shard_size=2), 4))
    on_host = states(made(), setup_of(HSDPStrategy(kind="hsdp", shard_size=2, cpu_offload=True), 4))
    assert on_host.device == 0
    assert on_host.host == on_device.device


def test_the_zero_paper():
    # Figure 1 of Rajbhandari et al., SC 2020: 7.5e9 parameters, 64 ranks, Adam, weights and gradients of 2 bytes and
    # K = 12: a copy of the weights and two moments in 4 bytes. The policy is theirs, the functions are ours.
    numbers = Numbers(weight=2, gradient=2, optimizer=12, step=0)
    all_of_it = Parameter("all", (7_500_000_000, 1))
    part = Parameter("part", (-(-7_500_000_000 // 64), 1))
    full, shared = whole([all_of_it], numbers), whole([part], numbers)
    stages = [
        full.weights + full.gradients + full.optimizer,
        full.weights + full.gradients + shared.optimizer,
        full.weights + shared.gradients + shared.optimizer,
        shared.weights + shared.gradients + shared.optimizer,
    ]
    assert [size / 1e9 for size in stages] == pytest.approx([120.0, 31.4, 16.6, 1.9], abs=0.05)
