"""What a profile shows of a rank: operators and kernels that take its time, how idle its device is, and the trace."""

import gzip
import logging
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch.profiler import profile

from paratune.base.atomic import replace_file
from paratune.base.scratch import scratch_folder
from paratune.errors import coded
from paratune.metrics.intervals import Interval, intersection, length, union
from paratune.records import profile_file

NUM_ROWS = 20
"""Operators, and kernels, that are written down."""
_NAME_LENGTH = 160
"""Of a kernel's name, whose template arguments can take thousands of characters."""
_COPIES = ("Memcpy", "Memset")
log = logging.getLogger(__name__)


class Total(NamedTuple):
    """All calls of an operator, or all runs of a kernel, by name."""

    name: str
    calls: int
    self_host_us: float
    """Without the operators that it calls."""
    host_us: float
    self_device_us: float
    """In its own kernels; of a kernel, its own time."""
    on_device: bool = False
    """Whether it is a kernel or a copy, and not an operator."""


def totals_of(profiled: profile) -> list[Total]:
    """Return what a profile that has ended saw, by name, without ranges that are only marked."""
    return [
        Total(
            event.key,
            event.count,
            event.self_cpu_time_total,
            event.cpu_time_total,
            event.self_device_time_total,
            event.device_type.name != "CPU",
        )
        for event in profiled.key_averages()
        if not event.is_user_annotation
    ]


def operator_values(
    totals: Iterable[Total],
    *,
    window: Sequence[Interval],
    host: Iterable[Interval],
    kernels: Iterable[Interval],
    has_device: bool,
) -> dict[str, Any]:
    """Return what an event `profile` says of operators and kernels, in ms.

    Args:
        totals: Of all names.
        window: The time that was profiled, in microseconds.
        host: In which the host ran something, in microseconds.
        kernels: Of kernels and copies on the device; they may overlap.
        has_device: Whether there is a device whose kernels the profiler can see.

    Returns:
        `host_ms` and `device_ms`, in which the host runs operators, and the device kernels or copies; `num_kernels`
        without copies; `operators` and `kernels`: those that take most, operators by the host's or the device's own
        time. What is of the device is None without one, and where none of its kernels was seen.
    """
    all_totals = list(totals)
    operators = [each for each in all_totals if not each.on_device]
    on_device = [each for each in all_totals if each.on_device]
    is_seen = has_device and bool(on_device)
    by_host = sorted(operators, key=lambda each: -each.self_host_us)[:NUM_ROWS]
    by_device = sorted(operators, key=lambda each: -each.self_device_us)[: NUM_ROWS if is_seen else 0]
    return {
        "host_ms": _ms(host, window),
        "device_ms": _ms(kernels, window) if is_seen else None,
        "num_kernels": sum(each.calls for each in on_device if not each.name.startswith(_COPIES)) if is_seen else None,
        "operators": [
            {
                "name": each.name[:_NAME_LENGTH],
                "calls": each.calls,
                "self_host_ms": each.self_host_us / 1000,
                "host_ms": each.host_us / 1000,
                "self_device_ms": each.self_device_us / 1000 if is_seen else None,
            }
            for each in dict.fromkeys([*by_host, *(each for each in by_device if each.self_device_us > 0)])
        ],
        "kernels": [
            {"name": each.name[:_NAME_LENGTH], "calls": each.calls, "device_ms": each.self_device_us / 1000}
            for each in sorted(on_device, key=lambda each: -each.self_device_us)[: NUM_ROWS if is_seen else 0]
        ],
    }


def _ms(intervals: Iterable[Interval], window: Sequence[Interval]) -> float:
    return length(intersection(union(intervals), window)) / 1000


def write_trace(profiled: profile, folder: Path, rank: int) -> str | None:
    """Write the trace of a profile, whole or not at all, for chrome://tracing and Perfetto; return the file's name.

    A trace is not worth a run: where it cannot be written, that is logged, and None is returned.
    """
    name = profile_file(rank)
    try:
        with scratch_folder() as scratch:
            plain = scratch / "trace.json"
            profiled.export_chrome_trace(str(plain))
            with (
                plain.open("rb") as source,
                replace_file(folder / name) as temporary,
                gzip.open(temporary, "wb", compresslevel=6) as file,
            ):
                shutil.copyfileobj(source, file)
    except (OSError, RuntimeError) as error:
        log.warning(
            "%s cannot be written (%s); the run continues without it",
            folder / name,
            error,
            extra=coded("run.file_lost", path=folder / name),
        )
        return None
    return name


def profile_summary(profiles: Iterable[Mapping[str, Any]], reason: str | None) -> dict[str, Any]:
    """Return `profile` of a summary: times of all ranks, operators and kernels of the first one.

    docs/reference/records.md lists its fields.

    Args:
        profiles: The last `profile` event of each rank of the session, in the order of ranks.
        reason: Why there is none, where that is known.
    """
    ranks = [each for each in profiles if "operators" in each]
    keys = ("num_steps", "wall_ms_per_step", "host_ms_per_step", "device_ms_per_step", "idle_share")
    if not ranks:
        unknown = dict.fromkeys((*keys, "num_kernels_per_step", "trace"))
        why = reason or "the session ended before a step behind the warm-up was profiled"
        return {**unknown, "operators": [], "kernels": [], "reason": why}
    num_steps = sum(each["num_steps"] for each in ranks)
    wall_ms, host_ms, device_ms, num_kernels = (
        _sum([each[key] for each in ranks]) for key in ("wall_ms", "host_ms", "device_ms", "num_kernels")
    )
    return {
        "num_steps": min(each["num_steps"] for each in ranks),
        "wall_ms_per_step": None if wall_ms is None else wall_ms / num_steps,
        "host_ms_per_step": None if host_ms is None else host_ms / num_steps,
        "device_ms_per_step": None if device_ms is None else device_ms / num_steps,
        "idle_share": None if device_ms is None or not wall_ms else 1 - device_ms / wall_ms,
        "num_kernels_per_step": None if num_kernels is None else num_kernels / num_steps,
        "operators": ranks[0]["operators"],
        "kernels": ranks[0]["kernels"],
        "trace": ranks[0]["trace"],
        "reason": None,
    }


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None
