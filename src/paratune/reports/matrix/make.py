"""`make_sweep`: folders of matrices to a report, which is written if a folder is given.

Several matrices, such as one on several machines, are one in which the matrix is an axis.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from paratune.base.text import plain
from paratune.config.metric_names import ScoreTarget
from paratune.errors import CheckpointError, ConfigError
from paratune.records.sweep import Axis, SweepRecord
from paratune.reports.matrix.document import as_dict, matrix_csv, matrix_document, matrix_sections, reproduced_runs
from paratune.reports.matrix.outcomes import SweepReport, candidate_groups, read_outcomes
from paratune.reports.matrix.published import read_plan
from paratune.reports.output import CSV, FILES, check_folder, document_files, write_files
from paratune.reports.runs.reproduce import KEY, reproduction_texts
from paratune.reports.systems.configurations import MATRIX
from paratune.reports.systems.judging import axis_effects, judged
from paratune.reports.systems.layouts import check_layout
from paratune.verdicts import Margin


def make_sweep(
    folder: Path | Sequence[Path],
    out: Path | None,
    price: float | None = None,
    targets: Sequence[ScoreTarget] = (),
    plan: Path | None = None,
    margins: Mapping[str, Margin] | None = None,
    layout: str | None = None,
    wanted: Collection[str] = (),
) -> SweepReport:
    """Read a matrix of runs, and write its report to `out`.

    Args:
        folder: Folder of a matrix, with sweep.json; or those of several matrices.
        out: Folder for page, PDF, table.csv and report.json, created when absent; None writes nothing.
        price: Price of a device-hour; overrides that of the matrix.
        targets: Scores; the report shows when configurations reached them.
        plan: Output of `paratune plan MATRIX --json`, shown next to published figures; for one matrix only.
        margins: Differences that count as equal, by measure; `default_margin` for other measures.
        layout: Key of `paratune.reports.systems.layouts.LAYOUTS`: adds a table in the layout of a study.
        wanted: Files for a paper, too: "latex", "figures".

    Raises:
        ConfigError: No run was evaluated by the metric of a target; or a plan is given and the matrix has no published
            figures; or there is no such layout.
        CheckpointError: A folder or a plan has no matrix or a damaged one; or the files cannot be written.
    """
    if layout is not None:
        check_layout(layout)
    if out is not None:
        check_folder(out, list(FILES))
    report = read_joined([folder] if isinstance(folder, Path) else folder, price)
    if plan is not None and report.record.published is None:
        raise ConfigError(
            f"--plan {plan}: a plan is shown next to published figures, and {report.record.name} has none; name a file "
            "of them in the matrix (published: FILE) and repeat paratune sweep, which trains no finished run again",
            code="cli.no_effect",
            option="--plan",
            path=plan,
        )
    if plan is not None:
        report = replace(report, plan=read_plan(plan, report.record.name))
    if targets and not any(configuration.scored for configuration in report.measured):
        raise ConfigError(
            "--target needs runs with scores, and no run of the matrix has any",
            code="target.no_scores",
            option="--target",
        )
    verdicts, notes = judged(report, margins)
    effects = axis_effects(report, margins)
    report = replace(
        report, verdicts=verdicts, verdict_notes=notes, effects=effects, targets=tuple(targets), layout=layout
    )
    report = replace(report, sections=matrix_sections(report))
    if out is None:
        return report
    files = {**document_files(matrix_document(report), wanted=wanted), CSV: matrix_csv(report)}
    texts = {KEY: reproduction_texts(reproduced_runs(report), report.matrices)}
    return replace(report, files=write_files(out, files, {**as_dict(report), **texts}))


def read_joined(folders: Sequence[Path], price: float | None = None) -> SweepReport:
    """Read several matrices with the same axes as one; a single matrix unchanged except for the price.

    Each matrix has its own choices and its own baseline, because times of different matrices are not comparable. Each
    has its own price of a device-hour, unless `price` is that of all. Published figures are in the report of each.

    Raises:
        CheckpointError: One is absent, damaged, of another schema version, or named twice; their axes, baselines or the
            axes of the choice differ; a name has different values in two matrices.
    """
    reports = [read_outcomes(folder) for folder in folders]
    records = [report.record for report in reports]
    first = records[0]
    if len(reports) == 1:
        return replace(reports[0], record=first if price is None else replace(first, price_per_device_hour=price))
    paths = [folder.resolve().parts for folder in folders]
    if twice := [folder for folder, path in zip(folders, paths, strict=True) if paths.count(path) > 1]:
        raise CheckpointError(f"{plain(twice[0])} is given twice; name each matrix once", code="cli.named_twice")
    # As many parent folders as make the names unique.
    depth = next(depth for depth in count(1) if len({path[-depth:] for path in paths}) == len(paths))
    by_name = dict(zip(("/".join(path[-depth:]) for path in paths), reports, strict=True))
    axes = _joined_axes(folders, records)
    label = MATRIX if all(axis.label != MATRIX for axis in axes) else f"{MATRIX} folder"
    cell_runs = []
    for name, report in by_name.items():
        for item in report.cell_runs:
            cell = replace(item.cell, name=f"{name}/{item.cell.name}", values={label: name, **item.cell.values})
            cell_runs.append(replace(item, cell=cell, record=item.record and replace(item.record, name=cell.name)))
    record = replace(
        first,
        name=" + ".join(by_name),
        matrix=", ".join(own.matrix for own in records),
        matrix_text="\n".join(f"# {own.matrix}\n{own.matrix_text or '# n/a'}" for own in records),
        command=(),
        axes=(Axis(label, label, {name: name for name in by_name}, keys=(MATRIX,)), *axes),
        select_per=(label, *first.select_per),
        cells=tuple(item.cell for item in cell_runs),
        published=None,
        looks=tuple(
            replace(look, finished=tuple(f"{name}/{cell}" for cell in look.finished))
            for name, report in by_name.items()
            for look in report.record.looks
        ),
        past=(),
        order=(),
        price_per_device_hour=price,
    )
    own = {name: report.record.price_per_device_hour for name, report in by_name.items()}
    return SweepReport(
        record, tuple(cell_runs), prices=own if price is None else dict.fromkeys(own, price),
        folder=Path(os.path.commonpath([folder.resolve() for folder in folders])),
        groups=candidate_groups(record, cell_runs), joined=tuple(records),
    )  # fmt: skip


def _joined_axes(folders: Sequence[Path], records: Sequence[SweepRecord]) -> list[Axis]:
    """Return the axes with the values and the keys of all matrices.

    Raises:
        CheckpointError: Matrices differ in axes, baseline or selection, of which a report can follow only one; or a
            name has different values.
    """

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
