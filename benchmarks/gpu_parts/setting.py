"""The input of a part of the GPU checks, the result of a check, and functions to time calls."""

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

Figures = Mapping[str, Any]


class Wrong(AssertionError):
    """A check computed a wrong answer; `figures` has its values."""

    def __init__(self, message: str, figures: Figures | None = None) -> None:
        super().__init__(message)
        self.figures = dict(figures or {})


class Skipped(Exception):
    """A check does not apply to this machine; the message is the reason."""


@dataclass(frozen=True)
class Setting:
    """Device and sizes of a part."""

    device: torch.device
    tiny: bool
    """Small shapes and few steps: a rehearsal, whose durations mean nothing."""
    folder: Path
    """Folder of this part only; files may stay there."""
    tokenizer: Path
    """Folder of a tokenizer."""
    deadline: float
    """`time.time()` at which the part is killed."""
    packed_encoders: Path | None = None
    """Python of the environment of packed-encoders; None if there is none."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def left_s(self) -> float:
        """Return the seconds until the part is killed."""
        return self.deadline - time.time()

    def need(self, seconds: float) -> None:
        """Raise `Skipped` if a check needs more seconds than are left; a rehearsal does not check this."""
        if not self.tiny and self.left_s() < seconds:
            raise Skipped(f"needs {seconds:.0f} s, and only {self.left_s():.0f} s are left")

    def need_gpu(self, why: str) -> None:
        """Raise `Skipped` on a CPU."""
        if not self.on_gpu:
            raise Skipped(f"only on a GPU: {why}")


@dataclass(frozen=True)
class Check:
    """One check or measurement."""

    name: str
    run: Callable[[], Figures]
    """Returns figures; raises `Wrong`, `Skipped`, or another error."""
    table: str = ""
    """Heading of the table for rows with the same figures."""
    proves: bool = True
    """Whether there is a right answer; false for measurements. `tests/gpu` runs the checks with a right answer."""


def hold(condition: bool, message: str, figures: Figures) -> Figures:
    """Return the figures if the condition holds.

    Raises:
        Wrong: The condition does not hold.
    """
    if not condition:
        raise Wrong(message, figures)
    return figures


def wait(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed_s(act: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one call, by the host's clock, including its work on the device."""
    wait(device)
    begin = time.perf_counter()
    act()
    wait(device)
    return time.perf_counter() - begin


def durations_ms(act: Callable[[], Any], device: torch.device, *, repeats: int, warmup: int = 3) -> list[float]:
    """Return the milliseconds of each of several calls: CUDA events on a GPU, else the host's clock."""
    for _ in range(warmup):
        act()
    if device.type != "cuda":
        return [1000 * timed_s(act, device) for _ in range(repeats)]
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    wait(device)
    marks[0].record()
    for mark in marks[1:]:
        act()
        mark.record()
    wait(device)
    return [before.elapsed_time(after) for before, after in itertools.pairwise(marks)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return median, 10th and 90th percentile, and the number of values."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        "median": statistics.median(ordered),
        "p10": ordered[round(0.1 * last)],
        "p90": ordered[round(0.9 * last)],
        "num": len(ordered),
    }


def largest_difference(ours: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Return the largest difference of tensors on any devices, relative to each tensor's largest expected number.

    A tensor far below all others (a gradient that is 0 up to rounding) is compared with 1% of the largest number of all
    tensors. NaN stays NaN.
    """
    scales = [float(tensor.abs().max()) for tensor in expected]
    floor = 0.01 * max(scales)
    worst = torch.stack(
        [
            (a.detach().cpu().double() - b.detach().cpu().double()).abs().max() / max(scale, floor, 1e-300)
            for a, b, scale in zip(ours, expected, scales, strict=True)
        ]
    )
    return float(worst.max())
