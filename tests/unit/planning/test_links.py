"""Bytes and seconds of collectives, by the arithmetic of rings."""

import pytest

from paratune.planning.constants import BoundedConstant, Constants, UnknownConstant
from paratune.planning.links import Link, link_between, ring_bytes


def test_bytes_of_a_ring() -> None:
    # nccl-tests, doc/PERFORMANCE.md: factor 2 (n - 1) / n of an all-reduce, (n - 1) / n of a gather; here n = 4.
    assert ring_bytes("all_reduce", 400, 4) == 600
    assert ring_bytes("all_gather", 400, 4) == 300
    assert ring_bytes("reduce_scatter", 400, 4) == 300
    assert ring_bytes("all_reduce", 400, 1) == 0


def test_seconds_of_a_ring() -> None:
    link = Link(num_ranks=4, bytes_per_s=100.0, latency_s=0.5)
    assert link.all_reduce_s(400) == 6 + 6 * 0.5
    assert link.all_gather_s(400) == link.reduce_scatter_s(400) == 3 + 3 * 0.5
    # Broadcasts from all four ranks, 8 tensors: each link carries three quarters, 6 steps of latency.
    assert link.broadcasts_s(400, 8) == 3 + 8 / 4 * 3 * 0.5
    own = Link(num_ranks=4, bytes_per_s=100.0, latency_s=0.0, gather_bytes_per_s=50.0, scatter_bytes_per_s=25.0)
    assert (own.all_reduce_s(400), own.all_gather_s(400), own.reduce_scatter_s(400)) == (6, 6, 12)
    assert link.send_s(400) == 4 + 0.5
    local_step = Link(num_ranks=1, bytes_per_s=100.0, latency_s=0.5)
    assert (
        local_step.all_reduce_s(400)
        == local_step.all_gather_s(400)
        == local_step.broadcasts_s(400, 3)
        == local_step.send_s(400)
        == 0
    )


def figures(**values: float) -> Constants:
    names = {name.replace("__", "."): BoundedConstant(value, value, value, "test") for name, value in values.items()}
    return Constants(names)


MACHINE = figures(link=100.0, link__latency=1.0, network=20.0, network__latency=5.0)


def test_ranks_of_one_machine_use_its_link() -> None:
    assert link_between(MACHINE, 4, 4) == Link(4, 100.0, 1.0)
    assert link_between(MACHINE, 1, 1) == Link(1, 1.0, 0.0)


def test_ranks_of_two_machines_use_the_network() -> None:
    # Of every 4 steps one is between machines: (5 + 3 * 1) / 4.
    assert link_between(MACHINE, 8, 4) == Link(8, 20.0, 2.0)
    assert link_between(MACHINE, 8, 1) == Link(8, 20.0, 5.0)
    fast = MACHINE.replaced(figures(network=500.0).by_name)
    assert link_between(fast, 8, 4) == Link(8, 100.0, 2.0)


def test_groups_side_by_side_share_the_network() -> None:
    # Two machines of 4 ranks, shards within each: 4 rings of 2 ranks go through one network.
    assert link_between(MACHINE, 2, 4, stride=4) == Link(2, 5.0, 5.0)


def test_unknown_link_is_an_error() -> None:
    with pytest.raises(UnknownConstant, match="network"):
        link_between(figures(link=1.0), 8, 4)
