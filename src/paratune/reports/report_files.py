"""The files of a report in every format."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from paratune.reports.document import ReportDocument
from paratune.reports.figures import canvas
from paratune.reports.figures.canvas import FOLDER, drawing_files
from paratune.reports.output import MARKER, json_text, write_files
from paratune.reports.page.document import document_html
from paratune.reports.pdf.document import can_typeset, document_pdf
from paratune.reports.tables.latex import latex_table
from paratune.reports.text import GENERATOR

PAGE, PDF, CSV = "index.html", "report.pdf", "table.csv"
FILES: Sequence[str] = (PAGE, PDF, CSV, MARKER)
"""Files that a folder with an earlier report has."""
LATEX, FIGURES = "latex", FOLDER
"""Files for a paper, which are written only if they are wanted: LaTeX tables, and figures as SVG."""


def document_files(document: ReportDocument, *, wanted: Collection[str] = ()) -> dict[str, str | bytes]:
    """Return the page and the PDF of a report by file name, and the `wanted` files for a paper.

    There is no PDF without the extra `plots`.
    """
    files: dict[str, str | bytes] = {PAGE: document_html(document)}
    if canvas.can_draw() is None and can_typeset():
        files[PDF] = document_pdf(document)
    if LATEX in wanted:
        files |= {f"tables/{table.key}.tex": latex_table(table) for table in document.tables}
    if FIGURES in wanted:
        files |= drawing_files(document.drawings)
    return files


def write_page(
    folder: Path, document: ReportDocument, kind: str, values: Mapping[str, Any], more: Mapping[str, str | bytes] = {}
) -> tuple[Path, ...]:
    """Write the page of a report, further files and report.json, all or none.

    Args:
        folder: Created if missing.
        document: The report.
        kind: Kind of the report in report.json.
        values: Further values of report.json.
        more: Further files by name.

    Raises:
        CheckpointError: The folder cannot be written to, or contains files of these names that are not a report's.
    """
    files: dict[str, str | bytes] = {PAGE: document_html(document), **more}
    names = [str(folder / name) for name in (*files, MARKER)]
    parts = {"generator": GENERATOR, "kind": kind, "files": names, **values}
    return write_files(folder, {**files, MARKER: json_text(parts)})
