"""The pictures of a data set as files, and one page that shows them; nothing in it loads anything."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paratune import __version__
from paratune.base.text import plain
from paratune.errors import CheckpointError
from paratune.records import read_json, write_json
from paratune.report.canvas import Drawing, figure_files, page_figure
from paratune.report.page import page
from paratune.report.text import Html, tag

GENERATOR = "paratune data"
LIST, PAGE = "figures.json", "index.html"


def check_figures_folder(folder: Path) -> None:
    """Make sure that pictures may be written to a folder, before any work is done.

    Raises:
        CheckpointError: It is a file, or holds something that is no earlier set of such pictures.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(
            f"{plain(folder)} is a file; give --figures a folder, new or from an earlier call",
            code="output.foreign",
            folder=folder,
        )
    if folder.is_dir() and any(folder.iterdir()) and _earlier(folder) is None:
        raise CheckpointError(
            f"{plain(folder)} holds files that no paratune data --figures wrote; give --figures another folder",
            code="output.foreign",
            folder=folder,
        )


def write_pictures(folder: Path, pictures: Sequence[Drawing], *, title: str, about: str) -> list[dict[str, Any]]:
    """Write each picture as SVG and PNG, the page, and the list of them; pictures of an earlier call are replaced.

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
        for each in pictures:
            files = figure_files(each)
            for kind, content in files.items():
                (folder / f"{each.key}.{kind}").write_bytes(content)
            listed.append(
                {
                    "name": each.key,
                    "title": each.title,
                    "caption": each.caption,
                    "note": each.note,
                    "files": [f"{each.key}.{kind}" for kind in files],
                }
            )
        (folder / PAGE).write_text(_page(pictures, title, about), encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"the figures cannot be written to {plain(folder)}: {error.strerror}",
            code="output.not_writable",
            folder=folder,
        ) from error
    write_json(folder / LIST, {"generator": GENERATOR, "title": title, "figures": listed})
    return listed


def _earlier(folder: Path) -> list[str] | None:
    """Return the pictures that an earlier call left; None where the folder is not one of ours."""
    try:
        value = read_json(folder / LIST)
    except CheckpointError:
        return None
    if not isinstance(value, dict) or value.get("generator") != GENERATOR:
        return None
    names = [name for each in value.get("figures", []) for name in each.get("files", [])]
    return [name for name in names if isinstance(name, str) and Path(name).name == name]


def _page(pictures: Sequence[Drawing], title: str, about: str) -> str:
    sections = [_section(each, number) for number, each in enumerate(pictures)]
    footer = tag("footer", tag("p", f"Made by paratune {__version__}."))
    header = tag("header", tag("h1", title), tag("p", about, class_="lead"))
    return page(title, [header, *sections, footer], num_columns=1, first="picture-0")


def _section(picture: Drawing, number: int) -> Html:
    if picture.note is not None:
        return tag(
            "section", tag("h2", picture.title), tag("p", picture.note, class_="verdict"), id=f"picture-{number}"
        )
    svg = page_figure(picture, prefix=f"f{number}")
    region = tag("div", svg, class_="scroll", tabindex="0", role="region", aria_label=picture.title)
    figure = tag("figure", region, tag("figcaption", picture.caption))
    return tag("section", tag("h2", picture.title), figure, id=f"picture-{number}")
