"""The files of a report in every format, written all or none, and never over other files."""

import contextlib
import json
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from paratune.base.atomic import delete_remains, sync, temporary_path
from paratune.base.text import listing, plain
from paratune.errors import CheckpointError, MissingDependency
from paratune.records import finite, read_json
from paratune.reports.document import ReportDocument
from paratune.reports.figures import canvas
from paratune.reports.page.document import document_html
from paratune.reports.pdf.document import document_pdf
from paratune.reports.tables.latex import latex_table
from paratune.reports.tables.table import Table
from paratune.reports.text import GENERATOR

PAGE, PDF, CSV = "index.html", "report.pdf", "table.csv"
MARKER = "report.json"  # a folder whose report.json has our name contains a report that may be replaced
FILES: Sequence[str] = (PAGE, PDF, CSV, MARKER)  # files that a folder with an earlier report has
LATEX, FIGURES = "latex", canvas.FOLDER
"""Files for a paper, which are written only if they are wanted: LaTeX tables, and figures as SVG."""
_OURS = re.compile(
    r"index\.html|(table|slices)\.csv|report\.(json|pdf)|tables/[\w.-]+\.tex|figures/[\w.-]+\.svg|essays/[\w.-]+\.html"
)
"""Names of the files of a report."""


def document_files(document: ReportDocument, *, wanted: Collection[str] = ()) -> dict[str, str | bytes]:
    """Return the page and the PDF of a report by file name, and the `wanted` files for a paper.

    There is no PDF without the extra `plots`.
    """
    files: dict[str, str | bytes] = {PAGE: document_html(document)}
    if canvas.can_draw() is None:
        with contextlib.suppress(MissingDependency):  # without typst
            files[PDF] = document_pdf(document)
    if LATEX in wanted:
        tables = [part for part in document.parts if isinstance(part, Table)]
        files |= {f"tables/{table.key}.tex": latex_table(table) for table in tables}
    if FIGURES in wanted:
        files |= canvas.drawing_files(part for part in document.parts if isinstance(part, canvas.Drawing))
    return files


def write_page(
    folder: Path, document: ReportDocument, kind: str, values: Mapping[str, Any], more: Mapping[str, str | bytes] = {}
) -> tuple[Path, ...]:
    """Write the page of a report, `more` files by name, and report.json with its kind and values; see `write_files`."""
    values = {"generator": GENERATOR, "kind": kind, "files": [], **values}
    return write_files(folder, {PAGE: document_html(document), **more}, values)


def check_folder(folder: Path, names: Iterable[str], option: str = "--out") -> None:
    """Check, before any work is done, that files of these names may be written to `folder`.

    Raises:
        CheckpointError: It is a file, or contains files of these names that are not an earlier report's.
    """
    if folder.exists() and not folder.is_dir():
        message = f"{plain(folder)} is a file; give {option} a folder, new or from an earlier report"
        raise CheckpointError(message, code="output.foreign", folder=folder)
    earlier = _files_of_report(folder)
    if present := [name for name in names if name not in earlier and (folder / name).exists()]:
        remedy = f"give {option} another folder, or move them away"
        message = f"{plain(folder)} holds {listing(present, 5)} that paratune did not write; {remedy}"
        raise CheckpointError(message, code="output.foreign", folder=folder)


def write_files(folder: Path, files: Mapping[str, str | bytes], values: Mapping[str, Any]) -> tuple[Path, ...]:
    """Write all files or none: first under temporary names, then renamed, the marker first.

    Files of an earlier report that this one does not have are removed; other files stay.

    Args:
        files: Contents by name, which may contain folders.
        values: Contents of report.json, which lists the files, too.

    Raises:
        CheckpointError: The folder cannot be created or written to, or contains files of these names that are not a
            report's; the earlier files are unchanged.
    """
    check_folder(folder, [*files, MARKER])
    paths = tuple(folder / name for name in (*files, MARKER))
    text = json.dumps(finite({**values, "files": [*map(str, paths)]}), indent=1, default=str)
    contents = {**files, MARKER: f"{text}\n"}
    aside, is_new, earlier = temporary_path(folder / "report"), not folder.exists(), _files_of_report(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        delete_remains(folder, name="report")
        for name, content in contents.items():
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            (aside / name).write_bytes(content.encode() if isinstance(content, str) else content)
            sync(aside / name)
        # The marker first: if the process dies between two renames, the next report may replace the folder.
        for name in sorted(contents, key=lambda name: name != MARKER):
            (folder / name).parent.mkdir(exist_ok=True)
            (aside / name).replace(folder / name)
        for path in (folder / name for name in earlier - set(contents)):
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # not empty
                path.parent.rmdir()
    except OSError as error:
        if is_new:
            shutil.rmtree(folder, ignore_errors=True)
        message = (
            f"the report cannot be written to {plain(folder)}: {error.strerror}; give --out a folder with room that "
            "you may write to"
        )
        raise CheckpointError(message, code="output.not_writable", folder=folder) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return paths


def _files_of_report(folder: Path) -> set[str]:
    """Return the names of the files of an earlier report, from its report.json; none if there is no such report."""
    try:
        value = read_json(folder / MARKER)
    except (CheckpointError, OSError):
        return set()
    if not isinstance(value, dict) or value.get("generator") != GENERATOR:
        return set()
    listed = value.get("files")
    paths = [Path(path) for path in listed if isinstance(path, str)] if isinstance(listed, list) else []
    base = next((path.parent for path in paths if path.name == MARKER), None)
    names = {path.relative_to(base).as_posix() for path in paths if base is not None and path.is_relative_to(base)}
    # Anyone may have edited the list: delete no file outside of the folder or of another kind.
    return {name for name in names if _OURS.fullmatch(name)} | {MARKER}
