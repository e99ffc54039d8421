"""Several matrices in one report, as the same one run on several machines: which matrix it is becomes an axis."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from paratune.errors import CheckpointError
from paratune.report.sweep.outcomes import SweepReport, groups_of, read_outcomes
from paratune.report.systems.configurations import MATRIX
from paratune.sweep_record import Axis
from paratune.text import plain


def read_joined(folders: Sequence[Path]) -> SweepReport:
    """Read matrices with the same axes as one; a single one as it is.

    Each is chosen within, and has its baseline within: what was run elsewhere does not compare in time.

    Raises:
        CheckpointError: One is absent, damaged or of another schema version; their axes differ, or one is named twice.
    """
    reports = [read_outcomes(folder) for folder in folders]
    if len(reports) == 1:
        return reports[0]
    first = reports[0].record
    for folder, report in zip(folders, reports, strict=True):
        own, wanted = ([(axis.key, axis.label) for axis in record.axes] for record in (report.record, first))
        if own != wanted:
            raise CheckpointError(
                f"{plain(folder)} has the axes {', '.join(key for key, _ in own)}, and {plain(folders[0])} has "
                f"{', '.join(key for key, _ in wanted)}; matrices of one report have the same"
            )
    names = _names(folders)
    label = MATRIX if all(axis.label != MATRIX for axis in first.axes) else f"{MATRIX} folder"
    axes = [replace(axis, values=_all_values(reports, at)) for at, axis in enumerate(first.axes)]
    outcomes = tuple(
        replace(
            outcome,
            cell=replace(outcome.cell, name=f"{name}/{outcome.cell.name}", values={label: name, **outcome.cell.values}),
        )
        for name, report in zip(names, reports, strict=True)
        for outcome in report.outcomes
    )
    record = replace(
        first,
        name=" + ".join(names),
        axes=(Axis(label, label, {name: name for name in names}, keys=(MATRIX,)), *axes),
        select_per=(label, *first.select_per),
        cells=tuple(outcome.cell for outcome in outcomes),
        past=(),
        order=(),
    )
    if len({report.record.price_per_device_hour for report in reports}) > 1:
        record = replace(record, price_per_device_hour=None)  # that of one machine is not that of another
    folder = Path(os.path.commonpath([folder.resolve() for folder in folders]))
    return SweepReport(record, folder, outcomes, groups_of(record, outcomes))


def _all_values(reports: Sequence[SweepReport], at: int) -> dict[str, str]:
    """Return the values of an axis in any of the matrices."""
    return {name: shown for report in reports for name, shown in report.record.axes[at].values.items()}


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the names of folders, with as many above as tell them apart."""
    parts = [folder.resolve().parts for folder in folders]
    if len(set(parts)) < len(parts):
        raise CheckpointError("a matrix is given twice; name each once")
    depth = 1
    while len({path[-depth:] for path in parts}) < len(parts):
        depth += 1
    return ["/".join(path[-depth:]) for path in parts]
