"""The training loop on a device: waits, kernels and host time of a step, and a check of the phase clock."""

import itertools
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch

from paratune.engine.phases import make_clock

from .setting import Check, Figures, Setting, hold, spread, wait
from .texts import CASES, Case, of_setting, write_config
from .training import train_here

SYNC_MESSAGE = "called a synchronizing CUDA operation"
"""Text of the warning that PyTorch gives with `torch.cuda.set_sync_debug_mode("warn")`."""
FIRST, LAST = 6, 16
"""Measured steps: after the first one, up to the end of the last one."""
LAYOUTS = (("packed", "bf16", 0.2), ("padded", "bf16", 0.2), ("packed", "fp16", 1.2))
"""Layout, precision, allowed waits per step: the log is written at intervals, and fp16 checks for overflow."""


def checks(setting: Setting) -> Iterator[Check]:
    """Yield waits, the clock, kernels and host time."""
    for layout, precision, allowed in LAYOUTS if setting.on_gpu else [("packed", "fp32", 1.2)]:
        run = partial(waits, setting, layout, precision, allowed)
        yield Check(f"{layout}, {precision}", run, "Waits of the host a step")
    yield Check("clock of the phases", partial(clock, setting))
    for number, case in enumerate(CASES[:3]):
        yield Check(
            f"{number + 1}. {case.label}", partial(kernels, setting, case), "Kernels of packed steps", proves=False
        )
    yield Check("a row of 8 tokens", partial(host_time, setting), "Host time of a step", proves=False)


def waits(setting: Setting, layout: str, precision: str, allowed: float) -> Figures:
    """Count the warnings about waits in ten steps of a training; on a CPU each step has one artificial wait."""
    case = of_setting(CASES[0], setting)
    path = write_config(case, setting, f"waits-{layout}-{precision}", num_rows=256, num_steps=LAST + 2, measure=PROBE)

    def on_step(step: int) -> None:
        if not setting.on_gpu and FIRST < step <= LAST:
            warnings.warn(SYNC_MESSAGE, stacklevel=2)
        if setting.on_gpu and step in (FIRST, LAST):
            torch.cuda.set_sync_debug_mode("warn" if step == FIRST else "default")

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            train_here(path, f"batch.layout={layout}", f"precision={precision}", on_step=on_step)
        finally:
            if setting.on_gpu:
                torch.cuda.set_sync_debug_mode("default")
    figures = count_waits(caught, LAST - FIRST)
    return hold(figures["waits_per_step"] <= allowed, f"more than {allowed} waits per step", figures)


def count_waits(caught: Sequence[warnings.WarningMessage], num_steps: int) -> dict[str, Any]:
    """Return the waits per step, and their Python lines, the most frequent first."""
    lines = Counter(
        f"{'/'.join(message.filename.split('/')[-3:])}:{message.lineno}"
        for message in caught
        if SYNC_MESSAGE in str(message.message)
    )
    places = ", ".join(f"{line} x {count}" for line, count in lines.most_common(5))
    return {"waits_per_step": lines.total() / num_steps, "places": places or None}


PROBE = {"probe": True}


def clock(setting: Setting) -> Figures:
    """Add delays to the phases of three steps, and compare the clock with an outer one that waits for the device.

    In the third step the host is slow to get the batch while the device is still busy: the device is then never idle.
    """
    delay_ms = 20 if setting.tiny else 60
    ours, outer, planted = make_clock(setting.device), [], []
    _delay(setting, 5.0)
    wait(setting.device)
    ours.restart()
    begin = time.perf_counter()
    for step in range(3):
        delays = {}
        with ours("get_batch"):
            delays["get_batch"] = _sleep_ms(delay_ms)
        for phase, share in (("forward", 1.0), ("backward", 2.0), ("optimizer", 0.5)):
            with ours(phase):
                delays[phase] = _delay(setting, share * delay_ms)
        if step != 1:  # before the third step the device is still busy
            wait(setting.device)
        ours.end_step()
        planted.append(delays)
        if step != 1:
            now = time.perf_counter()
            outer.append(1000 * (now - begin))
            begin = now
    taken = ours.take()
    first = {name: taken[0].phases_ms[name] / planted[0][name] for name in planted[0]}
    sums = [taken[0].wall_ms / outer[0], (taken[1].wall_ms + taken[2].wall_ms) / outer[1]]
    overlapped = taken[2].phases_ms["get_batch"] / planted[2]["get_batch"]
    figures = {**{f"{name} of planted": share for name, share in first.items()}, "wall of outer": sums}
    figures["get_batch while the device works"] = overlapped
    slack = 0.5 if setting.tiny else 0.1
    right = all(1 - slack / 2 <= share <= 1 + slack for share in [*first.values(), *sums])
    # On a CPU nothing overlaps: get_batch then has the whole delay.
    right = right and (overlapped <= 0.1 if setting.on_gpu else overlapped >= 0.9)
    return hold(right, "the clock's phases differ from the added delays", figures)


