"""Size, speed and scores of the smaller forms of the runs, where `compress` of the matrix measured them."""

import statistics
from collections.abc import Callable, Iterator
from typing import Any

from paratune.base.text import plain
from paratune.base.units import MIB, NOT_AVAILABLE, format_number
from paratune.errors import CheckpointError
from paratune.records.compressed import measured_forms, read_measured
from paratune.reports.measures import metric_name
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Table, TableCell, make_table

Measured = dict[str, Any]
"""See `paratune.records.compressed`."""
MIN_CPU_SHARE = 0.9
"""CPU seconds per second, below which a process waited for a processor."""
_FIGURES: tuple[tuple[str, str, Callable[[Measured], float | None]], ...] = (
    ("Weights (MiB)", "weights_mib", lambda found: found["weights_bytes"] / MIB),
    ("Latency p50 (ms)", "p50_ms", lambda found: found["p50_ms"]),
    ("Latency p95 (ms)", "p95_ms", lambda found: found["p95_ms"]),
    ("Texts/s, batch 1", "texts_per_s", lambda found: found["texts_per_s"].get("1")),
    ("Texts/s, best batch", "best_texts_per_s", lambda found: max(found["texts_per_s"].values())),
    ("Peak memory (MiB)", "peak_mib", lambda found: found["peak_bytes"] / MIB),
)


def form_tables(systems: Systems) -> Iterator[Table]:
    """Yield the table with a line for each form of each configuration, if any form is measured."""
    lines: dict[tuple[str, str], dict[str, Measured]] = {}
    notes: dict[str, None] = {}
    for member in systems.measured:
        for run in member.cell_runs:
            for form, folder in measured_forms(run.folder) if run.cell.counts else ():
                try:
                    measured = read_measured(folder)
                except CheckpointError as error:
                    notes[plain(error)] = None
                else:
                    lines.setdefault((member.label, form), {})[run.cell.name] = measured
    if not lines and not notes:
        return
    found = [measured for runs in lines.values() for measured in runs.values()]
    metrics = dict.fromkeys(metric for run in systems.cell_runs for metric in run.cell.metrics)
    scores = dict.fromkeys((one["split"], metric) for metric in metrics for one in found if metric in one["scores"])
    figures = [*_FIGURES, *(_score(*score) for score in scores)]
    columns = [("Configuration", "configuration"), ("Form", "form"), *((label, key) for label, key, _ in figures)]
    rows = [
        [TableCell(text, runs=tuple(runs)) for text in names] + [_cell(runs, key, read) for _, key, read in figures]
        for names, runs in lines.items()
    ]
    if any(measured["cpu_share"] < MIN_CPU_SHARE for measured in found):
        notes["Other programs used the processors during the measurement: times are too long."] = None
    if len({tuple(measured["machine"].values()) for measured in found}) > 1:
        notes["Measured on different machines: do not compare times and memory."] = None
    notes["Measured on the CPU in float32. Means over seeds, ± one standard deviation."] = None
    yield make_table("forms", "Smaller forms", columns, rows, 2, notes)


def _score(split: str, metric: str) -> tuple[str, str, Callable[[Measured], float | None]]:
    def read(found: Measured) -> float | None:
        value = found["scores"].get(metric) if found["split"] == split else None
        return value if isinstance(value, int | float) else None

    return f"{split.capitalize()} {metric_name(metric)}", f"{split}_{metric}", read


def _cell(runs: dict[str, Measured], key: str, read: Callable[[Measured], float | None]) -> TableCell:
    values = {run: value for run, measured in runs.items() if (value := read(measured)) is not None}
    if not values:
        return TableCell(NOT_AVAILABLE, runs=tuple(runs))
    mean = statistics.fmean(values.values())
    deviation = statistics.stdev(values.values()) if len(values) > 1 else None
    text = format_number(mean, 4) + (f" ± {format_number(deviation, 2)}" if deviation else "")
    return TableCell(text, mean, tuple(values), f"compressed/measured: {key}", deviation=deviation)
