"""The fit of constants to measured steps against the normal posterior written out."""

import math
from dataclasses import replace

import pytest

from paratune.config.strategy_sections import DDPOptions, Strategy
from paratune.planning.constants import Bounded, Constants, assumed_gpu_constants
from paratune.planning.machine import Machine, find_machine
from paratune.planning.time import (
    NINETY,
    NOISE,
    OTHER_WAY,
    MeasuredStep,
    refit,
    step_terms,
    step_time,
)
from paratune.planning.work import StepCase

from .test_time import ROUND, bert_base, setup

DDP = DDPOptions(kind="ddp")


def bounded(value: float, spread: float) -> Bounded:
    return Bounded(value, value / spread, value * spread)


MULTIPLIED = ROUND.replaced(
    {
        "adamw": Bounded(1e30, 1e30, 1e30),
        "link": Bounded(1e30, 1e30, 1e30),
        "together": bounded(1.5, 1.3),
        "factor.run": bounded(1.0, 1.2),
        "network": bounded(1e10, 8.0),
    }
)
"""A step of two ranks takes factor.run x together x its passes, and nothing else."""


def case(constants: Constants, num_ranks: int, ranks_per_node: int | None = None) -> StepCase:
    machine = Machine("round", None, is_cuda=True, memory_bytes=None, constants=constants)
    return StepCase(bert_base(), setup(DDP, num_ranks, ranks_per_node), machine, 512)


def step_seconds(case: StepCase, constants: Constants) -> float:
    return sum(step_terms(case, constants).values())


def fitted(constants: Constants, slower: float, *cases: StepCase) -> tuple[Constants, list[float], list[float]]:
    return refit(constants, [MeasuredStep(case, slower * step_seconds(case, constants)) for case in cases])


def shifts(after: Constants, before: Constants) -> dict[str, float]:
    """Return the logarithms by which constants moved."""
    uncertain = [name for name in before.by_name if before[name].value > 0]
    moved = {name: math.log(after[name].value / before[name].value) for name in uncertain}
    return {name: shift for name, shift in moved.items() if abs(shift) > 0.01}


def test_phases_determine_their_own_constants() -> None:
    two = case(MULTIPLIED.replaced({f"factor.{name}": bounded(1.0, 1.5) for name in ("forward", "backward")}), 2)
    assert two.machine.constants is not None
    before = step_terms(two, two.machine.constants)
    steps = [
        MeasuredStep(two, 1.3 * before["forward"], ("forward",)),
        MeasuredStep(two, before["backward"], ("backward",)),
    ]
    after = step_terms(two, refit(two.machine.constants, steps)[0])
    assert after["forward"] / before["forward"] == pytest.approx(1.3, rel=0.03)
    assert after["backward"] / before["backward"] == pytest.approx(1.0, rel=0.03)


def test_constants_move_in_proportion_to_their_variances() -> None:
    two = case(MULTIPLIED, 2)
    constants, before_s, after_s = fitted(MULTIPLIED, 1.4, two)
    run, together = (math.log(spread) / NINETY for spread in (1.2, 1.3))
    total = run**2 + together**2 + NOISE**2
    expected = {"factor.run": run**2 / total * math.log(1.4), "together": together**2 / total * math.log(1.4)}
    assert shifts(constants, MULTIPLIED) == pytest.approx(expected, rel=1e-3)  # the less certain one moves more
    assert math.log(after_s[0] / before_s[0]) == pytest.approx(math.log(1.4) * (1 - NOISE**2 / total), rel=1e-3)


def test_interval_of_a_measured_option_after_the_refit() -> None:
    # Each factor alone stays uncertain; together they are known as well as the measurement.
    two = case(MULTIPLIED, 2)
    constants, _, _ = fitted(MULTIPLIED, 1.4, two)
    machine = replace(two.machine, constants=constants)
    time = step_time(StepCase(two.profile, two.setup, machine, 512))[0]
    assert time is not None
    variance = sum((math.log(spread) / NINETY) ** 2 for spread in (1.2, 1.3))
    posterior = math.sqrt(1 / (1 / variance + 1 / NOISE**2))
    assert math.log(time.total.high / time.total.value) == pytest.approx(
        math.hypot(NINETY * posterior, OTHER_WAY["cuda"]), rel=0.05
    )
    assert constants["together"].high / constants["together"].value > 1.15


def test_constant_without_a_measurement_stays() -> None:
    constants, _, _ = fitted(MULTIPLIED, 1.4, case(MULTIPLIED, 2))
    assert constants["network"] == MULTIPLIED["network"]


def test_figure_of_two_nodes_moves_the_network() -> None:
    one_node, two = case(MULTIPLIED, 2), case(MULTIPLIED, 4, 2)
    steps = [
        MeasuredStep(one_node, step_seconds(one_node, MULTIPLIED)),
        MeasuredStep(two, 1.6 * step_seconds(two, MULTIPLIED)),
    ]
    constants, before_s, after_s = refit(MULTIPLIED, steps)
    assert constants["network"].value < 0.8 * MULTIPLIED["network"].value
    assert after_s[0] == pytest.approx(before_s[0], rel=0.03)


def test_refitted_share_is_at_most_1() -> None:
    constants = MULTIPLIED.replaced({"overlap": Bounded(0.9, 0.5, 1.0), "network": bounded(1e9, 1.01)})
    refitted, _, _ = fitted(constants, 0.5, case(constants, 4, 2))
    assert refitted["overlap"].value <= 1.0 + 1e-6


@pytest.mark.parametrize("slower", [0.7, 1.4, 1.75])
def test_one_time_of_a_listed_device_is_explained(slower: float) -> None:
    machine = find_machine("a100-40gb")
    assert machine.constants is not None
    single: Strategy = DDP
    step = StepCase(bert_base("bf16"), setup(single, 1), machine, 512)
    refitted, before_s, after_s = fitted(machine.constants, slower, step)
    assert after_s[0] / before_s[0] == pytest.approx(slower, rel=0.03)
    assert not {"link", "network", "link.latency"} & set(shifts(refitted, machine.constants))


@pytest.mark.parametrize("slower", [0.7, 1.4])
def test_a_fit_does_not_choose_the_multiprocessors_of_an_unlisted_gpu(slower: float) -> None:
    # Their number is no rate: the time of a product jumps where one more wave of tiles begins.
    constants = assumed_gpu_constants()
    machine = Machine("unlisted", None, is_cuda=True, memory_bytes=None, constants=constants)
    refitted, before_s, after_s = fitted(constants, slower, StepCase(bert_base("bf16"), setup(DDP, 1), machine, 512))
    assert refitted["units"] == constants["units"]
    assert after_s[0] / before_s[0] == pytest.approx(slower, rel=0.03)
