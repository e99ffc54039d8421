"""Tables as CSV: unrounded values where they are known, with a column for each part of a compound text."""

import csv
import io
import re
from collections.abc import Sequence

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.reports.tables.table import Table, TableCell
from paratune.reports.text import csv_text

_SPREAD = re.compile(r"([−-]?[\d,]*\.?\d+) ± ([\d,]*\.?\d+)(?: \((\d+) of (\d+)\))?")


def csv_table(table: Table) -> str:
    """Return a line for each line of the table: values where known, else texts, empty for n/a.

    A column of means with their spreads becomes three: the mean, `_sd` its standard deviation, and `_num` of how many
    runs where some are missing. A confidence interval is `_low` and `_high`. Changes against a baseline are
    `_change_percent`; lines of a matrix end in their runs.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    columns = [_csv_column(table, at) for at in range(len(table.columns))]
    group = [["group", *_group_names(table)]] if table.groups else []
    for line in zip(*group, *(part for parts in columns for part in parts), *_csv_runs(table), strict=True):
        writer.writerow([csv_text(cell) if isinstance(cell, str) else cell for cell in line])
    return file.getvalue()


def _csv_runs(table: Table) -> list[list[str]]:
    """Return the column with the runs of each line; none for tables without runs."""
    if not any(column.key == "num_runs" for column in table.columns):
        return []
    runs_by_line = [dict.fromkeys(run for entry in line for run in entry.runs) for line in table.lines]
    return [["runs", *(" ".join(names) for names in runs_by_line)]]


def _csv_column(table: Table, at: int) -> list[list[str | float]]:
    """Return a column, or the columns of its parts, each with its name first."""
    name = table.columns[at].name
    entries = [line[at] for line in table.lines]
    spreads = [None if table.columns[at].is_text else _SPREAD.fullmatch(plain(entry.text)) for entry in entries]
    values: list[list[str | float]] = [
        [name, *(_csv_value(entry, spread) for entry, spread in zip(entries, spreads, strict=True))]
    ]
    if any(spreads):
        pairs = zip(entries, spreads, strict=True)
        values.append([f"{name}_sd", *(_deviation(entry, spread) for entry, spread in pairs)])
    if any(entry.change_percent is not None for entry in entries):
        changes = ("" if entry.change_percent is None else entry.change_percent for entry in entries)
        values.append([f"{name}_change_percent", *changes])
    if any(entry.interval is not None for entry in entries):
        for at_side, side in enumerate(("low", "high")):
            limits = ("" if entry.interval is None else entry.interval[at_side] for entry in entries)
            values.append([f"{name}_{side}", *limits])
    if any(spread is not None and spread.group(3) for spread in spreads):
        values.append(
            [
                f"{name}_num",
                *("" if spread is None or not spread.group(3) else int(spread.group(3)) for spread in spreads),
            ]
        )
    return values


def _deviation(entry: TableCell, spread: re.Match[str] | None) -> str | float:
    if entry.deviation is not None:
        return entry.deviation
    return "" if spread is None else _number(spread.group(2))


def _csv_value(entry: TableCell, spread: re.Match[str] | None) -> str | float:
    if entry.value is not None:
        return entry.value if isinstance(entry.value, int | float | str) else plain(entry.value)
    if spread is not None:
        return _number(spread.group(1))
    return "" if entry.text == NOT_AVAILABLE else entry.text


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _group_names(table: Table) -> Sequence[str]:
    """Return the group of each line."""
    names, groups = [], dict(table.groups)
    now = ""
    for position in range(len(table.lines)):
        now = groups.get(position, now)
        names.append(now)
    return names
