"""The watching thread, with two ranks in one process and a way to end that can be looked at."""

import json
import os
import threading
import time

import pytest
from patience import wait_for

from paratune.errors import EXIT_HUNG
from paratune.processes import watchdog
from paratune.processes.heartbeat import current_heartbeat, process_state, read_heartbeat, write_heartbeat
from paratune.processes.progress import RankProgress
from paratune.processes.watchdog import HEARTBEATS, Watchdog, watching
from paratune.records import read_events

TIMEOUT_S = 4.0  # long beside what a busy machine keeps one of two threads from running


@pytest.fixture
def dogs(tmp_path):
    """Two ranks that are watched, their both_ranks, and the codes with which they were ended."""
    both_ranks, codes = [RankProgress(), RankProgress()], {}
    result = []
    for rank, rank_progress in enumerate(both_ranks):
        rank_progress.run_folder = tmp_path / "runs" / "r"
        end = lambda code, rank=rank: codes.__setitem__(rank, code)  # noqa: E731
        result.append(Watchdog(rank_progress, rank, 2, tmp_path / "runs" / "r", TIMEOUT_S, end=end))
    yield result, both_ranks, codes
    for dog in result:
        if dog._thread.is_alive():
            dog.close()


def test_ranks_that_hang_are_ended_with_evidence(dogs, tmp_path, capfd):
    result, both_ranks, codes = dogs
    both_ranks[0].begin("writing a checkpoint")
    for dog in result:
        dog.start()
    wait_for(lambda: len(codes) == 2)
    assert codes == {0: EXIT_HUNG, 1: EXIT_HUNG}
    folder = tmp_path / "runs" / "r" / "hang"
    record = json.loads((folder / "hang.json").read_text())
    assert [item["doing"] for item in record["ranks"]] == ["writing a checkpoint", "starting"]
    assert record["timeout_s"] == TIMEOUT_S
    for rank in (0, 1):
        assert "test_watchdog.py" in (folder / f"stacks.rank000{rank}.txt").read_text()
    (event,) = read_events(tmp_path / "runs" / "r", 0)
    assert (event["event"], event["error"]) == ("failure", "Hung")
    message = capfd.readouterr().err
    assert message.count("no rank made progress for 4 s (run.hang_timeout_s)") == 1  # one rank speaks
    assert not (tmp_path / "runs" / HEARTBEATS).exists()


def test_a_disk_that_never_answers_ends_the_run_all_the_same(tmp_path, monkeypatch, capfd):
    codes, answers = [], threading.Event()
    monkeypatch.setattr(watchdog, "DISK_S", 0.2)
    monkeypatch.setattr(watchdog, "write_heartbeat", lambda *_: answers.wait())  # as a hard mount does
    rank_progress = RankProgress()
    rank_progress.run_folder = tmp_path / "runs" / "r"
    dog = Watchdog(rank_progress, 0, 2, tmp_path / "runs" / "r", 0.4, end=codes.append)
    dog.start()
    wait_for(lambda: codes)
    answers.set()
    dog._disk_thread.join()
    assert codes == [EXIT_HUNG]
    message = capfd.readouterr().err
    assert "no rank made progress for 0.4 s" in message
    assert f"waits for the disk of {tmp_path / 'runs'}" in message


def test_evidence_of_an_earlier_hang_is_ignored(dogs, tmp_path):
    result, _, codes = dogs
    folder = tmp_path / "runs" / "r" / "hang"
    folder.mkdir(parents=True)
    (folder / "hang.json").write_text('{"ranks": [{"rank": 1, "pid": 1}]}')
    assert not result[1]._is_reported(folder)
    for dog in result:
        dog.start()
    wait_for(lambda: len(codes) == 2)
    assert result[1]._is_reported(folder)
    (folder / "stacks.rank0001.txt").write_text("old")
    result[0]._report(folder, {1: "T"})
    assert not (folder / "stacks.rank0001.txt").exists()


def test_a_rank_writes_heartbeats_once_its_run_has_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "LONGEST_POLL_S", 10_000.0)  # it does not come by to look
    rank_progress = RankProgress()
    dog = Watchdog(rank_progress, 1, 2, tmp_path / "runs" / "r", 800_000.0, end=lambda _: None)
    dog.start()
    time.sleep(0.2)
    assert not (tmp_path / "runs").exists()
    rank_progress.set_run_folder(tmp_path / "runs" / "r")
    wait_for(lambda: dog._own_file().exists())
    dog.close()
    assert not (tmp_path / "runs").exists()


