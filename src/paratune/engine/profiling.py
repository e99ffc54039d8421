"""Profiles a few steps with torch.profiler: times of operators, kernels and collectives.

The time of collectives is measured in total, and without the part that overlaps with computation.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from paratune.engine.operators import NOTHING_PROFILED, operator_totals, operator_values, write_trace
from paratune.engine.recorder import Recorder
from paratune.metrics.intervals import Interval, intersection, length, union

_WINDOW = "paratune.profiled"


@dataclass(frozen=True)
class ProfiledOperation:
    """One operation or kernel in a profile; times in microseconds."""

    name: str
    begin: float
    end: float
    on_device: bool
    """True for a kernel, False for a call on the host."""
    is_mark: bool = False
    """Whether it only marks a range of time."""


class StepProfiler:
    """Profiles the first `num_steps` steps after the warm-up; fewer if an evaluation or a checkpoint comes between."""

    def __init__(
        self,
        device: torch.device,
        num_steps: int,
        *,
        warmup_steps: int,
        folder: Path,
        rank: int = 0,
        exchanges: bool = False,
    ) -> None:
        """Create the profiler of a session.

        `num_steps` may be 0, which profiles nothing; `exchanges` is whether there are collectives with other ranks.
        """
        self._device = device
        self._folder, self._rank, self._exchanges = folder, rank, exchanges
        self._steps_left = num_steps
        self._steps_before = warmup_steps
        self._num_steps = 0
        self._running: ExitStack
        self._profile: profile
        self.is_running = False

    def begin_step(self, recorder: Recorder) -> bool:
        """Start the profiler if the next step is the first one to profile; return whether it was started."""
        if self.is_running or self._steps_left == 0 or self._steps_before > 0:
            self._steps_before -= 1
            return False
        recorder.pause()
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # without it Kineto prints messages to stderr
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._running = ExitStack()
        # There is one cycle, so nothing accumulates; without acc_events PyTorch 2.11 warns that it drops other cycles.
        self._profile = self._running.enter_context(profile(activities=activities, acc_events=True))
        self._wait_for_device()
        self._running.enter_context(record_function(_WINDOW))
        self.is_running = True
        recorder.resume(is_profiled=True)
        return True

    def end_step(self) -> bool:
        """Count a profiled step; return whether all steps are profiled."""
        if self.is_running:
            self._num_steps += 1
            self._steps_left -= 1
        return self.is_running and self._steps_left == 0

    def stop(self, recorder: Recorder, step: int) -> None:
        """Stop the profiler, if it runs, and write the results into this rank's event log, with the last step."""
        if not self.is_running:
            return
        self._wait_for_device()
        self.is_running, self._steps_left = False, 0
        self._running.close()
        recorder.add("profile", step=step, num_steps=self._num_steps, **self._values())
        del self._profile  # its events need much memory

    def _values(self) -> dict[str, Any]:
        """Return the fields of the event, and write the trace."""
        kind: Literal["nccl", "gloo"] = "nccl" if self._device.type == "cuda" else "gloo"
        spans = _spans(self._profile)
        exchange = exchanged(spans, kind)
        if not self._exchanges:
            exchange |= {"communication_ms": None, "exposed_ms": None}
        operators = operator_values(
            operator_totals(self._profile),
            window=_window(spans),
            host=[(span.begin, span.end) for span in spans if not (span.on_device or span.is_mark)],
            kernels=[(span.begin, span.end) for span in spans if span.on_device and not span.is_mark],
            has_device=self._device.type == "cuda",
        )
        trace = write_trace(self._profile, self._folder, self._rank)
        return {"kind": kind if self._exchanges else None, **exchange, **operators, "trace": trace}

    def _wait_for_device(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def exchanged(spans: Sequence[ProfiledOperation], kind: Literal["nccl", "gloo"]) -> dict[str, float | None]:
    """Return, in ms, the profiled time, the part with a collective, and the part with a collective but no computation.

    NCCL's collectives are kernels; all other kernels are computation, and copies are neither. Gloo's collectives run in
    their own threads, where PyTorch marks them; PyTorch's operations in any thread are computation. `spans` has the
    mark around all profiled steps.
    """
    window = _window(spans)
    if kind == "nccl":
        kernels = [span for span in spans if span.on_device and not span.is_mark]
        if not kernels:  # no access to the GPU's counters, or another profiler uses them
            return {"wall_ms": length(window) / 1000, "communication_ms": None, "exposed_ms": None}
        sent = _times(span for span in kernels if span.name.startswith("nccl"))
        computed = _times(span for span in kernels if not span.name.startswith(("nccl", "Memcpy", "Memset")))
    else:
        sent = _times(span for span in spans if span.name.startswith("gloo:"))
        computed = _times(span for span in spans if span.name.startswith("aten::"))
    sent = intersection(sent, window)
    hidden = intersection(sent, computed)
    return {
        "wall_ms": length(window) / 1000,
        "communication_ms": length(sent) / 1000,
        "exposed_ms": (length(sent) - length(hidden)) / 1000,
    }


def communication(profiles: Iterable[Mapping[str, Any]], reason: str | None) -> dict[str, Any]:
    """Return `communication` of a summary (see docs/reference/records.md): ratios of the totals of all ranks.

    `profiles` has the last event of each rank.
    """
    events = [event for event in profiles if event["kind"] is not None]
    measured = [event for event in events if event["communication_ms"] is not None]
    wall_ms = sum(event["wall_ms"] for event in measured)
    if len(measured) < len(events):
        reason = "the profiler saw no kernel of a GPU on some ranks"
    if not measured or wall_ms <= 0 or len(measured) < len(events):
        unknown = dict.fromkeys(("share", "exposed_share", "time_ms_per_step", "num_steps", "kind"))
        return {**unknown, "reason": reason or NOTHING_PROFILED}
    sent_ms, exposed_ms = (sum(event[name] for event in measured) for name in ("communication_ms", "exposed_ms"))
    return {
        "share": sent_ms / wall_ms,
        "exposed_share": exposed_ms / wall_ms,
        "time_ms_per_step": sent_ms / sum(event["num_steps"] for event in measured),
        "num_steps": min(event["num_steps"] for event in measured),
        "kind": measured[0]["kind"],
        "reason": None,
    }


def _window(spans: Sequence[ProfiledOperation]) -> list[Interval]:
    return union((span.begin, span.end) for span in spans if span.name == _WINDOW and not span.on_device)


def _times(spans: Iterable[ProfiledOperation]) -> list[Interval]:
    return union((span.begin, span.end) for span in spans)


def _spans(profiled: profile) -> list[ProfiledOperation]:
    return [
        ProfiledOperation(
            event.name,
            event.time_range.start,
            event.time_range.end,
            event.device_type.name != "CPU",
            event.is_user_annotation,
        )
        for event in profiled.events() or ()  # type: ignore[no-untyped-call]
    ]
