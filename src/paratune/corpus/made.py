"""What a work folder holds: the stages that are finished, in their order, with their totals."""

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
from paratune.corpus.stage import BEGUN_FILE, STAGE_FILE, finished_record
from paratune.errors import CheckpointError, ParatuneError

PATTERNS = ("[0-9]_*", "[0-9]_*/[0-9]_*", "1_index/read", "6_store/documents", "6_store/sentences")
"""Where stages and steps are that keep and drop rows; other folders are what a stage works with."""


@dataclass(frozen=True)
class Made:
    """A finished stage, or a step of one."""

    name: str
    """`index`, or of a step `index/read`."""
    folder: Path
    totals: dict[str, Any]
    """As in stage.json."""
    is_stale: bool
    """Whether it was made from what the stages before it kept at an earlier time."""

    @property
    def parts(self) -> list[Path]:
        """The tables of what it kept."""
        return [self.folder / part_file(number) for number in range(self.totals["shards"])]

    @property
    def dropped(self) -> list[Path]:
        """The tables of what it dropped."""
        return [self.folder / dropped_file(number) for number in range(self.totals["shards"])]


def finished_stages(work: Path) -> list[Made]:
    """Return the finished stages of a work folder; the steps of a stage stand before it.

    Raises:
        CheckpointError: There are none, or a record is damaged.
    """
    folders = [path.parent for pattern in PATTERNS for path in work.glob(f"{pattern}/{STAGE_FILE}")]
    found: list[Made] = []
    outputs: list[str] = []
    for folder in sorted(folders, key=lambda each: _order(each.relative_to(work))):
        totals = finished_record(folder)
        if "fingerprint" not in totals:  # sums its steps up
            continue
        # The first reads files, which have no fingerprint of ours.
        source = json.dumps(totals["input"])
        is_first = folder.relative_to(work).parts[0].startswith("1_")
        is_stale = not is_first and not any(output in source for output in outputs)
        if not is_stale:
            outputs.append(totals["output"])
        found.append(Made(_name(folder.relative_to(work)), folder, totals, is_stale))
    if not found:
        raise CheckpointError(
            f"{plain(work)} holds no finished stage of a corpus; run paratune corpus CONFIG first",
            code="corpus.not_finished",
            folder=work,
        )
    return found


def stages_at_work(work: Path) -> list[tuple[str, Path]]:
    """Return name and folder of the stages and steps that have been begun and are not finished, and have shards."""
    folders = [path.parent for pattern in PATTERNS for path in work.glob(f"{pattern}/{BEGUN_FILE}")]
    return [
        (_name(folder.relative_to(work)), folder)
        for folder in sorted(folders, key=lambda each: _order(each.relative_to(work)))
        if not (folder / STAGE_FILE).exists() and next(folder.glob("counts-*.json"), None) is not None
    ]


@contextmanager
def naming_damage(work: Path) -> Iterator[None]:
    """Say of a table that cannot be read which it is and what to do, in place of what the library says of its bytes.

    Raises:
        CheckpointError: A table of the work folder is damaged.
    """
    try:
        yield
    except ParatuneError:
        raise
    except Exception as error:  # pyarrow and DuckDB have many for it
        for path in sorted(work.rglob("*.parquet")):
            try:
                pq.read_metadata(path)
            except (pa.ArrowException, OSError) as damage:
                raise CheckpointError(
                    f"{plain(path)} is damaged: {plain(damage)}; delete its folder, and the same command makes it anew",
                    code="corpus.damaged",
                    path=path,
                ) from error
        raise


def _order(folder: Path) -> tuple[str, bool, str]:
    return folder.parts[0], len(folder.parts) == 1, folder.name


def _name(folder: Path) -> str:
    """Return `clean/language` for 4_clean/2_language."""
    return "/".join(part.partition("_")[2] if part[0].isdigit() else part for part in folder.parts)
