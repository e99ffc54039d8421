"""Summarises a profile of a rank: its slowest operators and kernels, the idle time of its device, and the trace."""

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

NUM_ROWS = 20
"""Number of operators, and of kernels, that are recorded."""
_NAME_LENGTH = 160
"""Longest name: template arguments of a kernel can have thousands of characters."""
_COPIES = ("Memcpy", "Memset")
NOTHING_PROFILED = "the session ended before a step after the warm-up was profiled"
log = logging.getLogger(__name__)


class Total(NamedTuple):
    """All calls of an operator, or all runs of a kernel, by name."""

    name: str
    calls: int
    self_host_us: float
    """Time of the operator on the host without the operators that it calls."""
    host_us: float
    self_device_us: float
    """Time of the operator's own kernels, or of the kernel itself."""
    on_device: bool = False
    """True for a kernel or a copy, False for an operator."""


def operator_totals(profiled: profile) -> list[Total]:
    """Return the totals of a finished profile by name, without ranges that only mark a time."""
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
    """Return the fields of an event `profile` about operators and kernels, in ms.

    Args:
        window: The time that was profiled, in microseconds.
        host: Times in which the host ran an operator, in microseconds.
        kernels: Times of kernels and copies on the device; they may overlap.

    Returns:
        `host_ms` and `device_ms`, in which the host ran operators, and the device kernels or copies; `num_kernels`
        without copies; `operators` and `kernels`: the slowest ones, operators by their own time on the host or on the
        device. Values of the device are None without a device, and if the profiler saw none of its kernels.
    """
    all_totals = list(totals)
    operators = [total for total in all_totals if not total.on_device]
    on_device = [total for total in all_totals if total.on_device]
    is_seen = has_device and bool(on_device)
    by_host = sorted(operators, key=lambda total: -total.self_host_us)[:NUM_ROWS]
    by_device = sorted(operators, key=lambda total: -total.self_device_us)[: NUM_ROWS if is_seen else 0]
    num_kernels = sum(total.calls for total in on_device if not total.name.startswith(_COPIES))
    return {
        "host_ms": _ms(host, window),
        "device_ms": _ms(kernels, window) if is_seen else None,
        "num_kernels": num_kernels if is_seen else None,
        "operators": [
            {
                "name": total.name[:_NAME_LENGTH],
                "calls": total.calls,
                "self_host_ms": total.self_host_us / 1000,
                "host_ms": total.host_us / 1000,
                "self_device_ms": total.self_device_us / 1000 if is_seen else None,
            }
            for total in dict.fromkeys([*by_host, *(total for total in by_device if total.self_device_us > 0)])
        ],
        "kernels": [
            {"name": total.name[:_NAME_LENGTH], "calls": total.calls, "device_ms": total.self_device_us / 1000}
            for total in sorted(on_device, key=lambda total: -total.self_device_us)[: NUM_ROWS if is_seen else 0]
        ],
    }


def _ms(intervals: Iterable[Interval], window: Sequence[Interval]) -> float:
    return length(intersection(union(intervals), window)) / 1000


def write_trace(profiled: profile, folder: Path, rank: int) -> str | None:
    """Write the trace of a profile atomically, for chrome://tracing and Perfetto; return the file's name.

    If it cannot be written, this is logged, None is returned, and the run continues.
    """
    name = f"profile.rank{rank:04d}.json.gz"
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
    """Return `profile` of a summary, from the last `profile` event of each rank: times of all, operators of the first.

    docs/reference/records.md lists its fields.
    """
    ranks = [event for event in profiles if "operators" in event]
    keys = ("num_steps", "wall_ms_per_step", "host_ms_per_step", "device_ms_per_step", "idle_share")
    if not ranks:
        unknown = dict.fromkeys((*keys, "num_kernels_per_step", "trace"))
        return {**unknown, "operators": [], "kernels": [], "reason": reason or NOTHING_PROFILED}
    num_steps = sum(event["num_steps"] for event in ranks)
    wall_ms, host_ms, device_ms, num_kernels = (
        _sum([event[key] for event in ranks]) for key in ("wall_ms", "host_ms", "device_ms", "num_kernels")
    )
    return {
        "num_steps": min(event["num_steps"] for event in ranks),
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
