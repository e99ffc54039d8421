"""Reads the finished stages of a work folder, in order, with their totals."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from paratune.base.text import plain
from paratune.corpus.shard import dropped_file, part_file
from paratune.corpus.stage import STAGE_FILE, finished_record
from paratune.errors import CheckpointError, ParatuneError

PATTERNS = ("[0-9]_*", "[0-9]_*/[0-9]_*", "1_index/read", "6_store/documents", "6_store/sentences")
"""Folders of stages and steps that keep and drop rows; other folders are intermediate results."""


@dataclass(frozen=True)
class FinishedStage:
    """A finished stage, or a finished step of a stage."""

    name: str
    """`index`; `index/read` for a step."""
    folder: Path
    totals: dict[str, Any]
    """Content of stage.json."""
    is_stale: bool
    """Whether it was made from an older output of the previous stage."""

    @property
    def parts(self) -> list[Path]:
        """Tables of kept rows."""
        return [self.folder / part_file(number) for number in range(self.totals["shards"])]

    @property
    def dropped(self) -> list[Path]:
        """Tables of dropped rows."""
        return [self.folder / dropped_file(number) for number in range(self.totals["shards"])]


def finished_stages(work: Path) -> list[FinishedStage]:
    """Return the finished stages of a work folder; the steps of a stage come before it.

    Raises:
        CheckpointError: No stage is finished, or a record is damaged.
    """
    stages: list[FinishedStage] = []
    outputs: list[str] = []
    for folder in _folders_with(STAGE_FILE, work):
        totals = finished_record(folder)
        if "fingerprint" not in totals:  # the sum of its steps
            continue
        # The first stage reads files, which have no fingerprint.
        source = json.dumps(totals["input"])
        is_first = folder.relative_to(work).parts[0].startswith("1_")
        is_stale = not is_first and not any(output in source for output in outputs)
        if not is_stale:
            outputs.append(totals["output"])
        stages.append(FinishedStage(_name(folder.relative_to(work)), folder, totals, is_stale))
    if not stages:
        message = f"{plain(work)} has no finished stage of a corpus; run paratune corpus CONFIG first"
        raise CheckpointError(message, code="corpus.not_finished", folder=work)
    return stages


@contextmanager
def name_damaged_table(work: Path) -> Iterator[None]:
    """Replace errors of libraries on a damaged table by an error that names the table.

    Raises:
        CheckpointError: A table of the work folder is damaged.
    """
    try:
        yield
    except ParatuneError:
        raise
    except Exception as error:  # pyarrow and DuckDB raise many types
        for path in sorted(work.rglob("*.parquet")):
            try:
                pq.read_metadata(path)
            except (pa.ArrowException, OSError) as damage:
                message = f"{plain(path)} is damaged: {plain(damage)}; delete its folder and repeat the command"
                raise CheckpointError(message, code="corpus.damaged", path=path) from error
        raise


def _folders_with(file: str, work: Path) -> list[Path]:
    """Return the folders of stages and steps with a file, the steps before their stage."""

    def order(folder: Path) -> tuple[str, bool, str]:
        parts = folder.relative_to(work).parts
        return parts[0], len(parts) == 1, folder.name

    return sorted((path.parent for pattern in PATTERNS for path in work.glob(f"{pattern}/{file}")), key=order)


def _name(folder: Path) -> str:
    """Return `clean/language` for 4_clean/2_language."""
    return "/".join(part.partition("_")[2] if part[0].isdigit() else part for part in folder.parts)
