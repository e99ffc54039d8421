"""The format of a publication: a folder, or a zip of it, that others can check. Everything in it is data.

DIR/
  publication.json   this module's `Publication`: claims, starting points, and the SHA-256 of all other files
  index.html         the page for people
  constraints.txt    versions of packages, for pip
  sweep.json         of a matrix, with matrix.yaml and configs/; `paratune report DIR` reads it
  runs/NAME/         run.json, summary.json, events of rank 0 and predictions of each run; no model, no texts
  report/, tables/   the report, and each of its tables as CSV and LaTeX
  checkpoints/NAME/  later starting points
  inputs/0/          data and models, where they were asked for
"""

import lzma
import os
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paratune.base.scratch import scratch_folder
from paratune.base.text import plain
from paratune.base.units import GIB, MIB, format_bytes
from paratune.errors import CheckpointError
from paratune.hub.bundle import BundledFile, hash_file, name_problem
from paratune.records import CHECKPOINTS_FOLDER, read_object
from paratune.records.sweep import RUNS_FOLDER
from paratune.reports.runs.machine import value_text

FILE, PAGE, CONSTRAINTS, NAME_LENGTH = "publication.json", "index.html", "constraints.txt", 300
MAX_JSON_BYTES, NUM_STEPS = 64 * MIB, 3
INPUT = re.compile(
    r"data\.(train|validation|test)|data\.(extra|predict)\.[\w-]+|model\.(name|tokenizer)|distil\.teacher"
)
"""Keys of data and models, which may be in other places: what they contain is compared by hashes."""
_DEMO = re.compile(r"demo:[\w-]+")
_REMEDY = "ask its author for another copy"
_Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
_Number = Annotated[float, Field(ge=-1e60, le=1e60)]
_Values = Annotated[tuple[_Number | None, ...], Field(min_length=1, max_length=NUM_STEPS)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False, protected_namespaces=())


class Reference(_Part):
    """The first steps in one process without dropout, in the most exact precision of the machine: see `certify`."""

    precision: Literal["fp64", "fp32", "tf32", "bf16", "fp16"]
    rows: Annotated[tuple[tuple[int, ...], ...], Field(min_length=1, max_length=NUM_STEPS)]  # samples of each step
    losses: _Values
    grad_norms: _Values
    weights: dict[str, _Hash]  # SHA-256 of each tensor before the first step
    norms: dict[str, _Number]  # of the gradient of each tensor in the first step


class StartingPoint(_Part):
    """A starting point of a run, and what its next steps give."""

    run: str
    step: Annotated[int, Field(ge=0)] = 0  # 0: the initial weights; else those of a checkpoint
    losses: _Values
    grad_norms: _Values
    weights: tuple[dict[str, _Hash], ...]  # SHA-256 of each tensor after each step
    repeated: Literal["equal", "within the bound"]  # by the author, against the record of the run
    reason: str | None = None  # why it is not equal, or why there is no reference
    reference: Reference | None = None  # of a start from the initial weights
    inputs: dict[str, str | list[str]] = {}  # paths in the folder by dotted key of the configuration

    @property
    def checkpoint(self) -> str | None:
        """The folder of the checkpoint, in the publication."""
        return f"{CHECKPOINTS_FOLDER}/{self.run}/step_{self.step:06d}" if self.step else None


class RunFacts(_Part):
    """What a run of the publication trained: a copy of fields of its run.json."""

    run: str
    configuration: str
    seed: int | None
    strategy: str | None
    precision: str | None
    world_size: int | None
    config: _Hash | None  # `trained_fingerprint`
    initial_weights: str | None
    data: dict[str, str | None]  # SHA-256 of each split
    versions: dict[str, str | None]


class ReportedClaim(_Part):
    """A result of the report: of a configuration against its baseline in one measure, or one that the matrix names."""

    claim: str
    configuration: str  # of an axis, with the values of the other ones; of a named claim its text
    baseline: str
    measure: str
    result: Literal["holds", "does not hold", "cannot tell"]
    outcome: Literal["better", "worse", "equal", "cannot tell", "named"]
    change: float | None = None
    low: float | None = None
    high: float | None = None
    runs: tuple[str, ...] = ()


class Publication(_Part):
    """publication.json."""

    schema_version: Literal[1] = 1
    generator: Literal["paratune publish"] = "paratune publish"
    name: str
    author: str | None = None
    created: str
    versions: dict[str, str | None]
    hardware: list[dict[str, object]]
    runs: tuple[RunFacts, ...]
    starts: tuple[StartingPoint, ...]
    claims: tuple[ReportedClaim, ...]
    left_out: tuple[str, ...] = ()
    files: tuple[BundledFile, ...]


@contextmanager
def opened(path: Path) -> Iterator[tuple[Path, Publication, tuple[str, ...]]]:
    """Yield the folder of a publication, which for a zip is a temporary one, its content, and problems of its files.

    Raises:
        CheckpointError: It is no publication, of another version, or not safe to read.
    """
    if path.is_dir():
        yield path, *_checked(path)
        return
    if not path.is_file() or not zipfile.is_zipfile(path):
        what = "is neither a folder nor a zip file" if path.exists() else "does not exist"
        raise CheckpointError(f"{plain(path)} {what}; {_REMEDY}", code="publication.damaged", path=path)
    with scratch_folder() as scratch:
        try:
            others = _extract(path, scratch)
        except CheckpointError:
            raise
        # zipfile raises these for a damaged file, and for one with a password or another method of compression.
        except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, RuntimeError, EOFError, OSError, ValueError) as error:
            message = f"{plain(path)} cannot be unpacked: {error}; {_REMEDY}"
            raise CheckpointError(message, code="publication.damaged", path=path) from error
        found, problems = _checked(scratch)
        yield scratch, found, (*problems, *(f"{plain(name)} is not a part of the publication" for name in others))


