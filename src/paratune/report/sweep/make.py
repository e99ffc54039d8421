"""From the folder of a matrix to its tables, written or not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paratune.config.targets import ScoreTarget
from paratune.errors import ConfigError
from paratune.report.canvas import can_draw, drawing_files
from paratune.report.make import FILES, PAGE, PAPER
from paratune.report.reproduce import reproduction_files
from paratune.report.section import ReportSection
from paratune.report.sweep.content import reproduced, sections_of
from paratune.report.sweep.export import to_csv, to_json, to_markdown
from paratune.report.sweep.joined import read_joined
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.sweep.page import to_html
from paratune.report.sweep.paper import sweep_pdf
from paratune.report.sweep.planned import PlannedCell, read_plan
from paratune.report.systems.judging import judged
from paratune.report.systems.model import build_systems
from paratune.report.table_files import table_files
from paratune.report.write import MARKER, check_folder, write_files
from paratune.verdicts import Margin


def make_sweep(
    folder: Path | Sequence[Path],
    out: Path | None,
    price: float | None = None,
    targets: Sequence[ScoreTarget] = (),
    plan: Path | None = None,
    margins: Mapping[str, Margin] | None = None,
    more: Callable[[SweepReport], ReportSection] | None = None,
) -> SweepReport:
    """Read a matrix of runs, and write its report where `out` says.

    Args:
        folder: Of the matrix, with sweep.json; or of several with the same axes.
        out: Folder for the page, the tables and what programs read, made when absent; None writes nothing.
        price: Of a device-hour, in place of the matrix's own.
        targets: Scores; when the configurations reached them is shown.
        plan: What `paratune plan MATRIX --write` wrote, to be shown beside published figures; of one matrix alone.
        margins: Differences that count as equal, by measure; `default_margin` for those that are absent.
        more: Makes a last section, of what is not in the records.

    Raises:
        ConfigError: No run was evaluated by the metric of a target; or nothing published of the matrix stands beside a
            plan.
        CheckpointError: A folder or a plan holds no matrix, or a damaged one; or the files cannot be written.
    """
    if out is not None:
        check_folder(out, list(FILES))
    report = read_joined([folder] if isinstance(folder, Path) else folder, price)
    if plan is not None:
        report = replace(report, plan=_plan(report, plan))
    systems = build_systems(report.folder, report.record, [outcome.folder for outcome in report.outcomes])
    found, notes = judged(systems, margins)
    if targets and not any(one.scored for one in systems.measured):
        raise ConfigError(
            "--target needs runs with scores, and no run of the matrix has any",
            code="target.no_scores",
            option="--target",
        )
    report = replace(report, systems=systems, verdicts=found, verdict_notes=notes, targets=tuple(targets))
    sections = (*sections_of(report), *([more(report)] if more is not None else []))
    report = replace(report, sections=sections)
    if out is None:
        return report
    files: dict[str, str | bytes] = {
        PAGE: to_html(report),
        "report.md": to_markdown(report),
        "report.csv": to_csv(report),
        **table_files(table for section in sections for table in section.tables),
        **drawing_files(drawing for section in sections for drawing in section.drawings),
        **reproduction_files(reproduced(report), report.matrices),
    }
    if can_draw() is None:
        files[PAPER] = sweep_pdf(report)
    report = replace(report, files=tuple(out / name for name in (*files, MARKER)))
    write_files(out, {**files, MARKER: to_json(report)})
    return report


def _plan(report: SweepReport, path: Path) -> dict[str, PlannedCell]:
    if report.record.published is None:
        raise ConfigError(
            f"--plan {path}: a plan is shown next to published figures, and {report.record.name} has none; name a file "
            "of them in the matrix (published: FILE) and repeat paratune sweep, which trains no finished run again",
            code="cli.no_effect",
            option="--plan",
            path=path,
        )
    return read_plan(path, report.record.name)
