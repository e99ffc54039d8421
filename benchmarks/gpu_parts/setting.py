"""What a part of the GPU proofs is given, what a check returns, and how durations are taken."""

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
    """A check computed an answer that is not the right one; `figures` are what it found."""

    def __init__(self, message: str, figures: Figures | None = None) -> None:
        super().__init__(message)
        self.figures = dict(figures or {})


class Skipped(Exception):
    """A check has nothing to try on this machine; the message is the reason."""


@dataclass(frozen=True)
class Setting:
    """Where and how large a part computes."""

    device: torch.device
    tiny: bool
    """Small shapes and few steps: a rehearsal, whose durations mean nothing."""
    folder: Path
    """Of this part alone; files may be left there."""
    tokenizer: Path
    """Folder of a tokenizer."""
    deadline: float
    """`time.time()` at which the part is killed."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def left_s(self) -> float:
        """Return the seconds until the part is killed."""
        return self.deadline - time.time()

    def need(self, seconds: float) -> None:
        """Raise `Skipped` if fewer seconds are left than a check needs; a rehearsal needs none."""
        if not self.tiny and self.left_s() < seconds:
            raise Skipped(f"needs {seconds:.0f} s, and {self.left_s():.0f} s are left")

    def need_gpu(self, why: str) -> None:
        """Raise `Skipped` on a CPU."""
        if not self.on_gpu:
            raise Skipped(f"only on a GPU: {why}")


@dataclass(frozen=True)
class Check:
    """One thing that is tried."""

    name: str
    run: Callable[[], Figures]
    """Returns figures; raises `Wrong`, `Skipped`, or whatever went wrong."""
    table: str = ""
    """Heading under which rows with the same figures stand in one table."""
    proves: bool = True
    """Whether there is a right answer; false for what is only measured. `tests/gpu` runs those that prove."""


def hold(condition: bool, message: str, figures: Figures) -> Figures:
    """Return the figures if the condition holds.

    Raises:
        Wrong: It does not.
    """
    if not condition:
        raise Wrong(message, figures)
    return figures


def wait(device: torch.device) -> None:
    """Wait until the device has done its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed_s(act: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one call, by the host's clock, with its work on the device."""
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
    """Return the largest difference of tensors on any devices, each as a share of its largest expected number.

    What is far below all others (a gradient that is 0 but for rounding) is not compared with itself, but with 1% of
    the largest number of all. NaN stays NaN.
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