def _sleep_ms(milliseconds: float) -> float:
    """Sleep, and return the real duration: on a busy machine it is longer."""
    begin = time.perf_counter()
    time.sleep(milliseconds / 1000)
    return 1000 * (time.perf_counter() - begin)


def _delay(setting: Setting, milliseconds: float) -> float:
    """Keep the device busy without waiting for it, and return the duration; on a CPU, sleep."""
    if not setting.on_gpu:
        return _sleep_ms(milliseconds)
    torch.cuda._sleep(int(milliseconds * _cycles_per_ms()))
    return milliseconds


_rate: list[float] = []


def _cycles_per_ms() -> float:
    """Return the rate of the counter of `torch.cuda._sleep`, measured once at the clocks of a busy device."""
    if not _rate:
        for cycles in (200_000_000, 100_000_000):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            torch.cuda._sleep(cycles)
            end.record()
            end.synchronize()
            _rate[:] = [cycles / begin.elapsed_time(end)]
    return _rate[0]


def kernels(setting: Setting, case: Case) -> Figures:
    """Trace five steps: kernels per step, the time that they cover, and the names of the longest."""
    from torch.profiler import ProfilerActivity, profile

    activity = ProfilerActivity.CUDA if setting.on_gpu else ProfilerActivity.CPU
    traced = profile(activities=[activity], acc_events=True)
    case = of_setting(case, setting)
    num = LAST - FIRST
    path = write_config(case, setting, "kernels", num_rows=1024, num_steps=LAST + 2, measure=PROBE)
    marks: dict[int, float] = {}

    def on_step(step: int) -> None:
        if step in (FIRST, LAST):
            wait(setting.device)
            marks[step] = time.perf_counter()
            traced.start() if step == FIRST else traced.stop()

    train_here(path, on_step=on_step)
    wall_s = marks[LAST] - marks[FIRST]
    kind = torch.autograd.DeviceType.CUDA if setting.on_gpu else torch.autograd.DeviceType.CPU
    events = [event for event in traced.events() if event.device_type == kind and not event.is_user_annotation]
    spans = [(event.time_range.start, event.time_range.end) for event in events]
    by_name: Counter[str] = Counter()
    for event, (begin, end) in zip(events, spans, strict=True):
        by_name[event.name[:60]] += end - begin
    total = sum(by_name.values()) or 1.0
    longest = "; ".join(f"{name} {us / total:.0%}" for name, us in by_name.most_common(6))
    return {
        "kernels_per_step": len(events) / num,
        "step_ms_traced": 1000 * wall_s / num,
        "idle_share": max(0.0, 1 - covered(spans) / 1e6 / wall_s),
        "longest": longest,
    }


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the total length that intervals cover: kernels of several streams may overlap."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def host_time(setting: Setting) -> Figures:
    """Return the time of steps with almost no work for the device, which is the host's time."""
    case = of_setting(CASES[0], setting)
    num_steps = 10 if setting.tiny else 115
    path = write_config(
        case,
        setting,
        "host",
        num_rows=256,
        num_steps=num_steps,
        measure=PROBE,
        batch={"global": 1},
        data={"max_length": 8},
    )
    marks: list[float] = []
    train_here(path, on_step=lambda _step: marks.append(time.perf_counter()))
    wait(setting.device)
    times = [1000 * (after - before) for before, after in itertools.pairwise(marks)]
    return {"ms": spread(times[len(times) // 8 :])}
