"""Writing the files of a report: all or none, and never over a file that is not a report's."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path

from paratune.errors import CheckpointError
from paratune.records import read_json
from paratune.report.model import GENERATOR
from paratune.text import plain

MARKER = "report.json"
"""Its presence, with our name in it, says that the report files of a folder are ours to replace."""


def check_folder(folder: Path, names: list[str]) -> None:
    """Make sure that files of these names may be written to `folder`, before any work is done.

    Raises:
        CheckpointError: It is a file, or holds files of these names that are not a report's.
    """
    if folder.exists() and not folder.is_dir():
        raise CheckpointError(f"{plain(folder)} is a file; give --out a folder, new or from an earlier report")
    there = [name for name in names if (folder / name).exists()]
    if there and not holds_report(folder):
        raise CheckpointError(
            f"{plain(folder)} holds {', '.join(there)} that no paratune report wrote; "
            "give --out another folder, or move them away"
        )


def write_files(folder: Path, texts: Mapping[str, str]) -> tuple[Path, ...]:
    """Write files whole or not at all: all aside first, then renamed, the marker first.

    Raises:
        CheckpointError: The folder cannot be made or written to; what was there before is unchanged.
    """
    aside = {name: folder / f".{name}.{os.getpid()}.tmp" for name in texts}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in aside.items():
            with path.open("w", encoding="utf-8", newline="\n") as file:
                file.write(texts[name])
                file.flush()
                os.fsync(file.fileno())
        for name in sorted(texts, key=lambda name: name != MARKER):
            aside[name].replace(folder / name)
    except OSError as error:
        raise CheckpointError(
            f"the report cannot be written to {plain(folder)}: {error.strerror}; give --out a folder with room that "
            "you may write to"
        ) from error
    finally:
        for path in aside.values():
            with contextlib.suppress(OSError):  # the folder may not exist
                path.unlink()
    return tuple(folder / name for name in texts)


def holds_report(folder: Path) -> bool:
    """Return whether the report files of a folder are ours to replace."""
    try:
        value = read_json(folder / MARKER)
    except (CheckpointError, OSError):
        return False
    return isinstance(value, dict) and value.get("generator") == GENERATOR
