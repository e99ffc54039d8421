"""The watching thread, with two ranks in one process and a way to end that can be looked at."""

import json
import os
import threading
import time

import pytest
from patience import wait_for

from paratune.errors import EXIT_HUNG
from paratune.hangs import watchdog
from paratune.hangs.beat import beat_now, process_state, read_beat, write_beat
from paratune.hangs.pulse import Pulse
from paratune.hangs.watchdog import HEARTBEATS, Watchdog, watching
from paratune.records import read_events

TIMEOUT_S = 4.0  # long beside what a busy machine keeps one of two threads from running


@pytest.fixture
def dogs(tmp_path):
    """Two ranks that are watched, their pulses, and the codes with which they were ended."""
    pulses, codes = [Pulse(), Pulse()], {}
    found = []
    for rank, pulse in enumerate(pulses):
        pulse.run_folder = tmp_path / "runs" / "r"
        end = lambda code, rank=rank: codes.__setitem__(rank, code)  # noqa: E731
        found.append(Watchdog(pulse, rank, 2, tmp_path / "runs" / "r", TIMEOUT_S, end=end))
    yield found, pulses, codes
    for dog in found:
        if dog._thread.is_alive():
            dog.close()


def test_ranks_that_stand_still_are_ended_with_their_evidence(dogs, tmp_path, capfd):
    found, pulses, codes = dogs
    pulses[0].begins("writing a checkpoint")
    for dog in found:
        dog.start()
    wait_for(lambda: len(codes) == 2)
    assert codes == {0: EXIT_HUNG, 1: EXIT_HUNG}
    folder = tmp_path / "runs" / "r" / "hang"
    record = json.loads((folder / "hang.json").read_text())
    assert [each["doing"] for each in record["ranks"]] == ["writing a checkpoint", "starting"]
    assert record["timeout_s"] == TIMEOUT_S
    for rank in (0, 1):
        assert "test_watchdog.py" in (folder / f"stacks.rank000{rank}.txt").read_text()
    (event,) = read_events(tmp_path / "runs" / "r", 0)
    assert (event["event"], event["error"]) == ("failure", "Hung")
    said = capfd.readouterr().err
    assert said.count("no rank made progress for 4 s (run.hang_timeout_s)") == 1  # one rank speaks
    assert not (tmp_path / "runs" / HEARTBEATS).exists()


def test_a_disk_that_never_answers_ends_the_run_all_the_same(tmp_path, monkeypatch, capfd):
    codes, answers = [], threading.Event()
    monkeypatch.setattr(watchdog, "DISK_S", 0.2)
    monkeypatch.setattr(watchdog, "write_beat", lambda *_: answers.wait())  # as a hard mount does
    pulse = Pulse()
    pulse.run_folder = tmp_path / "runs" / "r"
    dog = Watchdog(pulse, 0, 2, tmp_path / "runs" / "r", 0.4, end=codes.append)
    dog.start()
    wait_for(lambda: codes)
    answers.set()
    dog._errand.join()
    assert codes == [EXIT_HUNG]
    said = capfd.readouterr().err
    assert "no rank made progress for 0.4 s" in said
    assert f"waits for the disk of {tmp_path / 'runs'}" in said


def test_the_evidence_of_an_earlier_hang_is_not_taken_for_this_one(dogs, tmp_path):
    found, _, codes = dogs
    folder = tmp_path / "runs" / "r" / "hang"
    folder.mkdir(parents=True)
    (folder / "hang.json").write_text('{"ranks": [{"rank": 1, "pid": 1}]}')
    assert not found[1]._is_told(folder)
    for dog in found:
        dog.start()
    wait_for(lambda: len(codes) == 2)
    assert found[1]._is_told(folder)
    (folder / "stacks.rank0001.txt").write_text("old")
    found[0]._speak(folder, {1: "T"})
    assert not (folder / "stacks.rank0001.txt").exists()


def test_a_rank_is_heard_as_soon_as_its_run_has_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(watchdog, "LONGEST_POLL_S", 10_000.0)  # it does not come by to look
    pulse = Pulse()
    dog = Watchdog(pulse, 1, 2, tmp_path / "runs" / "r", 800_000.0, end=lambda _: None)
    dog.start()
    time.sleep(0.2)
    assert not (tmp_path / "runs").exists()
    pulse.holds(tmp_path / "runs" / "r")
    wait_for(lambda: dog._own_file().exists())
    dog.close()
    assert not (tmp_path / "runs").exists()