def _extract(path: Path, folder: Path) -> list[str]:
    """Unpack the files that publication.json lists, with their sizes; they may be in one folder of the zip.

    Returns:
        The names of other files, which are not unpacked, without those that a Mac adds.
    """
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: entry for entry in archive.infolist() if not entry.is_dir()}
        tops = [name.removesuffix(FILE) for name in entries if PurePosixPath(name).name == FILE]
        if not tops:
            raise CheckpointError(f"{plain(path)} has no {FILE}; {_REMEDY}", code="publication.damaged", path=path)
        top = min(tops, key=len)
        _copy(archive, entries[top + FILE], folder / FILE, MAX_JSON_BYTES, path)
        files = {top + file.name: file for file in _read(folder).files}
        free = max(0, shutil.disk_usage(folder).free - GIB)
        if (total := sum(file.num_bytes for name, file in files.items() if name in entries)) > free:
            raise _unsafe(path, f"has {format_bytes(total)}, and {format_bytes(free)} are free in {folder.parent}")
        for name, file in files.items():
            if name in entries and entries[name].file_size == file.num_bytes:
                _copy(archive, entries[name], folder / file.name, file.num_bytes, path)
    known = ("__MACOSX/", ".DS_Store")
    return [name for name in entries if name not in (*files, top + FILE) and not name.startswith(known[0])
            and not name.endswith(known[1])]  # fmt: skip


def _copy(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, target: Path, most: int, path: Path) -> None:
    """Unpack a file; a size that is not true is refused before the disk is full."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with archive.open(entry) as source, target.open("xb") as out:
        while chunk := source.read(MIB):
            if (most := most - len(chunk)) < 0:
                raise _unsafe(path, f"has more bytes in {entry.filename!r} than are allowed")
            out.write(chunk)


def _checked(folder: Path) -> tuple[Publication, tuple[str, ...]]:
    """Return the content of a publication, and the problems of its files: missing, changed, or not listed."""
    found, problems = _read(folder), list[str]()
    listed = {file.name: file for file in found.files}
    for at, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(at) / name
            inner, mode = path.relative_to(folder).as_posix(), path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise _unsafe(folder, f"contains {inner!r}, which is a link or a device")
            is_record = path.suffix == ".json" and not inner.startswith("inputs/")
            if is_record and path.stat().st_size > MAX_JSON_BYTES:
                raise _unsafe(folder, f"has more than {format_bytes(MAX_JSON_BYTES)} in {inner!r}")
            if name in names and inner != FILE and inner not in listed:
                problems.append(f"{plain(inner)} is not a part of the publication")
    for name, file in listed.items():
        if not (folder / name).is_file():
            problems.append(f"{plain(name)} is missing")
        elif hash_file(folder / name, name) != file:
            problems.append(f"{plain(name)} was changed: its SHA-256 is not that of the publication")
    return found, tuple(problems)


def _read(folder: Path) -> Publication:
    path = folder / FILE
    if not path.is_file() or path.is_symlink():
        message = f"{plain(folder)} is no publication: it has no {FILE}; make one with paratune publish"
        raise CheckpointError(message, code="publication.damaged", path=folder)
    if path.stat().st_size > MAX_JSON_BYTES:
        raise _unsafe(folder, f"has more than {format_bytes(MAX_JSON_BYTES)} in {FILE}")
    try:
        found = Publication.model_validate(read_object(path, _REMEDY))
        known = {run.run for run in found.runs}
        starts = {(start.run, start.step) for start in found.starts}
        if len(known) < len(found.runs) or len(starts) < len(found.starts) or {run for run, _ in starts} - known:
            raise ValueError("a run or a starting point is there twice, or the run of a starting point is not")
        for start in found.starts:
            if not len(start.losses) == len(start.grad_norms) == len(start.weights):
                raise ValueError(f"starts: the steps of {start.run} have other numbers of losses, norms and weights")
    except ValueError as error:
        why = str(error)
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            why = f"{'.'.join(map(str, first['loc'])) or 'it'}: {first['msg']}"
        message = f"{plain(path)} is damaged: {plain(why)}; {_REMEDY}"
        raise CheckpointError(message, code="publication.damaged", path=path) from error
    inputs = [pair for start in found.starts for pair in start.inputs.items()]
    if keys := [key for key, _ in inputs if INPUT.fullmatch(key) is None]:
        raise _unsafe(folder, f"sets {keys[0]!r}, which is no place of data or models")
    paths = [one for _, value in inputs for one in (value if isinstance(value, list) else [value])]
    names = [
        *(file.name for file in found.files),
        *(one.partition("#")[0] for one in paths if not _DEMO.fullmatch(one)),
    ]
    names += [f"{RUNS_FOLDER}/{run}" for run in (*(one.run for one in found.runs), *(one.run for one in found.starts))]
    if unsafe := [name for name in names if name_problem(name, NAME_LENGTH) is not None]:
        raise _unsafe(folder, f"names {unsafe[0]!r}, which is no plain path in it")
    return found


def _unsafe(path: Path, problem: str) -> CheckpointError:
    message = f"{plain(path)} {plain(problem)}; nothing of it was used"
    return CheckpointError(message, code="publication.unsafe", path=path)


def differing(recorded: Mapping[str, object], own: Mapping[str, object], where: str = "here") -> list[str]:
    """Return what differs between two groups of facts as texts such as "torch 2.11, here 2.13"."""
    return [
        f"{key} {plain(value_text(value))}, {where} {plain(value_text(own.get(key)))}"
        for key, value in recorded.items()
        if value != own.get(key)
    ]
