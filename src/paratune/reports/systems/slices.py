"""Scores by slice of the configurations that are no probes."""

from collections.abc import Iterator
from dataclasses import replace

from paratune.reports.runs.slice_tables import SlicedRuns, slice_tables
from paratune.reports.systems.model import Systems
from paratune.reports.tables.table import Table

MAX_COLUMNS = 24
"""Configurations in a table: the baseline and the first ones."""


def sliced_configurations(systems: Systems) -> Iterator[Table]:
    """Yield the tables of slices with a column for each configuration."""
    scored = [member for member in systems.measured if member.scored]
    shown = sorted(scored, key=lambda member: member is not systems.baseline)[:MAX_COLUMNS]
    members = [SlicedRuns(member.label, member.scored) for member in scored if member in shown]
    remark = f"{len(members)} of {len(scored)} configurations; report.json has the slices of all runs."
    for table in slice_tables(members):
        yield replace(table, notes=(*table.notes, remark)) if len(members) < len(scored) else table