def test_one_rank_that_gets_on_is_enough(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    pulses = [Pulse(), Pulse()]
    dogs = [Watchdog(pulse, rank, 2, tmp_path / "r", 8.0, end=lambda _: None) for rank, pulse in enumerate(pulses)]
    for dog in dogs:
        dog._began = dog._looked = now[0]
    for second in range(40):  # looks once a second; one rank gets on for 30 s, the other never
        now[0] += 1
        if second < 30:
            pulses[1].beat()
        for dog in dogs:
            dog._come_by()
            dog._exchange(dog._noted())
        # Rank 1 sees its last beat at 30 s, rank 0 on its next look at 31 s; more than 8 s later is 39 s and 40 s.
        assert [dog._is_hung() for dog in dogs] == [second + 1 >= 40, second + 1 >= 39]


@pytest.mark.parametrize(("num_heard", "allowed_s"), [(1, 32.0), (2, 32.0), (3, 8.0)])
def test_a_rank_that_was_never_heard_is_given_four_times_as_long(tmp_path, monkeypatch, num_heard, allowed_s):
    """Its files may be on another disk under the same path: it may be at work."""
    now = [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    dog = Watchdog(Pulse(), 0, 3, tmp_path / "r", 8.0, end=lambda _: None)
    dog._began = dog._looked = now[0]
    dog._file_of(1).parent.mkdir(parents=True)
    for rank in range(1, num_heard):
        write_beat(dog._file_of(rank), beat_now(Pulse(), rank, 3, 1, as_evidence=False))
    dog._exchange(dog._noted())
    now[0] += allowed_s
    assert not dog._is_hung()
    now[0] += 0.1
    assert dog._is_hung()


def test_a_job_that_was_suspended_is_left_alone(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: now[0])
    dog = Watchdog(Pulse(), 0, 1, tmp_path / "r", 8.0, end=lambda _: None)
    dog._began = dog._looked = now[0]
    for second in range(12):  # looks once a second; gets on for 4 s, then no more
        now[0] += 1
        if second == 7:
            now[0] += 3600  # suspended
        if second < 4:
            dog._pulse.beat()
        dog._come_by()
        dog._noted()
        # The last beat was seen at 4 s; more than 8 s later is 13 s, which 12 looks do not reach.
        assert not dog._is_hung(), second
    now[0] += 1
    dog._come_by()
    assert dog._is_hung()


def test_the_same_figures_twice_are_no_progress():
    pulse = Pulse()
    pulse.goes_on("tokenize", 1, 9)
    before = pulse.num_beats
    pulse.goes_on("tokenize", 1, 9)
    assert pulse.num_beats == before
    pulse.goes_on("tokenize", 2, 9)
    assert pulse.num_beats == before + 1


def test_a_beat_comes_back_from_its_file(tmp_path):
    beat = beat_now(Pulse(), 1, 2, 7, as_evidence=True)
    write_beat(tmp_path / "b.json", beat)
    assert read_beat(tmp_path / "b.json") == beat
    (tmp_path / "b.json").write_text('{"rank": 1')
    assert read_beat(tmp_path / "b.json") is None
    assert read_beat(tmp_path / "none.json") is None


def test_the_state_of_a_process():
    assert process_state(os.getpid()) in ("R", "S")
    assert process_state(2**22 + 1) is None


def test_a_thread_that_waits_for_a_disk_counts(tmp_path):
    # proc(5), /proc/PID/stat: the state stands behind the name in parentheses, which may hold any character.
    for thread, state in ((7, "S"), (8, "D")):
        (tmp_path / "7" / "task" / str(thread)).mkdir(parents=True)
        (tmp_path / "7" / "task" / str(thread) / "stat").write_text(f"{thread} (a) D) {state} 1 7")
    (tmp_path / "7" / "stat").write_text("7 (a) D) S 1 7")
    assert process_state(7, tmp_path) == "D"
    (tmp_path / "7" / "stat").write_text("7 (a) D) T 1 7")
    assert process_state(7, tmp_path) == "T"


def test_nothing_is_left_of_a_run_that_ends_well(tmp_path):
    folder = tmp_path / "a" / "runs" / "r"
    with watching(Pulse(), 0, 2, folder, 2.0):
        wait_for((tmp_path / "a" / "runs" / HEARTBEATS / "r").is_dir)
    assert list(tmp_path.iterdir()) == []
    with watching(Pulse(), 0, 2, folder, 1800.0):
        assert not (tmp_path / "a").exists()  # most runs that fail do so before it is worth a folder
    assert list(tmp_path.iterdir()) == []
    with watching(Pulse(), 0, 1, folder, 5.0):
        assert not (tmp_path / "a").exists()  # a single process has nobody to tell
    with watching(Pulse(), 0, 2, folder, None):
        assert "watchdog" not in [thread.name for thread in threading.enumerate()]
