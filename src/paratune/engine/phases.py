"""Clocks of the training loop: the time of each phase of a step, and the rest of the step.

Two clocks have one interface. On a CPU the work is finished when a call returns, so the host's clock is right. On a GPU
the host is ahead of the device: CUDA events are recorded in the stream and read later, so that a measurement never
waits for the device inside a step. docs/explanation/measuring.md explains the figures.
"""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

import torch

from paratune.processes.progress import RankProgress
from paratune.records import PHASES

SCHEDULE = "schedule"
"""The name with which a pipeline measures all its passes together; see `PhaseClock`."""


@dataclass(frozen=True)
class StepTimes:
    """Times of one step in milliseconds; `phases_ms` has the four phases and `other`, whose sum is `wall_ms`."""

    phases_ms: dict[str, float]
    wall_ms: float
    get_batch_host_ms: float
    """The host's whole time in get_batch, including the part in which the device was busy."""
    schedule_ms: float | None = None
    """Time from the first forward pass to the last backward pass of all stages of a pipeline; None without one."""
    bubble_ms: float | None = None
    """The part of `schedule_ms` in which this rank computed nothing: it sent, received or waited."""


class PhaseClock(Protocol):
    """`with clock("forward"): ...` inside a step; `end_step` closes it."""

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        """Add the time of the block to `phase`, which may be entered many times in a step.

        `schedule` is not a phase: it contains the forward and backward passes of a pipeline and the time between them.
        """
        ...

    def restart(self) -> None:
        """Start a step now, so that the time before (an evaluation, a checkpoint) is not part of it."""
        ...

    def end_step(self) -> None:
        """End the step; the next one begins."""
        ...

    def take(self, num_steps: int | None = None) -> list[StepTimes]:
        """Return the steps since the last call, or only the first `num_steps` of them; waits until they have ended."""
        ...


class HostPhaseClock:
    """Measures phases with the host's monotonic clock, for synchronous devices."""

    def __init__(self) -> None:
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._schedule: tuple[float, float] | None = None
        self._ended: list[StepTimes] = []
        self._begin = time.perf_counter()

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        return self._time_schedule() if phase == SCHEDULE else _HostPhase(self._spent, phase)

    @contextmanager
    def _time_schedule(self) -> Iterator[None]:
        begin, busy = time.perf_counter(), sum(self._spent.values())
        try:
            yield
        finally:
            seconds = time.perf_counter() - begin
            self._schedule = seconds, seconds - (sum(self._spent.values()) - busy)

    def restart(self) -> None:
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._schedule = None
        self._begin = time.perf_counter()

    def end_step(self) -> None:
        now = time.perf_counter()
        phases_ms = {name: 1000 * seconds for name, seconds in self._spent.items()}
        wall_ms = 1000 * (now - self._begin)
        schedule_ms, bubble_ms = (None, None) if self._schedule is None else (1000 * s for s in self._schedule)
        self._ended.append(_with_other(phases_ms, wall_ms, phases_ms["get_batch"], schedule_ms, bubble_ms))
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._schedule = None
        self._begin = now

    def take(self, num_steps: int | None = None) -> list[StepTimes]:
        taken = self._ended[:num_steps]
        del self._ended[:num_steps]
        return taken


class _HostPhase(AbstractContextManager[None]):
    """Adds the time of a block to the seconds of a phase. A class, because a generator takes twice as long."""

    __slots__ = ("_begin", "_phase", "_spent")

    def __init__(self, spent: dict[str, float], phase: str) -> None:
        self._spent, self._phase = spent, phase

    def __enter__(self) -> None:
        self._begin = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._spent[self._phase] += time.perf_counter() - self._begin


@dataclass
class _CudaStep:
    """The events of one step that were recorded in the stream."""

    begin: torch.cuda.Event
    end: torch.cuda.Event | None = None
    intervals: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = field(default_factory=list)
    schedule: tuple[torch.cuda.Event, torch.cuda.Event, range] | None = None
    """Begin, end, and the indices of the intervals in between."""
    get_batch_host_s: float = 0.0


