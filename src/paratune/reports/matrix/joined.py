"""One matrix on several machines in one report: the matrix becomes an axis."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records.published import Published
from paratune.records.sweep import Axis, SweepRecord
from paratune.reports.matrix.outcomes import SweepReport, candidate_groups, read_outcomes
from paratune.reports.systems.configurations import MATRIX, CellRun


def read_joined(folders: Sequence[Path], price: float | None = None) -> SweepReport:
    """Read several matrices with the same axes as one; a single matrix unchanged except for the price.

    Each matrix has its own choices and its own baseline, because times of different matrices are not comparable; and
    its own price of a device-hour, unless `price` is that of all.

    Raises:
        CheckpointError: One is absent, damaged, of another schema version, or named twice; their axes, baselines or the
            axes of the choice differ; a name has different values in two matrices.
    """
    reports = [read_outcomes(folder) for folder in folders]
    records = [report.record for report in reports]
    first = records[0]
    if len(reports) == 1:
        return replace(reports[0], record=first if price is None else replace(first, price_per_device_hour=price))
    names = _names(folders)
    _refuse_others(folders, records)
    label = MATRIX if all(axis.label != MATRIX for axis in first.axes) else f"{MATRIX} folder"
    cell_runs = tuple(
        _within(item, name, label) for name, report in zip(names, reports, strict=True) for item in report.cell_runs
    )
    by_name = dict(zip(names, records, strict=True))
    prices = {name: own.price_per_device_hour if price is None else price for name, own in by_name.items()}
    record = replace(
        first,
        name=" + ".join(names),
        matrix=", ".join(own.matrix for own in records),
        matrix_text="\n".join(f"# {own.matrix}\n{own.matrix_text or '# n/a'}" for own in records),
        command=(),
        axes=(Axis(label, label, {name: name for name in names}, keys=(MATRIX,)), *_axes(folders, records)),
        select_per=(label, *first.select_per),
        cells=tuple(item.cell for item in cell_runs),
        published=_published(label, by_name),
        looks=tuple(
            replace(look, finished=tuple(f"{name}/{cell}" for cell in look.finished))
            for name, own in by_name.items()
            for look in own.looks
        ),
        past=(),
        order=(),
        price_per_device_hour=prices[names[0]] if len({*prices.values()}) == 1 else None,
    )
    folder = Path(os.path.commonpath([folder.resolve() for folder in folders]))
    groups = candidate_groups(record, cell_runs)
    return SweepReport(record, cell_runs, prices, folder=folder, groups=groups, joined=tuple(records))


def _within(item: CellRun, matrix: str, label: str) -> CellRun:
    """Return a run with the name of its matrix in its own name, and as the value of an axis."""
    cell = replace(item.cell, name=f"{matrix}/{item.cell.name}", values={label: matrix, **item.cell.values})
    return replace(item, cell=cell, record=item.record and replace(item.record, name=cell.name))


def _published(label: str, records: Mapping[str, SweepRecord]) -> Published | None:
    """Return all published figures and claims, each of its own matrix."""
    parts = [own.published.within({label: name}) for name, own in records.items() if own.published is not None]
    sources = "; ".join(dict.fromkeys(part.source for part in parts))
    figures = tuple(figure for part in parts for figure in part.figures)
    return Published(sources, figures, tuple(claim for part in parts for claim in part.claims)) if parts else None


def _refuse_others(folders: Sequence[Path], records: Sequence[SweepRecord]) -> None:
    """Raise an error when matrices differ in axes, baseline or selection: a report can follow only one of them."""

    def compared(record: SweepRecord) -> dict[str, str]:
        baseline = (f"{label}: {name}" for label, name in record.baseline.items())
        parts = {"axes": (axis.label for axis in record.axes), "baseline": baseline, "select_per": record.select_per}
        return {key: ", ".join(texts) or "(none)" for key, texts in parts.items()}

    wanted = compared(records[0])
    for folder, record in zip(folders, records, strict=True):
        for key, value in compared(record).items():
            if value != wanted[key]:
                raise CheckpointError(
                    f"{plain(folder)} has {key} {plain(value)}, and {plain(folders[0])} has {plain(wanted[key])}; "
                    "matrices of one report have the same: report them one by one, or change the matrix file and "
                    "repeat paratune sweep, which trains no finished run again",
                    code="report.matrices_differ",
                    folder=folder,
                    key=key,
                )


def _axes(folders: Sequence[Path], records: Sequence[SweepRecord]) -> list[Axis]:
    """Return the axes with the values and the keys of all matrices."""
    joined = []
    for axes in zip(*(record.axes for record in records), strict=True):
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
        keys = dict.fromkeys(key for axis in axes for key in axis.keys)
        joined.append(replace(axes[0], values=values, keys=tuple(keys)))
    return joined


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
