"""Signs of work of a call that reports none, and what the watching thread makes of them."""

import socket
import subprocess
import sys
import threading

import pytest
from patience import wait_for

from paratune.processes import watchdog
from paratune.processes.activity import SIGN_BYTES, Readings, WorkMeter, read_work
from paratune.processes.diagnosis import WAITING, diagnose
from paratune.processes.heartbeat import current_heartbeat
from paratune.processes.progress import RankProgress, current, working
from paratune.processes.watchdog import Watchdog

CPU_SECOND = "import time\nwhile time.process_time() < 1: pass\nprint(flush=True); input()"


def measured(act):
    """Return what is measured of an act of another thread than the one that measures."""
    meter = WorkMeter()
    done, leave = threading.Event(), threading.Event()

    def run():
        act()
        done.set()
        leave.wait()

    thread = threading.Thread(target=run)
    meter.reset(read_work())
    thread.start()
    done.wait()
    meter.add(read_work())
    leave.set()
    thread.join()
    return meter


def test_bytes_that_are_written_and_read_count(tmp_path):
    path = tmp_path / "x"
    assert SIGN_BYTES * 3 <= measured(lambda: path.write_bytes(bytes(SIGN_BYTES * 3))).num_bytes < SIGN_BYTES * 4
    assert SIGN_BYTES * 3 <= measured(path.read_bytes).num_bytes < SIGN_BYTES * 4


def test_bytes_that_arrive_count_though_nobody_has_read_them():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        other, _ = server.accept()
        with other:
            # Not more than the buffer of a socket: nobody receives.
            meter = measured(lambda: other.sendall(bytes(SIGN_BYTES)))
    assert meter.num_bytes >= SIGN_BYTES


def test_a_child_that_computes_counts():
    with subprocess.Popen([sys.executable, "-c", CPU_SECOND], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        meter = measured(child.stdout.readline)
        child.communicate(b"\n")
    assert meter.cpu_s >= 0.9  # the system counts in hundredths


def test_waiting_ranks_and_ignored_threads_add_no_activity(tmp_path):
    written, leave = threading.Event(), threading.Event()

    def write():
        (tmp_path / "x").write_bytes(bytes(SIGN_BYTES * 3))
        written.set()
        leave.wait()

    bystander = threading.Thread(target=write, name="paratune-sampler")
    meter = measured(lambda: (bystander.start(), written.wait()))
    leave.set()
    bystander.join()
    assert meter.num_bytes < SIGN_BYTES
    assert meter.cpu_s < 1


def test_a_counter_that_begins_again_is_not_subtracted():
    meter = WorkMeter()
    meter.reset(Readings({"a": 100}, {"a": 1.0}))
    meter.add(Readings({"a": 5, "b": 7}, {}))
    assert (meter.num_bytes, meter.cpu_s) == (7, 0.0)
    meter.add(Readings({"a": 6, "b": 7}, {"a": 0.5}))
    assert (meter.num_bytes, meter.cpu_s) == (8, 0.5)


def test_a_system_without_counters(tmp_path):
    assert read_work(tmp_path / "none") == Readings({}, {})


@pytest.fixture
def dog(tmp_path, monkeypatch):
    """A watchdog of one rank with 8 s, whose clock and counters the test moves."""
    dog = Watchdog(RankProgress(), 0, 1, tmp_path / "r", 8.0, end=lambda _: None)
    dog.now, dog.num_bytes, dog.cpu_s = 1000.0, 0, 0.0
    monkeypatch.setattr(watchdog.time, "monotonic", lambda: dog.now)
    monkeypatch.setattr(watchdog, "read_work", lambda: Readings({"t": dog.num_bytes}, {"t": dog.cpu_s}))
    dog._began = dog._looked = dog.now
    return dog


def seconds_until_hung(dog, *, bytes_per_s=0.0, cpu_per_s=0.0, at_most=100):
    """Return after how many looks, once a second, the run counts as hung; None where it does not."""
    for second in range(at_most):
        dog.now += 1
        dog.num_bytes += bytes_per_s
        dog.cpu_s += cpu_per_s
        dog._skip_suspended_time()
        dog._look_at_work()
        dog._record_own()
        if dog._is_hung():
            return second + 1
    return None


def test_a_call_that_moves_bytes_is_waited_for(dog):
    with dog._rank_progress.working("load"):
        # The first look begins to count; every fourth one after it is a sign, the last one among them.
        assert seconds_until_hung(dog, bytes_per_s=SIGN_BYTES / 4, at_most=101) is None
        assert seconds_until_hung(dog) == 9


def test_few_bytes_are_no_sign(dog):
    # 64 KiB in 8 s would be 8192 B a second. The first look sees the call itself begin.
    with dog._rank_progress.working("load"):
        assert seconds_until_hung(dog, bytes_per_s=1000) == 10


def test_a_call_that_computes_is_waited_for_four_times_as_long(dog):
    with dog._rank_progress.working("compile"):
        # The first look is at 1 s; signs until 1 + 3 * 8 = 25 s; more than 8 s later is 34 s.
        assert seconds_until_hung(dog, cpu_per_s=1.0) == 34


def test_outside_of_such_a_call_neither_counts(dog):
    # A collective that hangs keeps a core busy with NCCL; a sampler reads files for ever.
    assert seconds_until_hung(dog, bytes_per_s=10 * SIGN_BYTES, cpu_per_s=1.0) == 10


def test_a_rank_that_waits_for_another_one_shows_no_work(dog):
    with dog._rank_progress.working("read and tokenize the data"):
        dog._rank_progress.report(WAITING, 0, 1)
        assert seconds_until_hung(dog, bytes_per_s=10 * SIGN_BYTES) == 10


def test_the_work_of_a_call_is_in_the_diagnosis(dog):
    rank_progress = dog._rank_progress
    rank_progress.begin("placing the model")
    with current(rank_progress), working("load the model m"):
        seconds_until_hung(dog, bytes_per_s=2**20, at_most=4)  # the first look begins to count
        beat = current_heartbeat(rank_progress, 0, 1, 1)
    assert (beat.work, beat.work_bytes) == ("load the model m", 3 * 2**20)
    assert beat.where() == "placing the model (load the model m; 3 MiB read, written or received)"
    verdict = diagnose({0: beat}, 1, {})
    assert (verdict.cause, verdict.ranks) == ("call", (0,))
    assert current_heartbeat(rank_progress, 0, 1, 1).where() == "placing the model"


def test_calls_in_each_other_and_without_a_run(dog):
    rank_progress = dog._rank_progress
    with working("not watched"):
        assert rank_progress.work is None
    with current(rank_progress), working("outer"):
        before = rank_progress.num_beats
        with working("inner"):
            assert (rank_progress.work, rank_progress.num_beats) == ("inner", before + 1)
        assert (rank_progress.work, rank_progress.num_beats) == ("outer", before + 2)
    assert rank_progress.work is None


def test_a_running_download_is_progress(tmp_path):
    codes, rank_progress = [], RankProgress()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        other, _ = server.accept()
        stop = threading.Event()

        def send():
            while not stop.wait(0.2):
                other.sendall(bytes(SIGN_BYTES))

        sender, receiver = threading.Thread(target=send), threading.Thread(target=lambda: swallow(client))
        dog = Watchdog(rank_progress, 0, 1, tmp_path / "r", 2.0, end=codes.append)
        with rank_progress.working("load"):
            sender.start()
            receiver.start()
            dog.start()
            wait_for(lambda: rank_progress.num_signs > 10 or codes)  # more than the 2 s: it looks every 0.25 s
            assert codes == []
            stop.set()
            wait_for(lambda: codes)
        sender.join()
        other.close()
        receiver.join()
        dog.close()


def swallow(client):
    while client.recv(1 << 16):
        pass
