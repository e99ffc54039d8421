"""The cause of a hang, from the heartbeats of the ranks."""

from dataclasses import replace

import pytest

from paratune.processes.diagnosis import JOINING, PREPARING, WAITING, diagnose
from paratune.processes.heartbeat import Collective, Heartbeat, parse_trace

ALL_REDUCE = Collective("0", 41, "gloo:all_reduce", ((24450,),), is_done=False)
BEFORE = replace(ALL_REDUCE, number=40, is_done=True)


def beat(rank, **values):
    message = {"doing": "training", "step": 12, "phase": "backward", "for_s": 60.0, **values}
    return Heartbeat(rank, 3, f"node{rank}", 100 + rank, num_written=9, num_beats=5, **message)


def waiting(rank, collective=ALL_REDUCE):
    return beat(rank, collectives=(BEFORE, collective))


def judged(*beats, silent=None, world_size=3):
    return diagnose({item.rank: item for item in beats}, world_size, silent or {})


def test_the_rank_that_has_not_begun_the_collective_is_missing():
    late = beat(1, phase="get_batch", collectives=(BEFORE,))
    verdict = judged(waiting(0), late, waiting(2))
    assert (verdict.cause, verdict.ranks) == ("loader", (1,))
    assert "rank 1, which has been at step 12, get_batch for 1 min 00 s" in verdict.text


def test_a_rank_that_has_begun_no_collective_at_all():
    verdict = judged(waiting(0), beat(1, phase="forward"), waiting(2))
    assert (verdict.cause, verdict.ranks) == ("behind", (1,))


@pytest.mark.parametrize(
    ("values", "cause"),
    [
        ({"phase": "get_batch"}, "loader"),
        ({"phase": None, "doing": "writing a checkpoint"}, "checkpoint"),
        ({"phase": None, "doing": "writing the model"}, "checkpoint"),
        ({"phase": "forward"}, "behind"),
    ],
)
def test_the_cause_follows_from_the_task(values, cause):
    assert judged(waiting(0), beat(1, collectives=(BEFORE,), **values), waiting(2)).cause == cause


def test_with_queues_of_kernels_the_lowest_number_is_missing():
    # NCCL: every rank has something that has not ended; the one that is behind has put fewer into its queue.
    late = waiting(2, replace(ALL_REDUCE, number=39))
    verdict = judged(waiting(0), waiting(1), late)
    assert (verdict.cause, verdict.ranks) == ("behind", (2,))


def test_before_they_meet():
    meeting = {"doing": JOINING, "phase": None, "step": 0}
    work = {"doing": PREPARING, "phase": None, "step": 0, "detail": "tokenize 2000/90000"}
    verdict = judged(beat(0, **meeting), beat(1, **work), beat(2, **meeting))
    assert (verdict.cause, verdict.ranks) == ("tokenizing", (1,))
    assert "(tokenize 2000/90000)" in verdict.text
    lock = {**work, "detail": f"{WAITING} 0/1"}
    verdict = judged(beat(0, **work), beat(1, **lock), beat(2, **lock))
    assert (verdict.cause, verdict.ranks) == ("tokenizing", (0,))
    verdict = judged(*(beat(rank, **meeting) for rank in range(3)))
    assert (verdict.cause, verdict.ranks) == ("network", ())
    assert "MASTER_ADDR" in verdict.text


def test_ranks_without_heartbeats_are_absent():
    verdict = judged(waiting(0), waiting(2))
    assert (verdict.cause, verdict.ranks) == ("absent", (1,))


@pytest.mark.parametrize(
    ("state", "cause", "expected"),
    [
        ("T", "stopped", "kill -CONT 101"),
        ("t", "stopped", "kill -CONT 101"),
        ("gone", "gone", "dmesg"),
        ("Z", "gone", "dmesg"),
        ("D", "disk", "file system"),
        ("R", "silent", "native code"),
        (None, "silent", "the machine"),
    ],
)
def test_a_rank_that_no_longer_writes(state, cause, expected):
    verdict = judged(waiting(0), beat(1), waiting(2), silent={1: state})
    assert (verdict.cause, verdict.ranks) == (cause, (1,))
    assert expected in verdict.text


def test_different_collectives():
    other = replace(ALL_REDUCE, name="gloo:all_gather", sizes=((7,),))
    verdict = judged(waiting(0), waiting(1, other), waiting(2))
    assert (verdict.cause, verdict.ranks) == ("mismatch", (1,))
    assert "rank 1 is in gloo:all_gather of [7]" in verdict.text
    assert "unequal numbers of batches" not in verdict.text
    early = replace(waiting(1, other), step=11)
    assert "unequal numbers of batches" in judged(waiting(0), early, waiting(2)).text


def test_all_in_one_collective_is_the_network():
    down = replace(waiting(2), interfaces_down=("ib0",))
    verdict = judged(waiting(0), waiting(1), down)
    assert (verdict.cause, verdict.ranks) == ("network", ())
    assert "gloo:all_reduce of [24450] (number 41 of group 0)" in verdict.text
    assert "ib0 on node2" in verdict.text


def test_a_single_process():
    verdict = judged(beat(0, phase="get_batch"), world_size=1)
    assert (verdict.cause, verdict.ranks) == ("loader", (0,))


def test_a_trace_of_the_flight_recorder():
    # As torch 2.13 gives it with gloo, shortened.
    entry = {"process_group": ["0", "default_pg"], "is_p2p": False, "p2p_seq_id": 0, "state": "scheduled"}
    first = {
        **entry,
        "collective_seq_id": 4,
        "profiling_name": "gloo:broadcast",
        "input_sizes": [[10]],
        "retired": True,
    }
    second = {**entry, "collective_seq_id": 5, "profiling_name": "gloo:all_reduce", "input_sizes": [[3, 5], [2]]}
    trace = {"entries": [first, {**second, "retired": False}], "pg_status": {"0": {"last_completed_collective": "4"}}}
    done, last = parse_trace(trace)
    assert done == Collective("0", 4, "gloo:broadcast", ((10,),), is_done=True)
    assert last == Collective("0", 5, "gloo:all_reduce", ((3, 5), (2,)), is_done=False)
    assert str(last) == "gloo:all_reduce of [3, 5], [2] (number 5 of group 0)"
