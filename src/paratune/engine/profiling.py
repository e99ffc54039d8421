"""A few steps under torch.profiler: which operators and kernels take the time, and how long collectives run, of which a
part hides behind computing.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from paratune.engine.operators import operator_values, totals_of, write_trace
from paratune.engine.recorder import Recorder
from paratune.metrics.intervals import Interval, intersection, length, union

_WINDOW = "paratune.profiled"


@dataclass(frozen=True)
class ProfiledOperation:
    """What the profiler saw of one operation or kernel, in microseconds."""

    name: str
    begin: float
    end: float
    on_device: bool
    """Whether it is a kernel, and not a call of the host."""
    is_mark: bool = False
    """Whether it only marks a range, in which anything may happen."""


class StepProfiler:
    """Profiles the first `num_steps` steps behind the warm-up, fewer where something comes between them."""

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
        """Profile steps of this session; 0 steps profile nothing.

        Args:
            device: Of this rank.
            num_steps: Steps that are profiled at most.
            warmup_steps: Steps before them.
            folder: Of the run, for the trace.
            rank: This one.
            exchanges: Whether there are other ranks to exchange data with.
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
        """Begin to profile if the next step is the first to be profiled; say whether it is.

        Args:
            recorder: Of the run, which is told so.
        """
        if self.is_running or self._steps_left == 0 or self._steps_before > 0:
            self._steps_before -= 1
            return False
        recorder.pause()
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it would say on stderr that it began
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
        """Count a step, if it was profiled; say whether enough have been."""
        if self.is_running:
            self._num_steps += 1
            self._steps_left -= 1
        return self.is_running and self._steps_left == 0

    def stop(self, recorder: Recorder, step: int) -> None:
        """End the profile, if one runs, and write what it saw into this rank's event log.

        Args:
            recorder: Of the run.
            step: The last one that was profiled.
        """
        if not self.is_running:
            return
        self._wait_for_device()
        self.is_running, self._steps_left = False, 0
        self._running.close()
        recorder.add("profile", step=step, num_steps=self._num_steps, **self._values())
        del self._profile  # with all of its events

    def _values(self) -> dict[str, Any]:
        """Return what was seen, and write the trace."""
        kind: Literal["nccl", "gloo"] = "nccl" if self._device.type == "cuda" else "gloo"
        spans = _spans(self._profile)
        exchange = exchanged(spans, kind)
        if not self._exchanges:
            exchange |= {"communication_ms": None, "exposed_ms": None}
        operators = operator_values(
            totals_of(self._profile),
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
    """Return, in ms, the time that was profiled, the part with a collective, and that of it without computing.

    NCCL's collectives are kernels, and all other kernels are computing; copies are neither. Those of gloo run in
    threads of their own, where PyTorch marks them; operations of PyTorch in any thread are computing.

    Args:
        spans: Of one rank, with the mark that is around all profiled steps.
        kind: Which library sends.
    """
    window = _window(spans)
    if kind == "nccl":
        kernels = [span for span in spans if span.on_device and not span.is_mark]
        if not kernels:  # no access to the GPU's counters, or another profiler has them
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
    """Return `communication` of a summary (see docs/records.md): totals over totals of all ranks.

    Args:
        profiles: The last `profile` event of each rank of the session, if it has one.
        reason: Why there is none, where that is known.
    """
    all_ranks = [each for each in profiles if each["kind"] is not None]
    found = [each for each in all_ranks if each["communication_ms"] is not None]
    wall_ms = sum(each["wall_ms"] for each in found)
    if len(found) < len(all_ranks):
        reason = "the profiler saw no kernel of a GPU on some ranks"
    if not found or wall_ms <= 0 or len(found) < len(all_ranks):
        unknown = dict.fromkeys(("share", "exposed_share", "time_ms_per_step", "num_steps", "kind"))
        return {**unknown, "reason": reason or "the session ended before a step behind the warm-up was profiled"}
    sent_ms, exposed_ms = (sum(each[name] for each in found) for name in ("communication_ms", "exposed_ms"))
    return {
        "share": sent_ms / wall_ms,
        "exposed_share": exposed_ms / wall_ms,
        "time_ms_per_step": sent_ms / sum(each["num_steps"] for each in found),
        "num_steps": min(each["num_steps"] for each in found),
        "kind": found[0]["kind"],
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