def test_progress_of_one_rank_is_enough(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    both_ranks = [RankProgress(), RankProgress()]
    dogs = [
        Watchdog(rank_progress, rank, 2, tmp_path / "r", 8.0, end=lambda _: None)
        for rank, rank_progress in enumerate(both_ranks)
    ]
    for dog in dogs:
        dog._began = dog._looked = now[0]
    for second in range(40):  # checks once a second; one rank makes progress for 30 s, the other never
        now[0] += 1
        if second < 30:
            both_ranks[1].tick()
        for dog in dogs:
            dog._skip_suspended_time()
            dog._exchange(dog._record_own())
        # Rank 1 sees its last beat at 30 s, rank 0 on its next look at 31 s; more than 8 s later is 39 s and 40 s.
        assert [dog._is_hung() for dog in dogs] == [second + 1 >= 40, second + 1 >= 39]


@pytest.mark.parametrize(("num_heard", "allowed_s"), [(1, 32.0), (2, 32.0), (3, 8.0)])
def test_a_rank_without_heartbeats_has_four_times_the_timeout(tmp_path, monkeypatch, num_heard, allowed_s):
    """Its files may be on another disk under the same path: it may be at work."""
    now = [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    dog = Watchdog(RankProgress(), 0, 3, tmp_path / "r", 8.0, end=lambda _: None)
    dog._began = dog._looked = now[0]
    dog._file_of(1).parent.mkdir(parents=True)
    for rank in range(1, num_heard):
        write_heartbeat(dog._file_of(rank), current_heartbeat(RankProgress(), rank, 3, 1, as_evidence=False))
    dog._exchange(dog._record_own())
    now[0] += allowed_s
    assert not dog._is_hung()
    now[0] += 0.1
    assert dog._is_hung()


def test_a_suspended_job_is_not_a_hang(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    dog = Watchdog(RankProgress(), 0, 1, tmp_path / "r", 8.0, end=lambda _: None)
    dog._began = dog._looked = now[0]
    for second in range(12):  # checks once a second; progress for 4 s, then none
        now[0] += 1
        if second == 7:
            now[0] += 3600  # suspended
        if second < 4:
            dog._rank_progress.tick()
        dog._skip_suspended_time()
        dog._record_own()
        # The last beat was seen at 4 s; more than 8 s later is 13 s, which 12 looks do not reach.
        assert not dog._is_hung(), second
    now[0] += 1
    dog._skip_suspended_time()
    assert dog._is_hung()


def test_the_same_figures_twice_are_no_progress():
    rank_progress = RankProgress()
    rank_progress.report("tokenize", 1, 9)
    before = rank_progress.num_beats
    rank_progress.report("tokenize", 1, 9)
    assert rank_progress.num_beats == before
    rank_progress.report("tokenize", 2, 9)
    assert rank_progress.num_beats == before + 1


def test_heartbeat_round_trip(tmp_path):
    beat = current_heartbeat(RankProgress(), 1, 2, 7, as_evidence=True)
    write_heartbeat(tmp_path / "b.json", beat)
    assert read_heartbeat(tmp_path / "b.json") == beat
    (tmp_path / "b.json").write_text('{"rank": 1')
    assert read_heartbeat(tmp_path / "b.json") is None
    assert read_heartbeat(tmp_path / "none.json") is None


def test_the_state_of_a_process():
    assert process_state(os.getpid()) in ("R", "S")
    assert process_state(2**22 + 1) is None


def test_a_thread_that_waits_for_a_disk_counts(tmp_path):
    # proc(5), /proc/PID/stat: the state follows the name in parentheses, which may contain any character.
    for thread, state in ((7, "S"), (8, "D")):
        (tmp_path / "7" / "task" / str(thread)).mkdir(parents=True)
        (tmp_path / "7" / "task" / str(thread) / "stat").write_text(f"{thread} (a) D) {state} 1 7")
    (tmp_path / "7" / "stat").write_text("7 (a) D) S 1 7")
    assert process_state(7, tmp_path) == "D"
    (tmp_path / "7" / "stat").write_text("7 (a) D) T 1 7")
    assert process_state(7, tmp_path) == "T"


def test_nothing_is_left_of_a_run_that_ends_well(tmp_path):
    folder = tmp_path / "a" / "runs" / "r"
    with watching(RankProgress(), 0, 2, folder, 2.0):
        wait_for((tmp_path / "a" / "runs" / HEARTBEATS / "r").is_dir)
    assert list(tmp_path.iterdir()) == []
    with watching(RankProgress(), 0, 2, folder, 1800.0):
        assert not (tmp_path / "a").exists()  # most runs that fail do so before it is worth a folder
    assert list(tmp_path.iterdir()) == []
    with watching(RankProgress(), 0, 1, folder, 5.0):
        assert not (tmp_path / "a").exists()  # a single process writes no heartbeats
    with watching(RankProgress(), 0, 2, folder, None):
        assert "watchdog" not in [thread.name for thread in threading.enumerate()]
