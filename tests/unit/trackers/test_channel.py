"""A tracker behind its queue: one that is slow, one that raises, one that hangs. The run never waits for any."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE_S

from paratune.trackers import session as module
from paratune.trackers.adapters import TrackedRun
from paratune.trackers.session import Channel, unfinished_trackers

ABOUT = TrackedRun("r", Path("runs/r"), 0, {})


class Told:
    """A tracker that notes what it is told, and does something before each call."""

    def __init__(self, **before: Callable[[], Any]) -> None:
        self._before = before
        self.calls: list[tuple[Any, ...]] = []

    def _note(self, name: str, *values: Any) -> None:
        self._before.get(name, lambda: None)()
        self.calls.append((name, *values))

    def start(self, about: TrackedRun) -> None:
        self._note("start", about.name)

    def log(self, step: int, time: float, values: Any) -> None:
        self._note("log", step)

    def log_summary(self, values: Any) -> None:
        self._note("result", values)

    def finish(self, status: str) -> None:
        self._note("finish", status)


def failing() -> None:
    raise ConnectionError("no route to host")


@pytest.fixture(autouse=True)
def _nothing_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_unfinished", [])


@pytest.fixture
def blocked() -> Iterator[threading.Event]:
    """Give what a call can wait for that hangs; it goes on when the test is over."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    monkeypatch.setattr(logging.getLogger("paratune"), "propagate", True)
    return lambda: [record.getMessage() for record in caplog.records]


def log(channel: Channel, step: int) -> None:
    channel.put(lambda tracker: tracker.log(step, 0.0, {}))


def end(channel: Channel, seconds: float = PATIENCE_S) -> float:
    channel.close("finished")
    begin = time.monotonic()
    channel.wait(begin + seconds)
    return time.monotonic() - begin


def test_calls_are_made_in_order(said):
    received = Told()
    channel = Channel("t", received, ABOUT)
    for step in (1, 2, 3):
        log(channel, step)
    channel.put(lambda tracker: tracker.log_summary({"a": 1.0}))
    end(channel)
    assert received.calls == [
        ("start", "r"), ("log", 1), ("log", 2), ("log", 3), ("result", {"a": 1.0}), ("finish", "finished"),
    ]  # fmt: skip
    assert said() == []
    assert unfinished_trackers() == []


def test_a_slow_tracker_does_not_block_and_drops_are_counted(said, blocked: threading.Event):
    at_work = threading.Event()
    received = Told(log=lambda: (at_work.set(), blocked.wait()))
    channel = Channel("slow", received, ABOUT, size=5)
    log(channel, 1)
    at_work.wait()
    for step in range(2, 101):  # were one waited for, this would not end
        log(channel, step)
    blocked.set()
    end(channel)
    # One that it is at and five that wait, beside its start and its end.
    assert channel.num_dropped == 94
    assert len(received.calls) == 2 + 6
    assert "94 of 100" in said()[0]


@pytest.mark.parametrize("call", ["start", "log", "result", "finish"])
def test_an_exception_is_logged_once_and_switches_the_tracker_off(said, call: str):
    received = Told(**{call: failing})
    channel = Channel("t", received, ABOUT)
    for step in range(1, 20):
        log(channel, step)
    channel.put(lambda tracker: tracker.log_summary({}))
    end(channel)
    assert said() == ["trackers.t is switched off, the run continues without it: ConnectionError: no route to host"]
    assert unfinished_trackers() == []
    if call != "finish":
        assert "finish" not in [name for name, *_ in received.calls]


def test_a_tracker_that_raises_system_exit_is_switched_off(said):
    def leaving() -> None:
        raise SystemExit(1)

    end(Channel("t", Told(start=leaving), ABOUT))
    assert said() == ["trackers.t is switched off, the run continues without it: SystemExit: 1"]


@pytest.mark.parametrize("call", ["start", "log", "finish"])
def test_a_hanging_tracker_is_unfinished_at_the_deadline(said, blocked: threading.Event, call: str):
    at_work = threading.Event()
    channel = Channel("stuck", Told(**{call: lambda: (at_work.set(), blocked.wait())}), ABOUT)
    for step in range(1, 11):
        log(channel, step)
    if call == "finish":
        channel.close("finished")
    at_work.wait()
    assert 0.19 <= end(channel, 0.2) < PATIENCE_S
    assert unfinished_trackers() == ["stuck"]
    (line,) = said()
    num_lost = {"start": "10", "log": "9", "finish": ""}[call]
    assert line.startswith("trackers.stuck: ")
    assert num_lost in line


def test_a_late_failure_is_not_logged(said, blocked: threading.Event):
    def late() -> None:
        blocked.wait()
        failing()

    channel = Channel("stuck", Told(finish=late), ABOUT)
    end(channel, 0.1)
    blocked.set()
    channel._thread.join(PATIENCE_S)
    assert len(said()) == 1
