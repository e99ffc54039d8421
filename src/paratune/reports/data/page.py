"""The figures of a data set as files, and the page that shows them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records import read_json, write_json
from paratune.reports.document import ReportDocument, ReportSection
from paratune.reports.figures.canvas import Drawing, figure_files
from paratune.reports.page.document import document_html, made_by

GENERATOR = "paratune data"
LIST, PAGE = "figures.json", "index.html"


def check_figures_folder(folder: Path) -> None:
    """Check, before any work is done, that figures may be written to a folder.

    Raises:
        CheckpointError: It is a file, or contains files that are not the figures of an earlier call.
    """
    problem = ""
    if folder.exists() and not folder.is_dir():
        problem = "is a file; give --figures a folder, new or from an earlier call"
    elif folder.is_dir() and any(folder.iterdir()) and _earlier(folder) is None:
        problem = "contains files that no paratune data --figures wrote; give --figures another folder"
    if problem:
        raise CheckpointError(f"{plain(folder)} {problem}", code="output.foreign", folder=folder)


def write_figures(folder: Path, drawings: Sequence[Drawing], *, title: str, about: str) -> list[dict[str, Any]]:
    """Write each figure as SVG and PNG, the page, and the list of figures; replace the figures of an earlier call.

    Returns:
        For each picture its name, title, caption, note (why there is nothing to see, or null) and files.

    Raises:
        CheckpointError: The folder cannot be made or written to.
    """
    earlier = _earlier(folder) or []
    listed = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in earlier:
            (folder / name).unlink(missing_ok=True)
        for drawing in drawings:
            files = figure_files(drawing)
            for kind, content in files.items():
                (folder / f"{drawing.key}.{kind}").write_bytes(content)
            about_figure = {key: getattr(drawing, key) for key in ("title", "caption", "note")}
            listed.append({"name": drawing.key, **about_figure, "files": [f"{drawing.key}.{kind}" for kind in files]})
        (folder / PAGE).write_text(_page(drawings, title, about), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"the figures cannot be written to {plain(folder)}: {error.strerror}",
            code="output.not_writable",
            folder=folder,
        ) from error
    write_json(folder / LIST, {"generator": GENERATOR, "title": title, "figures": listed})
    return listed


def _earlier(folder: Path) -> list[str] | None:
    """Return the figure files of an earlier call; None when the folder has other contents."""
    try:
        value = read_json(folder / LIST)
    except CheckpointError:
        return None
    if not isinstance(value, dict) or value.get("generator") != GENERATOR:
        return None
    names = [name for entry in value.get("figures", []) for name in entry.get("files", [])]
    return [name for name in names if isinstance(name, str) and Path(name).name == name]


def _page(drawings: Sequence[Drawing], title: str, about: str) -> str:
    sections = (ReportSection(f"picture-{at}", drawing.title, (drawing,)) for at, drawing in enumerate(drawings))
    return document_html(ReportDocument(title, (about,), tuple(sections), made_by()))
