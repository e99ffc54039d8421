"""Shares of a machine for runs side by side."""

import pytest

from paratune.processes.slots import Slots


def test_each_process_takes_a_gpu_and_waits_for_one():
    slots = Slots(None, 4, range(16), {})
    assert slots.num_slots == 4
    two, one = slots.take(2, on_gpus=True), slots.take(1, on_gpus=True)
    assert two is not None
    assert one is not None
    assert (two.gpus, one.gpus, two.cores) == (("0", "1"), ("2",), None)
    assert two.environment == {"CUDA_VISIBLE_DEVICES": "0,1", "OMP_NUM_THREADS": "4"}
    assert slots.take(2, on_gpus=True) is None
    slots.give_back(two)
    assert slots.take(3, on_gpus=True).gpus == ("3", "0", "1")


def test_gpus_are_those_that_this_process_sees():
    slots = Slots(None, 2, range(4), {"CUDA_VISIBLE_DEVICES": "GPU-5f, GPU-6a"})
    assert [slots.take(1, on_gpus=True).gpus for _ in range(2)] == [("GPU-5f",), ("GPU-6a",)]


def test_sets_of_cores_are_disjoint_and_their_threads_are_as_many():
    slots = Slots(3, 0, [0, 1, 2, 3, 8, 9, 10], {})
    shares = [slots.take(size, on_gpus=False) for size in (1, 2, 1)]
    assert [None if share is None else share.cores for share in shares] == [[0, 1], [2, 3, 8, 9], None]
    assert [share.environment["OMP_NUM_THREADS"] for share in shares if share] == ["2", "2"]


def test_a_run_with_more_processes_than_sets_takes_all_of_them():
    slots = Slots(2, 0, range(2), {})
    whole = slots.take(4, on_gpus=False)
    assert whole is not None
    assert (whole.cores, whole.environment["OMP_NUM_THREADS"]) == ([0, 1], "1")
    assert slots.take(1, on_gpus=False) is None


@pytest.mark.parametrize(("num_cores", "num_slots"), [(1, 1), (2, 2), (7, 2), (16, 4)])
def test_slots_of_a_machine_without_gpus(num_cores: int, num_slots: int):
    assert Slots(None, 0, range(num_cores), {}).num_slots == num_slots


def test_no_more_runs_than_slots():
    slots = Slots(2, 8, range(8), {})
    assert [slots.take(1, on_gpus=True) is not None for _ in range(3)] == [True, True, False]


def test_with_one_slot_a_run_has_the_whole_machine():
    slots = Slots(1, 8, range(8), {})
    share = slots.take(8, on_gpus=True)
    assert share is not None
    assert (share.gpus, share.cores, dict(share.environment)) == ((), None, {})
    assert slots.take(1, on_gpus=True) is None
