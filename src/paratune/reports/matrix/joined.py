"""Several matrices in one report, such as one matrix on several machines: the matrix becomes an axis."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from paratune.base.text import plain
from paratune.errors import CheckpointError, coded
from paratune.records.published import Published
from paratune.records.sweep import Axis, SweepRecord
from paratune.reports.matrix.outcomes import SweepReport, candidate_groups, read_outcomes
from paratune.reports.matrix.shared_axes import identity, with_shared_axes
from paratune.reports.systems.configurations import MATRIX

log = logging.getLogger(__name__)


def read_joined(folders: Sequence[Path], price: float | None = None) -> SweepReport:
    """Read several matrices as one; a single matrix unchanged except for the price of a device-hour.

    Each matrix has its own choices and its own baseline, because times of different matrices are not comparable. Axes
    that all matrices have stay axes; the values of all other axes become one axis.

    Raises:
        CheckpointError: One is absent, damaged, of another schema version, or named twice; matrices with the same axes
            differ in the baseline or in the axes of the choice; a name has different values in two matrices.
    """
    reports = [read_outcomes(folder) for folder in folders]
    if len(reports) == 1:
        only = reports[0]
        return only if price is None else replace(only, record=replace(only.record, price_per_device_hour=price))
    names = _names(folders)
    matrices = tuple(report.record for report in reports)
    if len({tuple(identity(axis) for axis in report.record.axes) for report in reports}) > 1:
        reports = with_shared_axes(reports)
    else:
        _refuse_others(folders, [report.record for report in reports])
    first = reports[0].record
    label = MATRIX if all(axis.label != MATRIX for axis in first.axes) else f"{MATRIX} folder"
    axes = [_joined_axis([report.record.axes[at] for report in reports], folders) for at in range(len(first.axes))]
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
        matrix=", ".join(report.record.matrix for report in reports),
        matrix_text="\n".join(
            f"# {single.record.matrix}\n{single.record.matrix_text or '# n/a'}" for single in reports
        ),
        command=(),
        axes=(Axis(label, label, {name: name for name in names}, keys=(MATRIX,)), *axes),
        select_per=(label, *first.select_per),
        cells=tuple(outcome.cell for outcome in outcomes),
        groups=_joined_groups(matrices),
        published=_joined_published([report.record for report in reports], names, label),
        looks=tuple(
            replace(look, finished=tuple(f"{name}/{cell}" for cell in look.finished))
            for name, report in zip(names, reports, strict=True)
            for look in report.record.looks
        ),
        past=(),
        order=(),
    )
    if len({report.record.price_per_device_hour for report in reports}) > 1:
        if price is None:
            log.warning(
                "the matrices have different prices of a device-hour, so no cost is shown; --price gives one",
                extra=coded("report.prices_differ"),
            )
        record = replace(record, price_per_device_hour=None)
    if price is not None:
        record = replace(record, price_per_device_hour=price)
    folder = Path(os.path.commonpath([folder.resolve() for folder in folders]))
    return SweepReport(record, folder, outcomes, candidate_groups(record, outcomes), joined=matrices)


def _joined_groups(records: Sequence[SweepRecord]) -> dict[str, dict[str, tuple[str, ...]]]:
    """Return the headings of all matrices with the values of each; a value stays under the first of its headings."""
    groups: dict[str, dict[str, tuple[str, ...]]] = {}
    for record in records:
        for label, headings in record.groups.items():
            joined = groups.setdefault(label, {})
            for heading, names in headings.items():
                listed = {name for values in joined.values() for name in values}
                joined[heading] = (*joined.get(heading, ()), *(name for name in names if name not in listed))
    return groups


def _joined_published(records: Sequence[SweepRecord], names: Sequence[str], label: str) -> Published | None:
    """Return all published figures and claims, each restricted to its own matrix."""
    publications = [
        record.published.with_values(partial(_with_matrix, {label: name}))
        for record, name in zip(records, names, strict=True)
        if record.published is not None
    ]
    if not publications:
        return None
    figures = tuple(figure for publication in publications for figure in publication.figures)
    return Published(figures, tuple(claim for publication in publications for claim in publication.claims))


def _with_matrix(of_matrix: Mapping[str, str], values: Mapping[str, str]) -> Mapping[str, str]:
    return {**of_matrix, **values}


def _refuse_others(folders: Sequence[Path], records: Sequence[SweepRecord]) -> None:
    """Raise an error when matrices differ in their baseline or selection: a report can follow only one of them."""
    for folder, record in zip(folders, records, strict=True):
        for key in ("baseline", "select_per"):
            value, wanted = getattr(record, key), getattr(records[0], key)
            if value != wanted:
                raise CheckpointError(
                    f"{plain(folder)} has {key} {_written(value)}, and {plain(folders[0])} has {_written(wanted)}; "
                    f"matrices of one report have the same: change {key} in the matrix file and repeat paratune "
                    "sweep, which trains no finished run again",
                    code="report.matrices_differ",
                    folder=folder,
                    key=key,
                )


def _written(value: Mapping[str, str] | Sequence[str]) -> str:
    words = [f"{label}: {name}" for label, name in value.items()] if isinstance(value, Mapping) else value
    return plain(", ".join(words)) or "(none)"


def _joined_axis(axes: Sequence[Axis], folders: Sequence[Path]) -> Axis:
    """Return an axis with the values and the keys of all matrices."""
    values: dict[str, str] = {}
    for axis, folder in zip(axes, folders, strict=True):
        for name, shown in axis.values.items():
            if values.setdefault(name, shown) != shown:
                raise CheckpointError(
                    f"{plain(folder)}: {plain(name)} on the axis {plain(axis.label)} is {plain(shown)}, and in an "
                    f"earlier matrix {plain(values[name])}; report them one by one",
                    code="report.matrices_differ",
                    folder=folder,
                    name=name,
                    label=axis.label,
                )
    return replace(axes[0], values=values, keys=tuple(dict.fromkeys(key for axis in axes for key in axis.keys)))


def _names(folders: Sequence[Path]) -> list[str]:
    """Return the names of folders, with as many parent folders as make them unique."""
    parts = [folder.resolve().parts for folder in folders]
    twice = [folder for folder, path in zip(folders, parts, strict=True) if parts.count(path) > 1]
    if twice:
        raise CheckpointError(f"{plain(twice[0])} is given twice; name each matrix once", code="cli.named_twice")
    depth = 1
    while len({path[-depth:] for path in parts}) < len(parts):
        depth += 1
    return ["/".join(path[-depth:]) for path in parts]
