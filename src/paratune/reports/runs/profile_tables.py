"""Tables of profiled steps: the operators and kernels that take most time."""

from collections.abc import Iterator, Sequence

from paratune.base.units import NOT_AVAILABLE, format_number, format_share
from paratune.records.finished import RunRecord, number_in
from paratune.reports.amounts import numbers
from paratune.reports.tables.table import Table, TableCell, make_table

_SOURCE = "summary.profile"


def has_profile(run: RunRecord) -> bool:
    """Return whether steps of a run were profiled."""
    return bool(run.summary.profile.operators and run.summary.profile.num_steps)


def profile_sentence(run: RunRecord) -> str:
    """Return the time of a profiled step, its host and device time, and the path of the trace."""
    found = run.summary.profile
    steps, wall, host, device, kernels = (
        format_number(value, 3)
        for value in (
            *(found.num_steps, found.wall_ms_per_step, found.host_ms_per_step, found.device_ms_per_step),
            found.num_kernels_per_step,
        )
    )
    parts = [f"{steps} steps under the profiler, {wall} ms each (more than without it)"]
    parts.append(f"in operators of the host {host} ms")
    if device != NOT_AVAILABLE:
        idle = format_share(found.idle_share)
        parts.append(f"device busy {device} ms with {kernels} kernels, idle {idle}")
    trace_text = f" The trace of the first rank is {run.folder / found.trace}." if found.trace else ""
    return f"{'; '.join(parts)}.{trace_text}"


def profile_tables(run: RunRecord, key: str) -> Iterator[Table]:
    """Yield the table of operators, and of kernels if there are any, whose key is that of operators with their name."""
    num_steps = run.summary.profile.num_steps
    if not num_steps or not has_profile(run):
        return
    has_kernels = bool(run.summary.profile.kernels)
    columns = [
        ("Calls a step", "calls", "calls"),
        ("Host, itself (ms a step)", "self_host_ms", "self_host_ms_per_step"),
        ("Host, with what it calls (ms a step)", "host_ms", "host_ms_per_step"),
    ]
    if has_kernels:
        columns.append(("Device (ms a step)", "self_device_ms", "self_device_ms_per_step"))
    yield _table(run, key, "operators", columns, num_steps, (profile_sentence(run),))
    if has_kernels:
        columns = [("Calls a step", "calls", "calls"), ("Device (ms a step)", "device_ms", "device_ms_per_step")]
        yield _table(run, key.replace("operators", "kernels"), "kernels", columns, num_steps)


def _table(
    run: RunRecord, key: str, name: str, columns: Sequence[tuple[str, str, str]], num_steps: float,
    notes: tuple[str, ...] = (),
) -> Table:  # fmt: skip
    """Return a table of totals divided by the number of steps; `name` is operators or kernels."""
    rows = getattr(run.summary.profile, name)
    totals = [[number_in(row.get(column)) for row in rows] for _, column, _ in columns]
    per_step = [[None if total is None else total / num_steps for total in values] for values in totals]
    texts = [numbers(values) for values in per_step]
    lines: list[tuple[TableCell, ...]] = []
    for at, row in enumerate(rows):
        source = f"{_SOURCE}.{name}[{at}]"
        cells = (
            TableCell(text[at], values[at], (run.name,), f"{source}.{column} over the profiled steps")
            for text, values, (_, column, _) in zip(texts, per_step, columns, strict=True)
        )
        lines.append((TableCell(str(row.get("name")), runs=(run.name,), source=source), *cells))
    heads = ((name[:-1].capitalize(), "name"), *((label, unit) for label, _, unit in columns))
    return make_table(key, f"{name.capitalize()} of {run.name} that take most time", heads, lines, 1, notes)
