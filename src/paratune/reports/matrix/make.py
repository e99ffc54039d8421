"""`make_sweep`: folders of matrices to a report, which is written if a folder is given."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paratune.config.targets import ScoreTarget
from paratune.errors import ConfigError
from paratune.reports.matrix.document import matrix_document, matrix_sections, reproduced_runs
from paratune.reports.matrix.export import as_dict, matrix_csv
from paratune.reports.matrix.joined import read_joined
from paratune.reports.matrix.outcomes import SweepReport
from paratune.reports.matrix.planned import read_plan
from paratune.reports.output import CSV, FILES, MARKER, check_folder, document_files, json_text, write_files
from paratune.reports.runs.reproduce import KEY, reproduction_texts
from paratune.reports.systems.effects import axis_effects
from paratune.reports.systems.judging import judged
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
        plan: File of `paratune plan MATRIX --write`, shown next to published figures; for one matrix only.
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
    if plan is not None:
        report = replace(report, plan=_plan(report, plan))
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
    files = {
        **document_files(matrix_document(report), wanted=wanted),
        CSV: matrix_csv(report),
    }
    report = replace(report, files=tuple(out / name for name in (*files, MARKER)))
    texts = {KEY: reproduction_texts(reproduced_runs(report), report.matrices)}
    write_files(out, {**files, MARKER: json_text({**as_dict(report), **texts})})
    return report


def _plan(report: SweepReport, path: Path) -> dict[str, dict[str, float]]:
    if report.record.published is None:
        raise ConfigError(
            f"--plan {path}: a plan is shown next to published figures, and {report.record.name} has none; name a file "
            "of them in the matrix (published: FILE) and repeat paratune sweep, which trains no finished run again",
            code="cli.no_effect",
            option="--plan",
            path=path,
        )
    return read_plan(path, report.record.name)
