"""Times calls: with the host's clock on a CPU, with events on CUDA.

There are three times of a call, which are equal on a CPU:

    device_s   the device only: all work is queued before the device starts, so that launching takes no time
    host_s     the host only: until everything is in the queue
    wall_s     both, as in a run: from an idle device to an idle device
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

Call = Callable[[], object]

REPEATS = 7
"""Repeats of each measurement. The fastest is the value: the others were disturbed (see Python's timeit); the median
gives the spread."""
MIN_REPEAT_S = 0.015
"""Shortest duration of a repeat; short calls are made several times."""
_SLEEP_S = 0.02
"""The device sleeps for this time while the host fills its queue."""
_MAX_FILLING_SHARE = 0.7
"""Largest share of the sleep in which the host fills the queue."""
_MAX_QUEUED = 32
"""Most calls after one sleep. A queue has space for about 1,024 kernels before launching waits; calls have up to 30."""
_WARM_UP_S = 1.0
"""Duration of the warm-up: an idle GPU runs at a fraction of its clock rate (an H100 at 345 of 1,980 MHz)."""


@dataclass(frozen=True)
class CallSeconds:
    """Seconds of one call."""

    fastest_s: float
    median_s: float

    @staticmethod
    def of_times(times: Sequence[float]) -> "CallSeconds":
        """Return fastest and median of the repeats of a call."""
        return CallSeconds(min(times), statistics.median(times))

    def without(self, other: "CallSeconds") -> "CallSeconds":
        """Return the times minus the fastest time of another call, but at least a fifth: the machine may be busy."""
        return CallSeconds(*(max(0.2 * a, a - other.fastest_s) for a in (self.fastest_s, self.median_s)))

    @property
    def spread(self) -> float:
        """How much slower the median is than the fastest: 0 for none."""
        return self.median_s / self.fastest_s - 1


class CallClock(Protocol):
    """Times calls on one device; the top of the module explains the three times."""

    def device_s(self, call: Call, calls: int) -> float:
        """Return the seconds of the device for `calls` calls."""
        ...

    def host_s(self, call: Call, calls: int) -> float:
        """Return the seconds of the host for `calls` calls; the device may not have finished."""
        ...

    def wall_s(self, call: Call, calls: int) -> float:
        """Return the seconds until the device has finished `calls` calls."""
        ...

    def num_calls(self, call: Call) -> int:
        """Return the number of calls for a measurement that is long enough."""
        ...


class HostCallClock:
    """The clock of a CPU, which computes a call before it returns."""

    def __init__(self, min_repeat_s: float = MIN_REPEAT_S) -> None:
        self._min_repeat_s = min_repeat_s

    def wall_s(self, call: Call, calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        return time.perf_counter() - begin

    device_s = host_s = wall_s

    def num_calls(self, call: Call) -> int:
        return max(1, min(10_000, round(self._min_repeat_s / max(self.wall_s(call, 1), 1e-9))))


class EventClock:
    """The clock of a CUDA device: a sleep is queued, then an event, the calls, and a second event.

    Args:
        device: With an index, or the current one.
        align: Called after the sleep and before the first event. Ranks that measure together pass a collective here,
            so that their devices start at the same time.
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
        return self._host_and_wall_s(call, calls)[0]

    def wall_s(self, call: Call, calls: int) -> float:
        return self._host_and_wall_s(call, calls)[1]

    def _host_and_wall_s(self, call: Call, calls: int) -> tuple[float, float]:
        torch.cuda.synchronize(self._device)
        begin = time.perf_counter()
        for _ in range(calls):
            call()
        host_s = time.perf_counter() - begin
        torch.cuda.synchronize(self._device)
        return host_s, time.perf_counter() - begin

    def num_calls(self, call: Call) -> int:
        wanted_calls = round(MIN_REPEAT_S / max(self.device_s(call, 1), 1e-9))
        fitting_calls = int(_MAX_FILLING_SHARE * _SLEEP_S / max(self.host_s(call, 1), 1e-9))
        return max(1, min(wanted_calls, fitting_calls, _MAX_QUEUED))

    def _between_events(self, call: Call, calls: int) -> float:
        cuda: Any = torch.cuda
        begin, end = (cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(calls):
            call()  # its result is released at once: it may fill the memory
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000


def _sleep(cycles: int) -> None:
    """Queue a kernel that waits for a number of cycles of the device's clock."""
    cuda: Any = torch.cuda
    cuda._sleep(cycles)


def _warm_up(device: torch.device) -> None:
    a = torch.ones(4096, 4096, device=device)
    begin = time.perf_counter()
    while time.perf_counter() - begin < _WARM_UP_S:
        torch.mm(a, a)
        torch.cuda.synchronize(device)


def measure(call: Call, clock: CallClock, repeats: int = REPEATS) -> CallSeconds:
    """Time a call on the device."""
    return _measure(clock.device_s, call, clock, repeats)


def measure_wall(call: Call, clock: CallClock, repeats: int = REPEATS) -> CallSeconds:
    """Time a call from an idle device to an idle device, including the host's work that the device waits for."""
    return _measure(clock.wall_s, call, clock, repeats)


def _measure(seconds: Callable[[Call, int], float], call: Call, clock: CallClock, repeats: int) -> CallSeconds:
    call()
    calls = clock.num_calls(call)
    return CallSeconds.of_times([seconds(call, calls) / calls for _ in range(repeats)])


def measure_host(call: Call, clock: CallClock, repeats: int = REPEATS) -> CallSeconds:
    """Time the host in a call, starting with an empty queue: with a full one the host would wait."""
    call()
    return CallSeconds.of_times([clock.host_s(call, 1) for _ in range(repeats)])


def captured(call: Call) -> Call:
    """Return a function that replays the CUDA graph of a call; the call must have been made before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay
