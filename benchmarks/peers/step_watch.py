"""Times of a part of a training's steps, the same for all sides of `speed.py`: called after each step.

Nothing of paratune is imported here.
"""

import resource
import time
from typing import Any

import torch

NUM_PROFILED = 5
"""Steps whose kernels are traced, after the measured ones, on a GPU."""


class StepWatch:
    """Measures from the end of the last warm-up step to the end of the last measured one.

    Work between steps (fetching the batch, logging) is included. On a GPU, it waits for the ends.
    """

    def __init__(self, num_warmup_steps: int, num_steps: int) -> None:
        self._first, self._last = num_warmup_steps, num_warmup_steps + num_steps
        self._begin: tuple[float, float] | None = None
        self._profiler: Any = None
        self._profile_begin = 0.0
        self.times: dict[str, Any] = {}

    def after_step(self, step: int) -> None:
        """Record the end of a step, counted from 1."""
        if step == self._first:
            self._begin = now()
        elif step == self._last:
            assert self._begin is not None
            end = now()
            self.times = {"cpu_s": end[0] - self._begin[0], "wall_s": end[1] - self._begin[1]}
            if torch.cuda.is_available():
                self._start_profile()
        elif step == self._last + NUM_PROFILED and self._profiler is not None:
            self._end_profile()

    def _start_profile(self) -> None:
        self._profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA])
        self._profiler.start()
        self._profile_begin = now()[1]

    def _end_profile(self) -> None:
        wall_s = now()[1] - self._profile_begin
        self._profiler.stop()
        spans = [
            (event.time_range.start, event.time_range.end)
            for event in self._profiler.events()
            if event.device_type == torch.autograd.DeviceType.CUDA
        ]
        self.times["gpu_idle_share"] = max(0.0, 1 - covered(spans) / 1e6 / wall_s) if spans else None


def now() -> tuple[float, float]:
    """Return CPU seconds (user and system) of this process, and the wall clock, after the device has finished."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime, time.perf_counter()


def covered(spans: list[tuple[float, float]]) -> float:
    """Return the total length that intervals cover: kernels of several streams may overlap."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total
