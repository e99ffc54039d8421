import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from exact import row_steps
from looping import Bench, single
from patience import PATIENCE_S
from raised import raises_code

from paratune.base.stop_signals import STOP_SIGNALS
from paratune.batch import Batch
from paratune.engine.stop import StopRequest
from paratune.errors import EXIT_STOPPED
from paratune.strategies.protocol import Layout


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield StopRequest().install()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_is_only_recorded(stop: StopRequest, number: signal.Signals, capfd: pytest.CaptureFixture[str]):
    assert not stop.came()
    assert not stop.agreed(single())
    stop.raise_if_came("tokenizing")
    os.kill(os.getpid(), number)
    assert stop.came()
    assert stop.signal == number.name
    assert stop.agreed(single())
    printed = capfd.readouterr().err
    assert f"{number.name}: stopping as soon as possible" in printed
    assert ("a second Ctrl-C" in printed) == (number == signal.SIGINT)
    with raises_code("stopped.signal", number.name, "tokenizing") as caught:
        stop.raise_if_came("tokenizing")
    assert caught.value.exit_code == EXIT_STOPPED == 75


def test_a_second_interrupt_ends_at_once(stop: StopRequest):
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_a_launcher_blocked_is_delivered():
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


def test_a_signal_of_one_rank_reaches_all_ranks():
    strategy = single()
    strategy.layout = Layout(rank=1, world_size=2, data_rank=1, data_world_size=2)
    asked = []

    def reduce(value: torch.Tensor, op: str) -> torch.Tensor:
        asked.append((value.item(), op))
        return torch.ones(1)

    strategy.reduce = reduce
    assert StopRequest().agreed(strategy)
    assert asked == [(0.0, "max")]


class Ranks:
    """Stands in for `torch.distributed` of two ranks; what is reduced is known when it is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.other_came = False
        self.calls: list[tuple[str, float]] = []
        monkeypatch.setattr(dist, "is_initialized", lambda: True)
        monkeypatch.setattr(dist, "get_world_size", lambda: 2)
        monkeypatch.setattr(dist, "all_reduce", self.all_reduce)
        self.strategy = single()
        self.strategy.layout = Layout(rank=0, world_size=2, data_rank=0, data_world_size=2)

    def all_reduce(self, flag: torch.Tensor, op: object, async_op: bool) -> "Ranks":
        assert op == dist.ReduceOp.MAX
        assert async_op
        self.calls.append(("begun", float(flag)))
        self._flag = flag.fill_(max(float(flag), float(self.other_came)))
        return self

    def wait(self) -> None:
        self.calls.append(("waited for", float(self._flag)))


def test_the_result_of_an_asynchronous_flag_is_read_one_call_later(monkeypatch: pytest.MonkeyPatch):
    ranks, stop = Ranks(monkeypatch), StopRequest()
    assert not stop.was_agreed(ranks.strategy)
    assert ranks.calls == [("begun", 0.0)], "nothing is waited for in the first call"
    assert not stop.was_agreed(ranks.strategy)
    ranks.other_came = True
    assert not stop.was_agreed(ranks.strategy)
    assert stop.was_agreed(ranks.strategy)
    assert ranks.calls[1:] == [
        ("waited for", 0.0),
        ("begun", 0.0),
        ("waited for", 0.0),
        ("begun", 0.0),
        ("waited for", 1.0),
    ]
    assert not stop.settle(), "after a yes nothing is left under way"


@pytest.mark.parametrize("came", [False, True])
def test_a_pending_reduction_is_settled_once(monkeypatch: pytest.MonkeyPatch, came: bool):
    ranks, stop = Ranks(monkeypatch), StopRequest()
    assert not stop.settle()
    ranks.other_came = came
    assert not stop.was_agreed(ranks.strategy)
    assert stop.settle() == came
    assert not stop.settle()
    assert [name for name, _ in ranks.calls] == ["begun", "waited for"]


@pytest.mark.parametrize(("signal_in", "ends_after", "num_steps"), [(3, 4, 9), (8, 9, 9), (9, 9, 9)])
def test_the_loop_of_several_ranks_stops_one_step_later_without_a_pending_reduction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, signal_in: int, ends_after: int, num_steps: int
):
    ranks = Ranks(monkeypatch)
    ranks.strategy.reduce = lambda value, op: value

    def steps() -> Iterator[list[Batch]]:
        for number, batches in enumerate(row_steps(num_steps), start=1):
            ranks.other_came = number >= signal_in
            yield batches

    bench = Bench(tmp_path, num_steps=num_steps, strategy=ranks.strategy, batches=steps())
    with raises_code("stopped.signal", "on another rank", step=ends_after):
        bench.run()
    assert bench.calls == [("save", ends_after, "signal")]
    names = [name for name, _ in ranks.calls]
    assert names.count("begun") == names.count("waited for") == signal_in


def test_one_process_needs_no_reduction(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch, "tensor", lambda *_: pytest.fail("a tensor"))
    stop = StopRequest()
    assert not stop.was_agreed(single())
    stop.signal = "SIGTERM"
    assert stop.was_agreed(single())
    assert stop.agreed(single())


def test_a_signal_before_a_wait_stops_the_run_at_the_wait(stop: StopRequest):
    with stop.ends_at_once("meeting"):
        pass
    os.kill(os.getpid(), signal.SIGTERM)  # after the wait it is noted, as ever
    with raises_code("stopped.signal", "SIGTERM", "meeting"):  # noqa: SIM117
        with stop.ends_at_once("meeting"):
            pytest.fail("it waited")
    assert signal.set_wakeup_fd(-1) == -1


WAITS = """
import ctypes
from paratune.batch import Batch
from paratune.engine.stop import StopRequest
stop = StopRequest().install()
libc, mutex = ctypes.CDLL(None), ctypes.create_string_buffer(64)
libc.pthread_mutex_lock(mutex)
with stop.ends_at_once("meeting"):
    print("waits", flush=True)
    libc.pthread_mutex_lock(mutex)  # for ever: no signal breaks it off, and Python calls no handler
"""


@pytest.mark.usefixtures("default_sighup")
@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_ends_a_process_that_waits_in_native_code(number: signal.Signals):
    process = subprocess.Popen([sys.executable, "-c", WAITS], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "waits\n"
        process.send_signal(number)
        _, printed = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == EXIT_STOPPED
    assert f"stopped by {number.name} while meeting, before the first step: there was nothing to save" in printed
