import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch
from looping import single

from paratune.engine.stop import SIGNALS, StopRequest
from paratune.errors import EXIT_STOPPED, Stopped
from paratune.strategies.protocol import Layout


@pytest.fixture
def stop() -> Iterator[StopRequest]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield StopRequest().install()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
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
    assert f"{number.name}: stopping after this step" in capfd.readouterr().err
    with pytest.raises(Stopped, match=f"stopped by {number.name} while tokenizing") as caught:
        stop.raise_if_came("tokenizing")
    assert caught.value.exit_code == EXIT_STOPPED == 75


def test_a_second_interrupt_ends_at_once(stop: StopRequest):
    os.kill(os.getpid(), signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_signal_that_a_launcher_held_back_is_delivered():
    before = {number: signal.getsignal(number) for number in SIGNALS}
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        # To this thread, which is the one that blocks it; a signal to the process would find another.
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)
        stop = StopRequest().install()
        assert stop.signal == "SIGTERM"
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


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
