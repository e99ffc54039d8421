"""From the folder of a matrix to its tables, written or not."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from paratune.config.targets import ScoreTarget
from paratune.errors import ConfigError
from paratune.report.canvas import can_draw, drawing_files
from paratune.report.make import FILES, PAGE, PAPER
from paratune.report.section import ReportSection
from paratune.report.sweep.content import sections_of
from paratune.report.sweep.export import to_csv, to_json, to_markdown
from paratune.report.sweep.joined import read_joined
from paratune.report.sweep.outcomes import SweepReport
from paratune.report.sweep.page import to_html
from paratune.report.sweep.paper import sweep_pdf
from paratune.report.systems.judging import judged
from paratune.report.systems.model import build_systems
from paratune.report.table_files import table_files
from paratune.report.write import MARKER, check_folder, write_files


def make_sweep(
    folder: Path | Sequence[Path],
    out: Path | None,
    price: float | None = None,
    targets: Sequence[ScoreTarget] = (),
    more: Callable[[SweepReport], ReportSection] | None = None,
) -> SweepReport:
    """Read a matrix of runs, and write its report where `out` says.

    Args:
        folder: Of the matrix, with sweep.json; or of several with the same axes.
        out: Folder for the page, the tables and what programs read, made when absent; None writes nothing.
        price: Of a device-hour, in place of the matrix's own.
        targets: Scores; when the configurations reached them is shown.
        more: Makes a last section, of what is not in the records.

    Raises:
        ConfigError: No run was evaluated by the metric of a target.
        CheckpointError: A folder holds no matrix, or a damaged one; axes of several differ; or the files cannot be
            written.
    """
    if out is not None:
        check_folder(out, list(FILES))
    report = read_joined([folder] if isinstance(folder, Path) else folder, price)
    systems = build_systems(report.folder, report.record, [outcome.folder for outcome in report.outcomes])
    found, notes = judged(systems)
    if targets and not any(one.scored for one in systems.measured):
        raise ConfigError(
            "--target asks when runs reached a score, and no run of the matrix has scores",
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
    }
    if can_draw() is None:
        files[PAPER] = sweep_pdf(report)
    report = replace(report, files=tuple(out / name for name in (*files, MARKER)))
    write_files(out, {**files, MARKER: to_json(report)})
    return report