class CudaClock:
    """Measures phases with CUDA events; `get_batch` is the part of the host's time in which the device was idle."""

    def __init__(self) -> None:
        self._step = _CudaStep(_event())
        self._pending: list[_CudaStep] = []

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        if phase == "get_batch":
            host_begin = time.perf_counter()
            try:
                yield
            finally:
                self._step.get_batch_host_s += time.perf_counter() - host_begin
            return
        begin, first = _event(), len(self._step.intervals)
        try:
            yield
        finally:
            if phase == SCHEDULE:
                self._step.schedule = begin, _event(), range(first, len(self._step.intervals))
            else:
                self._step.intervals.append((phase, begin, _event()))

    def restart(self) -> None:
        self._step = _CudaStep(_event())

    def end_step(self) -> None:
        end = _event()
        self._step.end = end
        self._pending.append(self._step)
        self._step = _CudaStep(end)

    def take(self, num_steps: int | None = None) -> list[StepTimes]:
        taken = self._pending[:num_steps]
        del self._pending[:num_steps]
        if taken:
            assert taken[-1].end is not None
            taken[-1].end.synchronize()
        return [_read(step) for step in taken]


class WatchedClock:
    """A clock that also reports the current phase to the hang watchdog."""

    def __init__(self, clock: PhaseClock, progress: RankProgress) -> None:
        self._clock, self._progress = clock, progress

    def __call__(self, phase: str) -> AbstractContextManager[None]:
        return _WatchedPhase(self._progress, self._clock(phase), phase)

    def restart(self) -> None:
        self._clock.restart()

    def end_step(self) -> None:
        self._clock.end_step()

    def take(self, num_steps: int | None = None) -> list[StepTimes]:
        return self._clock.take(num_steps)


class _WatchedPhase(AbstractContextManager[None]):
    """Measures a block, and reports its phase."""

    __slots__ = ("_before", "_phase", "_progress", "_timed")

    def __init__(self, progress: RankProgress, timed: AbstractContextManager[None], phase: str) -> None:
        self._progress, self._timed, self._phase = progress, timed, phase

    def __enter__(self) -> None:
        self._before = self._progress.phase
        self._progress.enter_phase(self._phase)
        self._timed.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._timed.__exit__(kind, error, trace)
        finally:
            self._progress.enter_phase(self._before)


def make_clock(device: torch.device) -> PhaseClock:
    """Return the clock for `device`."""
    return CudaClock() if device.type == "cuda" else HostPhaseClock()


def _event() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _read(step: _CudaStep) -> StepTimes:
    """Return the times of a step; get_batch is the device's idle time before the first phase, at most the host's."""
    assert step.end is not None
    phases_ms = dict.fromkeys(PHASES, 0.0)
    for phase, begin, end in step.intervals:
        phases_ms[phase] += begin.elapsed_time(end)
    wall_ms = step.begin.elapsed_time(step.end)
    host_ms = 1000 * step.get_batch_host_s
    idle_ms = step.begin.elapsed_time(step.intervals[0][1]) if step.intervals else wall_ms
    phases_ms["get_batch"] = min(host_ms, idle_ms)
    schedule_ms, bubble_ms = None, None
    if step.schedule is not None:
        begin, end, indices = step.schedule
        schedule_ms = begin.elapsed_time(end)
        busy = (step.intervals[index] for index in indices)
        bubble_ms = schedule_ms - sum(pass_begin.elapsed_time(pass_end) for _, pass_begin, pass_end in busy)
    return _with_other(phases_ms, wall_ms, host_ms, schedule_ms, bubble_ms)


def _with_other(
    phases_ms: dict[str, float],
    wall_ms: float,
    get_batch_host_ms: float,
    schedule_ms: float | None,
    bubble_ms: float | None,
) -> StepTimes:
    other = max(0.0, wall_ms - sum(phases_ms.values()))
    return StepTimes({**phases_ms, "other": other}, wall_ms, get_batch_host_ms, schedule_ms, bubble_ms)
