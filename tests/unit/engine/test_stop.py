import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from looping import single
from patience import PATIENCE_S

from paratune.engine.stop import StopRequest
from paratune.errors import EXIT_STOPPED, Stopped
from paratune.stop_signals import STOP_SIGNALS
from paratune.strategies.protocol import Layout


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield StopRequest().install()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_is_noted_and_nothing_else_happens(
    stop: StopRequest, number: signal.Signals, capfd: pytest.CaptureFixture[str]
):
    assert not stop.came()
    assert not stop.agreed(single())
    stop.raise_if_came("tokenizing")
    os.kill(os.getpid(), number)
    assert stop.came()
    assert stop.signal == number.name
    assert stop.agreed(single())
    said = capfd.readouterr().err
    assert f"{number.name}: stopping as soon as it can" in said
    assert ("a second Ctrl-C" in said) == (number == signal.SIGINT)
    with pytest.raises(Stopped, match=f"stopped by {number.name} while tokenizing, before the first") as caught:
        stop.raise_if_came("tokenizing")
    assert caught.value.exit_code == EXIT_STOPPED == 75


def test_a_second_interrupt_ends_at_once(stop: StopRequest):
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_a_launcher_held_back_is_delivered():
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        # To this thread, which is the one that blocks it; a signal to the process would find another.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        stop = StopRequest().install()
        assert stop.signal == "SIGTERM"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def test_what_one_rank_was_told_all_ranks_know():
    strategy = single()
    strategy.layout = Layout(rank=1, world_size=2, data_rank=1, data_world_size=2)
    asked = []

    def reduce(value: torch.Tensor, op: str) -> torch.Tensor:
        asked.append((value.item(), op))
        return torch.ones(1)

    strategy.reduce = reduce
    assert StopRequest().agreed(strategy)
    assert asked == [(0.0, "max")]


def test_a_signal_that_came_before_a_wait_stops_there(stop: StopRequest):
    with stop.ends_at_once("meeting"):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # after the wait it is noted, as ever
    with pytest.raises(Stopped, match=r"SIGTERM while meeting, before the first step: .*start it again"):  # noqa: SIM117
        with stop.ends_at_once("meeting"):
            pytest.fail("it waited")
    assert signal.set_wakeup_fd(-1) == -1


WAITS = """
import ctypes
from paratune.engine.stop import StopRequest
stop = StopRequest().install()
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
with stop.ends_at_once("meeting"):
    print("waits", flush=True)
    libc.pthread_mutex_lock(mutex)  # for ever: no signal breaks it off, and Python calls no handler
"""


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_ends_a_process_that_waits_in_native_code(number: signal.Signals):
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == EXIT_STOPPED
    assert f"stopped by {number.name} while meeting, before the first step: there was nothing to save" in said
