"""The files of a report in every format."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paratune.reports.document import ReportDocument, document_markdown
from paratune.reports.figures import canvas
from paratune.reports.figures.canvas import drawing_files
from paratune.reports.output import MARKER, json_text, write_files
from paratune.reports.page.document import document_html
from paratune.reports.pdf.document import can_typeset, document_pdf
from paratune.reports.tables.csv import csv_table
from paratune.reports.tables.latex import latex_table
from paratune.reports.tables.markdown import markdown_table
from paratune.reports.tables.table import Table
from paratune.reports.text import GENERATOR

PAGE = "index.html"
PDF = "report.pdf"
FILES: Sequence[str] = (PAGE, PDF, "report.md", "report.csv", "report.json")
"""Files that a folder with an earlier report has."""


def document_files(document: ReportDocument, *, num_runs: int) -> dict[str, str | bytes]:
    """Return the page, Markdown, tables, figures and PDF of a report by file name; no PDF without the extra `plots`."""
    figures = drawing_files(document.drawings)
    files: dict[str, str | bytes] = {
        PAGE: document_html(document),
        "report.md": document_markdown(document),
        **table_files(document.tables),
        **figures,
    }
    if canvas.can_draw() is None and can_typeset():
        files[PDF] = document_pdf(document, figures, num_runs=num_runs)
    return files


def table_files(tables: Iterable[Table]) -> dict[str, str]:
    """Return the files of tables as Markdown, LaTeX and CSV, by file name below the folder of the report."""
    renderers = (("md", markdown_table), ("tex", latex_table), ("csv", csv_table))
    return {f"tables/{table.key}.{kind}": render(table) for table in tables for kind, render in renderers}


def write_page(
    folder: Path, document: ReportDocument, kind: str, values: Mapping[str, Any], pages: Mapping[str, str] = {}
) -> tuple[Path, ...]:
    """Write the page of a report, its figures (SVG, PNG), further pages and report.json, all or none.

    Args:
        folder: Created if missing.
        document: The report.
        kind: Kind of the report in report.json.
        values: Further values of report.json.
        pages: Text of further pages by file name.

    Raises:
        CheckpointError: The folder cannot be written to, or contains files of these names that are not a report's.
    """
    files: dict[str, str | bytes] = {PAGE: document_html(document), **pages, **drawing_files(document.drawings)}
    names = [str(folder / name) for name in (*files, MARKER)]
    parts = {"generator": GENERATOR, "kind": kind, "files": names, **values}
    return write_files(folder, {**files, MARKER: json_text(parts)})
