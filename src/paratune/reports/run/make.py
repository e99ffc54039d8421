"""`make`: run folders to a report, which is written if a folder is given."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from paratune.config.targets import ScoreTarget
from paratune.reports.output import MARKER, check_folder, json_text, write_files
from paratune.reports.report_files import CSV, FILES, document_files
from paratune.reports.run.document import run_document
from paratune.reports.run.model import Report, build_report
from paratune.reports.runs.read import read_runs
from paratune.reports.runs.reproduce import KEY, reproduction_texts
from paratune.reports.text import csv_lines
from paratune.verdicts import Margin


def make(
    runs: Sequence[Path], out: Path | None, baseline: Path | None = None, targets: Sequence[ScoreTarget] = (),
    price: float | None = None, margins: Mapping[str, Margin] | None = None, wanted: Collection[str] = (),
) -> Report:  # fmt: skip
    """Compare finished runs, and write the report to `out`.

    Args:
        runs: Run folders in the order of the report; the others are compared with the first one.
        out: Folder for page, PDF, table.csv and report.json, created when absent; None writes nothing.
        baseline: Run folder with which the others are compared; shown first if it is not in `runs`.
        targets: Scores; the report shows when runs reached them.
        price: Price of a device-hour.
        margins: Differences that count as equal, by measure; `default_margin` for other measures.
        wanted: Files for a paper, too: "latex", "figures".

    Returns:
        The report; `files` lists the written files.

    Raises:
        CheckpointError: A folder is not a run, is damaged or has another schema version; no run is finished; or the
            files cannot be written.
        ConfigError: No run was evaluated by the metric of a target.
    """
    if out is not None:
        check_folder(out, list(FILES))
    folders = list(runs)
    if baseline is not None and baseline.resolve() not in [folder.resolve() for folder in folders]:
        folders.insert(0, baseline)
    report = build_report(read_runs(folders), baseline, targets, price, margins)
    if out is None:
        return report
    files = {**document_files(run_document(report), wanted=wanted), CSV: runs_csv(report)}
    report = replace(report, files=tuple(out / name for name in (*files, MARKER)))
    texts = {KEY: reproduction_texts(report.runs)}
    write_files(out, {**files, MARKER: json_text({**report.as_dict(), **texts})})
    return report


def runs_csv(report: Report) -> str:
    """Return a line for each run and a column for each figure, its unit last in the name; unknown values are empty."""
    columns = [[run.name for run in report.runs], [str(run.folder) for run in report.runs]]
    columns += [[cell.value for cell in row.cells] for row in report.rows]
    return csv_lines([["run", "folder", *(row.key for row in report.rows)], *zip(*columns, strict=True)])
