"""How long a call takes, by the clock of the device that it runs on: the host's on a CPU, events on CUDA.

Three readings of the same call. On a CPU they are one and the same.

    device_s   the device alone: all work is queued before the device begins, so that launching does not show
    host_s     the host alone: until everything is in the queue
    wall_s     both, as a run sees it: from an idle device to an idle device
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Call = Callable[[], object]

REPEATS = 7
"""Of each measurement; the fastest counts, slower ones were disturbed (docs of Python's timeit): they are spread."""
LEAST_S = 0.015
"""A repeat is at least so long: many calls of what is short."""
_SLEEP_S = 0.02
"""The device sleeps so long while the host fills its queue; calls that take the host longer are not queued together."""
_FILLING_SHARE = 0.7
"""Of the sleep, what filling the queue may take."""
_MOST_QUEUED = 32
"""Calls behind one sleep. A queue takes about 1,024 kernels before launching waits; no call here has more than 30."""
_WARM_UP_S = 1.0
"""An idle GPU runs at a fraction of its clock (an H100 at 345 of 1,980 MHz) and needs work to reach it."""


@dataclass(frozen=True)
class CallSeconds:
    """Seconds of one call."""

    fastest_s: float
    median_s: float

    @staticmethod
    def of_times(times: Sequence[float]) -> "CallSeconds":
        """Return what repeats of a call took."""
        return CallSeconds(min(times), statistics.median(times))

    def without(self, other: "CallSeconds") -> "CallSeconds":
        """Return what is left without the fastest time of another call, a fifth at least: the machine may be busy."""
        return CallSeconds(*(max(0.2 * a, a - other.fastest_s) for a in (self.fastest_s, self.median_s)))

    @property
    def spread(self) -> float:
        """How much slower the median is than the fastest: 0 for none."""
        return self.median_s / self.fastest_s - 1


class CallClock(Protocol):
    """Times calls on one device; see the top of the module for the three readings."""

    def device_s(self, call: Call, calls: int) -> float:
        """Return the seconds of the device for so many calls."""
        ...

    def host_s(self, call: Call, calls: int) -> float:
        """Return the seconds of the host for so many calls, which the device may still be computing."""
        ...

    def wall_s(self, call: Call, calls: int) -> float:
        """Return the seconds until the device has computed so many calls."""
        ...

    def num_calls(self, call: Call) -> int:
        """Return how many calls make a measurement that is long enough."""
        ...


class HostCallClock:
    """The clock of a CPU, which computes a call before it returns."""

    def __init__(self, least_s: float = LEAST_S) -> None:
        self._least_s = least_s

    def wall_s(self, call: Call, calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - begin

    device_s = host_s = wall_s

    def num_calls(self, call: Call) -> int:
        return max(1, min(10_000, round(self._least_s / max(self.wall_s(call, 1), 1e-9))))


class EventClock:
    """The clock of a CUDA device: two events in its queue, with calls between them, behind a sleep of the device.

    Args:
        device: With an index, or the current one.
        align: Called behind the sleep and before the first event: a collective of all ranks that measure together, so
            that their devices begin at one time.
    """

    def __init__(self, device: torch.device, align: Call = lambda: None) -> None:
        self._device, self._align = device, align
        _warm_up(device)
        cycles = 10_000_000
        seconds = min(self._between_events(lambda: _sleep(cycles), 1) for _ in range(3))
        self._sleep_cycles = round(_SLEEP_S * cycles / seconds)

    def device_s(self, call: Call, calls: int) -> float:
        torch.cuda.synchronize(self._device)
        _sleep(self._sleep_cycles)
        self._align()
        return self._between_events(call, calls)

    def host_s(self, call: Call, calls: int) -> float:
        torch.cuda.synchronize(self._device)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        seconds = time.perf_counter() - begin
        torch.cuda.synchronize(self._device)
        return seconds

    def wall_s(self, call: Call, calls: int) -> float:
        torch.cuda.synchronize(self._device)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize(self._device)
        return time.perf_counter() - begin

    def num_calls(self, call: Call) -> int:
        wanted = round(LEAST_S / max(self.device_s(call, 1), 1e-9))
        fitting = int(_FILLING_SHARE * _SLEEP_S / max(self.host_s(call, 1), 1e-9))
        return max(1, min(wanted, fitting, _MOST_QUEUED))

    def _between_events(self, call: Call, calls: int) -> float:
        cuda: Any = torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()  # what it returns is let go of at once: it may be as large as memory allows
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def _sleep(cycles: int) -> None:
    """Queue a kernel that does nothing for so many cycles of the device's clock."""
    cuda: Any = torch.cuda
    cuda._sleep(cycles)


def _warm_up(device: torch.device) -> None:
    a = torch.ones(4096, 4096, device=device)
    begin = time.perf_counter()
    while time.perf_counter() - begin < _WARM_UP_S:
        torch.mm(a, a)
        torch.cuda.synchronize(device)


def measure(call: Call, clock: CallClock, repeats: int = REPEATS) -> CallSeconds:
    """Time what the device computes in a call."""
    call()
    calls = clock.num_calls(call)
    return CallSeconds.of_times([clock.device_s(call, calls) / calls for _ in range(repeats)])


def measure_wall(call: Call, clock: CallClock, repeats: int = REPEATS) -> CallSeconds:
    """Time a call from an idle device to an idle device: the host's part of it counts where the device waits for it."""
    call()
    calls = clock.num_calls(call)
    return CallSeconds.of_times([clock.wall_s(call, calls) / calls for _ in range(repeats)])


def measure_host(call: Call, clock: CallClock, repeats: int = REPEATS) -> CallSeconds:
    """Time what the host does in a call, with an empty queue at its begin: a full one would make it wait."""
    call()
    return CallSeconds.of_times([clock.host_s(call, 1) for _ in range(repeats)])


def captured(call: Call) -> Call:
    """Return the replay of a CUDA graph of a call, which has been made before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
