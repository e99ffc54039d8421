"""The figures of a data set as files, and the page that shows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune.reports.document import ReportDocument, ReportSection
from paratune.reports.figures.canvas import FOLDER, Drawing, drawing_files
from paratune.reports.output import MARKER, PAGE, check_folder, write_page
from paratune.reports.page.document import made_by


def check_figures_folder(folder: Path) -> None:
    """Raise a CheckpointError if figures may not be written to a folder, because others have written it."""
    check_folder(folder, [PAGE, MARKER], option="--figures")


def write_figures(folder: Path, drawings: Sequence[Drawing], *, title: str, about: str) -> list[dict[str, Any]]:
    """Write each figure as SVG, the page, and report.json with a list of them; replace those of an earlier call.

    Returns:
        For each picture its name, title, caption, note (why there is nothing to see, or null) and file, or null.
    """
    files = drawing_files(drawings)
    listed = []
    for drawing in drawings:
        file = f"{FOLDER}/{drawing.key}.svg"
        entry = {"name": drawing.key, "title": drawing.title, "caption": drawing.caption, "note": drawing.note}
        listed.append({**entry, "file": file if file in files else None})
    # All in one section: a page shows them side by side.
    document = ReportDocument(title, (about,), (ReportSection("data", "Figures", tuple(drawings)),), made_by())
    write_page(folder, document, "data", {"title": title, "figures": listed}, files)
    return listed
