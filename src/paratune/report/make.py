"""From run folders to a report, written or not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paratune.config.targets import ScoreTarget
from paratune.report.canvas import can_draw, drawing_files
from paratune.report.contents import contents, reproduced
from paratune.report.export import to_csv, to_json, to_markdown
from paratune.report.model import Report, build_report
from paratune.report.page import to_html
from paratune.report.read import read_runs
from paratune.report.reproduce import reproduction_files
from paratune.report.run_paper import run_pdf
from paratune.report.run_verdicts import run_verdicts
from paratune.report.table_files import table_files
from paratune.report.write import MARKER, check_folder, write_files
from paratune.verdicts import Margin

PAGE = "index.html"
PAPER = "report.pdf"
FILES = (PAGE, PAPER, "report.md", "report.csv", MARKER)


def make(
    runs: Sequence[Path],
    out: Path | None,
    baseline: Path | None = None,
    targets: Sequence[ScoreTarget] = (),
    price: float | None = None,
    margins: Mapping[str, Margin] | None = None,
) -> Report:
    """Compare finished runs, and write the report where `out` says.

    Args:
        runs: Run folders, in the order in which they are shown; the first is what others are compared with.
        out: Folder for the page, the tables, the figures and what programs read, made when absent; None writes nothing.
        baseline: Run folder whose figures the others are compared with in per cent; shown first where it is not among
            `runs`.
        targets: Scores; when runs reached them is shown.
        price: Of a device-hour, where it has one.
        margins: Differences that count as equal, by measure; `default_margin` for those that are absent.

    Returns:
        The report; `files` names what was written.

    Raises:
        CheckpointError: A folder is not a run, is damaged or of another schema version; no run is finished; or the
            files cannot be written.
        ConfigError: No run was evaluated by the metric of a target.
    """
    if out is not None:
        check_folder(out, list(FILES))
    folders = [Path(run) for run in runs]
    if baseline is not None and baseline.resolve() not in [folder.resolve() for folder in folders]:
        folders.insert(0, baseline)
    report = build_report(read_runs(folders), baseline, targets, price)
    verdicts, notes = run_verdicts(report, baseline, margins)
    report = replace(report, verdicts=verdicts, verdict_notes=notes)
    if out is None:
        return report
    found = contents(report)
    files: dict[str, str | bytes] = {
        PAGE: to_html(report, found),
        "report.md": to_markdown(report, found.tables.values()),
        "report.csv": to_csv(report),
        **table_files(found.tables.values()),
        **drawing_files(found.drawings),
        **reproduction_files(reproduced(found.report)),
    }
    if can_draw() is None:
        files[PAPER] = run_pdf(report, found)
    report = replace(report, files=tuple(out / name for name in (*files, MARKER)))
    write_files(out, {**files, MARKER: to_json(report)})
    return report
