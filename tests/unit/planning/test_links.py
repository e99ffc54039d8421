"""Bytes and seconds of collectives, by the arithmetic of rings."""

import pytest

from paratune.planning.constants import Bounded, Constants, UnknownConstant
from paratune.planning.work import Link, link_between, ring_bytes


def test_bytes_of_a_ring() -> None:
    # nccl-tests, doc/PERFORMANCE.md: factor 2 (n - 1) / n of an all-reduce, (n - 1) / n of a gather; here n = 4.
    assert ring_bytes("all_reduce", 400, 4) == 600
    assert ring_bytes("all_gather", 400, 4) == 300
    assert ring_bytes("reduce_scatter", 400, 4) == 300
    assert ring_bytes("all_reduce", 400, 1) == 0


def test_seconds_of_a_ring() -> None:
    link = Link(num_ranks=4, bytes_per_s=100.0, latency_s=0.5)
    assert link.seconds("all_reduce", 400) == 6 + 6 * 0.5
    assert link.seconds("all_gather", 400) == link.seconds("reduce_scatter", 400) == 3 + 3 * 0.5
    assert link.seconds("send", 400) == 4 + 0.5
    local_step = Link(num_ranks=1, bytes_per_s=100.0, latency_s=0.5)
    assert (
        local_step.seconds("all_reduce", 400)
        == local_step.seconds("all_gather", 400)
        == local_step.seconds("send", 400)
        == 0
    )


def test_an_all_reduce_over_many_ranks_uses_a_tree() -> None:
    # NCCL, src/graph/tuning.cc: 32 machines of 8 ranks. Ring: 2 x 255 steps of (9.6 + 7 x 3.4) / 8 us, and 8.4 us.
    # Tree: 2 x (7 x 28 + 5 x 50) us, with 0.9 of the bandwidth.
    latencies = figures(link__latency=3.4e-6, network__latency=9.6e-6, link__call=8.4e-6)
    trees = figures(link__tree=28e-6, network__tree=50e-6)
    known = latencies.replaced({**figures(link=2e11, network=1e11).by_name, **trees.by_name})
    link = link_between(known, 256, 8)
    ring_s = 2 * 255 * (9.6 + 7 * 3.4) / 8 * 1e-6
    assert link.seconds("all_reduce", 8) == pytest.approx(2 * (7 * 28e-6 + 5 * 50e-6) + 8.4e-6, rel=1e-3)
    assert link.seconds("all_reduce", 1e10) == pytest.approx(2 * 255 / 256 * 1e10 / 1e11 + ring_s + 8.4e-6)
    assert link.seconds("all_gather", 8) == pytest.approx(ring_s / 2 + 8.4e-6, rel=1e-3)
    # Two devices of one machine: 2 steps of a ring are fewer than those of a tree.
    assert link_between(known, 2, 8).seconds("all_reduce", 0) == pytest.approx(2 * 3.4e-6 + 8.4e-6)


def figures(**values: float) -> Constants:
    names = {name.replace("__", "."): Bounded(value, value, value) for name, value in values.items()}
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
