"""Tables of profiled steps: the operators and kernels that take most time."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paratune.base.units import NOT_AVAILABLE, format_number, format_share
from paratune.reports.rows.row import numbers
from paratune.reports.runs.read import RunRecord
from paratune.reports.tables.table import Column, Table, TableCell

_SOURCE = "summary.profile"


def has_profile(run: RunRecord) -> bool:
    """Return whether steps of a run were profiled."""
    return bool(_rows(run, "operators")) and bool(run.number(f"{_SOURCE}.num_steps"))


def profile_sentence(run: RunRecord) -> str:
    """Return the time of a profiled step, its host and device time, and the path of the trace."""
    steps, wall, host, device, kernels = (
        run.number(f"{_SOURCE}.{key}")
        for key in ("num_steps", "wall_ms_per_step", "host_ms_per_step", "device_ms_per_step", "num_kernels_per_step")
    )
    parts = [f"{_figure(steps)} steps under the profiler, {_figure(wall)} ms each (more than without it)"]
    parts.append(f"in operators of the host {_figure(host)} ms")
    if device is not None:
        idle = run.number(f"{_SOURCE}.idle_share")
        parts.append(
            f"device busy {_figure(device)} ms with {_figure(kernels)} kernels, "
            f"idle {NOT_AVAILABLE if idle is None else format_share(idle)}"
        )
    trace = run.get(f"{_SOURCE}.trace")
    trace_text = f" The trace of the first rank is {run.folder / str(trace)}." if trace else ""
    return f"{'; '.join(parts)}.{trace_text}"


def profile_tables(run: RunRecord, key: str) -> Iterator[Table]:
    """Yield the table of operators, and of kernels if there are any.

    Args:
        run: The run.
        key: Of its table of operators; that of kernels is called after it.
    """
    num_steps = run.number(f"{_SOURCE}.num_steps")
    operators, kernels = (_rows(run, name) for name in ("operators", "kernels"))
    if not operators or not num_steps:
        return
    columns: list[tuple[str, str, str]] = [
        ("Calls a step", "calls", "calls"),
        ("Host, itself (ms a step)", "self_host_ms", "self_host_ms_per_step"),
        ("Host, with what it calls (ms a step)", "host_ms", "host_ms_per_step"),
    ]
    if kernels:
        columns.append(("Device (ms a step)", "self_device_ms", "self_device_ms_per_step"))
    title = f"Operators of {run.name} that take most time"
    yield _table(run, key, title, operators, columns, num_steps, "operators", (profile_sentence(run),))
    if kernels:
        columns = [("Calls a step", "calls", "calls"), ("Device (ms a step)", "device_ms", "device_ms_per_step")]
        title = f"Kernels of {run.name} that take most time"
        kernel_key = key.replace("operators", "kernels")
        yield _table(run, kernel_key, title, kernels, columns, num_steps, "kernels", ())


def _rows(run: RunRecord, name: str) -> list[Mapping[str, Any]]:
    rows = run.get(f"{_SOURCE}.{name}")
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


def _table(
    run: RunRecord,
    key: str,
    title: str,
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[tuple[str, str, str]],
    num_steps: float,
    name: str,
    notes: tuple[str, ...],
) -> Table:
    """Return a table of totals divided by the number of steps."""
    per_step = [[_over(row.get(column), num_steps) for row in rows] for _, column, _ in columns]
    texts = [numbers(values) for values in per_step]
    lines = tuple(
        (
            TableCell(str(row.get("name")), runs=(run.name,), source=f"{_SOURCE}.{name}[{at}]"),
            *(
                TableCell(text[at], values[at], (run.name,), f"{_SOURCE}.{name}[{at}].{column} over the profiled steps")
                for text, values, (_, column, _) in zip(texts, per_step, columns, strict=True)
            ),
        )
        for at, row in enumerate(rows)
    )
    heads = (Column(name[:-1].capitalize(), "name", is_text=True), *(Column(label, unit) for label, _, unit in columns))
    return Table(key, title, heads, lines, notes)


def _over(value: Any, num_steps: float) -> float | None:
    return value / num_steps if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _figure(value: float | None) -> str:
    return NOT_AVAILABLE if value is None else format_number(value, 3)
