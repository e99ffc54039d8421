"""Constants of the network from two all-reduces."""

import pytest

from paratune.planning.clock import CallSeconds
from paratune.planning.constants import BoundedConstant, Constants
from paratune.planning.links import link_between
from paratune.planning.probe_network import network_constants


def test_network_of_two_nodes() -> None:
    # A ring of 2 ranks: 2 steps, and 2 (2 - 1) / 2 = 1 times the bytes.
    constants = network_constants(CallSeconds(1e-4, 1.5e-4), CallSeconds(0.0101, 0.02), 10**8, 2, 1, within_s=0.0)
    assert constants["network"].value == pytest.approx(1e8 / 0.01)
    assert constants["network.latency"].value == pytest.approx(1e-4 / 2)
    # The median is 98% slower: the rate may be as much lower.
    assert constants["network"].low == pytest.approx(1e10 / (0.02 / 0.0101))


def test_network_of_full_nodes_predicts_the_measured_all_reduce() -> None:
    # 4 nodes with 8 ranks: 62 steps, one of eight through the network.
    small, large = CallSeconds(1e-3, 1e-3), CallSeconds(0.021, 0.021)
    within = {"link": 9e11, "link.latency": 4e-6}
    measured = network_constants(small, large, 2**28, 32, 8, within_s=4e-6)
    fixed = {name: BoundedConstant(value, value, value, "given") for name, value in within.items()}
    link = link_between(Constants({**measured, **fixed}), 32, 8)
    assert link.all_reduce_s(2**28) == pytest.approx(0.021)
    assert link.all_reduce_s(0) == pytest.approx(1e-3)
