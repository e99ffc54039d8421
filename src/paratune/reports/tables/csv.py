"""Tables as CSV: unrounded values where they are known, with a column for each part of a compound text."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from paratune.base.text import plain
from paratune.base.units import NOT_AVAILABLE
from paratune.reports.tables.table import Table, TableCell
from paratune.reports.text import csv_lines

_SPREAD = re.compile(r"([−-]?[\d,]*\.?\d+) ± ([\d,]*\.?\d+)(?: \((\d+) of (\d+)\))?")


def csv_table(table: Table) -> str:
    """Return a line for each line of the table: values where known, else texts, empty for n/a.

    A column of means with their spreads becomes three: the mean, `_sd` its standard deviation, and `_num` of how many
    runs where some are missing. A confidence interval is `_low` and `_high`. Changes against a baseline are
    `_change_percent`; lines of a matrix end in their runs.
    """
    columns = [["group", *_group_names(table)]] if table.groups else []
    columns += [column for at in range(len(table.columns)) for column in _csv_columns(table, at)]
    if any(column.key == "num_runs" for column in table.columns):
        runs_by_line = [dict.fromkeys(run for entry in line for run in entry.runs) for line in table.lines]
        columns.append(["runs", *(" ".join(names) for names in runs_by_line)])
    return csv_lines(zip(*columns, strict=True))


def _csv_columns(table: Table, at: int) -> list[list[Any]]:
    """Return a column, or the columns of its parts, each with its name first."""
    name = table.columns[at].name
    entries = [line[at] for line in table.lines]
    spreads = [None if table.columns[at].is_text else _SPREAD.fullmatch(plain(entry.text)) for entry in entries]
    pairs = list(zip(entries, spreads, strict=True))
    columns: list[list[Any]] = [[name, *(_csv_value(entry, spread) for entry, spread in pairs)]]

    def add(part: str, read: Callable[[TableCell], Any]) -> None:
        columns.append([f"{name}_{part}", *map(read, entries)])

    if any(spreads):
        columns.append([f"{name}_sd", *(_deviation(entry, spread) for entry, spread in pairs)])
    if any(entry.change_percent is not None for entry in entries):
        add("change_percent", lambda entry: entry.change_percent)
    if any(entry.interval is not None for entry in entries):
        add("low", lambda entry: entry.interval and entry.interval[0])
        add("high", lambda entry: entry.interval and entry.interval[1])
    if any(spread is not None and spread.group(3) for spread in spreads):
        counts = (int(spread.group(3)) if spread is not None and spread.group(3) else None for spread in spreads)
        columns.append([f"{name}_num", *counts])
    return columns


def _deviation(entry: TableCell, spread: re.Match[str] | None) -> float | None:
    if entry.deviation is not None:
        return entry.deviation
    return None if spread is None else _number(spread.group(2))


def _csv_value(entry: TableCell, spread: re.Match[str] | None) -> str | float | None:
    if entry.value is not None:
        return entry.value if isinstance(entry.value, int | float | str) else plain(entry.value)
    if spread is not None:
        return _number(spread.group(1))
    return None if entry.text == NOT_AVAILABLE else entry.text


def _number(text: str) -> float:
    return float(text.replace(",", "").replace("−", "-"))


def _group_names(table: Table) -> Sequence[str]:
    """Return the group of each line."""
    names, groups, now = [], dict(table.groups), ""
    for position in range(len(table.lines)):
        now = groups.get(position, now)
        names.append(now)
    return names
