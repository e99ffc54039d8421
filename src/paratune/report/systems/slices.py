"""Scores by slice of the configurations that were trained whole."""

from collections.abc import Iterator
from dataclasses import replace

from paratune.report.slice_tables import SlicedRuns, slice_tables
from paratune.report.systems.model import Systems
from paratune.report.tabular import Table

MAX_COLUMNS = 24
"""Configurations beside each other; of more the baseline and the first are shown."""


def sliced_configurations(systems: Systems) -> Iterator[Table]:
    """Yield the tables of slices, a column a configuration; probes have no scores and no column."""
    scored = [one for one in systems.measured if one.scored]
    shown = sorted(scored, key=lambda one: one is not systems.baseline)[:MAX_COLUMNS]
    members = [SlicedRuns(one.label, one.scored) for one in scored if one in shown]
    some = f"{len(members)} of {len(scored)} configurations; report.json has the slices of all runs."
    for table in slice_tables(members):
        yield replace(table, notes=(*table.notes, some)) if len(members) < len(scored) else table
